//! libfabric's `fi_pingpong` on its verbs provider.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{NamespacePair, Program, Stage, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);
const ITERATIONS: &str = "50";
/// The default sizes of fi_pingpong, as it prints them.
const SIZES: [&str; 6] = ["64", "256", "1k", "4k", "64k", "1m"];

/// The default sizes that fit the port's MTU.
const OF_DATAGRAMS: &[&str] = &["64", "256", "1k"];

/// Runs fi_pingpong over its sizes, with its check of the data, and expects the results of `sizes`.
fn pingpong(stage: &Stage, provider: &str, options: &str, sizes: &[&str]) -> Result<()> {
    let port = ports::next().to_string();
    let program =
        Program::weft("fi_pingpong").args(["-p", provider, "-c", "-I", ITERATIONS]).line(options);
    let server = program.clone().args(["-B", &port]);
    let client = program.args(["-P", &port, &stage.server_address().to_string()]);
    let ends = stage.converse(&server, Port::Tcp(port.parse()?), &client, TIMEOUT);
    let (_, client) = ends.with_context(|| format!("{provider} {options}"))?;
    for &size in sizes {
        let row = client.stdout.lines().any(|line| {
            let mut columns = line.split_whitespace();
            columns.next() == Some(size) && columns.next() == Some(ITERATIONS)
        });
        ensure!(row, client.error(format!("no result for {size}")));
    }
    Ok(())
}

#[test]
fn verbs_messages() -> Result<()> {
    pingpong(&Stage::loopback(), "verbs", "-e msg", &SIZES)
}

#[test]
fn verbs_reliable_datagrams() -> Result<()> {
    pingpong(&Stage::loopback(), "verbs;ofi_rxm", "-e rdm", &SIZES)?;
    pingpong(&Stage::loopback(), "verbs;ofi_rxm", "-e rdm -m tagged", &SIZES)
}

#[test]
fn verbs_datagrams() -> Result<()> {
    pingpong(&Stage::loopback(), "verbs", "-e dgram", OF_DATAGRAMS)
}

/// `ofi_rxd` makes unreliable datagrams reliable. On one host none is lost: `ofi_rxd` sends fewer
/// at a time than the receive queue holds.
#[test]
fn verbs_datagrams_made_reliable() -> Result<()> {
    pingpong(&Stage::loopback(), "verbs;ofi_rxd", "-e rdm", &SIZES)
}

/// `ofi_rxd` answers only while its program polls, so `fi_pingpong` hangs if the last
/// acknowledgement of a size is lost: in 1 of 20 runs over libfabric's UDP provider, in 1 of 24
/// over Weft. So only three failures in a row count.
///
/// The link carries the largest datagram of the port in one packet. Otherwise the fragments of
/// datagrams that have lost one fill the kernel's memory for them (`net.ipv4.ipfrag_high_thresh`),
/// and for 30 s it drops all others.
#[test]
#[ignore = "soak: a hang of ofi_rxd after a lost acknowledgement"]
fn datagrams_made_reliable_over_a_link_that_loses() -> Result<()> {
    const ATTEMPTS: u32 = 3;
    const MTU: u32 = 9000;
    skip_without_namespaces!();
    let stage = Stage::of(NamespacePair::with_mtu(MTU)?);
    let pair = stage.pair.as_ref().context("no namespaces")?;
    pair.lose_datagrams(1)?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = pingpong(&stage, "verbs;ofi_rxd", "-e rdm", &SIZES);
        if outcome.is_ok() {
            break;
        }
    }
    outcome?;
    ensure!(pair.datagrams_lost()? > 0, "nothing was lost");
    Ok(())
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    pingpong(&stage, "verbs", "-e msg", &SIZES)?;
    pingpong(&stage, "verbs;ofi_rxm", "-e rdm", &SIZES)?;
    pingpong(&stage, "verbs", "-e dgram", OF_DATAGRAMS)
}

/// If a host is slow to read, its kernel may lose datagrams.
#[test]
#[ignore = "soak: a hang of ofi_rxd after a lost acknowledgement"]
fn datagrams_made_reliable_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    pingpong(&Stage::namespaces()?, "verbs;ofi_rxd", "-e rdm", &SIZES)
}
