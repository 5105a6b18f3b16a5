//! System calls that a program makes with its own instructions, beside calls of the C library on
//! the same sockets.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, compile_cargo, compile_cgo, compile_plain, locate, ports, source};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program that connects to itself, on Weft and on the kernel, and expects the same output.
fn as_on_the_kernel(program: &Path, bytes_min: u64) -> Result<Finished> {
    let sockets = Sockets::new(Ends::Both)?;
    let plain = sockets.plain(program).run(TIMEOUT)?.success()?;
    let ours = sockets.server(program).env("WEFT_LOG", "info").run(TIMEOUT)?.success()?;
    ensure!(ours.stdout == plain.stdout, ours.complaint("not as on the kernel"));
    ensure!(ours.stderr.contains("shared memory"), ours.complaint("not in memory"));
    sockets.check(bytes_min)?;
    Ok(ours)
}

#[test]
fn calls_by_hand_do_what_those_of_the_c_library_do() -> Result<()> {
    let ours = as_on_the_kernel(&compile_plain("by_hand")?, 4_000_000)?;
    ensure!(ours.stderr.contains("ring: EPERM"), ours.complaint("io_uring is not refused"));
    Ok(())
}

#[test]
fn go_with_c_calls_by_hand_on_small_stacks() -> Result<()> {
    as_on_the_kernel(&compile_cgo("by_hand")?, 1_000_000).map(drop)
}

#[test]
fn python_calls_by_an_instruction_in_memory_of_its_own() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let python = sockets.server(locate("python3")?).arg(source("programs/by_hand.py"));
    python.run(TIMEOUT)?.success()?.said("done")?;
    sockets.check(1_000)
}

/// smol's reactor and rustix make system calls directly; std makes them through the C library.
#[test]
fn smol_echoes() -> Result<()> {
    const BYTES: u64 = 3_000_000;
    const CLIENTS: u64 = 2;
    let program = compile_cargo("smol-echo")?;
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let port = ports::next().to_string();
        let serve = sockets.server(&program).args(["serve", &port]).arg(CLIENTS.to_string());
        let mut serve = serve.start()?.listening(Port::Tcp(port.parse()?))?;
        let connect = sockets.client(&program).args(["connect", &port]).arg(BYTES.to_string());
        let clients: Vec<_> = (0..CLIENTS).map(|_| connect.start()).collect::<Result<_>>()?;
        for client in clients {
            let ended = client.wait(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(serve.account()));
            ended?.said(&format!("echoed {BYTES}")).with_context(|| format!("{ends:?}"))?;
        }
        serve.wait(TIMEOUT)?.success()?;
        sockets.check(CLIENTS * BYTES / 2)?;
    }
    Ok(())
}

/// If Weft cannot see system calls that bypass the C library, connections stay on TCP, unless the
/// user declares that the program makes none.
#[test]
fn without_reports_connections_stay_on_tcp() -> Result<()> {
    let program = compile_plain("without_reports")?;
    let run = |trust: bool| -> Result<Finished> {
        let sockets = Sockets::new(Ends::Both)?;
        let mut run = sockets.server(&program).arg(&program).env("WEFT_LOG", "info");
        if trust {
            run = run.env("WEFT_SOCKETS_BY_HAND", "trust");
        }
        run.run(TIMEOUT)?.success()?.said("line")
    };
    let watched = run(false)?;
    ensure!(!watched.stderr.contains("shared memory"), watched.complaint("in memory"));
    ensure!(
        watched.stderr.contains("calls by hand cannot be seen"),
        watched.complaint("not reported")
    );
    let trusted = run(true)?;
    ensure!(trusted.stderr.contains("shared memory"), trusted.complaint("not in memory"));
    Ok(())
}
