//! The connection manager reports events in the kernel's order, even with other events on the same
//! channel.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Program, Stage, compile, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(90);

/// `clients` open `count` endpoints each, all of a client's on one channel, and all of the server's
/// on one channel.
fn events(stage: &Stage, space: &str, clients: u32, count: u32) -> Result<()> {
    let (program, port) = (Program::weft(compile("events")?), ports::next());
    let all = (clients * count).to_string();
    let server = program.clone().args(["serve", space, &port.to_string(), &all]);
    let address = stage.server_address().to_string();
    let client = program.args(["connect", space, &address, &port.to_string()]);
    let client = client.args([&clients.to_string(), &count.to_string()]);
    let listens = if space == "udp" { Port::Udp(port) } else { Port::Tcp(port) };
    let ends = stage.converse(&server, listens, &client, TIMEOUT);
    let (server, client) = ends.with_context(|| format!("{space}, {clients} clients"))?;
    client.expect_output("all in order")?;
    server.expect_output(&format!("requests: {all}"))?;
    Ok(())
}

#[test]
fn one_client_of_many_endpoints() -> Result<()> {
    events(&Stage::loopback(), "tcp", 1, 200)
}

#[test]
fn many_clients_of_many_endpoints() -> Result<()> {
    events(&Stage::loopback(), "tcp", 8, 50)
}

#[test]
fn many_clients_of_datagrams() -> Result<()> {
    events(&Stage::loopback(), "udp", 8, 50)
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    events(&stage, "tcp", 8, 50)?;
    events(&stage, "udp", 8, 50)
}

/// Clients that connect at the same instant are all served. A server that runs out of descriptors
/// refuses some of them, but gets no identifier without a device that works, and serves all clients
/// once it has descriptors again.
fn crowd(limit: u32) -> Result<()> {
    const CLIENTS: u32 = 30;
    let (program, port) = (Program::weft(compile("crowd")?), ports::next());
    let server = program.clone().args(["serve", &port.to_string(), &limit.to_string()]);
    let mut server = server.start()?.listening(Port::Tcp(port))?;
    let connect = || {
        let client = program.clone().args(["connect", "127.0.0.1", &port.to_string()]);
        client.arg(CLIENTS.to_string()).run(TIMEOUT)?.success()
    };
    let all = format!("established: {CLIENTS}");
    let first = connect().with_context(|| format!("{limit} descriptors"))?;
    if limit == 0 {
        first.expect_output(&all)?;
    } else {
        server.signal(Signal::USR1)?;
        connect()?.expect_output(&all)?;
    }
    server.kill()?;
    Ok(())
}

#[test]
fn many_clients_at_the_same_instant() -> Result<()> {
    crowd(0)
}

#[test]
fn many_clients_of_a_server_without_descriptors() -> Result<()> {
    [64, 24, 18, 16].into_iter().try_for_each(crowd)
}
