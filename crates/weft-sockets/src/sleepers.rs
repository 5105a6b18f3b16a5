//! Threads that sleep in epoll instances, as those see them who take what the sleepers wait for.
//!
//! The instances follow the notes that are left here; [`follow_by`] says where.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// What is known of the threads that sleep.
struct Sleepers {
    /// How often a reader has taken a wakeup that an instance may wait for.
    taken: AtomicU64,
    /// Threads that sleep in instances of this process.
    asleep: AtomicU32,
    /// All instances are to be rechecked.
    is_noted: AtomicBool,
    /// What rechecks them.
    follow: OnceLock<fn()>,
}

static SLEEPERS: Sleepers = Sleepers::new();

impl Sleepers {
    const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            asleep: AtomicU32::new(0),
            is_noted: AtomicBool::new(false),
            follow: OnceLock::new(),
        }
    }

    fn settle_down(&self) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn rise(&self) {
        self.asleep.fetch_sub(1, Ordering::Release);
    }

    fn wakeup_taken(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.recheck_all();
        }
    }

    /// A handler of a signal may have interrupted its own thread while that had a lock: the thread
    /// that has it does this afterwards.
    #[cold]
    fn recheck_all(&self) {
        self.is_noted.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(follow) = self.follow.get() {
            follow();
        }
    }

    fn take_note(&self) {
        self.is_noted.store(false, Ordering::SeqCst);
    }
}

/// There are instances from here on, and this function follows notes.
pub(crate) fn follow_by(follow: fn()) {
    SLEEPERS.follow.get_or_init(|| follow);
}

/// How often a wakeup has been taken: a wait that has seen it looks at everything.
pub(crate) fn taken() -> u64 {
    SLEEPERS.taken.load(Ordering::SeqCst)
}

/// A thread is about to sleep, and looks once more before it does.
pub(crate) fn settle_down() {
    SLEEPERS.settle_down();
}

/// A thread has slept.
pub(crate) fn rise() {
    SLEEPERS.rise();
}

/// This is a child just born: those who sleep are the parent's.
pub(crate) fn forked() {
    SLEEPERS.asleep.store(0, Ordering::Relaxed);
}

/// A wakeup has been taken from a socket by a thread that reads from it: no event will tell of what
/// the wakeup was for.
pub(crate) fn wakeup_taken() {
    SLEEPERS.wakeup_taken();
}

/// A writer has found no room in a socket for which a thread may sleep. Room may have come before
/// the peer knew that it was wanted, and the peer may read nothing more.
#[cold]
pub(crate) fn room_is_wanted() {
    SLEEPERS.wakeup_taken();
}

/// The last of what waited in memory, and was announced, has been read.
#[cold]
pub(crate) fn read_out() {
    SLEEPERS.recheck_all();
}

/// Whether all instances are to be rechecked.
pub(crate) fn is_noted() -> bool {
    SLEEPERS.is_noted.load(Ordering::SeqCst)
}

/// They are about to be.
pub(crate) fn take_note() {
    SLEEPERS.take_note();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Sleepers;

    static FOLLOWED: AtomicU32 = AtomicU32::new(0);
    static OWN: Sleepers = Sleepers::new();

    fn follow() {
        assert!(OWN.is_noted.load(Ordering::SeqCst), "there is a note to follow");
        OWN.take_note();
        FOLLOWED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn instances_are_rechecked_for_sleepers_and_for_what_was_announced() {
        OWN.recheck_all();
        assert!(OWN.is_noted.load(Ordering::SeqCst), "nobody follows before there is an instance");
        OWN.follow.set(follow).expect("the first");
        OWN.recheck_all();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 1);
        OWN.wakeup_taken();
        let taken = OWN.taken.load(Ordering::SeqCst);
        assert_eq!((taken, FOLLOWED.load(Ordering::Relaxed)), (1, 1), "nobody sleeps");
        OWN.settle_down();
        OWN.wakeup_taken();
        OWN.wakeup_taken();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3);
        OWN.rise();
        OWN.wakeup_taken();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3, "nobody sleeps any more");
    }
}
