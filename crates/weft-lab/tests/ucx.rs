//! UCX on unreliable datagrams, which it makes reliable itself.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Program, Stage, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Message sizes, in bytes: within one datagram, and cut into several by UCX.
const SIZES: [u32; 3] = [8, 3_000, 100_000];
const ITERATIONS: &str = "500";
/// Of UCP, the layer that MPI programs use.
const TESTS: [&str; 5] = ["tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_am_bw"];

/// Runs tests of every size over the transports that `tls` names.
fn perftest(stage: &Stage, tls: &str, tests: &[&str]) -> Result<()> {
    let all = tests.iter().flat_map(|test| SIZES.map(|size| (test, size)));
    all.into_iter().try_for_each(|(test, size)| one_size(stage, tls, test, size))
}

fn one_size(stage: &Stage, tls: &str, test: &str, size: u32) -> Result<()> {
    let port = ports::next();
    let program = Program::weft("ucx_perftest").env("UCX_TLS", tls).args(["-p", &port.to_string()]);
    let client = program
        .clone()
        .args(["-t", test, "-s", &size.to_string(), "-n", ITERATIONS, "-w", "20"])
        .arg(stage.server_address().to_string());
    let ends = stage.converse(&program, Port::Tcp(port), &client, TIMEOUT);
    let (_, client) = ends.with_context(|| format!("{tls} {test} {size}"))?;
    let last = client.stdout.lines().find(|line| line.starts_with("Final:"));
    let count = last.and_then(|line| line.split_whitespace().nth(1));
    ensure!(count == Some(ITERATIONS), client.complaint("not all iterations"));
    Ok(())
}

#[test]
fn datagrams() -> Result<()> {
    perftest(&Stage::loopback(), "ud_v", &TESTS)
}

/// UCX finds its reliable connections by way of datagrams.
#[test]
fn reliable_connections() -> Result<()> {
    perftest(&Stage::loopback(), "rc_v,ud_v", &["tag_lat", "ucp_put_bw"])
}

/// What is lost UCX sends again.
#[test]
fn over_a_link_that_loses() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let pair = stage.pair.as_ref().context("no namespaces")?;
    pair.lose_datagrams(1)?;
    // Not the largest: almost every message would lose a fragment and wait for UCX's timer.
    for (test, size) in [("tag_lat", 8), ("tag_lat", 3_000), ("tag_bw", 8), ("tag_bw", 3_000)] {
        one_size(&stage, "ud_v", test, size)?;
    }
    ensure!(pair.datagrams_lost()? > 0, "nothing was lost");
    Ok(())
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    perftest(&stage, "ud_v", &TESTS)
}
