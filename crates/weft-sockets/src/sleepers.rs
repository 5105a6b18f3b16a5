//! Lets readers and writers notify threads that sleep in epoll instances.
//!
//! The module `epoll` registers a function that rechecks its instances ([`follow_by`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// The threads that sleep in epoll instances.
struct Sleepers {
    /// How often a reader has taken a wakeup that an instance may wait for.
    taken: AtomicU64,
    /// Number of threads that sleep in instances of this process.
    asleep: AtomicU32,
    /// Whether a recheck of all instances has been requested.
    is_noted: AtomicBool,
    /// The function that rechecks them.
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

    fn begin_sleep(&self) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn end_sleep(&self) {
        self.asleep.fetch_sub(1, Ordering::Release);
    }

    fn wakeup_taken(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.recheck_all();
        }
    }

    /// Requests a recheck of all instances. The thread that holds their lock may be this one,
    /// interrupted by a signal handler; then it rechecks them afterwards.
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

/// Registers the function that handles recheck requests, when there is an instance.
pub(crate) fn follow_by(follow: fn()) {
    SLEEPERS.follow.get_or_init(|| follow);
}

/// Returns how often a wakeup has been taken. A wait that finds a new number checks all sockets.
pub(crate) fn taken() -> u64 {
    SLEEPERS.taken.load(Ordering::SeqCst)
}

/// Counts a thread that is about to sleep; it must check once more afterwards.
pub(crate) fn begin_sleep() {
    SLEEPERS.begin_sleep();
}

/// Ends the count of a thread that has slept.
pub(crate) fn end_sleep() {
    SLEEPERS.end_sleep();
}

/// Resets the count in a forked child: the sleepers are the parent's.
pub(crate) fn forked() {
    SLEEPERS.asleep.store(0, Ordering::Relaxed);
}

/// Records that a reader has taken a wakeup from a socket. The kernel does not report the event
/// behind it any more.
pub(crate) fn wakeup_taken() {
    SLEEPERS.wakeup_taken();
}

/// Records that a writer has found no room in a socket for which a thread may sleep. Room may have
/// come before the peer knew that it was wanted, and the peer may stop reading.
#[cold]
pub(crate) fn room_is_wanted() {
    SLEEPERS.wakeup_taken();
}

/// Records that all announced data in memory has been read.
#[cold]
pub(crate) fn read_out() {
    SLEEPERS.recheck_all();
}

/// Returns whether a recheck of all instances has been requested.
pub(crate) fn is_noted() -> bool {
    SLEEPERS.is_noted.load(Ordering::SeqCst)
}

/// Clears the request, before the recheck.
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
        assert!(OWN.is_noted.load(Ordering::SeqCst), "a recheck has been requested");
        OWN.take_note();
        FOLLOWED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn instances_are_rechecked_for_sleepers_and_announcements() {
        OWN.recheck_all();
        assert!(OWN.is_noted.load(Ordering::SeqCst), "no function is registered yet");
        OWN.follow.set(follow).expect("the first");
        OWN.recheck_all();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 1);
        OWN.wakeup_taken();
        let taken = OWN.taken.load(Ordering::SeqCst);
        assert_eq!((taken, FOLLOWED.load(Ordering::Relaxed)), (1, 1), "no thread sleeps");
        OWN.begin_sleep();
        OWN.wakeup_taken();
        OWN.wakeup_taken();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3);
        OWN.end_sleep();
        OWN.wakeup_taken();
        assert_eq!(FOLLOWED.load(Ordering::Relaxed), 3, "no thread sleeps any more");
    }
}
