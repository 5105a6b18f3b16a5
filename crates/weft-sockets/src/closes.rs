//! Closes of descriptors of ours that have begun and not ended, for an exec of another thread.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;

use crate::limits::CLOSE_WAITS_MAX;

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// A close, from before the table forgets the descriptor until the kernel has.
#[derive(Debug)]
pub(crate) struct UnderWay(bool);

impl UnderWay {
    /// Begins one, of a descriptor that is ours or not.
    pub(crate) fn begin(is_ours: bool) -> Self {
        if is_ours {
            UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        }
        Self(is_ours)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0 {
            UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// This is a child just born: other threads, and what they close, are the parent's.
pub(crate) fn forked() {
    UNDER_WAY.store(0, Ordering::Relaxed);
}

/// This process is about to become another program, and all that is in its table is prepared. What
/// another thread is about to close is not, and is to be closed before. One that lingers is closed
/// already, and one that a handler of a signal has interrupted does not end before the call: so the
/// wait is short.
pub(crate) fn wait_for_closes() {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    for _ in 0..CLOSE_WAITS_MAX {
        if UNDER_WAY.load(Ordering::Acquire) == 0 {
            return;
        }
        let _ = rustix::thread::nanosleep(&PAUSE);
    }
}
