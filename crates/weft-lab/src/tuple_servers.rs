//! Measures `weft tuples serve` beside a real Redis.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::endpoint::Port;
use crate::resources::process_cpu;
use crate::{Folder, Program, compile_plain, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Rounds of the ping-pong, and moves.
const ROUNDS: &str = "5000";

/// A server, and the protocol by which it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleServer {
    /// A real Redis.
    Redis,
    /// Redis with both ends under `weft run`.
    RedisOnWeft,
    /// `weft tuples serve` by the Redis protocol.
    Port,
    /// The same, with both ends under `weft run`.
    PortOnWeft,
    /// `weft tuples serve` by its own protocol.
    Native,
    /// The same, with both ends under `weft run`.
    NativeOnWeft,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleLoad {
    /// The time of a move of one byte.
    Move,
    /// The time of a round of two clients that wait for one another: four operations.
    HandOff,
    /// The rate of pushes of 50 clients, so many at a time.
    Pushes(u32),
    /// The rate of pops of 50 clients, so many at a time.
    Pops(u32),
    /// The rate of pushes of 50 clients that are on disk before they are answered.
    Durable,
    /// The same, beside a Redis that writes to disk each second.
    DurableBesideEverySecond,
}

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TupleSample {
    /// Microseconds, or operations per second.
    pub result: f64,
    /// Processor time of the server for each operation in microseconds, with its start.
    pub cpu_micros: f64,
}

impl TupleServer {
    /// Whether both ends run under `weft run`.
    fn is_on_weft(self) -> bool {
        matches!(self, Self::RedisOnWeft | Self::PortOnWeft | Self::NativeOnWeft)
    }

    fn is_redis(self) -> bool {
        matches!(self, Self::Redis | Self::RedisOnWeft)
    }

    fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeOnWeft)
    }
}

impl fmt::Display for TupleServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "Redis",
            Self::RedisOnWeft => "Redis, `weft run`",
            Self::Port => "Redis port",
            Self::PortOnWeft => "Redis port, `weft run`",
            Self::Native => "own protocol",
            Self::NativeOnWeft => "own protocol, `weft run`",
        })
    }
}

impl TupleLoad {
    /// All loads.
    pub const ALL: [Self; 8] = [
        Self::Move,
        Self::HandOff,
        Self::Pushes(1),
        Self::Pops(1),
        Self::Pushes(16),
        Self::Pops(16),
        Self::Durable,
        Self::DurableBesideEverySecond,
    ];

    /// The servers that it is measured with. The first one is what the others are compared with.
    #[must_use]
    pub fn servers(self) -> &'static [TupleServer] {
        use TupleServer::{Native, NativeOnWeft, Port, PortOnWeft, Redis, RedisOnWeft};
        match self {
            Self::Move | Self::HandOff => {
                &[Redis, RedisOnWeft, Port, PortOnWeft, Native, NativeOnWeft]
            }
            Self::Pushes(_) | Self::Pops(_) => &[Redis, RedisOnWeft, Port, PortOnWeft],
            Self::Durable | Self::DurableBesideEverySecond => &[Redis, Port],
        }
    }

    /// Whether the result is a time.
    #[must_use]
    pub fn is_time(self) -> bool {
        matches!(self, Self::Move | Self::HandOff)
    }
}

impl fmt::Display for TupleLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Move => write!(f, "move of 1 byte, one client"),
            Self::HandOff => write!(f, "ping-pong, four operations"),
            Self::Pushes(1) => write!(f, "LPUSH, 50 clients"),
            Self::Pops(1) => write!(f, "LPOP, 50 clients"),
            Self::Pushes(depth) => write!(f, "LPUSH, 50 clients, {depth} at a time"),
            Self::Pops(depth) => write!(f, "LPOP, 50 clients, {depth} at a time"),
            Self::Durable => write!(f, "durable LPUSH, 50 clients, beside `appendfsync always`"),
            Self::DurableBesideEverySecond => {
                write!(f, "durable LPUSH, 50 clients, beside `appendfsync everysec`")
            }
        }
    }
}

/// The programs that measure.
#[derive(Debug)]
pub struct TupleServers {
    handoff: PathBuf,
}

impl TupleServers {
    /// Compiles the program.
    ///
    /// # Errors
    ///
    /// If the compiler is missing or fails.
    pub fn new() -> Result<Self> {
        Ok(Self { handoff: compile_plain("tuple_handoff")? })
    }

    /// Measures a load with a new server.
    ///
    /// # Errors
    ///
    /// If a program fails.
    pub fn measure(&self, load: TupleLoad, server: TupleServer) -> Result<TupleSample> {
        let (port, folder) = (ports::next(), Folder::new(0o700)?);
        let daemon = daemon(load, server, port).directory(folder.path());
        let daemon = daemon.start()?.listening(Port::Tcp(port))?;
        // The list that is popped from is filled before.
        if let TupleLoad::Pops(_) = load {
            let fill = client(server, "redis-benchmark");
            fill.line(&format!("-p {port} -n 300000 -c 50 -P 16 -q lpush mylist xxx"))
                .run(TIMEOUT)?
                .success()?;
        }
        let before = process_cpu(daemon.pid())?;
        let (result, operations) = if load.is_time() {
            (self.time(load, server, port)?, f64::NAN)
        } else {
            rate(load, server, port)?
        };
        let cpu = process_cpu(daemon.pid())?.saturating_sub(before);
        daemon.kill()?;
        Ok(TupleSample { result, cpu_micros: cpu.as_secs_f64() * 1e6 / operations })
    }

    fn time(&self, load: TupleLoad, server: TupleServer, port: u16) -> Result<f64> {
        if server.is_native() {
            let bench = client(server, weft()?).args(["tuples", "bench", "--json", "--runs", "1"]);
            let bench = bench.args(["--moves", ROUNDS, "--server"]);
            let bench = bench.arg(format!("127.0.0.1:{port}")).run(TIMEOUT)?.success()?;
            let found: serde_json::Value = serde_json::from_str(&bench.stdout)?;
            let time = match load {
                TupleLoad::Move => &found["move"][0]["median_us"],
                _ => &found["ping_pong"]["median_us"],
            };
            return time.as_f64().context(bench.stdout);
        }
        let label = if load == TupleLoad::Move { "move " } else { "round " };
        let handoff = client(server, &self.handoff).args([&port.to_string(), ROUNDS]);
        let said = handoff.run(TIMEOUT)?.success()?.stdout;
        let line = said.lines().find_map(|line| line.strip_prefix(label));
        Ok(line.with_context(|| said.clone())?.parse()?)
    }
}

fn client(server: TupleServer, name: impl AsRef<std::ffi::OsStr>) -> Program {
    if server.is_on_weft() { Program::weft(name) } else { Program::plain(name) }
}

fn daemon(load: TupleLoad, server: TupleServer, port: u16) -> Program {
    let name = if server.is_redis() { "redis-server".into() } else { weft().unwrap_or_default() };
    let program = client(server, name);
    if !server.is_redis() {
        let program = program.line(&format!("tuples serve --listen 127.0.0.1:{port}"));
        let is_durable = matches!(load, TupleLoad::Durable | TupleLoad::DurableBesideEverySecond);
        return if is_durable { program.line("--state state") } else { program };
    }
    let program = program.line(&format!("--port {port} --bind 127.0.0.1 --save")).arg("");
    match load {
        TupleLoad::Durable => program.line("--appendonly yes --appendfsync always"),
        TupleLoad::DurableBesideEverySecond => {
            program.line("--appendonly yes --appendfsync everysec")
        }
        _ => program,
    }
}

/// Returns operations per second, and how many there were.
fn rate(load: TupleLoad, server: TupleServer, port: u16) -> Result<(f64, f64)> {
    let (test, depth, count) = match load {
        TupleLoad::Pushes(depth) => ("lpush", depth, 60_000 * depth.min(4)),
        TupleLoad::Pops(depth) => ("lpop", depth, 60_000 * depth.min(4)),
        _ => ("lpush", 1, 20_000),
    };
    let benchmark = client(server, "redis-benchmark");
    let benchmark = benchmark
        .line(&format!("-p {port} -n {count} -c 50 -P {depth} -t {test} --csv"))
        .run(TIMEOUT)?
        .success()?;
    let line = benchmark.stdout.lines().last().unwrap_or_default();
    let rate = line.split(',').nth(1).map(|rate| rate.trim_matches('"').parse::<f64>());
    let rate = rate.with_context(|| benchmark.stdout.clone())??;
    ensure!(rate > 0.0, "{line}");
    Ok((rate, f64::from(count)))
}
