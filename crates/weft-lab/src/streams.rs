//! Measures streams of `weft pipeline`, and those of other programs, between two processes.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{Folder, Program, compile_cargo, compile_plain, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The buffers whose delay is measured, their length, and the pause before each.
const HOPS: (usize, usize, u32) = (5_000, 1 << 10, 100);
/// The buffers whose rate is measured, and their length.
const BUFFERS: (usize, usize) = (32 << 10, 64 << 10);
/// The buffers that `timely` may have on their way: it was fastest with so many.
const TIMELY_WINDOW: usize = 4_096;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The delay of single short buffers, in microseconds.
    Hop,
    /// The rate of long buffers, in bytes per second.
    Rate,
}

impl Load {
    /// All loads.
    pub const ALL: [Self; 2] = [Self::Hop, Self::Rate];

    /// What it is compared with.
    #[must_use]
    pub fn rival(self) -> &'static str {
        match self {
            Self::Hop => "TCP and epoll alone",
            Self::Rate => "`timely` over TCP",
        }
    }

    /// Formats a result.
    #[must_use]
    pub fn show(self, result: f64) -> String {
        match self {
            Self::Hop => format!("{result:.1} us"),
            Self::Rate => format!("{:.2} GB/s", result / 1e9),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hop => "median delay of a buffer of 1 KiB",
            Self::Rate => "buffers of 64 KiB",
        })
    }
}

/// The compiled programs.
#[derive(Debug)]
pub struct Streams {
    folder: Folder,
    hop: PathBuf,
    timely: PathBuf,
}

impl Streams {
    /// Compiles the programs.
    ///
    /// # Errors
    ///
    /// If a compiler is missing or fails.
    pub fn new() -> Result<Self> {
        let hop = compile_plain("stream_hop")?;
        let timely = compile_cargo("timely-stream")?.map_err(anyhow::Error::msg)?;
        Ok(Self { folder: Folder::new(0o700)?, hop, timely })
    }

    /// Measures a stream of `weft pipeline`.
    ///
    /// # Errors
    ///
    /// If the run fails.
    pub fn weft(&self, load: Load) -> Result<f64> {
        let with = match load {
            Load::Hop => {
                let (count, size, pause) = HOPS;
                format!("count = {count}, size = {size}, interval_us = {pause}")
            }
            Load::Rate => format!("count = {}, size = {}", BUFFERS.0, BUFFERS.1),
        };
        let description = format!(
            "[filter.from]\nbuiltin = 'generate'\nwith = {{ {with} }}\n\
             [filter.to]\nfrom = 'from'\nbuiltin = 'measure'\n"
        );
        let file = self.folder.path().join("pipeline.toml");
        fs::write(&file, description)?;
        let run = Program::plain(weft()?).args(["pipeline", "run"]).arg(file);
        let said = run.run(TIMEOUT)?.success()?.stderr;
        let number = |text: Option<&str>| -> Result<f64> {
            Ok(text.with_context(|| said.clone())?.trim().parse()?)
        };
        match load {
            Load::Hop => {
                let delay = said.split_once("median ").and_then(|(_, rest)| rest.split_once(" us"));
                number(delay.map(|(delay, _)| delay))
            }
            Load::Rate => {
                // The last line is the time of the whole run.
                let seconds = said.lines().last().and_then(|line| line.strip_suffix(" s"));
                Ok((BUFFERS.0 * BUFFERS.1) as f64 / number(seconds)?)
            }
        }
    }

    /// Measures what a load is compared with.
    ///
    /// # Errors
    ///
    /// If the program fails.
    pub fn rival(&self, load: Load) -> Result<f64> {
        if load == Load::Hop {
            let (count, size, pause) = HOPS;
            let words = [count.to_string(), size.to_string(), pause.to_string()];
            let said = Program::plain(&self.hop).args(words).run(TIMEOUT)?.success()?.stdout;
            return said.trim().parse().context(said);
        }
        let (count, size) = BUFFERS;
        let ports = [ports::next(), ports::next()];
        let process = |number: usize| {
            let words = [number, ports[0].into(), ports[1].into(), count, size, TIMELY_WINDOW];
            Program::plain(&self.timely).args(words.map(|word| word.to_string()))
        };
        let other = process(1).start()?;
        let seconds = process(0).run(TIMEOUT)?.success()?.stdout;
        let came = other.wait(TIMEOUT)?.success()?.stdout;
        let last = |text: &str| text.lines().last().map(str::to_owned).context("no result");
        ensure!(last(&came)? == (count * size).to_string(), "{came}");
        Ok((count * size) as f64 / last(&seconds)?.parse::<f64>()?)
    }
}
