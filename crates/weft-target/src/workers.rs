//! Threads for work that waits, so that those who hand it out need not.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::limits::{WORKER_IDLE_TIME, WORKERS_MAX};
use weft_sys::lock;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that are started when there is work, and end when there is none for a while.
#[derive(Default)]
pub struct Workers {
    shared: Arc<Crew>,
}

#[derive(Default)]
struct Crew {
    state: Mutex<State>,
    has_task: Condvar,
    /// Nothing is queued, and nothing runs.
    is_at_rest: Condvar,
    /// The processors that the threads run on. Empty for all.
    cpus: Vec<usize>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    threads: usize,
    /// Threads that wait for a task.
    idle: usize,
    is_closed: bool,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        let (queued, threads) = (state.queue.len(), state.threads);
        f.debug_struct("Workers").field("queued", &queued).field("threads", &threads).finish()
    }
}

impl Workers {
    /// Returns workers whose threads run on these processors; on all if there are none.
    #[must_use]
    pub fn bound(cpus: Vec<usize>) -> Self {
        Self { shared: Arc::new(Crew { cpus, ..Crew::default() }) }
    }

    /// Runs a task in a thread, after those that were handed out before have begun.
    pub fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.shared.state);
        state.queue.push_back(Box::new(task));
        if state.queue.len() <= state.idle {
            drop(state);
            return self.shared.has_task.notify_one();
        }
        if state.threads == WORKERS_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let name = String::from("weft-store");
        if thread::Builder::new().name(name).spawn(move || shared.work()).is_err() {
            // The machine has no thread left. The others do it, or the caller.
            let mut state = lock(&self.shared.state);
            state.threads -= 1;
            if state.threads == 0 {
                drop(self.shared.work_off(state));
            }
        }
    }

    /// Waits until nothing is left to do.
    pub fn wait(&self) {
        let is_busy = |state: &mut State| !state.queue.is_empty() || state.threads > state.idle;
        let state = lock(&self.shared.state);
        let rest = self.shared.is_at_rest.wait_while(state, is_busy);
        drop(rest.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.state).is_closed = true;
        self.shared.has_task.notify_all();
    }
}

impl Crew {
    fn work(&self) {
        bind(&self.cpus);
        let mut state = lock(&self.state);
        loop {
            state = self.work_off(state);
            if state.is_closed {
                break;
            }
            state.idle += 1;
            if state.threads == state.idle {
                self.is_at_rest.notify_all();
            }
            let has_none = |state: &mut State| state.queue.is_empty() && !state.is_closed;
            let waited = self.has_task.wait_timeout_while(state, WORKER_IDLE_TIME, has_none);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        // Others may be at rest since this thread does not count any more.
        self.is_at_rest.notify_all();
    }

    /// Runs what is queued.
    fn work_off<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(task) = state.queue.pop_front() {
            drop(state);
            task();
            state = lock(&self.state);
        }
        state
    }
}

/// Lets this thread run on these processors only, if there are any and it may.
pub(crate) fn bind(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    // Processors that this process may not use: it runs elsewhere, which is only slower.
    let _ = sched_setaffinity(None, &set);
}
