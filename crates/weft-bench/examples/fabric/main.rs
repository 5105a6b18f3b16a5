//! Measures one load over the engine itself or over `weft-fabric`, between two processes that are
//! pinned to a core each.
//!
//! ```text
//! fabric LOAD WAY [ADDRESS [COMMAND...]]        prints one line of JSON
//! ```
//!
//! LOAD is the name of a [`Load`], WAY of a [`Way`]. The server listens at ADDRESS, and COMMAND
//! starts it, such as in another network namespace. `make bench BENCH=--fabric` runs all of them,
//! one after the other in each run.

mod engine;
mod fabric;
mod futures;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use weft_fabric::Carrier;

/// The environment variable that makes a process the server.
const ROLE: &str = "WEFT_BENCH_FABRIC_SERVER";
/// What a server prints before its address, and before the processor time of its operations.
const LISTENING: &str = "listening at ";
const USED: &str = "used ";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Messages of 8 bytes and their answers, one after the other.
    PingPong,
    /// Messages of 64 bytes in one direction, 64 of them under way.
    Rate,
    /// Reads of 8 bytes, one after the other.
    Read,
    /// Writes of so many bytes, one after the other.
    Write(usize),
    /// Additions, one after the other, to eight bytes that are a whole buffer.
    Add,
    /// The same, to eight bytes in the middle of a page.
    AddInside,
    /// Operations that are under way at a time: their memory.
    UnderWay,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Calls of the engine, polling.
    Engine,
    /// `weft-fabric`, with blocking calls.
    Blocking,
    /// `weft-fabric`, as futures on tokio.
    Futures,
    /// `weft-fabric` over reliable datagrams, with blocking calls.
    Datagrams,
}

/// What a client has measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
    /// Processor time of this process.
    pub(crate) used: Duration,
    /// Memory that each operation takes, if that is measured.
    pub(crate) bytes_each: u64,
}

impl Load {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "ping-pong" => Self::PingPong,
            "rate" => Self::Rate,
            "read" => Self::Read,
            "write-4k" => Self::Write(4 << 10),
            "write-64k" => Self::Write(64 << 10),
            "write-1m" => Self::Write(1 << 20),
            "add" => Self::Add,
            "add-inside" => Self::AddInside,
            "under-way" => Self::UnderWay,
            _ => return None,
        })
    }

    /// The number of operations: some seconds' worth at most.
    pub(crate) fn operations(self) -> u64 {
        match self {
            Self::PingPong => 50_000,
            Self::Rate => 1_000_000,
            Self::Read | Self::Add => 300_000,
            Self::AddInside => 30_000,
            Self::Write(len) => (4 << 30) / (len as u64 + (32 << 10)),
            Self::UnderWay => 10_000,
        }
    }

    /// Bytes of the memory that the server shares.
    pub(crate) fn shared_len(self) -> usize {
        match self {
            Self::Write(len) => len,
            Self::Add => 8,
            _ => 8_192,
        }
    }

    /// Where peers access it.
    pub(crate) fn shared_at(self) -> usize {
        if self == Self::AddInside { 64 } else { 0 }
    }

    /// Whether the server sends and receives messages.
    pub(crate) fn has_messages(self) -> bool {
        matches!(self, Self::PingPong | Self::Rate)
    }
}

/// Runs all operations of a load, the first tenth of which is not measured, by calls of `some`,
/// whose argument is how many to do.
pub(crate) fn measure(load: Load, mut some: impl FnMut(u64) -> Result<()>) -> Result<Measured> {
    let operations = load.operations();
    some(operations / 10)?;
    let meter = Meter::start();
    some(operations)?;
    Ok(meter.stop(operations))
}

/// The time and the processor time since a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    start: Instant,
    used: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), used: used() }
    }

    pub(crate) fn stop(self, operations: u64) -> Measured {
        let (time, used) = (self.start.elapsed(), used().saturating_sub(self.used));
        Measured { operations, time, used, bytes_each: 0 }
    }
}

/// The processor time of this process.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Tells the client where this server listens.
pub(crate) fn announce(address: SocketAddr) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{LISTENING}{address}")?;
    Ok(stdout.flush()?)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [load, way, place @ ..] = &words[..] else {
        bail!("fabric LOAD WAY [ADDRESS [COMMAND...]]")
    };
    let load = Load::parse(load).with_context(|| format!("no load is {load}"))?;
    let way = match &way[..] {
        "engine" => Way::Engine,
        "blocking" => Way::Blocking,
        "futures" => Way::Futures,
        "datagrams" => Way::Datagrams,
        _ => bail!("no way is {way}"),
    };
    let is_server = std::env::var_os(ROLE).is_some();
    pin(usize::from(!is_server));
    if is_server { serve(load, way, place) } else { dial(load, way, &words) }
}

/// Stays on one core. Without the right to choose, or on a host with one core, it does not.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}

fn serve(load: Load, way: Way, place: &[String]) -> Result<()> {
    let address = place.first().map_or("127.0.0.1", String::as_str);
    let at = SocketAddr::new(address.parse()?, 0);
    let meter = match way {
        Way::Engine => engine::serve(load, at)?,
        Way::Blocking => fabric::serve(load, at, Carrier::Engine)?,
        Way::Datagrams => fabric::serve(load, at, Carrier::Datagrams)?,
        Way::Futures => futures::serve(load, at)?,
    };
    println!("{USED}{}", meter.stop(0).used.as_nanos());
    Ok(())
}

fn dial(load: Load, way: Way, words: &[String]) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut server = match words {
        [_, _, _, command, arguments @ ..] => {
            let mut server = Command::new(command);
            server.args(arguments).arg(program);
            server
        }
        _ => Command::new(program),
    };
    let mut server = server.args(words).env(ROLE, "").stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(server.stdout.take().context("no output")?).lines();
    let mut find = |label: &str| -> Result<String> {
        let line = lines.next().context("the server has ended")??;
        Ok(line.strip_prefix(label).context(line.clone())?.to_owned())
    };
    let to = find(LISTENING)?.parse()?;
    let measured = match way {
        Way::Engine => engine::dial(load, to)?,
        Way::Blocking => fabric::dial(load, to, Carrier::Engine)?,
        Way::Datagrams => fabric::dial(load, to, Carrier::Datagrams)?,
        Way::Futures => futures::dial(load, to)?,
    };
    let server_used: f64 = find(USED)?.parse()?;
    let status = server.wait()?;
    ensure!(status.success(), "the server: {status}");
    let each = |total: f64| total / measured.operations as f64;
    println!(
        "{{\"nanoseconds\": {:.1}, \"client_cpu\": {:.1}, \"server_cpu\": {:.1}, \"bytes\": {}}}",
        each(measured.time.as_nanos() as f64),
        each(measured.used.as_nanos() as f64),
        each(server_used),
        measured.bytes_each,
    );
    Ok(())
}
