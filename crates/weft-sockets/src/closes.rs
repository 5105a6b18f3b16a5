//! Closes and copies of descriptors of ours that have begun and not ended, beside the
//! start of a program by another thread: it must get no connection that nobody has prepared.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;

use crate::kernel::{Host, Kernel as _};
use crate::limits::CLOSE_WAITS_MAX;

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static STARTS: AtomicU32 = AtomicU32::new(0);

/// A close or a copy: from before the table or the kernel knows of it until both do.
#[derive(Debug)]
pub(crate) struct UnderWay(bool);

impl UnderWay {
    /// Begins one, of a descriptor that is ours or not. Beside the start of a program it
    /// waits for what becomes of that.
    pub(crate) fn begin(is_ours: bool) -> Self {
        if is_ours {
            UNDER_WAY.fetch_add(1, Ordering::SeqCst);
            if STARTS.load(Ordering::SeqCst) != 0 {
                UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
                wait_until(|| STARTS.load(Ordering::SeqCst) == 0);
                UNDER_WAY.fetch_add(1, Ordering::SeqCst);
            }
        }
        Self(is_ours)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0 {
            UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The start of a program: from before this process's descriptors are prepared for it until they
/// are; where this process becomes the program, until that has failed.
#[derive(Debug)]
pub(crate) struct Start(());

impl Start {
    /// Begins one: what other threads have begun to close or to copy ends before, and what they are
    /// about to waits. A close that lingers has ended for the kernel, and one that a handler of a
    /// signal has interrupted does not end before the call: so the waits are short.
    pub(crate) fn begin() -> Self {
        STARTS.fetch_add(1, Ordering::SeqCst);
        wait_until(|| UNDER_WAY.load(Ordering::SeqCst) == 0);
        Self(())
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        STARTS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// This is a child just born: other threads, and what they do, are the parent's.
pub(crate) fn forked() {
    UNDER_WAY.store(0, Ordering::Relaxed);
    STARTS.store(0, Ordering::Relaxed);
}

fn wait_until(is_so: impl Fn() -> bool) {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    for _ in 0..CLOSE_WAITS_MAX {
        if is_so() {
            return;
        }
        Host::sleep_for(&PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{STARTS, Start, UNDER_WAY, UnderWay, forked};

    /// One test, because closes are the process's.
    #[test]
    fn a_start_waits_for_closes_that_have_begun_and_others_wait_for_the_start() {
        let under_way = || UNDER_WAY.load(Ordering::SeqCst);
        let foreign = UnderWay::begin(false);
        assert_eq!(under_way(), 0);
        let close = UnderWay::begin(true);
        drop(foreign);
        assert_eq!(under_way(), 1);
        drop(close);
        assert_eq!(under_way(), 0);
        let failed = AtomicBool::new(false);
        let exec = Start::begin(); // Which returns at once.
        thread::scope(|scope| {
            scope.spawn(|| {
                let _close = UnderWay::begin(true);
                // Unless the machine is so slow that the wait was given up.
                assert!(failed.load(Ordering::SeqCst) || STARTS.load(Ordering::SeqCst) != 0);
            });
            failed.store(true, Ordering::SeqCst);
            drop(exec);
        });
        std::mem::forget((UnderWay::begin(true), Start::begin()));
        assert_eq!((under_way(), STARTS.load(Ordering::SeqCst)), (1, 1));
        forked();
        assert_eq!((under_way(), STARTS.load(Ordering::SeqCst)), (0, 0), "they are the parent's");
    }
}
