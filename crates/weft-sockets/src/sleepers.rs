//! Threads that sleep in epoll instances, as those see them who take what the sleepers wait for.
//!
//! The instances follow the notes that are left here; they are told where by [`follow_by`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// How often a reader has taken a wakeup that an instance may wait for.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Threads that sleep in instances of this process.
static ASLEEP: AtomicU32 = AtomicU32::new(0);
/// All instances are to be rechecked.
static NOTED: AtomicBool = AtomicBool::new(false);
/// What rechecks them.
static FOLLOW: OnceLock<fn()> = OnceLock::new();

/// There are instances from here on, and this function follows notes.
pub(crate) fn follow_by(follow: fn()) {
    FOLLOW.get_or_init(|| follow);
}

/// [`TAKEN`], of which a wait that has seen it looks at everything.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::SeqCst)
}

/// A thread is about to sleep, and looks once more before it does.
pub(crate) fn settle_down() {
    ASLEEP.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// A thread has slept.
pub(crate) fn rise() {
    ASLEEP.fetch_sub(1, Ordering::Release);
}

/// This is a child just born: those who sleep are the parent's.
pub(crate) fn forked() {
    ASLEEP.store(0, Ordering::Relaxed);
}

/// A wakeup has been taken from a socket by a thread that reads from it: no event will tell of what
/// the wakeup was for.
pub(crate) fn wakeup_taken() {
    TAKEN.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if ASLEEP.load(Ordering::SeqCst) != 0 {
        recheck_all();
    }
}

/// A writer has found no room in a socket for which a thread may sleep. Room may have come before
/// the peer knew that it was wanted, and the peer may read nothing more.
#[cold]
pub(crate) fn room_is_wanted() {
    wakeup_taken();
}

/// The last of what waited in memory, and was announced, has been read.
#[cold]
pub(crate) fn read_out() {
    recheck_all();
}

/// A handler of a signal may have interrupted its own thread while that had a lock: the thread that
/// has it does this afterwards.
#[cold]
fn recheck_all() {
    NOTED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if let Some(follow) = FOLLOW.get() {
        follow();
    }
}

/// Whether all instances are to be rechecked.
pub(crate) fn is_noted() -> bool {
    NOTED.load(Ordering::SeqCst)
}

/// They are about to be.
pub(crate) fn take_note() {
    NOTED.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static FOLLOWED: AtomicU32 = AtomicU32::new(0);

    fn follow() {
        assert!(is_noted(), "there is a note to follow");
        take_note();
        FOLLOWED.fetch_add(1, Ordering::Relaxed);
    }

    /// One test, because sleepers are the process's.
    #[test]
    fn instances_are_rechecked_for_sleepers_and_for_what_was_announced() {
        read_out();
        assert!(is_noted(), "nobody follows before there is an instance");
        follow_by(follow);
        read_out();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 1);
        let before = taken();
        wakeup_taken();
        assert_eq!((taken(), FOLLOWED.load(Ordering::Relaxed)), (before + 1, 1), "nobody sleeps");
        settle_down();
        wakeup_taken();
        room_is_wanted();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3);
        rise();
        room_is_wanted();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3, "nobody sleeps any more");
    }
}
