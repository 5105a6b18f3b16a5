//! Times copies by `weft cp` and by other programs. All files are in memory.

mod bottleneck;
mod load;
mod place;
mod tool;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

pub use bottleneck::{Beside, Bottleneck, Shares};
pub use load::Load;
pub use place::Place;
pub use tool::Tool;

use crate::Finished;
use crate::ports;
use crate::usage::children_cpu;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The result of one copy.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sample {
    /// Time from the start of the copying program to its end.
    pub seconds: f64,
    /// Processor time of both ends, including startup and exit.
    pub cpu_seconds: f64,
}

/// Waits until a process has reaped all its children. The kernel then counts their processor time
/// with that of the process.
fn end_of_children(pid: u32) -> Result<()> {
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?.trim().is_empty() {
        ensure!(start.elapsed() < TIMEOUT, "process {pid} still has children after {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Place {
    /// Copies `load` once, into a new folder.
    ///
    /// # Errors
    ///
    /// If a program does not start, or reports a failure.
    pub fn measure(&self, load: Load, tool: Tool) -> Result<Sample> {
        let to = self.path("to");
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        fs::create_dir(&to)?;
        self.prepare(load, &to)?;
        let (before, ports) = (children_cpu()?, [ports::next(), ports::next()]);
        let servers = [self.server(tool, ports[0])?, self.source_server(tool, ports[1])?];
        let start = Instant::now();
        let copy = self.client(load, tool, ports)?.within(self.right()).run(TIMEOUT);
        let seconds = start.elapsed().as_secs_f64();
        copy.and_then(Finished::success).with_context(|| tool.to_string())?;
        for server in servers.into_iter().flatten() {
            end_of_children(server.pid())?;
            server.kill()?;
        }
        let cpu_seconds = (children_cpu()? - before).as_secs_f64();
        Ok(Sample { seconds, cpu_seconds })
    }
}
