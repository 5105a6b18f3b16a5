//! iperf3: streams in both directions, several at a time, by `write` and by `sendfile`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
const SIZE_BYTES: u64 = 256 << 20;
/// Maximum number of bytes in flight when the client ends the test: the buffers of the kernel and
/// the ring for each of four streams.
const IN_FLIGHT_MAX_BYTES: u64 = 64 << 20;

fn report(end: &Finished) -> Result<Value> {
    let report: Value =
        serde_json::from_str(&end.stdout).with_context(|| end.error("no report"))?;
    ensure!(report.get("error").is_none(), end.error("iperf3 reports an error"));
    Ok(report)
}

/// Checks that each side has received the bytes that the other has sent, and returns their number.
fn received(end: &Finished, report: &Value, reverse: &str) -> Result<u64> {
    let count = |name| report.pointer(&format!("/end/{name}{reverse}/bytes"))?.as_u64();
    let (sent, received) =
        count("sum_sent").zip(count("sum_received")).with_context(|| end.error("no sums"))?;
    // In the other direction it may be little: the test ends when one direction has sent all.
    let lost = sent.checked_sub(received);
    ensure!(
        lost.is_some_and(|lost| lost <= IN_FLIGHT_MAX_BYTES) && received > 0,
        end.error(format!("{sent} bytes sent, {received} received"))
    );
    Ok(received)
}

fn transfer(ends: Ends, options: &str) -> Result<()> {
    let (sockets, port) = (Sockets::new(ends)?, ports::next());
    let server = sockets.server("iperf3").line("--server --one-off --json");
    let server = server.args(["--port", &port.to_string()]).start()?.listening(Port::Tcp(port))?;
    let client = sockets.client("iperf3").line("--client 127.0.0.1 --json");
    let client = client.args(["--port", &port.to_string(), "--bytes", &SIZE_BYTES.to_string()]);
    let client = client.line(options).run(TIMEOUT)?.success()?;
    report(&server.wait(TIMEOUT)?.success()?)?;
    let json = report(&client)?;
    let mut bytes = received(&client, &json, "")?;
    if options.contains("--bidir") {
        bytes += received(&client, &json, "_bidir_reverse")?;
    }
    sockets.check(bytes / 2)
}

fn everywhere(options: &str) -> Result<()> {
    Ends::ALL.iter().try_for_each(|&ends| {
        transfer(ends, options).with_context(|| format!("{ends:?}, {options:?}"))
    })
}

#[test]
fn one_stream() -> Result<()> {
    everywhere("")?;
    // No buffer's size is a multiple of these.
    transfer(Ends::Both, "--length 65521")
}

#[test]
fn four_streams() -> Result<()> {
    everywhere("--parallel 4")
}

#[test]
fn the_server_sends() -> Result<()> {
    everywhere("--reverse")
}

#[test]
fn by_sendfile() -> Result<()> {
    everywhere("--zerocopy")
}

#[test]
fn both_ways_at_once() -> Result<()> {
    everywhere("--bidir")
}
