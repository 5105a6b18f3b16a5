//! Measures reads and writes of an iSCSI unit, served by `weft target` and by tgt. The blocks are
//! in memory, and all connections go over loopback.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::endpoint::Port;
use crate::resources::process_cpu;
use crate::{Folder, Program, Running, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "iqn.2026-01.org.example:disk";
/// The length of a unit.
const LEN: usize = 256 << 20;
/// Seconds for which `iscsi-perf` reads.
const SECONDS: u32 = 3;
/// Requests that `qemu-img bench` writes.
const WRITES: u32 = 8_000;
/// Requests of 256 KiB that are outstanding.
const LARGE_DEPTH: u32 = 8;

/// What an initiator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Reads of 4 KiB at random places, with this many outstanding.
    RandomReads(u32),
    /// Reads of 256 KiB, one behind the other.
    LargeReads,
    /// Writes of 256 KiB, one behind the other.
    LargeWrites,
}

/// A program that serves the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// `weft target serve`.
    Weft,
    /// tgtd, of Debian's package tgt.
    Tgt,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sample {
    /// Requests that were complete, in a second.
    pub rate: f64,
    /// Processor time of the target for each request, in microseconds.
    pub cpu_micros: f64,
}

impl Load {
    /// All loads.
    pub const ALL: [Self; 4] =
        [Self::RandomReads(32), Self::RandomReads(1), Self::LargeReads, Self::LargeWrites];

    fn len(self) -> u32 {
        match self {
            Self::RandomReads(_) => 4 << 10,
            Self::LargeReads | Self::LargeWrites => 256 << 10,
        }
    }

    /// Formats a rate: requests of small reads, bytes of large ones.
    #[must_use]
    pub fn show(self, rate: f64) -> String {
        match self {
            Self::RandomReads(_) => format!("{:.1} k/s", rate / 1e3),
            Self::LargeReads | Self::LargeWrites => {
                format!("{:.2} GB/s", rate * f64::from(self.len()) / 1e9)
            }
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RandomReads(depth) => write!(f, "random reads of 4 KiB, {depth} outstanding"),
            Self::LargeReads => write!(f, "reads of 256 KiB, {LARGE_DEPTH} outstanding"),
            Self::LargeWrites => write!(f, "writes of 256 KiB, {LARGE_DEPTH} outstanding"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft => "weft target",
            Self::Tgt => "tgtd",
        })
    }
}

/// Both targets, running.
#[derive(Debug)]
pub struct Storage {
    weft: Served,
    tgt: Served,
    _folder: Folder,
}

#[derive(Debug)]
struct Served {
    daemon: Running,
    url: String,
}

impl Storage {
    /// Starts both targets, each with a unit of 256 MiB. Both keep written data in the page cache,
    /// as tgtd does by default.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn start() -> Result<Self> {
        let folder = Folder::in_memory(0o700)?;
        // No read finds a hole.
        let disk = |name| -> Result<_> {
            let path = folder.path().join(name);
            fs::write(&path, vec![1; LEN])?;
            Ok(path)
        };
        let weft = start_weft(&disk("weft")?)?;
        let tgt = start_tgt(&disk("tgt")?, folder.path())?;
        Ok(Self { weft, tgt, _folder: folder })
    }

    /// Lets an initiator work.
    ///
    /// # Errors
    ///
    /// If it fails, or prints no result.
    pub fn measure(&self, load: Load, target: Target) -> Result<Sample> {
        let Served { daemon, url } = match target {
            Target::Weft => &self.weft,
            Target::Tgt => &self.tgt,
        };
        let before = process_cpu(daemon.pid())?;
        let (rate, requests) = match load {
            Load::RandomReads(depth) => {
                read(url, &format!("-r -m {depth} -b {}", load.len() / 512))?
            }
            Load::LargeReads => read(url, &format!("-m {LARGE_DEPTH} -b {}", load.len() / 512))?,
            Load::LargeWrites => write(url, load.len())?,
        };
        let cpu = process_cpu(daemon.pid())?.saturating_sub(before);
        Ok(Sample { rate, cpu_micros: cpu.as_secs_f64() * 1e6 / requests })
    }
}

fn start_weft(disk: &Path) -> Result<Served> {
    let port = ports::next();
    let daemon = Program::plain(weft()?)
        .line(&format!("target serve --name {NAME} --listen 127.0.0.1:{port}"))
        .arg(format!("{},write-back", disk.display()));
    let daemon = daemon.start()?.listening(Port::Tcp(port))?;
    Ok(Served { daemon, url: format!("iscsi://127.0.0.1:{port}/{NAME}/0") })
}

fn start_tgt(disk: &Path, folder: &Path) -> Result<Served> {
    let port = ports::next();
    // The number of a control port is that of a file only, which has to be unused.
    let (control, socket) = (port.to_string(), folder.join("control"));
    let daemon = Program::plain("tgtd").env("TGT_IPC_SOCKET", &socket).args([
        "-f",
        "-C",
        &control,
        "--iscsi",
        &format!("portal=127.0.0.1:{port}"),
    ]);
    let daemon = daemon.start()?.listening(Port::Tcp(port))?;
    let administer = |arguments: &str| {
        let program = Program::plain("tgtadm").env("TGT_IPC_SOCKET", &socket);
        let program = program.args(["-C", &control, "--lld", "iscsi", "--tid", "1"]);
        program.line(arguments).run(TIMEOUT)?.success().map(drop)
    };
    administer(&format!("--mode target --op new --targetname {NAME}"))?;
    let unit = "--mode logicalunit --op new --lun 1 --backing-store";
    administer(&format!("{unit} {}", disk.display()))?;
    administer("--mode target --op bind --initiator-address ALL")?;
    Ok(Served { daemon, url: format!("iscsi://127.0.0.1:{port}/{NAME}/1") })
}

/// Reads for some seconds. Returns the requests of a second, and those of the whole run.
fn read(url: &str, options: &str) -> Result<(f64, f64)> {
    let program = Program::plain("iscsi-perf").env("MALLOC_PERTURB_", "255");
    let program = program.line(&format!("{options} -t {SECONDS}")).arg(url);
    let ended = program.run(TIMEOUT)?.success()?;
    let rate = average(&ended.stdout).with_context(|| ended.error("no average"))?;
    Ok((rate, rate * f64::from(SECONDS)))
}

/// The last average that `iscsi-perf` has printed.
fn average(output: &str) -> Option<f64> {
    let (_, rest) = output.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Writes, and returns the same.
fn write(url: &str, len: u32) -> Result<(f64, f64)> {
    let program = Program::plain("qemu-img").line("bench -w -f raw");
    let program = program.line(&format!("-c {WRITES} -d {LARGE_DEPTH} -s {len}")).arg(url);
    let ended = program.run(TIMEOUT)?.success()?;
    let seconds = seconds(&ended.stdout).with_context(|| ended.error("no time"))?;
    Ok((f64::from(WRITES) / seconds, f64::from(WRITES)))
}

/// The time that `qemu-img bench` has printed.
fn seconds(output: &str) -> Option<f64> {
    let (_, rest) = output.split_once("Run completed in ")?;
    rest.split_whitespace().next()?.parse().ok().filter(|seconds| *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let printed = "\r00:00:01 - lba 1, iops current 34893 (136 MB/s), \
            iops average 34893 (1 MB/s), in_flight 32, busy 0    \r\
            iops average 35605 (139 MB/s)    \n\nfinished.\n";
        assert_eq!(average(printed), Some(35_605.0));
        let printed = "Sending 2000 write requests\nRun completed in 0.592 seconds.\n";
        assert_eq!(seconds(printed), Some(0.592));
        assert_eq!((average("finished."), seconds("Run completed in 0.0 seconds")), (None, None));
    }
}
