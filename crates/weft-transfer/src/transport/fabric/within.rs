//! Waiting for a future by a blocked thread, with a limit or until another thread ends the wait.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use weft_sys::lock;

/// Where a thread sleeps until it is woken.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    /// Sleeps until it is woken, or was since the last sleep; no longer than the limit.
    fn sleep(&self, limit: Option<Duration>) {
        let is_woken = lock(&self.is_woken);
        let sleeps = |is_woken: &mut bool| !*is_woken;
        let mut is_woken = match limit {
            Some(limit) => {
                let woken = self.changed.wait_timeout_while(is_woken, limit, sleeps);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let woken = self.changed.wait_while(is_woken, sleeps);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
        };
        *is_woken = false;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *lock(&self.is_woken) = true;
        self.changed.notify_one();
    }
}

/// Blocks the thread until the future is ready. Returns `None` if it is not before the deadline.
pub(super) fn within<F: Future>(future: F, deadline: Instant) -> Option<F::Output> {
    let sleeper = Arc::default();
    until(future, &sleeper, || match deadline.saturating_duration_since(Instant::now()) {
        left if left.is_zero() => None,
        left => Some(Some(left)),
    })
}

/// Blocks the thread at `sleeper` until the future is ready. `left` says how long it may sleep now,
/// or `None` to give up.
pub(super) fn until<F: Future>(
    future: F,
    sleeper: &Arc<Sleeper>,
    left: impl Fn() -> Option<Option<Duration>>,
) -> Option<F::Output> {
    let waker = Waker::from(Arc::clone(sleeper));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => sleeper.sleep(left()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn what_is_ready_is_returned_and_what_is_late_is_not() {
        let now = Instant::now();
        assert_eq!(within(ready(5), now), Some(5));
        assert_eq!(within(pending::<()>(), now), None);
        let mut polls = 0;
        let second = poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert_eq!(within(second, now + Duration::from_secs(240)), Some(()));
    }

    #[test]
    fn another_thread_ends_the_wait() {
        let (sleeper, is_over) = (&Arc::<Sleeper>::default(), &AtomicBool::new(false));
        thread::scope(|scope| {
            let left = || (!is_over.load(SeqCst)).then_some(None);
            let waiting = scope.spawn(move || until(pending::<()>(), sleeper, left));
            is_over.store(true, SeqCst);
            sleeper.wake_by_ref();
            assert_eq!(waiting.join().expect("no panic"), None);
        });
    }
}
