//! Competing load: one busy thread on each core.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, available_parallelism};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Keeps every core busy until it is dropped.
#[derive(Debug)]
pub(crate) struct Crowd {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Starts one busy thread on each core.
    pub(crate) fn gather() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = available_parallelism().map_or(1, usize::from);
        let busy = |core| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let mut cores = CpuSet::new();
                cores.set(core);
                // If setting the affinity fails, the scheduler distributes the threads.
                let _ = sched_setaffinity(None, &cores);
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })
        };
        let threads = (0..cores).map(busy).collect();
        Self { over, threads }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // The thread cannot panic.
        }
    }
}
