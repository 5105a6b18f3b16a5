//! Measures what connections cost, with the program `connections.c`.

use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::compile::compile;
use crate::endpoint::Port;
use crate::ports;
use crate::program::{Finished, Program, TIMEOUT_FACTOR};
use crate::stage::Stage;

const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a count has to stay the same to be still: longer than Weft keeps closed connections.
const STILL_TIME: Duration = Duration::from_secs(3);
/// How long a count may change. What is left then has leaked.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60).saturating_mul(TIMEOUT_FACTOR);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The resources that a process uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Private memory in RAM.
    pub memory_kib: i64,
    /// Open descriptors.
    pub descriptors: i64,
    /// Threads.
    pub threads: i64,
}

/// The outputs of a server and a client that both ended with status 0.
#[derive(Debug)]
pub struct Ends {
    /// The side that accepted.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
    /// Processor time of the server while the connections were idle.
    pub server_idle_cpu: Duration,
}

/// Opens `count` connections, lets them idle for `seconds`, and closes them.
///
/// # Errors
///
/// If a program cannot be compiled or started, fails, or takes too long.
pub fn hold(stage: &Stage, count: u32, seconds: u32) -> Result<Ends> {
    connections(stage, "hold", count, &[seconds.to_string()])
}

/// Opens and closes `count` connections, one after the other.
///
/// # Errors
///
/// As [`hold`].
pub fn churn(stage: &Stage, count: u32) -> Result<Ends> {
    connections(stage, "churn", count, &[])
}

fn connections(stage: &Stage, mode: &str, count: u32, rest: &[String]) -> Result<Ends> {
    raise_descriptor_limit()?;
    let program = Program::weft(compile("connections")?);
    let (port, count) = (ports::next(), count.to_string());
    let server = stage.server(program.clone()).arg("serve").args([&port.to_string(), &count]);
    let server = server.start()?.listening(Port::Tcp(port))?;
    let client = stage.client(program).arg(mode).arg(stage.server_address().to_string());
    let mut client = client.args([&port.to_string(), &count]).args(rest).start()?;

    let mut server_idle_cpu = Duration::ZERO;
    if mode == "hold" {
        client.printed("all:", TIMEOUT)?;
        let busy = process_cpu(server.pid())?;
        client.printed("idle:", TIMEOUT)?;
        server_idle_cpu = process_cpu(server.pid())?.saturating_sub(busy);
    }
    let client = client.wait(TIMEOUT)?.success()?;
    let server = server.wait(TIMEOUT)?.success()?;
    Ok(Ends { server, client, server_idle_cpu })
}

/// Returns what `end` used when it printed the line that starts with `when`.
///
/// # Errors
///
/// If there is no such line.
pub fn resources(end: &Finished, when: &str) -> Result<Resources> {
    let line = end.stdout.lines().find(|line| line.starts_with(&format!("{when}:")));
    let line = line.with_context(|| end.error(format!("no line {when:?}")))?;
    let value = |name| number_after(line, name).with_context(|| format!("{name} of {line:?}"));
    Ok(Resources {
        memory_kib: value("memory")?,
        descriptors: value("descriptors")?,
        threads: value("threads")?,
    })
}

/// Returns the processor time that the client used while its connections were idle.
///
/// # Errors
///
/// If its output does not contain it.
pub fn idle_cpu(client: &Finished) -> Result<Duration> {
    let line = client.stdout.lines().find(|line| line.starts_with("idle:"));
    let microseconds = line.and_then(|line| number_after(line, "cpu"));
    let microseconds = microseconds.with_context(|| client.error("no idle time"))?;
    Ok(Duration::from_micros(microseconds.unsigned_abs()))
}

/// Reads a count until it is still, and returns it. Processes close and free in the background.
///
/// # Errors
///
/// If `read` fails, or the count never is still.
pub fn still<T: PartialEq + fmt::Debug>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let (mut last, mut since) = (read()?, start);
    while since.elapsed() < STILL_TIME {
        ensure!(start.elapsed() < SETTLE_TIMEOUT, "still changing: {last:?}");
        thread::sleep(POLL_INTERVAL);
        let next = read()?;
        if next != last {
            (last, since) = (next, Instant::now());
        }
    }
    Ok(last)
}

/// Reads a count until it is at most `limit`.
///
/// # Errors
///
/// If `read` fails, or the count stays above the limit.
pub fn falls_to<T: PartialOrd + fmt::Debug>(
    limit: T,
    mut read: impl FnMut() -> Result<T>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let count = read()?;
        if count <= limit {
            return Ok(());
        }
        ensure!(start.elapsed() < SETTLE_TIMEOUT, "{count:?} are left, not {limit:?}");
        thread::sleep(POLL_INTERVAL);
    }
}

fn number_after(line: &str, name: &str) -> Option<i64> {
    line.split_whitespace().skip_while(|&word| word != name).nth(1)?.parse().ok()
}

/// Returns the user and system time of a running process, with the resolution of clock ticks.
pub(crate) fn process_cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // proc_pid_stat(5): the command may contain spaces; after it, utime and stime are 14 and 15.
    let (_, fields) = stat.rsplit_once(')').context("no command in stat")?;
    let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = times.sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1000 / clock_ticks_per_second()))
}

/// Raises the limit of descriptors to the maximum. The programs inherit it; a thousand connections
/// need more than the usual 1,024 descriptors.
fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_and_idle_time_are_read_from_the_output() {
        let finished = Program::plain("printf")
            .arg("before: memory 10 descriptors 4 threads 1\nidle: cpu 250 us in 2 s\n")
            .run(TIMEOUT)
            .unwrap();
        let expected = Resources { memory_kib: 10, descriptors: 4, threads: 1 };
        assert_eq!(resources(&finished, "before").unwrap(), expected);
        assert_eq!(idle_cpu(&finished).unwrap(), Duration::from_micros(250));
        assert!(resources(&finished, "all").is_err());
    }

    #[test]
    fn a_count_is_read_until_it_is_still_and_until_it_has_fallen() {
        let mut counts = [9, 7, 7, 5].into_iter();
        assert_eq!(still(|| Ok(counts.next().unwrap_or(4))).unwrap(), 4);
        let mut counts = [9, 7, 3].into_iter();
        falls_to(4, || counts.next().context("read too often")).unwrap();
        assert_eq!(counts.next(), None);
        assert!(falls_to(4, || anyhow::bail!("no count")).is_err());
    }

    #[test]
    fn processor_time_is_read_for_running_processes_only() {
        assert!(process_cpu(std::process::id()).is_ok());
        assert!(process_cpu(u32::MAX).is_err());
    }
}
