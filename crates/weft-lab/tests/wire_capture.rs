//! What we put on the wire, judged by tshark's dissectors of iWARP.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Program, Running, Stage, ports, scratch, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);

/// RFC 5040 section 4.1 and RFC 7306 section 4.1: opcodes, as tshark prints them.
const WRITE: &str = "0x00";
const READ_REQUEST: &str = "0x01";
const READ_RESPONSE: &str = "0x02";
const SEND: &str = "0x03";

/// tcpdump on the server's end of the link.
struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Captures everything but the port on which programs talk to each other about the test.
    fn start(stage: &Stage, name: &str, control_port: Option<u16>) -> Result<Self> {
        // tcpdump gives up root before it writes, so the file must be where anyone may write.
        let file = scratch("captures")?.join(format!("{name}-{}.pcap", process::id()));
        let filter =
            control_port.map_or_else(|| "tcp".into(), |port| format!("tcp and not port {port}"));
        let tcpdump = Program::plain("tcpdump")
            .args(["-Z", "root", "-U", "--immediate-mode", "-s", "0", "-B", "65536"])
            .args(["-i", "weft0", "-w"])
            .arg(&file)
            .arg(filter);
        let mut tcpdump = stage.server(tcpdump).start()?;
        tcpdump.printed("listening on", TIMEOUT)?;
        Ok(Self { tcpdump, file })
    }

    /// Ends the capture, which must not have lost a packet.
    fn stop(mut self) -> Result<PathBuf> {
        self.tcpdump.signal(Signal::INT)?;
        let ended = self.tcpdump.wait(TIMEOUT)?.success()?;
        ended.said("0 packets dropped by kernel")?;
        Ok(self.file)
    }
}

/// One field of every packet that `filter` lets through; packets may have several values.
fn tshark(file: &Path, filter: &str, field: &str) -> Result<Vec<String>> {
    let ended = Program::plain("tshark")
        .arg("-r")
        .arg(file)
        // These two guess at what the payload of a Send might mean, and guess wrong.
        .args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .args(["-Y", filter, "-T", "fields", "-e", field])
        .run(TIMEOUT)?
        .success()?;
    Ok(ended.stdout.lines().map(str::to_owned).collect())
}

/// Checks that every byte of ours decodes as iWARP with a right CRC, and lists the opcodes seen.
fn opcodes(file: &Path) -> Result<BTreeSet<String>> {
    for frame in ["iwarp_mpa.req", "iwarp_mpa.rep"] {
        ensure!(!tshark(file, frame, "frame.number")?.is_empty(), "no {frame} in the capture");
    }
    let malformed = "_ws.malformed or _ws.expert.severity == error or _ws.expert.group == checksum";
    let complaints = tshark(file, malformed, "_ws.expert.message")?;
    ensure!(complaints.is_empty(), "malformed frames: {complaints:?}");
    // A frame may be cut by TCP; tshark decodes it in the packet that completes it. What TCP sends
    // again (on a busy machine it takes late for lost) it does not decode again, and what comes out
    // of order with the packet that fills the gap.
    let opaque = "tcp.len > 0 and not iwarp_mpa and not tcp.analysis.retransmission \
                  and not tcp.analysis.out_of_order";
    let mut opaque = tshark(file, opaque, "_ws.col.Info")?;
    opaque.retain(|packet| !packet.contains("TCP segment of a reassembled PDU"));
    ensure!(opaque.is_empty(), "packets that are no iWARP: {opaque:?}");
    let opcodes = tshark(file, "iwarp_rdma", "iwarp_rdma.opcode")?;
    Ok(opcodes.iter().flat_map(|values| values.split(',')).map(str::to_owned).collect())
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
    let capture = Capture::start(&stage, "rping", None)?;
    let port = ports::next();
    let program = Program::weft("rping").line("-V -C 20 -S 3000 -p").arg(port.to_string());
    let program = program.args(["-a", &stage.server_address().to_string()]);
    let (server, client) = (program.clone().arg("-s"), program.arg("-c"));
    stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    let seen = opcodes(&capture.stop()?)?;
    ensure_seen(&seen, &[SEND, READ_REQUEST, READ_RESPONSE, WRITE])
}

#[test]
fn perftest_connected_by_itself() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    // Sizes around a frame, and with padding of every length.
    let tests = [
        ("ib_send_bw", "-s 1447 -n 20", &[SEND][..]),
        ("ib_write_bw", "-s 65537 -n 20", &[WRITE]),
        ("ib_read_bw", "-s 4098 -n 20", &[READ_REQUEST, READ_RESPONSE]),
    ];
    for (program, options, expected) in tests {
        let port = ports::next();
        let capture = Capture::start(&stage, program, Some(port))?;
        let server = Program::weft(program).line("-F -p").arg(port.to_string()).line(options);
        let client = server.clone().arg(stage.server_address().to_string());
        stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
        let seen = opcodes(&capture.stop()?).with_context(|| program.to_owned())?;
        ensure_seen(&seen, expected)?;
    }
    Ok(())
}
