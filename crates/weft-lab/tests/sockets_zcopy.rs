//! Long messages of unmodified programs: the receiver pulls them from the sender's memory.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{compile, note_skip};

const TIMEOUT: Duration = Duration::from_secs(100);

/// Runs the program with long messages, and returns how many of its bytes were copied only once.
fn run(zero_copy: &str, flow: &str) -> Result<u64> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/long_messages.py");
    let python = sockets.server("python3").arg(program).arg("1");
    let python = python.env("WEFT_SOCKETS_ZCOPY", zero_copy).env("WEFT_SOCKETS_FLOW", flow);
    python.run(TIMEOUT)?.success()?;
    sockets.check(32 << 20)?;
    Ok(sockets.totals()?.zero_copy_bytes)
}

#[test]
fn long_messages_are_pulled() -> Result<()> {
    let pulled = run("sync", "packed")?;
    ensure!(pulled > 8 << 20, "{pulled}");
    Ok(())
}

#[test]
fn long_messages_are_pulled_under_credits_too() -> Result<()> {
    let pulled = run("sync", "credit")?;
    ensure!(pulled > 8 << 20, "{pulled}");
    Ok(())
}

#[test]
fn measurement_may_decide_whether_long_messages_are_pulled() -> Result<()> {
    run("auto", "packed")?;
    Ok(())
}

#[test]
fn nothing_is_pulled_with_zero_copy_off() -> Result<()> {
    let pulled = run("off", "packed")?;
    ensure!(pulled == 0, "{pulled}");
    Ok(())
}

/// Runs the program that changes its buffers after each send. Returns its report on the
/// connections, and Weft's log.
fn run_deferred_sends(sockets: &Sockets, zero_copy: &str) -> Result<(String, String)> {
    let program = sockets.server(compile("deferred_sends")?).arg("1").arg("0");
    let program = program.env("WEFT_SOCKETS_ZCOPY", zero_copy).env("WEFT_LOG", "info");
    let done = program.run(TIMEOUT)?.success()?;
    Ok((done.stdout, done.stderr))
}

/// Weft's log message if it cannot protect memory.
const UNPROTECTED: &str = "zero copy is not async but auto, without userfaultfd: ";

#[test]
fn deferred_sends_deliver_what_the_buffer_held() -> Result<()> {
    run("async", "packed")?;
    let sockets = Sockets::new(Ends::Both)?;
    let (output, logged) = run_deferred_sends(&sockets, "async")?;
    sockets.check(16 << 20)?;
    // The bytes that the receiver has not pulled are lost with a killed sender. The receiver must
    // get an error (ECONNRESET), and no EOF.
    if output.contains("no userfaultfd") {
        note_skip(
            "deferred_sends_deliver_what_the_buffer_held",
            "no userfaultfd here: nothing was deferred",
        );
    } else {
        ensure!(output.contains("ending 6: 0 of 1048576 bytes, error 104"), "{output}");
        ensure!(!logged.contains(UNPROTECTED), "{logged}");
    }
    Ok(())
}

#[test]
fn nothing_is_deferred_without_userfaultfd() -> Result<()> {
    let Some(sockets) = Sockets::unprivileged("nothing_is_deferred_without_userfaultfd")? else {
        return Ok(());
    };
    let (output, logged) = run_deferred_sends(&sockets, "async")?;
    ensure!(output.contains("no userfaultfd") == logged.contains(UNPROTECTED), "{output}{logged}");
    Ok(())
}
