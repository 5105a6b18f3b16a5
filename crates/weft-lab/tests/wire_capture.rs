//! Frames that Weft puts on the wire, checked by tshark's iWARP dissectors.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::capture::{self, Capture};
use weft_lab::endpoint::Port;
use weft_lab::{Namespace, Program, Stage, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Opcodes of RFC 5040 section 4.1 and RFC 7306 section 4.1, as tshark prints them.
const WRITE: &str = "0x00";
const READ_REQUEST: &str = "0x01";
const READ_RESPONSE: &str = "0x02";
const SEND: &str = "0x03";

fn server_side(stage: &Stage) -> Result<&Namespace> {
    stage.server_side().context("no namespace")
}

fn ensure_seen(seen: &BTreeSet<String>, expected: &[&str]) -> Result<()> {
    for opcode in expected {
        ensure!(seen.contains(*opcode), "no opcode {opcode} among {seen:?}");
    }
    Ok(())
}

#[test]
fn rping_connected_by_rdma_cm() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let capture = Capture::start(server_side(&stage)?, "rping", "tcp")?;
    let port = ports::next();
    let program = Program::weft("rping").line("-V -C 20 -S 3000 -p").arg(port.to_string());
    let program = program.args(["-a", &stage.server_address().to_string()]);
    let (server, client) = (program.clone().arg("-s"), program.arg("-c"));
    stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    let seen = capture::opcodes(&capture.stop()?)?;
    ensure_seen(&seen, &[SEND, READ_REQUEST, READ_RESPONSE, WRITE])
}

#[test]
fn perftest_connected_by_itself() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    // Sizes near the frame size, and with padding of every length.
    let tests = [
        ("ib_send_bw", "-s 1447 -n 20", &[SEND][..]),
        ("ib_write_bw", "-s 65537 -n 20", &[WRITE]),
        ("ib_read_bw", "-s 4098 -n 20", &[READ_REQUEST, READ_RESPONSE]),
    ];
    for (program, options, expected) in tests {
        let port = ports::next();
        let capture = {
            // Excludes the connection on which the programs exchange the parameters of the test.
            let filter = format!("tcp and not port {port}");
            Capture::start(server_side(&stage)?, program, &filter)?
        };
        let server = Program::weft(program).line("-F -p").arg(port.to_string()).line(options);
        let client = server.clone().arg(stage.server_address().to_string());
        stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
        let seen = capture::opcodes(&capture.stop()?).with_context(|| program.to_owned())?;
        ensure_seen(&seen, expected)?;
    }
    Ok(())
}
