//! What a copy leaves of a narrow path to another program's connection.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::load::Load;
use super::place::Place;
use super::tool::Tool;
use crate::endpoint::Port;
use crate::{NamespacePair, PathSettings, Program, Running, ports};

const TIMEOUT: Duration = Duration::from_secs(120);
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Packets that are lost at random, so that connections do not stay in step: with a queue alone,
/// one that is there keeps out one that comes later.
const LOSS: f64 = 0.000_2;
/// The rate of the path, and how long it queues what comes faster: more than two round trips.
const RATE: &str = "50mbit";
const QUEUE: [&str; 4] = ["burst", "32k", "latency", "25ms"];
/// A copy takes longer than the measurement.
const LOAD: Load = Load::Large(1 << 30);
/// The other connection begins after this time, and is measured for as many seconds.
const LEAD: Duration = Duration::from_secs(5);
const SECONDS: u32 = 20;

/// What shares the path with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// A second connection of the same program.
    Iperf3,
    /// A copy with these options.
    Weft(&'static [&'static str]),
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Iperf3 => f.write_str("another one"),
            Self::Weft([]) => f.write_str("`weft cp`"),
            Self::Weft(options) => write!(f, "`weft cp {}`", options.join(" ")),
        }
    }
}

/// Rates while both share the path, in bytes a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shares {
    /// Of the connection.
    pub connection: f64,
    /// Of all that the client's host has sent, headers and repetitions included.
    pub all: f64,
}

/// A narrow path between two network namespaces, with a file to copy.
#[derive(Debug)]
pub struct Bottleneck {
    place: Place,
}

impl Bottleneck {
    /// Makes the path.
    ///
    /// # Errors
    ///
    /// If the namespaces cannot be made, or the kernel has no token bucket filter (`tbf`).
    pub fn new() -> Result<Self> {
        let settings = PathSettings { round_trip: ROUND_TRIP, loss: LOSS, seed: 1 };
        // Namespaces may not have CUBIC as their own.
        let pair = NamespacePair::over_long_path(&settings, "reno")?;
        // A queue of segments that TCP has put together would drop many packets at once.
        let single = ["link", "set", "dev", pair.right.interface(), "gso_max_segs", "1"];
        Program::plain("ip").args(single).within(Some(&pair.right)).run(TIMEOUT)?.success()?;
        let limit = ["qdisc", "add", "dev", pair.right.interface(), "root", "tbf", "rate", RATE];
        let limit = Program::plain("tc").args(limit).args(QUEUE).within(Some(&pair.right));
        limit.run(TIMEOUT)?.success()?;
        Ok(Self { place: Place::between(Some(pair), &[LOAD])? })
    }

    /// Describes the path.
    pub fn describe() -> String {
        format!("{RATE}, a round trip of {ROUND_TRIP:?}, queue of {}, Reno", QUEUE[3])
    }

    /// Measures one connection of `iperf3` beside something else.
    ///
    /// # Errors
    ///
    /// If a program fails.
    pub fn measure(&self, beside: Beside) -> Result<Shares> {
        let address = self.place.address().to_string();
        let serve = || -> Result<(Running, String)> {
            let port = ports::next();
            let server = Program::plain("iperf3").args(["-s", "-B", &address, "-p"]);
            let server = server.arg(port.to_string()).within(self.place.left()).start()?;
            Ok((server.listening(Port::Tcp(port))?, port.to_string()))
        };
        let connect = |port: &str, seconds: u32| {
            let client = Program::plain("iperf3").args(["-J", "-c", &address, "-p", port]);
            client.args(["-t", &seconds.to_string()]).within(self.place.right())
        };
        let mut ends = Vec::new();
        match beside {
            Beside::Nothing => {}
            Beside::Iperf3 => {
                let (server, port) = serve()?;
                ends.extend([server, connect(&port, 2 * SECONDS).start()?]);
            }
            Beside::Weft(options) => {
                let port = ports::next();
                ends.extend(self.place.server(Tool::WeftToServer, port)?);
                let copy = self.place.weft()?.args(["cp", "-q", "--accept-new"]).args(options);
                let copy = copy.arg(self.place.path(&LOAD.folder()).join(""));
                let copy = copy.arg(format!("{address}:{port}//share/to"));
                ends.push(copy.within(self.place.right()).start()?);
            }
        }
        std::thread::sleep(LEAD);
        let (_server, port) = serve()?;
        let before = self.sent()?;
        let finished = connect(&port, SECONDS).run(TIMEOUT)?.success()?;
        let after = self.sent()?;
        for end in &mut ends {
            anyhow::ensure!(end.is_running()?, "it has ended too early: {}", end.account());
        }
        drop(ends);
        let report: Value = serde_json::from_str(&finished.stdout)?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        let all = (after - before) as f64 / f64::from(SECONDS);
        Ok(Shares { connection: bits.context("iperf3 says no rate")? / 8.0, all })
    }

    /// Returns how many bytes the client's host has sent.
    fn sent(&self) -> Result<u64> {
        let right = self.place.right().context("there are two hosts")?;
        let show = ["-s", "-j", "link", "show", "dev", right.interface()];
        let shown = Program::plain("ip").args(show).within(Some(right)).run(TIMEOUT)?.success()?;
        let links: Value = serde_json::from_str(&shown.stdout)?;
        links[0]["stats64"]["tx"]["bytes"].as_u64().context("ip shows no bytes")
    }
}
