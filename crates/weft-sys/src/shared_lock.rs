//! A lock whose word lies in memory that several processes share. Any of them may die while it
//! holds the lock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::event::PollFlags;
use crate::calls::io::Errno;
use crate::calls::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use crate::calls::thread::gettid;
use crate::calls::time::Timespec;
use crate::calls::{Sharing, futex_wait, futex_wake, is_ready, sched_yield};
use crate::limits::{SHARED_LOCK_SPINS_MAX, SHARED_LOCK_YIELDS_MAX};

const FREE: u32 = 0;
/// Bit that marks, beside the holder's thread number, that a thread sleeps.
const CONTENDED: u32 = 1 << 31;
/// How long a thread sleeps before it checks whether the holder still lives.
const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The calling thread's number, and the number of forks when it was looked up.
    static OWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Forgets the thread's number. A forked child calls this, because its thread has another number
/// than in the parent.
pub fn forget_thread() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Bit in the numbers of threads that other processes cannot check. Linux's numbers are below 2^22.
const HIDDEN: u32 = 1 << 30;

/// Whether this process's threads have that bit.
static HIDES: AtomicU32 = AtomicU32::new(0);

/// Marks that this process is in another PID namespace than those with which it shares locks, so
/// that its threads are never taken for dead.
pub fn hide_threads() {
    HIDES.store(HIDDEN, Ordering::Relaxed);
    forget_thread();
}

fn own() -> u32 {
    OWN.with(|own| {
        let (number, forks) = own.get();
        let now = FORKS.load(Ordering::Relaxed);
        if number != 0 && forks == now {
            return number;
        }
        let number = gettid().as_raw_pid().unsigned_abs() | HIDES.load(Ordering::Relaxed);
        own.set((number, now));
        number
    })
}

/// The kernel's functions that a lock needs.
pub trait Threads {
    /// While a section exists, the handlers of the calling thread's signals are deferred.
    type Section: std::fmt::Debug;
    /// Begins a section.
    fn begin_section() -> Self::Section;
    /// The calling thread's number: not 0, and below 2^31.
    fn own() -> u32;
    /// Whether no thread has this number any more.
    fn is_dead(thread: u32) -> bool;
    /// Yields the core.
    fn offer_core();
    /// Sleeps until the word is woken or is not `value`. Returns whether that took so long that the
    /// holder of the lock may have died.
    fn wait(word: &AtomicU32, value: u32) -> bool;
    /// Wakes `count` threads that sleep on a word.
    fn wake(word: &AtomicU32, count: u32);
}

/// The Linux kernel, used outside of simulations.
#[derive(Clone, Copy, Debug)]
pub struct Linux;

impl Threads for Linux {
    #[cfg(not(loom))]
    type Section = crate::section::Section;
    #[cfg(loom)]
    type Section = ();

    #[cfg(not(loom))]
    #[inline]
    fn begin_section() -> Self::Section {
        crate::section::Section::begin()
    }

    #[cfg(loom)]
    fn begin_section() {}

    #[inline]
    fn own() -> u32 {
        own()
    }

    fn is_dead(thread: u32) -> bool {
        is_dead(thread)
    }

    fn offer_core() {
        sched_yield();
    }

    fn wait(word: &AtomicU32, value: u32) -> bool {
        futex_wait(word, Sharing::Processes, value, Some(&SLEEP_TIME)) == Err(Errno::TIMEDOUT)
    }

    fn wake(word: &AtomicU32, count: u32) {
        futex_wake(word, Sharing::Processes, count);
    }
}

/// A lock on a word of shared memory, initially zero. When a holder dies it may leave the guarded
/// data half changed; so each change must be published by one store.
#[derive(Clone, Copy, Debug)]
pub struct SharedLock<'a, T = Linux>(&'a AtomicU32, PhantomData<T>);

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct SharedGuard<'a, T: Threads = Linux> {
    word: &'a AtomicU32,
    /// The section ends after the lock has been freed.
    _section: T::Section,
}

impl<'a> SharedLock<'a> {
    /// The lock on `word`.
    #[must_use]
    pub fn on(word: &'a AtomicU32) -> Self {
        Self(word, PhantomData)
    }
}

impl<'a, T: Threads> SharedLock<'a, T> {
    /// The lock on `word`, among the threads of another kernel, such as a simulated one.
    #[must_use]
    pub fn of(word: &'a AtomicU32) -> Self {
        Self(word, PhantomData)
    }

    /// Takes the lock, from a dead holder if necessary. `None` if the calling thread itself holds
    /// it: then this is a signal handler that was not deferred ([`crate::defer`]), and the section
    /// that it has interrupted cannot continue before it ends.
    #[must_use]
    #[inline]
    pub fn lock(self) -> Option<SharedGuard<'a, T>> {
        let section = T::begin_section();
        let own = T::own();
        let taken = self.0.compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed);
        let is_taken = taken.is_ok() || self.lock_slow(own);
        is_taken.then(|| SharedGuard { word: self.0, _section: section })
    }

    #[cold]
    fn lock_slow(&self, own: u32) -> bool {
        let mut looks = 0;
        loop {
            let held = self.0.load(Ordering::Relaxed);
            let holder = held & !CONTENDED;
            if holder == own {
                return false;
            }
            if held == FREE {
                // A thread that has waited keeps the mark, because others may be asleep.
                let mark = if looks > SHARED_LOCK_SPINS_MAX + SHARED_LOCK_YIELDS_MAX {
                    CONTENDED
                } else {
                    0
                };
                if self.try_replace(held, own | mark) {
                    return true;
                }
            } else if looks < SHARED_LOCK_SPINS_MAX {
                std::hint::spin_loop();
            } else if looks < SHARED_LOCK_SPINS_MAX + SHARED_LOCK_YIELDS_MAX {
                T::offer_core();
            } else if held & CONTENDED == 0 {
                self.try_replace(held, held | CONTENDED);
            } else {
                if T::wait(self.0, held)
                    && T::is_dead(holder)
                    && self.try_replace(held, own | CONTENDED)
                {
                    return true;
                }
            }
            looks = looks.saturating_add(1);
        }
    }

    fn try_replace(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Whether no thread has this number any more, as far as that is known.
fn is_dead(thread: u32) -> bool {
    thread & HIDDEN == 0 && (is_gone(thread) || is_zombie(thread))
}

/// Whether a process with this number has ended, and its parent has not waited for it. The parent
/// cannot, if it is the thread that waits for this lock.
fn is_zombie(number: u32) -> bool {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    // A thread other than its process's first has no pidfd, and does not become a zombie.
    let process = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
    process.is_some_and(|process| is_ready(process, PollFlags::IN))
}

/// Whether no process or thread has this number.
#[must_use]
pub fn is_gone(number: u32) -> bool {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    // `kill(2)` finds threads by their own numbers, too.
    number.is_none_or(|number| test_kill_process(number) == Err(Errno::SRCH))
}

impl<T: Threads> Drop for SharedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.word.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            T::wake(self.word, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn lock_excludes_other_threads() {
        let word = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let word = Arc::clone(&word);
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        let _held = SharedLock::on(&word.0).lock().expect("another thread's");
                        let seen = word.1.load(Ordering::Relaxed);
                        word.1.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(word.1.load(Ordering::Relaxed), 40_000);
        assert_eq!(word.0.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn lock_refuses_a_handler_whose_own_thread_holds_it() {
        let word = AtomicU32::new(0);
        let held = SharedLock::on(&word).lock().expect("free");
        assert!(SharedLock::on(&word).lock().is_none());
        drop(held);
        assert!(SharedLock::on(&word).lock().is_some());
    }

    #[test]
    fn thread_of_another_pid_namespace_is_not_taken_for_dead() {
        assert!(is_dead(i32::MAX as u32 & !HIDDEN));
        assert!(!is_dead(i32::MAX as u32));
    }

    /// The kernel still knows the number of a process until its parent has waited for it.
    #[test]
    fn zombie_counts_as_dead() {
        let child = std::process::Command::new("true").spawn();
        let mut child = child.expect("a program that Linux has");
        let word = AtomicU32::new(child.id());
        assert!(SharedLock::on(&word).lock().is_some());
        assert!(!is_gone(child.id()));
        child.wait().expect("it has ended");
    }

    #[test]
    fn lock_of_a_dead_process_is_taken_over() {
        let word = AtomicU32::new(0);
        let dead = std::thread::spawn(own).join().expect("a number");
        // A thread that has been joined may still be exiting.
        while !is_dead(dead) {
            std::thread::yield_now();
        }
        word.store(dead, Ordering::Relaxed);
        assert!(SharedLock::on(&word).lock().is_some());
    }
}
