//! Failures between two hosts, and what verbs report about them to a program.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::resources::{Resources, churn, resources};
use weft_lab::{
    Finished, Program, Running, Stage, compile, ensure_data, ports, skip_without_namespaces,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Every kind of operation that `flow.c` can keep going.
const KINDS: [&str; 7] =
    ["send", "send_imm", "write", "write_imm", "read", "fetch_add", "cmp_swap"];

/// A server and a client with operations of one kind in flight.
struct Flow {
    server: Running,
    client: Running,
}

impl Flow {
    fn start(stage: &Stage, kind: &str) -> Result<Self> {
        let (program, port) = (Program::weft(compile("flow")?), ports::next());
        let server = program.clone().args(["serve", &port.to_string(), "1"]);
        let mut server = stage.server(server).start()?.listening(Port::Tcp(port))?;
        let address = stage.server_address().to_string();
        let client = program.args(["connect", &address, &port.to_string(), kind, "0"]);
        let mut client = stage.client(client).start()?;
        let flowing = client.printed("flowing", TIMEOUT);
        flowing.with_context(|| server.account()).with_context(|| kind.to_owned())?;
        Ok(Self { server, client })
    }
}

/// Checks that a survivor got the reports: an error completion, every other
/// request flushed, the event, and a queue pair in the error state.
fn got_reports(survivor: Finished) -> Result<()> {
    let survivor = survivor.success()?;
    let flushed = survivor.stdout.lines().find_map(|line| {
        let (outstanding, flushed) =
            line.strip_prefix("outstanding: ")?.split_once(" flushed: ")?;
        Some(outstanding == flushed)
    });
    ensure_data!(flushed == Some(true), "{}", survivor.error("requests were not all flushed"));
    survivor
        .expect_output("broken: ")?
        .expect_output("event: RDMA_CM_EVENT_DISCONNECTED")?
        .expect_output("state: 6")?;
    Ok(())
}

#[test]
fn server_killed_in_the_middle() -> Result<()> {
    for kind in KINDS {
        let flow = Flow::start(&Stage::loopback(), kind)?;
        flow.server.kill()?;
        got_reports(flow.client.wait(TIMEOUT)?).with_context(|| kind.to_owned())?;
    }
    Ok(())
}

#[test]
fn client_killed_in_the_middle() -> Result<()> {
    for kind in KINDS {
        let flow = Flow::start(&Stage::loopback(), kind)?;
        flow.client.kill()?;
        got_reports(flow.server.wait(TIMEOUT)?).with_context(|| kind.to_owned())?;
    }
    Ok(())
}

/// The survivor has not read all bytes of the peer, so EOF is behind unread data.
#[test]
fn peer_killed_behind_messages_that_nobody_receives() -> Result<()> {
    let (program, port) = (Program::weft(compile("rnr_overrun")?), ports::next());
    let stage = Stage::loopback();
    let server = program.clone().args(["serve", &port.to_string()]);
    let mut server = stage.server(server).start()?.listening(Port::Tcp(port))?;
    let address = stage.server_address().to_string();
    let client = program.args(["connect", &address, &port.to_string()]);
    let mut client = stage.client(client).start()?;
    client.printed("posted", TIMEOUT).with_context(|| server.account())?;
    client.kill()?;
    server.wait(TIMEOUT)?.success()?.expect_output("disconnected")?;
    Ok(())
}

#[test]
fn peer_killed_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for kind in ["send", "write", "read"] {
        let flow = Flow::start(&stage, kind)?;
        flow.server.kill()?;
        got_reports(flow.client.wait(TIMEOUT)?).with_context(|| kind.to_owned())?;
    }
    Ok(())
}

/// A short outage of the link delays operations, but does not break the connection.
#[test]
fn link_down_and_up() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let pair = stage.pair.as_ref().context("no namespaces")?;
    let port = ports::next().to_string();
    let address = stage.server_address().to_string();
    // Without end, so that the outage is never behind the last ping.
    let program = Program::weft("rping").args(["-V", "-p", &port, "-a", &address]);
    let server = stage.server(program.clone().arg("-s")).start()?;
    let mut server = server.listening(Port::Tcp(port.parse()?))?;
    let mut client = stage.client(program.line("-c -v")).start()?;
    client.printed("rdma-ping-100:", TIMEOUT)?;

    pair.link_down()?;
    thread::sleep(Duration::from_millis(700));
    let pings = client.output().0.matches("ping data:").count();
    ensure!(client.is_running()?, "the outage ended the client: {}", client.account());
    pair.link_up()?;

    // rping verifies each ping, and ends if one is damaged.
    client.printed(&format!("rdma-ping-{}:", pings + 1_000), TIMEOUT)?;
    ensure!(client.is_running()?, "{}", client.account());
    ensure!(server.is_running()?, "{}", server.account());
    Ok(())
}

/// The peer dies while the link is down, so its FIN or RST is lost. The next transmission must
/// detect its death.
#[test]
fn half_open_connection() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let pair = stage.pair.as_ref().context("no namespaces")?;
    for kind in ["send", "write", "read"] {
        let flow = Flow::start(&stage, kind)?;
        pair.link_down()?;
        flow.server.kill()?;
        // The packets of the dead peer's kernel are lost by now.
        thread::sleep(Duration::from_millis(500));
        pair.link_up()?;
        got_reports(flow.client.wait(TIMEOUT)?).with_context(|| kind.to_owned())?;
    }
    Ok(())
}

/// A peer that is stopped for a while is not taken for dead.
#[test]
fn peer_stopped_and_continued() -> Result<()> {
    let mut flow = Flow::start(&Stage::loopback(), "send")?;
    flow.server.signal(Signal::STOP)?;
    thread::sleep(Duration::from_millis(500));
    ensure!(flow.client.is_running()?, flow.client.account());
    flow.server.signal(Signal::CONT)?;
    flow.server.printed("flowing", TIMEOUT)?;
    ensure!(flow.client.is_running()?, flow.client.account());
    flow.server.kill()?;
    got_reports(flow.client.wait(TIMEOUT)?)
}

#[test]
fn a_thousand_connections_leave_nothing_behind() -> Result<()> {
    /// Memory that allocators and the kernel may retain after 900 connections. The program waits
    /// until it has no more than that, and no more descriptors and threads: see `settle` there.
    const SLACK_KIB: i64 = 512;
    let ends = churn(&Stage::loopback(), 1000)?;
    for end in [&ends.server, &ends.client] {
        let (early, late) = (resources(end, "tenth")?, resources(end, "end")?);
        let Resources { memory_kib, descriptors, threads } = late;
        let grown = memory_kib - early.memory_kib;
        ensure!(grown <= SLACK_KIB, end.error(format!("{grown} KiB more in the end")));
        ensure!(descriptors <= early.descriptors, end.error("descriptors leaked"));
        ensure!(threads <= early.threads, end.error("threads leaked"));
    }
    Ok(())
}

#[test]
fn fork() -> Result<()> {
    let port = ports::next();
    let server = Program::weft(compile("flow")?).args(["serve", &port.to_string(), "2"]);
    let client = Program::weft(compile("fork_with_mr")?).args(["127.0.0.1", &port.to_string()]);
    let stage = Stage::loopback();
    let (_, client) = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    for counted in ["parent: 2500 sends", "child: 500 sends"] {
        ensure_data!(client.stdout.contains(counted), "{}", client.error(counted));
    }
    Ok(())
}
