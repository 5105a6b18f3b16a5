//! Streams of random data whose ends are killed at random times: the survivor reads a prefix of the
//! sent bytes, and then what TCP reports. And thousands of connections, which leak nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile, source};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of connections of which one end, or neither, is killed.
const ROUNDS: u64 = 200;

/// The program, compiled once.
fn program() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile("chaos"));
    built.as_deref().map_err(|error| anyhow!("{error:#}"))
}

fn run(sockets: &Sockets, arguments: &[&str]) -> Result<String> {
    finish(sockets.server(program()?), arguments)
}

fn finish(chaos: Program, arguments: &[&str]) -> Result<String> {
    Ok(chaos.args(arguments).run(TIMEOUT)?.success()?.stdout)
}

/// Runs the program with a rule by which even short connections move to shared memory.
fn run_in_memory(sockets: &Sockets, arguments: &[&str]) -> Result<String> {
    fs::write(sockets.path("rules"), "use shm * * *:*\n")?;
    let chaos = sockets.server(program()?);
    finish(chaos.weft_option("--rules").weft_option("rules"), arguments)
}

#[test]
fn peer_of_a_killed_process_reads_a_prefix_and_then_eof() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let seed = std::env::var("WEFT_CHAOS_SEED").unwrap_or_else(|_| "1".to_owned());
    let output = run(&sockets, &["kill", &ROUNDS.to_string(), &seed])
        .with_context(|| format!("WEFT_CHAOS_SEED={seed}"))?;
    ensure!(output.contains(&format!("{ROUNDS} rounds")), "{output}");
    let totals = sockets.totals()?;
    ensure!(totals.joined >= ROUNDS / 2, "{totals:?}");
    Ok(())
}

#[test]
fn a_stream_is_not_reset_if_a_killed_peer_had_read_everything() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = sockets.server("python3").arg(source("programs/killed_peers.py"));
    program.run(TIMEOUT)?.success()?.expect_output("all ended")?;
    sockets.check(1 << 20)
}

#[test]
fn connections_leave_nothing_behind() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    run_in_memory(&sockets, &["many", "10000"])?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= 10_000, "{totals:?}");
    Ok(())
}

#[test]
fn two_thousand_connections_at_once() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    run(&sockets, &["wide", "2000"])?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= 2_000, "{totals:?}");
    Ok(())
}

/// Also while a connection moves to shared memory. A defect shows in one of some thousand
/// connections.
#[test]
fn what_is_written_at_once_is_read_at_once() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    run_in_memory(&sockets, &["short", "20000"])?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= 1_000, "{totals:?}");
    Ok(())
}

/// An edge-triggered waiter gets each change, regardless of when during a wait it happens.
#[test]
fn no_edge_is_lost() -> Result<()> {
    wait_for_edges(80_000)
}

#[test]
#[ignore = "soak: many messages"]
fn no_edge_of_many_is_lost() -> Result<()> {
    wait_for_edges(1_000_000)
}

fn wait_for_edges(messages: u64) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    run(&sockets, &["edges", &messages.to_string()])?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= 1, "{totals:?}");
    Ok(())
}

/// A thread that waits for many connections is woken for each that becomes readable, and so is a
/// second thread that waits for them.
#[test]
fn no_wakeup_is_missed_among_many_connections() -> Result<()> {
    wake_herds("2000")
}

#[test]
#[ignore = "soak: many rounds"]
fn no_wakeup_of_many_is_missed_among_many_connections() -> Result<()> {
    wake_herds("20000")
}

fn wake_herds(rounds: &str) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let seed = std::env::var("WEFT_CHAOS_SEED").unwrap_or_else(|_| "1".to_owned());
    run(&sockets, &["herd", rounds, &seed]).with_context(|| format!("WEFT_CHAOS_SEED={seed}"))?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= 24, "{totals:?}");
    Ok(())
}
