//! The programs of Debian's `rdmacm-utils` that send datagrams: `udaddy`, `udpong`, `mckey`.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Finished, Program, Stage, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit until a server or a group is ready.
const SOON: Duration = Duration::from_secs(60);
/// The fixed port of udaddy.
const UDADDY: u16 = 7174;

fn finished(end: &Finished) -> Result<()> {
    ensure!(end.stdout.contains("return status 0"), end.error("not a good end"));
    Ok(())
}

/// Every message is echoed, for each of several queue pairs that `rdma_cm` connects.
fn udaddy(stage: &Stage, address: IpAddr, options: &str) -> Result<()> {
    let address = address.to_string();
    let server = Program::weft("udaddy").args(["-b", &address]).line(options);
    let client = Program::weft("udaddy").args(["-s", &address]).line(options);
    let ends = stage.converse(&server, Port::Udp(UDADDY), &client, TIMEOUT);
    let (server, client) = ends.with_context(|| format!("{address}, options {options:?}"))?;
    finished(&server)?;
    finished(&client)
}

#[test]
fn services_are_found_by_rdma_cm() -> Result<()> {
    let stage = Stage::loopback();
    udaddy(&stage, stage.server_address(), "")?;
    udaddy(&stage, stage.server_address(), "-c 8 -C 100 -S 1000")?;
    udaddy(&stage, stage.server_address(), "-p 0x0002")?;
    udaddy(&stage, "::1".parse()?, "-c 2")
}

#[test]
fn services_are_found_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    udaddy(&stage, stage.server_address(), "-c 4 -C 50 -S 4000")
}

/// rsockets for datagrams are UDP sockets.
#[test]
fn udpong() -> Result<()> {
    let port = ports::next();
    let program = Program::weft("udpong").args(["-p", &port.to_string()]);
    let server = program.clone().args(["-b", "127.0.0.1"]);
    let server = server.start()?.listening(Port::Udp(port))?;
    let client = program.args(["-s", "127.0.0.1", "-C", "200", "-S", "1000"]);
    client.run(TIMEOUT)?.success()?.expect_output("custom    1000    200")?;
    // The server never ends by itself.
    server.kill()?;
    Ok(())
}

/// One process sends to a multicast group that several have joined.
fn mckey(stage: &Stage, group: &str, addresses: [&str; 2], options: &str) -> Result<()> {
    let program = |bind: &str| {
        // Unbuffered output, because the test waits for its lines.
        let program = Program::weft("stdbuf").args(["-oL", "mckey", "-m", group, "-b", bind]);
        let program = program.line(options);
        // For a loopback address, rdma_cm takes the first device.
        if stage.pair.is_some() { program } else { program.env("WEFT_DEVICES", "lo") }
    };
    let mut receivers = Vec::new();
    for _ in 0..2 {
        let mut receiver = stage.server(program(addresses[0])).start()?;
        receiver.printed("joined dgid", SOON)?;
        receivers.push(receiver);
    }
    let sender = stage.client(program(addresses[1]).arg("-s")).run(TIMEOUT)?.success()?;
    finished(&sender)?;
    for receiver in receivers {
        finished(&receiver.wait(TIMEOUT)?.success()?.expect_output("data transfers complete")?)?;
    }
    Ok(())
}

#[test]
fn groups() -> Result<()> {
    let here = ["127.0.0.1"; 2];
    mckey(&Stage::loopback(), "239.255.71.1", here, "")?;
    mckey(&Stage::loopback(), "239.255.71.2", here, "-c 3 -C 50 -S 2000")?;
    mckey(&Stage::loopback(), "239.255.71.3", here, "-p 0x0002")
}

#[test]
fn groups_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let Some(pair) = &stage.pair else { return Ok(()) };
    let v4 = [pair.left.ipv4.to_string(), pair.right.ipv4.to_string()];
    mckey(&stage, "239.255.71.1", [&v4[0], &v4[1]], "-C 20")?;
    let v6 = [pair.left.ipv6.to_string(), pair.right.ipv6.to_string()];
    mckey(&stage, "ff05::7171", [&v6[0], &v6[1]], "-C 20")
}
