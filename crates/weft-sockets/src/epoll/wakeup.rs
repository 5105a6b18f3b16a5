//! Waking those who sleep in an instance, on behalf of the kernel, which knows nothing of rings.
//!
//! A change of the instance, or a thread that reads, may make ready what a sleeper waits for, with
//! no peer to notify. Then the kernel is asked for room of that socket, too, of which there always
//! is some: its event wakes one sleeper, as the kernel wakes one, and the sleeper finds by
//! [`Watches::translate`] and [`Watches::collect`] what there really is.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use super::{Registered, Watch, Watches};

/// How often a reader has taken a wakeup that an instance may wait for.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Threads that sleep in instances of this process.
static ASLEEP: AtomicU32 = AtomicU32::new(0);
/// All instances are to be rechecked.
static NOTED: AtomicBool = AtomicBool::new(false);

/// [`TAKEN`], of which a wait that has seen it looks at everything.
pub(super) fn taken() -> u64 {
    TAKEN.load(Ordering::SeqCst)
}

/// A thread is about to sleep, and looks once more before it does.
pub(super) fn settle_down() {
    ASLEEP.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

pub(super) fn rise() {
    ASLEEP.fetch_sub(1, Ordering::Release);
}

/// This is a child just born: those who sleep are the parent's.
pub(super) fn forked() {
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

/// Room has come to a socket for which a thread may sleep, before the peer knew that it was wanted.
#[cold]
pub(crate) fn room_came() {
    wakeup_taken();
}

/// The last of what waited in memory, and was announced, has been read.
#[cold]
pub(crate) fn read_out(_fd: RawFd) {
    recheck_all();
}

/// A handler of a signal may have interrupted its own thread while that had a lock: whoever has it
/// does this afterwards.
#[cold]
fn recheck_all() {
    NOTED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    follow_note();
}

/// To be called by whoever has had the lock of all instances.
pub(super) fn follow_note() {
    while NOTED.load(Ordering::SeqCst) {
        let Some(all) = super::all::try_lock() else { return };
        NOTED.store(false, Ordering::SeqCst);
        all.iter().for_each(|instance| instance.leave_note());
        drop(all);
        fence(Ordering::SeqCst);
    }
}

impl Watches {
    /// A socket has been added or changed while others may sleep.
    pub(super) fn wake_if_ready(&mut self, epoll: RawFd, place: Option<usize>) {
        if self.sleep.is_anyone_asleep()
            && let Some(place) = place
            && let Some(watch) = self.places[place].as_mut()
            && watch.look(epoll, &mut self.names, true).events != 0
        {
            watch.wake_sleeper(epoll);
        }
    }

    /// A wait is over, and others sleep: wakes one of them if something is ready, be it what this
    /// one was told of, as the kernel does.
    pub(super) fn pass_on(&mut self, epoll: RawFd) {
        if !self.sleep.is_anyone_asleep() {
            return;
        }
        let Self { polled, places, names, .. } = self;
        for &place in polled.iter() {
            if let Some(watch) = places[place].as_mut()
                && watch.look(epoll, names, true).events != 0
            {
                watch.wake_sleeper(epoll);
                return;
            }
        }
    }

    /// Somebody has taken what sleepers may wait for, or has read what was announced.
    pub(super) fn recheck(&mut self, epoll: RawFd) {
        for place in 0..self.places.len() {
            if let Some(watch) = self.places[place].as_mut()
                && watch.registered == Registered::Announced
                && !watch.holds_something()
            {
                watch.register(epoll, Registered::Whole);
                self.forget_if_over(place);
            }
        }
        if self.sleep.is_anyone_asleep() {
            self.end_tags();
            self.start_polling_all();
            self.pass_on(epoll);
        }
    }
}

impl Watch {
    /// Has the kernel wake one who sleeps.
    fn wake_sleeper(&mut self, epoll: RawFd) {
        self.is_woken = true;
        self.register_again(epoll);
    }
}
