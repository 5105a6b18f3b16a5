//! The programs of Debian's `rdmacm-utils`.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{
    Finished, NamespacePair, Program, Stage, ensure_data, ports, skip_without_namespaces,
};

const TIMEOUT: Duration = Duration::from_secs(90);

/// Runs rping on both sides, with verification, and checks that every ping came back.
fn rping(stage: &Stage, address: IpAddr, count: usize, options: &str) -> Result<()> {
    let port = ports::next();
    let program = Program::weft("rping")
        .args(["-V", "-p", &port.to_string(), "-C", &count.to_string()])
        .args(["-a", &address.to_string()])
        .line(options);
    let (server, client) = (program.clone().line("-s -v"), program.line("-c -v"));
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    let (server, client) = ends.with_context(|| format!("{address}, options {options:?}"))?;
    for (end, prefix) in [(&client, "ping data: "), (&server, "server ping data: ")] {
        let pings = end.stdout.lines().filter(|line| line.starts_with(prefix)).count();
        ensure_data!(pings == count, "{}", end.error(format!("{pings} pings instead of {count}")));
        ensure_data!(!end.stderr.contains("data mismatch"), "{}", end.error("data was damaged"));
    }
    Ok(())
}

#[test]
fn rping_many_iterations() -> Result<()> {
    let stage = Stage::loopback();
    rping(&stage, stage.server_address(), 5_000, "")
}

#[test]
fn rping_of_many_sizes() -> Result<()> {
    let stage = Stage::loopback();
    // The smallest and the largest size are rping's limits.
    for size in [23, 100, 1460, 4096, 65_535] {
        rping(&stage, stage.server_address(), 300, &format!("-S {size}"))?;
    }
    Ok(())
}

#[test]
fn rping_with_queue_pairs_of_its_own() -> Result<()> {
    let stage = Stage::loopback();
    rping(&stage, stage.server_address(), 1000, "-q")
}

#[test]
fn rping_over_ipv6() -> Result<()> {
    rping(&Stage::loopback(), Ipv6Addr::LOCALHOST.into(), 1000, "")
}

/// The loopback's addresses belong to the first device, which has fewer addresses here.
#[test]
fn rping_over_loopback_of_a_device_with_one_address() -> Result<()> {
    skip_without_namespaces!();
    let pair = NamespacePair::new()?;
    pair.left.remove_addresses()?;
    let port = ports::next();
    let program = Program::weft("rping").within(Some(&pair.left)).line("-V -C 100 -a ::1 -p");
    let program = program.arg(port.to_string());
    let server = program.clone().line("-s -v").start()?.listening(Port::Tcp(port))?;
    program.line("-c -v").run(TIMEOUT)?.success()?;
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn rping_as_iwarp() -> Result<()> {
    let port = ports::next();
    let program = Program::weft("rping").weft_option("--present=iwarp").line("-V -C 1000 -p");
    let program = program.arg(port.to_string()).line("-a 127.0.0.1");
    let (server, client) = (program.clone().arg("-s"), program.arg("-c"));
    Stage::loopback().converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    Ok(())
}

#[test]
fn rping_persistent_server() -> Result<()> {
    let port = ports::next().to_string();
    let program = Program::weft("rping").args(["-V", "-a", "127.0.0.1", "-p", &port]);
    let server = program.clone().line("-s -P").start()?.listening(Port::Tcp(port.parse()?))?;
    // Sequentially, because rping's server accepts one connection request at a time.
    for _ in 0..4 {
        program.clone().line("-c -C 200").run(TIMEOUT)?.success()?;
    }
    // The server never ends by itself, so the test kills it.
    server.kill()?;
    Ok(())
}

#[test]
fn rping_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let pair = stage.pair.as_ref().context("no namespaces")?;
    for address in [IpAddr::from(pair.left.ipv4), pair.left.ipv6.into()] {
        rping(&stage, address, 2000, "")?;
        rping(&stage, address, 300, "-S 65535")?;
    }
    Ok(())
}

/// Both sides of ucmatose report each phase and a status.
fn ucmatose(stage: &Stage, options: &str) -> Result<()> {
    let port = ports::next();
    let server = Program::weft("ucmatose").args(["-p", &port.to_string()]).line(options);
    let client = server.clone().args(["-s", &stage.server_address().to_string()]);
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    let (server, client) = ends.with_context(|| format!("options {options:?}"))?;
    for end in [server, client] {
        end.expect_output("data transfers complete")?
            .expect_output("test complete")?
            .expect_output("return status 0")?;
    }
    Ok(())
}

#[test]
fn ucmatose_many_connections() -> Result<()> {
    ucmatose(&Stage::loopback(), "-c 20 -C 100 -S 4096")
}

#[test]
fn ucmatose_migrating_ids() -> Result<()> {
    ucmatose(&Stage::loopback(), "-c 4 -C 20 -m")
}

#[test]
fn ucmatose_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    ucmatose(&Stage::namespaces()?, "-c 20 -C 100 -S 4096")
}

fn cmtime(stage: &Stage, connections: u32) -> Result<()> {
    let port = ports::next();
    let server = Program::weft("cmtime");
    let server = server.args(["-p", &port.to_string(), "-c", &connections.to_string()]);
    let client = server.clone().args(["-s", &stage.server_address().to_string()]);
    let server = stage.server(server).start()?.listening(Port::Tcp(port))?;
    let client = stage.client(client).run(TIMEOUT)?.success()?;
    for step in ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect"]
    {
        let line = client.stdout.lines().find(|line| line.trim_start().starts_with(step));
        ensure!(line.is_some(), client.error(format!("no figures for {step:?}")));
    }
    ended(server)
}

/// The server of cmtime serves for ever.
fn ended(mut server: weft_lab::Running) -> Result<()> {
    if server.is_running()? {
        server.kill()?;
        return Ok(());
    }
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn cmtime_many_connections() -> Result<()> {
    cmtime(&Stage::loopback(), 200)
}

#[test]
fn cmtime_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    cmtime(&Stage::namespaces()?, 200)
}

/// A pair of programs that each end with "NAME: end 0".
fn client_and_server(stage: &Stage, server: &str, client: &str, options: &str) -> Result<()> {
    let port = ports::next();
    let program = |name| Program::weft(name).args(["-p", &port.to_string()]).line(options);
    let server_program = program(server);
    let client_program = program(client).args(["-s", &stage.server_address().to_string()]);
    let (served, asked): (Finished, Finished) =
        stage.converse(&server_program, Port::Tcp(port), &client_program, TIMEOUT)?;
    served.expect_output(&format!("{server}: end 0"))?;
    asked.expect_output(&format!("{client}: end 0"))?;
    Ok(())
}

#[test]
fn rdma_client_and_server() -> Result<()> {
    client_and_server(&Stage::loopback(), "rdma_server", "rdma_client", "")
}

#[test]
fn rdma_xclient_and_xserver() -> Result<()> {
    client_and_server(&Stage::loopback(), "rdma_xserver", "rdma_xclient", "")
}

#[test]
fn rdma_xclient_and_xserver_by_an_extended_connection() -> Result<()> {
    client_and_server(&Stage::loopback(), "rdma_xserver", "rdma_xclient", "-c x")
}

#[test]
fn rdma_client_and_server_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    client_and_server(&stage, "rdma_server", "rdma_client", "")?;
    client_and_server(&stage, "rdma_xserver", "rdma_xclient", "")?;
    client_and_server(&stage, "rdma_xserver", "rdma_xclient", "-c x")
}
