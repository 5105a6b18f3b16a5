//! How a pipeline stops before its end: the first cause is kept, and every waiting thread wakes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Why a pipeline stopped before its end.
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
    /// The system gives no thread for a stage.
    #[error("no thread for stage {stage}")]
    NoThread {
        /// The stage's name.
        stage: &'static str,
    },
}

/// The pipeline has stopped: the thread that gets this ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Stopped;

type Hook = Box<dyn Fn() + Send + Sync>;

struct State<E> {
    cause: Option<Cause<E>>,
    hooks: Vec<Arc<Hook>>,
}

struct Shared<E> {
    is_stopped: AtomicBool,
    state: Mutex<State<E>>,
}

/// The switch that stops a pipeline. Clones are the same switch.
pub struct Stop<E>(Arc<Shared<E>>);

impl<E> Clone for Stop<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> Default for Stop<E> {
    fn default() -> Self {
        let state = Mutex::new(State { cause: None, hooks: Vec::new() });
        Self(Arc::new(Shared { is_stopped: AtomicBool::new(false), state }))
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

    /// Stops the pipeline because a stage failed. Only the first cause counts.
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
        // Without the lock: a hook may look at the switch.
        for hook in hooks {
            hook();
        }
    }

    /// Whether the pipeline has been stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::SeqCst)
    }

    /// Has `hook` be called when the pipeline stops, once: at once if it has. It wakes a thread
    /// that waits for something else than a queue or a pool, and must not wait itself.
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

    /// The first cause; later calls return none. Hooks are dropped, and with them what they hold.
    pub(crate) fn take_cause(&self) -> Option<Cause<E>> {
        let mut state = self.lock();
        state.hooks.clear();
        state.cause.take()
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // Each change of the state is one step: a panic leaves it whole.
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
