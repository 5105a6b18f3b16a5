//! Closes of descriptors of ours that have begun and not ended, for an exec of another thread.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;

use crate::kernel::{Host, Kernel as _};
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

fn is_any() -> bool {
    UNDER_WAY.load(Ordering::Acquire) != 0
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
        if !is_any() {
            return;
        }
        Host::sleep_for(&PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::{UnderWay, forked, is_any, wait_for_closes};

    /// One test, because closes are the process's.
    #[test]
    fn closes_of_ours_are_under_way_until_they_end_or_the_process_is_another() {
        let foreign = UnderWay::begin(false);
        assert!(!is_any());
        let close = UnderWay::begin(true);
        drop(foreign);
        assert!(is_any());
        drop(close);
        assert!(!is_any());
        wait_for_closes(); // Which returns at once.
        std::mem::forget(UnderWay::begin(true));
        assert!(is_any());
        forked();
        assert!(!is_any(), "they are the parent's");
    }
}
