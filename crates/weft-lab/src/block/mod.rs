//! Measures reads and writes of a unit in memory, served by `weft target`, tgt and nbdkit. All
//! connections go over loopback, or through shared memory if they are iSER's.

mod initiator;

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use self::initiator::Initiator;
use crate::endpoint::Port;
use crate::resources::process_cpu;
use crate::{Folder, Program, Running, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "iqn.2026-01.org.example:disk";
/// The length of a unit.
const LEN: usize = 256 << 20;
/// Seconds for which `iscsi-perf` reads.
const SECONDS: u32 = 3;
/// Requests that `qemu-img bench` writes, and those that it reads.
const WRITES: u32 = 8_000;
const READS: u32 = 300_000;
/// From one of its reads to the next: 245 pages, so that reads are scattered over the unit.
const STRIDE: u32 = 245 << 12;
/// Reads of which the median time is taken, and those before them.
const POLLED_READS: usize = 50_000;
const UNTIMED_READS: usize = 5_000;
/// Requests of QEMU's that are outstanding, and those of 256 KiB.
const DEPTH: u32 = 32;
const LARGE_DEPTH: u32 = 8;
/// The unit without a medium.
const NULL_UNIT: u8 = 1;

/// What an initiator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Reads of 4 KiB at random places, with this many outstanding.
    RandomReads(u32),
    /// Reads of 4 KiB at random places, one after the other, by an initiator that polls.
    PolledReads,
    /// Reads of 4 KiB by an initiator that knows iSCSI and NBD, 32 outstanding.
    ScatteredReads,
    /// Reads of 256 KiB, one behind the other.
    LargeReads,
    /// Writes of 256 KiB, one behind the other.
    LargeWrites,
    /// Reads of 512 bytes of a unit without a medium, by this many connections.
    NullReads(u32),
}

/// A program that serves the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// `weft target serve`.
    Weft,
    /// The same over iSER on Weft's device.
    Iser,
    /// tgtd, of Debian's package tgt.
    Tgt,
    /// nbdkit, which serves a file over NBD.
    Nbdkit,
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
    fn len(self) -> u32 {
        match self {
            Self::RandomReads(_) | Self::PolledReads | Self::ScatteredReads => 4 << 10,
            Self::LargeReads | Self::LargeWrites => 256 << 10,
            Self::NullReads(_) => 512,
        }
    }

    /// Formats a rate: requests of small reads, bytes of large ones, the time of polled ones.
    #[must_use]
    pub fn show(self, rate: f64) -> String {
        match self {
            Self::PolledReads => format!("{:.1} us", 1e6 / rate),
            Self::LargeReads | Self::LargeWrites => {
                format!("{:.2} GB/s", rate * f64::from(self.len()) / 1e9)
            }
            _ => format!("{:.1} k/s", rate / 1e3),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RandomReads(depth) => write!(f, "random reads of 4 KiB, {depth} outstanding"),
            Self::PolledReads => write!(f, "the same, initiator polls: median time"),
            Self::ScatteredReads => write!(f, "reads of 4 KiB by QEMU, {DEPTH} outstanding"),
            Self::LargeReads => write!(f, "reads of 256 KiB, {LARGE_DEPTH} outstanding"),
            Self::LargeWrites => write!(f, "writes of 256 KiB, {LARGE_DEPTH} outstanding"),
            Self::NullReads(connections) => {
                write!(f, "reads of 512 B, no medium, connections: {connections}")
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft => "weft target",
            Self::Iser => "weft target, iSER",
            Self::Tgt => "tgtd",
            Self::Nbdkit => "nbdkit",
        })
    }
}

/// The targets, running.
#[derive(Debug)]
pub struct Storage {
    weft: Served,
    tgt: Served,
    /// Those that only `make bench` measures.
    others: Option<[Served; 2]>,
    folder: Folder,
}

#[derive(Debug)]
struct Served {
    daemon: Running,
    /// Where the unit is, without its number.
    url: String,
    unit: u8,
    port: u16,
}

impl Storage {
    /// Starts `weft target` and tgt, each with a unit of 256 MiB. Both keep written data in the
    /// page cache, as tgtd does by default.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn start() -> Result<Self> {
        let folder = Folder::in_memory(0o700)?;
        let weft = start_weft(&disk(&folder, "weft")?)?;
        let tgt = start_tgt(&disk(&folder, "tgt")?, folder.path())?;
        Ok(Self { weft, tgt, others: None, folder })
    }

    /// Starts `weft target` over iSER, and nbdkit, too.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn with_others(self) -> Result<Self> {
        let iser = start_iser(&disk(&self.folder, "iser")?)?;
        let nbdkit = start_nbdkit(&disk(&self.folder, "nbdkit")?)?;
        Ok(Self { others: Some([iser, nbdkit]), ..self })
    }

    /// Lets an initiator work.
    ///
    /// # Errors
    ///
    /// If it fails, or prints no result; if the target does not run.
    pub fn measure(&self, load: Load, target: Target) -> Result<Sample> {
        let others = || self.others.as_ref().context("it does not run");
        let served = match target {
            Target::Weft => &self.weft,
            Target::Tgt => &self.tgt,
            Target::Iser => &others()?[0],
            Target::Nbdkit => &others()?[1],
        };
        let before = process_cpu(served.daemon.pid())?;
        let (rate, requests) = served.load(load, target)?;
        let cpu = process_cpu(served.daemon.pid())?.saturating_sub(before);
        Ok(Sample { rate, cpu_micros: cpu.as_secs_f64() * 1e6 / requests })
    }
}

impl Served {
    /// Returns the requests of a second, and those of the whole run.
    fn load(&self, load: Load, target: Target) -> Result<(f64, f64)> {
        let url = match target {
            Target::Nbdkit => self.url.clone(),
            _ => format!("{}/{}", self.url, self.unit),
        };
        let blocks = load.len() / 512;
        let program = |name: &str| match target {
            Target::Iser => Program::weft(name).weft_option("--no-sockets"),
            _ => Program::plain(name),
        };
        let perf = |options: String, url: &str| {
            let running = perf_program(program("iscsi-perf"), &options, url).start()?;
            let rate = rate_of(running, target == Target::Iser)?;
            Ok((rate, rate * f64::from(SECONDS)))
        };
        match load {
            Load::RandomReads(depth) => perf(format!("-r -m {depth} -b {blocks}"), &url),
            Load::LargeReads => perf(format!("-m {LARGE_DEPTH} -b {blocks}"), &url),
            Load::LargeWrites => bench(&url, &format!("-w -d {LARGE_DEPTH}"), (WRITES, load.len())),
            Load::ScatteredReads => {
                bench(&url, &format!("-d {DEPTH} -S {STRIDE}"), (READS, load.len()))
            }
            Load::PolledReads => self.poll(),
            Load::NullReads(connections) => {
                let url = format!("{}/{NULL_UNIT}", self.url);
                let program = perf_program(program("iscsi-perf"), "-r -m 8 -b 1", &url);
                let running = (0..connections).map(|_| program.start());
                let running = running.collect::<Result<Vec<_>>>()?;
                let rates = running.into_iter().map(|running| rate_of(running, false));
                let rates = rates.collect::<Result<Vec<_>>>()?;
                let rate = rates.iter().sum::<f64>();
                Ok((rate, rate * f64::from(SECONDS)))
            }
        }
    }

    /// Reads without sleeping. The rate is that of the median time.
    fn poll(&self) -> Result<(f64, f64)> {
        let mut initiator = Initiator::log_in(self.port, NAME, self.unit)?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut times = Vec::with_capacity(POLLED_READS);
        for read in 0..UNTIMED_READS + POLLED_READS {
            let time = initiator.read(8 * random.u32(..LEN as u32 / 4096))?;
            if read >= UNTIMED_READS {
                times.push(time);
            }
        }
        times.sort_unstable();
        let median = times[times.len() / 2];
        Ok((1.0 / median.as_secs_f64(), (UNTIMED_READS + POLLED_READS) as f64))
    }
}

/// A file that is full of data, so that no read finds a hole.
fn disk(folder: &Folder, name: &str) -> Result<PathBuf> {
    let path = folder.path().join(name);
    fs::write(&path, vec![1; LEN])?;
    Ok(path)
}

fn start_weft(disk: &Path) -> Result<Served> {
    let port = ports::next();
    let daemon = Program::plain(weft()?)
        .line(&format!("target serve --name {NAME} --listen 127.0.0.1:{port}"))
        .arg(format!("{},write-back", disk.display()))
        .arg(format!("null:1G,lun={NULL_UNIT}"));
    let daemon = daemon.start()?.listening(Port::Tcp(port))?;
    Ok(Served { daemon, url: format!("iscsi://127.0.0.1:{port}/{NAME}"), unit: 0, port })
}

/// Both ends use Weft's device, and share memory.
fn start_iser(disk: &Path) -> Result<Served> {
    let (tcp_port, port) = (ports::next(), ports::next());
    let daemon = Program::weft(weft()?)
        .weft_option("--no-sockets")
        .line(&format!("target serve --name {NAME} --listen 127.0.0.1:{tcp_port}"))
        .line(&format!("--iser 127.0.0.1:{port}"))
        .arg(format!("{},write-back", disk.display()));
    let daemon = daemon.start()?.listening(Port::Tcp(tcp_port))?;
    Ok(Served { daemon, url: format!("iser://127.0.0.1:{port}/{NAME}"), unit: 0, port })
}

fn start_nbdkit(disk: &Path) -> Result<Served> {
    let port = ports::next();
    let daemon = Program::plain("nbdkit").line(&format!("-f -i 127.0.0.1 -p {port} file"));
    let daemon = daemon.arg(disk).start()?.listening(Port::Tcp(port))?;
    Ok(Served { daemon, url: format!("nbd://127.0.0.1:{port}"), unit: 0, port })
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
    Ok(Served { daemon, url: format!("iscsi://127.0.0.1:{port}/{NAME}"), unit: 1, port })
}

/// `iscsi-perf`, which reads for some seconds.
fn perf_program(program: Program, options: &str, url: &str) -> Program {
    let program = program.env("MALLOC_PERTURB_", "255");
    program.line(&format!("{options} -t {SECONDS}")).arg(url)
}

/// The requests of a second that an `iscsi-perf` prints. Over iSER it may crash behind that:
/// libiscsi 1.19 has a thread for each connection, which uses what another one has freed.
fn rate_of(running: Running, may_crash: bool) -> Result<f64> {
    let ended = running.wait(TIMEOUT)?;
    let has_crashed = ended.status.signal().is_some();
    let ended = if may_crash && has_crashed { ended } else { ended.success()? };
    average(&ended.stdout).with_context(|| ended.error("no average"))
}

/// The last average that `iscsi-perf` has printed.
fn average(output: &str) -> Option<f64> {
    let (_, rest) = output.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Lets QEMU read or write, and returns the same.
fn bench(url: &str, options: &str, (count, len): (u32, u32)) -> Result<(f64, f64)> {
    let program = Program::plain("qemu-img").line("bench -f raw").line(options);
    let ended = program.line(&format!("-c {count} -s {len}")).arg(url).run(TIMEOUT)?.success()?;
    let seconds = seconds(&ended.stdout).with_context(|| ended.error("no time"))?;
    Ok((f64::from(count) / seconds, f64::from(count)))
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
