//! iSER: tgtd serves a disk, and libiscsi's tools read, write and verify it.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Folder, Program, Running, Stage, ports, scratch, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);
const TARGET: &str = "iqn.2026-01.org.example:disk";
const INITIATOR: &str = "iqn.2026-01.org.example:initiator";
const DISK_BYTES: u64 = 32 << 20;

/// A running target, and the address of its disk.
struct Target {
    _daemon: Running,
    _folder: Folder,
    url: String,
}

impl Target {
    fn start(stage: &Stage) -> Result<Self> {
        let (port, iscsi_port) = (ports::next(), ports::next());
        let directory = scratch(&format!("iser-{port}"))?;
        let disk = directory.join("disk");
        fs::File::create(&disk)?.set_len(DISK_BYTES)?;
        let folder = Folder::new(0o700)?;
        let socket = folder.path().join("control");
        let control = port.to_string();

        let daemon = Program::weft("tgtd")
            .env("TGT_IPC_SOCKET", &socket)
            .args(["-f", "-C", &control, "--iser", &format!("port={port}")])
            .args(["--iscsi", &format!("portal=0.0.0.0:{iscsi_port}")])
            .directory(&directory);
        let daemon = stage.server(daemon).start()?.listening(Port::Tcp(iscsi_port))?;
        let administer = |arguments: &str| -> Result<()> {
            Program::plain("tgtadm")
                .env("TGT_IPC_SOCKET", &socket)
                .args(["-C", &control, "--lld", "iser", "--tid", "1"])
                .line(arguments)
                .run(TIMEOUT)?
                .success()?;
            Ok(())
        };
        administer(&format!("--mode target --op new --targetname {TARGET}"))?;
        administer(&format!(
            "--mode logicalunit --op new --lun 1 --backing-store {}",
            disk.display()
        ))?;
        administer("--mode target --op bind --initiator-address ALL")?;
        administer(&format!("--mode target --op bind --initiator-name {INITIATOR}"))?;
        let url = format!("iser://{}:{port}/{TARGET}/1", stage.server_address());
        Ok(Self { _daemon: daemon, _folder: folder, url })
    }
}

/// Reads the disk's properties, writes and compares data, and measures the rate of reads.
fn use_disk(stage: &Stage) -> Result<()> {
    let target = Target::start(stage)?;
    // libiscsi 1.19 reads uninitialized memory of a connection that it got from malloc. With this
    // value glibc returns zeroed memory, as libiscsi expects.
    let initiator =
        |program: &str| stage.client(Program::weft(program)).env("MALLOC_PERTURB_", "255");

    let inquiry = initiator("iscsi-inq").args(["-i", INITIATOR, &target.url]);
    inquiry.run(TIMEOUT)?.success()?.expect_output("VIRTUAL-DISK")?;

    let capacity = initiator("iscsi-readcapacity16").args(["-i", INITIATOR, &target.url]);
    capacity.run(TIMEOUT)?.success()?.expect_output(&DISK_BYTES.to_string())?;

    // Reads blocks, sends them back, and has the target compare; then with one bit changed.
    for test in ["SCSI.Verify16.Simple", "SCSI.Verify16.Mismatch", "SCSI.CompareAndWrite.Simple"] {
        let tests =
            initiator("iscsi-test-cu").args(["--dataloss", "--test", test, "-i", INITIATOR]);
        let tests = tests.arg(&target.url);
        let mut ended = tests.run(TIMEOUT)?;
        // libiscsi 1.19 frees a connection while its own thread may still poll the connection's
        // events. A crash from that is rare, and happens only at the very end.
        for _ in 0..2 {
            if ended.status.signal() == Some(Signal::SEGV.as_raw()) {
                ended = tests.run(TIMEOUT)?;
            }
        }
        let ended = ended.success()?;
        let failed = ended.stdout.contains("FAILED") || !ended.stdout.contains("passed");
        ensure!(!failed, ended.error(test));
    }

    let reads = initiator("iscsi-perf").args(["-i", INITIATOR, "-b", "64", "-m", "16"]);
    let mut reads = reads.arg(&target.url).start()?;
    reads.printed("iops average", TIMEOUT).context("iscsi-perf")?;
    Ok(())
}

#[test]
fn on_one_host() -> Result<()> {
    use_disk(&Stage::loopback())
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    use_disk(&Stage::namespaces()?)
}
