//! The resources of a process: processor time, memory, and the core on which it runs.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::param::page_size;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of this process so far, user and system, of all threads.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the cores on which this process may run, lowest first.
///
/// # Errors
/// The error of `sched_getaffinity(2)`.
pub(crate) fn cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask for the cores")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Binds this thread, and those that it starts, to one core.
///
/// # Errors
/// If there is no such core, or this process may not use it.
pub(crate) fn pin(core: usize) -> Result<()> {
    anyhow::ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}

/// Returns the resident private memory of this process in bytes.
///
/// # Errors
/// If `/proc` cannot be read.
pub(crate) fn private_memory() -> Result<u64> {
    let Ok(text) = fs::read_to_string("/proc/self/smaps_rollup") else {
        // Kernels before 4.14: resident pages minus shared ones.
        let text = fs::read_to_string("/proc/self/statm").context("no /proc/self/statm")?;
        let mut pages = text.split_whitespace().skip(1).map_while(|field| field.parse().ok());
        let (resident, shared): (u64, u64) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
        return Ok(resident.saturating_sub(shared) * page_size() as u64);
    };
    Ok(private_bytes(&text))
}

fn private_bytes(smaps: &str) -> u64 {
    let lines = smaps.lines().filter(|line| line.starts_with("Private_"));
    let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.sum::<u64>() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_lines_add_up() {
        let text = "Rss: 90 kB\nPrivate_Clean:  4 kB\nPrivate_Dirty: 12 kB\nShared_Dirty: 7 kB\n";
        assert_eq!(private_bytes(text), 16 << 10);
    }

    #[test]
    fn usage_of_this_process_is_not_zero() {
        assert!(private_memory().expect("/proc") > 0);
        assert!(cpu_time() > Duration::ZERO);
        let cores = cores().expect("cores");
        pin(*cores.last().expect("at least one")).expect("ours");
        pin(usize::MAX).expect_err("no such core");
    }
}
