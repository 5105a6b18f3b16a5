//! As whom a process holds the end of a connection: one for each open socket of the process,
//! whatever number of descriptors stands for it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use weft_sys::SectionOnce;

use crate::end::{End, PutBack};
use crate::kernel::Linux;

/// The end that a socket of this process has, if it has one, and by which number the process is
/// counted among its holders.
#[derive(Debug)]
pub struct Holding<K: PutBack = Linux> {
    end: SectionOnce<End<K>>,
    /// The number by which this process holds the end; 0: not, or not any more.
    holder: AtomicU32,
    /// The last fork that it has been notified of.
    fork: AtomicU32,
    /// Others may hold the socket whom nobody has counted: no end may begin.
    is_barred: AtomicBool,
    /// Threads that sleep in the kernel until something comes, and that no end counts.
    sleepers: AtomicU32,
}

impl<K: PutBack> Default for Holding<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: PutBack> Holding<K> {
    /// Of a socket that has no end yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            end: SectionOnce::new(),
            holder: AtomicU32::new(0),
            fork: AtomicU32::new(0),
            is_barred: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
        }
    }

    /// Of a socket that another process had, or another program in this one: the process `pid` has
    /// been counted, and what memory of its own the end has granted is gone.
    #[must_use]
    pub fn inherited(end: End<K>, pid: u32) -> Self {
        end.revoke_of(pid);
        let holding = Self::new();
        holding.set(end, pid);
        holding
    }

    /// The end, if there is one.
    #[inline]
    pub fn end(&self) -> Option<&End<K>> {
        self.end.get()
    }

    /// The socket has an end from here on, and the process `pid` has been counted. If another
    /// thread has given the socket to somebody meanwhile, the end goes on over TCP at once. An end
    /// that it has already stays. One thread at a time calls it.
    pub fn begin(&self, end: End<K>, pid: u32, socket: K::Socket<'_>) {
        // Before another thread can use it: the thread that has barred it has not asked for what it
        // holds.
        if self.is_barred.load(Ordering::Acquire) {
            end.leave(socket);
        }
        self.set(end, pid);
        fence(Ordering::SeqCst); // Of this and `bar`, one sees the other.
        if self.is_barred.load(Ordering::Relaxed) {
            end.leave(socket);
        }
    }

    fn set(&self, end: End<K>, pid: u32) {
        self.count_sleepers(&end);
        if self.end.set(end).is_ok() {
            self.holder.store(pid, Ordering::Release);
        }
        fence(Ordering::SeqCst); // Of this and `begin_sleep`, one sees the other.
        self.count_sleepers(&end);
    }

    /// Has the peer wake those who have begun to sleep before there was an end.
    fn count_sleepers(&self, end: &End<K>) {
        for _ in 0..self.sleepers.swap(0, Ordering::AcqRel) {
            end.begin_sleep();
        }
    }

    /// The calling thread is about to sleep in the kernel until something comes, by a socket that
    /// has had no end just now. Returns whether it still has none; otherwise the thread looks into
    /// memory before it sleeps. [`Holding::end_sleep`] follows in any case.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.end().is_none()
    }

    /// The end of what [`Holding::begin_sleep`] began.
    pub fn end_sleep(&self) {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        let counted_here = self.sleepers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        if counted_here.is_err()
            && let Some(end) = self.end()
        {
            end.end_sleep();
        }
    }

    /// Somebody gets the socket, which has had no end just now, and is not counted: it may have
    /// none, or one that goes on over TCP at once. Returns the end that it has got meanwhile.
    pub fn bar(&self) -> Option<&End<K>> {
        self.is_barred.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.end()
    }

    /// Whether this process counts as a holder.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder.load(Ordering::Acquire) != 0
    }

    /// Whether the process counts by this number: a child just born has its parent's in it.
    #[cfg(test)]
    pub(crate) fn is_held_by(&self, pid: u32) -> bool {
        self.holder.load(Ordering::Acquire) == pid
    }

    /// This process does not hold the end any more. Once.
    pub fn let_go(&self) {
        let holder = self.holder.swap(0, Ordering::AcqRel);
        if holder != 0
            && let Some(end) = self.end()
        {
            end.release(holder);
        }
    }

    /// The program that this process is about to become holds the end in its place.
    pub fn hand_over(&self) {
        let holder = self.holder.swap(0, Ordering::AcqRel);
        if holder != 0
            && let Some(end) = self.end()
        {
            end.revoke_of(holder); // The memory goes.
            end.hand_over(holder);
        }
    }

    /// The process `pid` has not become another program, and holds the end again. `false` if there
    /// is no connection any more that it could hold.
    #[must_use]
    pub fn hold_again(&self, pid: u32) -> bool {
        let Some(end) = self.end() else { return true };
        if self.holder.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true; // By another descriptor it does already.
        }
        let holds = end.hold_again(pid);
        if !holds {
            self.holder.store(0, Ordering::Release);
        }
        holds
    }

    /// What a child gets of it by `fork`, which copies memory.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> Self {
        let copy = |word: &AtomicU32| AtomicU32::new(word.load(Ordering::Relaxed));
        let end = SectionOnce::new();
        if let Some(begun) = self.end() {
            end.set(*begun).expect("it is new");
        }
        Self {
            end,
            holder: copy(&self.holder),
            fork: copy(&self.fork),
            is_barred: AtomicBool::new(self.is_barred.load(Ordering::Relaxed)),
            sleepers: AtomicU32::new(0),
        }
    }

    /// Whether the socket has not been notified of this fork yet: several descriptors may stand for
    /// it, and a `fork` counts once.
    #[must_use]
    pub(crate) fn is_first_of(&self, fork: u32) -> bool {
        self.fork.swap(fork, Ordering::Relaxed) != fork
    }

    /// The child that the process `parent` was to have by this fork has not been born.
    /// A child that the end was not notified of is not taken back.
    pub(crate) fn not_forked(&self, fork: u32, parent: u32) {
        let noted = self.fork.compare_exchange(fork, 0, Ordering::Relaxed, Ordering::Relaxed);
        if noted.is_ok()
            && let Some(end) = self.end()
        {
            end.expect_no_child(parent);
        }
    }

    /// This is the child of `parent`, just born, and its number is `child`. `false`: it cannot hold
    /// the end, which has begun beside the fork, and whose holders have gone.
    pub(crate) fn forked(&self, parent: u32, child: u32) -> bool {
        let turned =
            self.holder.compare_exchange(parent, child, Ordering::AcqRel, Ordering::Relaxed);
        let Some(end) = self.end().filter(|_| turned.is_ok()) else { return true };
        let holds = end.child_born(parent, child);
        if !holds {
            self.holder.store(0, Ordering::Release);
        }
        holds
    }

    /// The last descriptor of this process is about to be closed. The slot is given back by
    /// [`Holding::let_go`], with the last reference: a call of another thread may be under way, as
    /// the kernel keeps the socket for it.
    pub fn closing(&self, socket: K::Socket<'_>) {
        let Some(end) = self.end() else { return };
        // What is left by the last one who closes has the kernel reset the connection.
        if (end.unread() > 0 || end.has_wakeups()) && !end.is_sole_holder() {
            end.forget_killed();
        }
        if end.is_sole_holder() {
            end.put_back_own(socket);
        }
        if end.part() {
            end.drain_wakeups(socket);
        } else if end.has_wakeups() {
            // Another holder may be asleep until its wakeup; or about to close, too, so that the
            // last one does not know that it is.
            end.drain_wakeups_of_nothing(socket);
        }
        // In this order: until this process is the last one, another may read what there is.
        if end.is_sole_holder() && end.unread() > 0 {
            // As TCP does when the closing end has not read everything: a reset.
            K::reset_at_close(socket);
        }
    }

    /// The socket is about to be closed because this process becomes another program. Should that
    /// not start, the connection goes on over TCP: `leave` has it do so.
    pub(crate) fn closing_by_exec(&self, socket: K::Socket<'_>, leave: impl FnOnce()) {
        if !self.is_held() {
            return; // It stays open by another descriptor, or has been dealt with.
        }
        if let Some(end) = self.end().filter(|end| end.is_sole_holder()) {
            leave();
            end.part();
            end.drain_wakeups(socket);
            if end.unread() > 0 {
                K::reset_at_close(socket);
            }
        }
        self.let_go();
    }
}
