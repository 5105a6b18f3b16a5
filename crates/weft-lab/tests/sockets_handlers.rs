//! Signal handlers that interrupt a thread in a hook and use sockets themselves, or jump out of the
//! hook; threads that are cancelled in a hook.

use std::time::Duration;

use anyhow::Result;
use weft_lab::compile_plain;
use weft_lab::sockets::{Ends, Sockets};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of the program, in seconds.
const TIME: &str = "2";
/// Minimum number of connections that the program makes.
const CONNECTIONS: u64 = 10;

/// Runs `programs/signal_handlers.c`, which would hang if a handler waited for a lock of the thread
/// that it has interrupted.
fn run(arguments: &[&str]) -> Result<()> {
    let program = compile_plain("signal_handlers")?;
    let sockets = Sockets::new(Ends::Both)?;
    sockets.server(&program).args(arguments).run(TIMEOUT)?.success()?.expect_output("done")?;
    let totals = sockets.totals()?;
    anyhow::ensure!(totals.joined >= CONNECTIONS, "{totals:?}");
    Ok(())
}

#[test]
fn a_handler_closes_and_adds_watched_sockets_at_any_moment() -> Result<()> {
    run(&[TIME])
}

#[test]
fn a_handler_may_interrupt_the_programs_allocator() -> Result<()> {
    run(&[TIME, "malloc"])
}

/// Runs a program on the kernel and on Weft, and expects the same output.
#[test]
fn cancelled_threads_and_jumps_leave_connections_and_instances_usable() -> Result<()> {
    let program = compile_plain("cancellation")?;
    let sockets = Sockets::new(Ends::Both)?;
    let plain = sockets.plain(&program).run(TIMEOUT * 2)?.success()?;
    let ours = sockets.server(&program).run(TIMEOUT * 2)?.success()?;
    ours.expect_lines(&plain.stdout)?;
    sockets.check(100_000)
}
