//! Captures the packets that programs send, and checks them with tshark's iWARP dissectors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::namespace::Namespace;
use crate::paths::scratch;
use crate::program::{Program, Running};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running tcpdump on the interface of a namespace.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture the packets that match `filter` (pcap-filter(7)).
    ///
    /// # Errors
    ///
    /// If tcpdump cannot start.
    pub fn start(place: &Namespace, name: &str, filter: &str) -> Result<Self> {
        // `-Z root`: tcpdump otherwise changes to a user who may not write to this directory.
        let file = scratch("captures")?.join(format!("{name}-{}.pcap", process::id()));
        let tcpdump = Program::plain("tcpdump")
            .args(["-Z", "root", "-U", "--immediate-mode", "-s", "0", "-B", "65536"])
            .args(["-i", place.interface(), "-w"])
            .arg(&file)
            .arg(filter);
        let mut tcpdump = tcpdump.within(Some(place)).start()?;
        tcpdump.printed("listening on", TIMEOUT)?;
        Ok(Self { tcpdump, file })
    }

    /// Ends the capture and returns its file.
    ///
    /// # Errors
    ///
    /// If tcpdump has dropped a packet.
    pub fn stop(mut self) -> Result<PathBuf> {
        self.tcpdump.signal(Signal::INT)?;
        let ended = self.tcpdump.wait(TIMEOUT)?.success()?;
        ended.expect_output("0 packets dropped by kernel")?;
        Ok(self.file)
    }
}

/// Returns one field of every packet that matches `filter`. If a packet has several values, they
/// are separated by commas.
///
/// # Errors
///
/// If tshark fails.
pub fn tshark(file: &Path, filter: &str, field: &str) -> Result<Vec<String>> {
    let ended = Program::plain("tshark")
        .arg("-r")
        .arg(file)
        // These heuristic dissectors misinterpret the payload of Sends.
        .args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .args(["-Y", filter, "-T", "fields", "-e", field])
        .run(TIMEOUT)?
        .success()?;
    Ok(ended.stdout.lines().map(str::to_owned).collect())
}

/// Checks that all TCP payload decodes as iWARP with valid CRCs, and returns the opcodes.
///
/// # Errors
///
/// If the capture contains other payload, a malformed frame or no MPA negotiation.
pub fn opcodes(file: &Path) -> Result<BTreeSet<String>> {
    for frame in ["iwarp_mpa.req", "iwarp_mpa.rep"] {
        ensure!(!tshark(file, frame, "frame.number")?.is_empty(), "no {frame} in the capture");
    }
    let malformed = "_ws.malformed or _ws.expert.severity == error or _ws.expert.group == checksum";
    let errors = tshark(file, malformed, "_ws.expert.message")?;
    ensure!(errors.is_empty(), "malformed frames: {errors:?}");
    // tshark decodes an FPDU that TCP has split in the packet that completes it. It does not decode
    // retransmissions (on a busy machine TCP retransmits segments that are only late), and it
    // decodes out-of-order segments with the packet that fills the gap.
    let opaque = "tcp.len > 0 and not iwarp_mpa and not tcp.analysis.retransmission \
                  and not tcp.analysis.out_of_order";
    let mut opaque = tshark(file, opaque, "_ws.col.Info")?;
    opaque.retain(|packet| !packet.contains("TCP segment of a reassembled PDU"));
    ensure!(opaque.is_empty(), "packets that are no iWARP: {opaque:?}");
    let opcodes = tshark(file, "iwarp_rdma", "iwarp_rdma.opcode")?;
    Ok(opcodes.iter().flat_map(|values| values.split(',')).map(str::to_owned).collect())
}
