//! System calls that a program makes with its own instructions, beside calls of the C library on
//! the same sockets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{
    Finished, Program, Stage, compile_cargo, compile_cgo, compile_library, compile_plain, locate,
    note_skip, ports, scratch, source,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program that connects to itself, on Weft and on the kernel, and expects the same output.
fn as_on_the_kernel(program: &Path, bytes_min: u64) -> Result<Finished> {
    let sockets = Sockets::new(Ends::Both)?;
    let plain = sockets.plain(program).run(TIMEOUT)?.success()?;
    let ours = sockets.server(program).env("WEFT_LOG", "info").run(TIMEOUT)?.success()?;
    let ours = ours.expect_lines(&plain.stdout).context("not as on the kernel")?;
    ensure!(ours.stderr.contains("shared memory"), ours.error("not in memory"));
    sockets.check(bytes_min)?;
    Ok(ours)
}

#[test]
fn calls_by_hand_do_what_those_of_the_c_library_do() -> Result<()> {
    let ours = as_on_the_kernel(&compile_plain("by_hand")?, 4_000_000)?;
    ensure!(ours.stderr.contains("ring: EPERM"), ours.error("io_uring is not refused"));
    Ok(())
}

/// Threads that exist and threads that begin are made to report their calls meanwhile.
fn arm(processes: u64) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = sockets.server(compile_plain("arming")?).arg(processes.to_string());
    let ended = program.run(TIMEOUT * 4)?.success()?;
    ended.expect_output(&format!("0 of {processes} processes lost calls"))?;
    sockets.check(processes)
}

#[test]
fn no_call_by_hand_is_lost_while_a_process_gets_its_first_socket() -> Result<()> {
    arm(300)
}

#[test]
#[ignore = "soak: many processes"]
fn no_call_by_hand_is_lost_while_many_processes_get_their_first_socket() -> Result<()> {
    arm(5_000)
}

/// Calls that the kernel reports while a verbs program with sockets sets up: about 70, of libraries
/// of Weft's that make them by hand. More would be calls for messages.
const REPORTS_MAX: usize = 200;

/// The verbs library makes its calls by hand, too. A report of each would double the latency.
#[test]
fn verbs_make_no_calls_that_are_reported_for_a_message() -> Result<()> {
    for (transport, mode) in [("tcp", ""), ("shm", ""), ("shm", "-e")] {
        let reports = reports_of_messages(transport, mode);
        let reports = reports.with_context(|| format!("{transport} {mode}"))?;
        ensure!(reports > 0, "the process does not have its calls reported");
        ensure!(reports < REPORTS_MAX, "{transport} {mode}: {reports} reports for 5,000 messages");
    }
    Ok(())
}

/// The program under `strace`, which writes down each report of a call to the file.
fn traced(trace: &Path, program: &str) -> Result<Program> {
    let strace = Program::weft(locate("strace")?).line("-f -qq -e trace=none -e signal=SIGSYS -o");
    Ok(strace.arg(trace).arg(program))
}

fn reports_in(trace: &Path) -> Result<usize> {
    Ok(fs::read_to_string(trace)?.matches("SYS_USER_DISPATCH").count())
}

fn reports_of_messages(transport: &str, mode: &str) -> Result<usize> {
    let (stage, port) = (Stage::loopback(), ports::next());
    let options = format!("-F {mode} -s 8 -n 5000 -p {port}");
    let (trace, address) = (scratch("reports")?.join("trace"), stage.server_address().to_string());
    let server = Program::weft("ib_send_lat").line(&options).env("WEFT_TRANSPORT", transport);
    let client = traced(&trace, "ib_send_lat")?.line(&options).arg(address);
    stage.converse(&server, Port::Tcp(port), &client.env("WEFT_TRANSPORT", transport), TIMEOUT)?;
    reports_in(&trace)
}

/// A program that has no sockets of its own has none of its calls reported, and none of Weft's.
#[test]
fn verbs_without_sockets_make_no_calls_that_are_reported() -> Result<()> {
    let (stage, port) = (Stage::loopback(), ports::next());
    let options = format!("-a {} -p {port} -C 100", stage.server_address());
    let trace = scratch("reports")?.join("trace-without-sockets");
    let server = Program::weft("rping").arg("-s").line(&options);
    let client = traced(&trace, "rping")?.arg("-c").line(&options);
    stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    let reports = reports_in(&trace)?;
    ensure!(reports == 0, "{reports} reports");
    Ok(())
}

/// The program that is started inherits the mask. Its first socket is of a thread, of a handler, or
/// of a function that `siglongjmp` leaves; each of them restores the mask.
#[test]
fn calls_by_hand_are_made_although_sigsys_was_blocked_from_the_start() -> Result<()> {
    let program = compile_plain("first_socket")?;
    for way in ["thread", "handler", "jump"] {
        let sockets = Sockets::new(Ends::Both)?;
        let plain = sockets.plain(&program).args(["blocked", way]).run(TIMEOUT)?.success()?;
        let ours = sockets.server(&program).args(["blocked", way]).run(TIMEOUT)?.success()?;
        ours.expect_lines(&plain.stdout).context(way)?;
        sockets.check(20)?;
    }
    Ok(())
}

/// Threads that begin wait until the process's other threads are known.
fn jump(processes: u32) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = sockets.server(compile_plain("first_socket")?);
    let ended = program.args(["jumps", &processes.to_string()]).run(TIMEOUT * 4)?.success()?;
    ended.expect_output(&format!("0 of {processes} processes failed")).map(drop)
}

/// A handler may leave the function that the program calls. Its hook first looks up that of the C
/// library, which takes the dynamic loader's lock. `bind` is a hook of both preloaded libraries.
#[test]
fn a_handler_does_not_leave_the_loaders_lock_taken() -> Result<()> {
    let library = compile_library("signal_in_lookup")?;
    for function in ["shutdown", "bind"] {
        let sockets = Sockets::new(Ends::Both)?;
        let program = sockets.server(compile_plain("first_socket")?).env("LD_PRELOAD", &library);
        let ended = program.args(["lookup", function]).run(TIMEOUT)?.success()?;
        ended.expect_output("the loader is free").context(function)?;
    }
    Ok(())
}

#[test]
fn threads_begin_though_a_handler_has_left_the_calls_for_the_first_socket() -> Result<()> {
    jump(100)
}

#[test]
#[ignore = "soak: many processes"]
fn threads_of_many_processes_begin_though_a_handler_has_left_the_calls() -> Result<()> {
    jump(2_000)
}

#[test]
fn go_with_c_calls_by_hand_on_small_stacks() -> Result<()> {
    as_on_the_kernel(&compile_cgo("by_hand")?, 1_000_000).map(drop)
}

#[test]
fn python_calls_by_an_instruction_in_memory_of_its_own() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let python = sockets.server(locate("python3")?).arg(source("programs/by_hand.py"));
    python.run(TIMEOUT)?.success()?.expect_output("done")?;
    sockets.check(1_000)
}

/// smol's reactor and rustix make system calls directly; std makes them through the C library.
#[test]
fn smol_echoes() -> Result<()> {
    const BYTES: u64 = 3_000_000;
    const CLIENTS: u64 = 2;
    let program = match compile_cargo("smol-echo")? {
        Ok(program) => program,
        Err(not_fetched) => {
            note_skip("smol_echoes", &not_fetched);
            return Ok(());
        }
    };
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
            ended?
                .expect_output(&format!("echoed {BYTES}"))
                .with_context(|| format!("{ends:?}"))?;
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
    let program = compile_plain("no_syscall_dispatch")?;
    let run = |trust: bool| -> Result<Finished> {
        let sockets = Sockets::new(Ends::Both)?;
        let mut run = sockets.server(&program).arg(&program).env("WEFT_LOG", "info");
        if trust {
            run = run.env("WEFT_SOCKETS_BY_HAND", "trust");
        }
        run.run(TIMEOUT)?.success()?.expect_output("line")
    };
    let watched = run(false)?;
    ensure!(!watched.stderr.contains("shared memory"), watched.error("in memory"));
    ensure!(watched.stderr.contains("calls by hand cannot be seen"), watched.error("not reported"));
    let trusted = run(true)?;
    ensure!(trusted.stderr.contains("shared memory"), trusted.error("not in memory"));
    Ok(())
}
