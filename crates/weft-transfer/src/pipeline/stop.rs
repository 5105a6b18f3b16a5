//! Stops a pipeline early: keeps the first cause, and wakes every waiting thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Why a pipeline was stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause<E> {
    /// [`Stop::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// A stage reported an error.
    #[error("{stage}: {error}")]
    Failed {
        /// The stage's name.
        stage: &'static str,
        /// Its error.
        error: E,
    },
    /// A thread of a stage panicked.
    #[error("a thread of stage {stage} panicked")]
    Panicked {
        /// The stage's name.
        stage: &'static str,
    },
    /// A thread of a stage could not be created.
    #[error("cannot create a thread for stage {stage}")]
    NoThread {
        /// The stage's name.
        stage: &'static str,
    },
}

/// The error of a thread that must end because the pipeline was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Stopped;

type Hook = Box<dyn Fn() + Send + Sync>;

struct State<E> {
    cause: Option<Cause<E>>,
    hooks: Vec<Arc<Hook>>,
}

struct StopState<E> {
    is_stopped: AtomicBool,
    state: Mutex<State<E>>,
}

/// The switch that stops a pipeline. Clones share the switch.
pub struct Stop<E>(Arc<StopState<E>>);

impl<E> Clone for Stop<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> Default for Stop<E> {
    fn default() -> Self {
        let state = Mutex::new(State { cause: None, hooks: Vec::new() });
        Self(Arc::new(StopState { is_stopped: AtomicBool::new(false), state }))
    }
}

impl<E> fmt::Debug for Stop<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.is_stopped()).finish()
    }
}

impl<E> Stop<E> {
    /// Stops the pipeline without an error.
    pub fn cancel(&self) {
        self.stop(Cause::Cancelled);
    }

    /// Stops the pipeline because a stage failed. Only the first cause is kept.
    pub fn fail(&self, stage: &'static str, error: E) {
        self.stop(Cause::Failed { stage, error });
    }

    pub(crate) fn stop(&self, cause: Cause<E>) {
        let hooks = {
            let mut state = self.lock();
            if state.cause.is_some() || self.is_stopped() {
                return;
            }
            state.cause = Some(cause);
            self.0.is_stopped.store(true, Ordering::SeqCst);
            state.hooks.clone()
        };
        // Hooks run without the lock, because they may use the switch.
        for hook in hooks {
            hook();
        }
    }

    /// Whether the pipeline has been stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::SeqCst)
    }

    /// Registers a function that is called once when the pipeline stops, or immediately if it has
    /// stopped. It wakes a thread that waits for something other than a queue or a pool, and must
    /// not wait itself.
    pub fn on_stop(&self, hook: impl Fn() + Send + Sync + 'static) {
        let hook: Arc<Hook> = Arc::new(Box::new(hook));
        let mut state = self.lock();
        if self.is_stopped() {
            drop(state);
            hook();
        } else {
            state.hooks.push(hook);
        }
    }

    /// Takes the first cause; later calls return `None`. The hooks are dropped with everything that
    /// they own.
    pub(crate) fn take_cause(&self) -> Option<Cause<E>> {
        let mut state = self.lock();
        state.hooks.clear();
        state.cause.take()
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // Each change is a single operation, so the state is consistent even after a panic.
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn first_cause_is_kept_and_hooks_run_once() {
        let stop = Stop::<&str>::default();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = {
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        stop.on_stop(count.clone());
        assert!(!stop.is_stopped());
        stop.fail("read", "no such file");
        stop.fail("write", "no space");
        stop.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        stop.on_stop(count);
        assert_eq!(calls.load(Ordering::SeqCst), 2, "late hooks run at once");
        let cause = Cause::Failed { stage: "read", error: "no such file" };
        assert_eq!(stop.take_cause(), Some(cause));
        assert!(stop.is_stopped(), "for good");
    }
}
