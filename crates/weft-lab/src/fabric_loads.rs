//! Measures `weft-fabric` beside calls of the engine.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{NamespacePair, Program, compile_example};

const TIMEOUT: Duration = Duration::from_secs(240);

/// How a load is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricWay {
    /// Calls of the engine, polling.
    Engine,
    /// `weft-fabric` with blocking calls.
    Blocking,
    /// `weft-fabric` as futures on tokio.
    Futures,
    /// `weft-fabric` over reliable datagrams, with blocking calls.
    Datagrams,
}

/// A load: its name for the program that measures, and for people.
#[derive(Debug, Clone, Copy)]
pub struct FabricLoad {
    name: &'static str,
    text: &'static str,
    /// The ways that are measured, the first of which the others are compared with.
    pub ways: &'static [FabricWay],
}

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FabricSample {
    /// Time of an operation.
    pub nanoseconds: f64,
    /// Processor time of an operation at the client, in nanoseconds.
    pub client_cpu: f64,
    /// The same at the server.
    pub server_cpu: f64,
    /// Memory of an operation that is under way, where that is measured.
    pub bytes: f64,
}

const ALL_WAYS: &[FabricWay] =
    &[FabricWay::Engine, FabricWay::Blocking, FabricWay::Futures, FabricWay::Datagrams];
const BETWEEN: &[FabricWay] = &[FabricWay::Engine, FabricWay::Blocking, FabricWay::Datagrams];

const fn load(name: &'static str, text: &'static str, ways: &'static [FabricWay]) -> FabricLoad {
    FabricLoad { name, text, ways }
}

impl FabricLoad {
    /// All loads on one host.
    pub const ALL: [Self; 9] = [
        load("ping-pong", "8 B there and back", ALL_WAYS),
        load("rate", "64 B in one direction, 64 under way", ALL_WAYS),
        load("read", "Read of 8 B", ALL_WAYS),
        load("write-4k", "Write of 4 KiB", ALL_WAYS),
        load("write-64k", "Write of 64 KiB", ALL_WAYS),
        load("write-1m", "Write of 1 MiB", ALL_WAYS),
        load("add", "addition to a counter of 8 B", ALL_WAYS),
        load("add-inside", "addition inside of a page", ALL_WAYS),
        load("under-way", "10,000 additions under way", &[FabricWay::Futures]),
    ];

    /// Those between network namespaces.
    pub const BETWEEN: [Self; 5] = {
        let [ping_pong, rate, read, _, write_64k, write_1m, ..] = Self::ALL;
        [
            ping_pong.by(BETWEEN),
            rate.by(BETWEEN),
            read.by(BETWEEN),
            write_64k.by(BETWEEN),
            write_1m.by(BETWEEN),
        ]
    };

    const fn by(self, ways: &'static [FabricWay]) -> Self {
        Self { ways, ..self }
    }

    /// The goal for a way between namespaces: see [`FabricLoad::goal`].
    #[must_use]
    pub fn goal_between(way: FabricWay, ratio: f64) -> Option<Goal> {
        let is_met = ratio <= 1.05;
        (way == FabricWay::Blocking).then_some(Goal { text: "at most 1.05", is_met })
    }

    /// The goal for a way on one host, and whether it is met by the time of an operation, its ratio
    /// to the engine's, and what it is longer. `None` if there is no goal.
    #[must_use]
    pub fn goal(&self, way: FabricWay, time: f64, ratio: f64, more: f64) -> Option<Goal> {
        let (text, is_met) = match (self.name, way) {
            (_, FabricWay::Engine | FabricWay::Datagrams) => return None,
            ("ping-pong" | "rate", FabricWay::Blocking) => ("at most 1.10", ratio <= 1.1),
            ("ping-pong" | "rate", FabricWay::Futures) => ("at most 1.5 us more", more <= 1_500.0),
            ("read", FabricWay::Blocking) => ("below 0.5 us", time < 500.0),
            ("write-64k" | "write-1m", _) => ("at most 1.03", ratio <= 1.03),
            _ => return None,
        };
        Some(Goal { text, is_met })
    }
}

/// A goal, and whether it is met.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Goal {
    /// What is to be.
    pub text: &'static str,
    /// Whether it is.
    pub is_met: bool,
}

impl fmt::Display for FabricLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl fmt::Display for FabricWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "engine",
            Self::Blocking => "blocking",
            Self::Futures => "futures",
            Self::Datagrams => "datagrams",
        })
    }
}

/// The program that measures.
#[derive(Debug)]
pub struct FabricLoads {
    program: PathBuf,
}

impl FabricLoads {
    /// Compiles the program.
    ///
    /// # Errors
    ///
    /// If it does not compile.
    pub fn new() -> Result<Self> {
        Ok(Self { program: compile_example("weft-bench", "fabric")? })
    }

    /// Measures a load in two new processes, on this host or between two namespaces.
    ///
    /// # Errors
    ///
    /// If they fail.
    pub fn measure(
        &self,
        load: FabricLoad,
        way: FabricWay,
        between: Option<&NamespacePair>,
    ) -> Result<FabricSample> {
        let mut program = Program::plain(&self.program).args([load.name, &way.to_string()]);
        if let Some(NamespacePair { left, right, .. }) = between {
            let server = [&left.ipv4.to_string(), "ip", "netns", "exec", &left.name];
            program = program.args(server).within(Some(right));
        }
        let said = program.run(TIMEOUT)?.success()?.stdout;
        serde_json::from_str(&said).context(said)
    }
}
