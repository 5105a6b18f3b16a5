//! Closes and copies of Weft's descriptors in progress. A program start by another thread waits for
//! them, so that the new program inherits no connection that has not been prepared for it.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_sys::calls::event::Timespec;

use crate::kernel::{Host, Kernel as _};
use crate::limits::CLOSE_WAITS_MAX;

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static STARTS: AtomicU32 = AtomicU32::new(0);

/// A close or a copy, from before the table or the kernel changes until both have.
#[derive(Debug)]
pub(crate) struct UnderWay(bool);

impl UnderWay {
    /// Begins a close or a copy. While another thread starts a program it waits until that is done.
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

/// The start of a program: until this process's descriptors have been prepared for it, or, for an
/// exec in this process, until the exec has failed.
#[derive(Debug)]
pub(crate) struct Start(());

impl Start {
    /// Begins a program start: waits for closes and copies in progress, and makes new ones wait.
    /// Both waits are short: a lingering close has ended for the kernel already, and a close that a
    /// signal handler has interrupted does not wait for the handler.
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

/// Resets the counts in a forked child: other threads and their closes are the parent's.
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

    /// One test, because the counts belong to the whole process.
    #[test]
    fn program_start_and_closes_wait_for_each_other() {
        let under_way = || UNDER_WAY.load(Ordering::SeqCst);
        let foreign = UnderWay::begin(false);
        assert_eq!(under_way(), 0);
        let close = UnderWay::begin(true);
        drop(foreign);
        assert_eq!(under_way(), 1);
        drop(close);
        assert_eq!(under_way(), 0);
        let failed = AtomicBool::new(false);
        let exec = Start::begin(); // Returns at once: no close is in progress.
        thread::scope(|scope| {
            scope.spawn(|| {
                let _close = UnderWay::begin(true);
                // On a very slow machine the wait may have been given up.
                assert!(failed.load(Ordering::SeqCst) || STARTS.load(Ordering::SeqCst) != 0);
            });
            failed.store(true, Ordering::SeqCst);
            drop(exec);
        });
        std::mem::forget((UnderWay::begin(true), Start::begin()));
        assert_eq!((under_way(), STARTS.load(Ordering::SeqCst)), (1, 1));
        forked();
        assert_eq!(
            (under_way(), STARTS.load(Ordering::SeqCst)),
            (0, 0),
            "the child must forget the parent's closes"
        );
    }
}
