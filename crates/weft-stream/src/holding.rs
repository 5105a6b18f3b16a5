//! How this process holds the end of a connection. Each open socket of the process has one
//! [`Holding`], however many descriptors refer to it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use weft_sys::SectionOnce;

use crate::end::{End, PutBack};
use crate::kernel::Linux;

/// The end that a socket of this process has, if any, and the process number that counts as its
/// holder.
#[derive(Debug)]
pub struct Holding<K: PutBack = Linux> {
    end: SectionOnce<End<K>>,
    /// The process number by which this process holds the end; 0 if it does not, or no longer.
    holder: AtomicU32,
    /// The last fork that the socket has been prepared for.
    fork: AtomicU32,
    /// Processes that Weft has not counted may hold the socket, so no end may begin.
    is_barred: AtomicBool,
    /// Threads that sleep in the kernel until something comes, and that no end counts yet.
    sleepers: AtomicU32,
}

impl<K: PutBack> Default for Holding<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: PutBack> Holding<K> {
    /// The holding of a socket that has no end yet.
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

    /// The holding of a socket that came from another process, or from the program before an
    /// `exec`. The process `pid` has been counted. Grants of this process's own memory are revoked:
    /// that memory is gone.
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

    /// Gives the socket its end; the process `pid` has been counted. If another thread has passed
    /// the socket on meanwhile, the end falls back to TCP at once. If the socket has an end
    /// already, that stays. Called by one thread at a time.
    pub fn begin(&self, end: End<K>, pid: u32, socket: K::Socket<'_>) {
        // Fall back before another thread can use the end: the thread that barred it has not looked
        // for an end yet.
        if self.is_barred.load(Ordering::Acquire) {
            end.fall_back_to_tcp(socket);
        }
        self.set(end, pid);
        fence(Ordering::SeqCst); // Either this thread sees `bar`, or `bar` sees the end.
        if self.is_barred.load(Ordering::Relaxed) {
            end.fall_back_to_tcp(socket);
        }
    }

    fn set(&self, end: End<K>, pid: u32) {
        self.count_sleepers(&end);
        if self.end.set(end).is_ok() {
            self.holder.store(pid, Ordering::Release);
        }
        // Either this thread sees a new sleeper, or `begin_sleep` sees the end.
        fence(Ordering::SeqCst);
        self.count_sleepers(&end);
    }

    /// Counts threads that began to sleep before there was an end, so that the peer wakes them.
    fn count_sleepers(&self, end: &End<K>) {
        for _ in 0..self.sleepers.swap(0, Ordering::AcqRel) {
            end.begin_sleep();
        }
    }

    /// Counts the calling thread as asleep in the kernel, on a socket that had no end just now.
    /// Returns whether it still has none; otherwise the thread checks memory before it sleeps.
    /// [`Holding::end_sleep`] must follow in either case.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.end().is_none()
    }

    /// Ends the sleep that [`Holding::begin_sleep`] began.
    pub fn end_sleep(&self) {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        let counted_here = self.sleepers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        if counted_here.is_err()
            && let Some(end) = self.end()
        {
            end.end_sleep();
        }
    }

    /// Prevents an end, because a process that is not counted gets the socket, which had no end
    /// just now. An end that begins later falls back to TCP at once. Returns the end that the
    /// socket has got meanwhile.
    pub fn bar(&self) -> Option<&End<K>> {
        self.is_barred.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.end()
    }

    /// Whether this process is counted as a holder.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder.load(Ordering::Acquire) != 0
    }

    /// Whether the process is counted by this number. A child just born has its parent's.
    #[cfg(test)]
    pub(crate) fn is_held_by(&self, pid: u32) -> bool {
        self.holder.load(Ordering::Acquire) == pid
    }

    /// Removes this process as a holder of the end. Further calls do nothing.
    pub fn let_go(&self) {
        let holder = self.holder.swap(0, Ordering::AcqRel);
        if holder != 0
            && let Some(end) = self.end()
        {
            end.release(holder);
        }
    }

    /// Makes the program that this process is about to become the holder in its place.
    pub fn hand_over(&self) {
        let holder = self.holder.swap(0, Ordering::AcqRel);
        if holder != 0
            && let Some(end) = self.end()
        {
            end.revoke_of(holder); // `exec` replaces the memory.
            end.hand_over(holder);
        }
    }

    /// Makes the process `pid` a holder again, after an `exec` that failed. `false` if the
    /// connection is gone.
    #[must_use]
    pub fn hold_again(&self, pid: u32) -> bool {
        let Some(end) = self.end() else { return true };
        if self.holder.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true; // It holds the end already, by another descriptor.
        }
        let holds = end.hold_again(pid);
        if !holds {
            self.holder.store(0, Ordering::Release);
        }
        holds
    }

    /// The copy that a child gets by `fork`.
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

    /// Whether the socket has not been prepared for this fork yet. Several descriptors may refer to
    /// it, and a `fork` is counted once.
    #[must_use]
    pub(crate) fn is_first_of(&self, fork: u32) -> bool {
        self.fork.swap(fork, Ordering::Relaxed) != fork
    }

    /// Takes back the child of this fork, which `parent` did not get after all. Does nothing if the
    /// end was not prepared for that fork.
    pub(crate) fn not_forked(&self, fork: u32, parent: u32) {
        let noted = self.fork.compare_exchange(fork, 0, Ordering::Relaxed, Ordering::Relaxed);
        if noted.is_ok()
            && let Some(end) = self.end()
        {
            end.expect_no_child(parent);
        }
    }

    /// Makes this process, the new `child` of `parent`, a holder. `false` if it cannot hold the
    /// end, because that began during the fork and its holders have gone.
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

    /// Prepares for the close of this process's last descriptor. [`Holding::let_go`] releases the
    /// slot with the last reference, because a call of another thread may be under way, for which
    /// the kernel keeps the socket.
    pub fn closing(&self, socket: K::Socket<'_>) {
        let Some(end) = self.end() else { return };
        // If the last holder closes with bytes or wakeups unread, the kernel resets the connection.
        if (end.unread() > 0 || end.has_wakeups()) && !end.is_sole_holder() {
            end.forget_killed();
        }
        if end.is_sole_holder() {
            end.put_back_own(socket);
        }
        if end.part() {
            end.drain_wakeups(socket);
        } else if end.has_wakeups() {
            // Another holder may sleep until its wakeup. It may also be about to close, so that
            // neither knows that it is the last one.
            end.drain_wakeups_of_nothing(socket);
        }
        K::moment();
        // Check this last: until this process is the only holder, another may read the bytes.
        if end.is_sole_holder() && end.unread() > 0 {
            // TCP resets a connection when the closing end has unread bytes.
            K::reset_at_close(socket);
        }
    }

    /// Prepares for the close that an `exec` makes. If the `exec` fails the connection goes on over
    /// TCP; `leave` makes it fall back.
    pub(crate) fn closing_by_exec(&self, socket: K::Socket<'_>, fall_back: impl FnOnce()) {
        if !self.is_held() {
            return; // The socket stays open by another descriptor, or has been handled.
        }
        if let Some(end) = self.end().filter(|end| end.is_sole_holder()) {
            fall_back();
            end.part();
            end.drain_wakeups(socket);
            if end.unread() > 0 {
                K::reset_at_close(socket);
            }
        }
        self.let_go();
    }
}
