//! As whom a process holds the end of a connection: one for each open socket of the process,
//! whatever number of descriptors stands for it.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_sys::SectionOnce;

use crate::end::End;
use crate::kernel::{Kernel, Linux};

/// The end that a socket of this process has, if it has one, and by which number the process is
/// counted among its holders.
#[derive(Debug)]
pub struct Holding<K: Kernel = Linux> {
    end: SectionOnce<End<K>>,
    /// The number by which this process holds the end; 0: not, or not any more.
    holder: AtomicU32,
    /// The last fork that it has been told of.
    fork: AtomicU32,
}

impl<K: Kernel> Default for Holding<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kernel> Holding<K> {
    /// Of a socket that has no end yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { end: SectionOnce::new(), holder: AtomicU32::new(0), fork: AtomicU32::new(0) }
    }

    /// Of a socket that another process had, or another program in this one: the process `pid` has
    /// been counted, and what memory of its own the end has granted is gone.
    #[must_use]
    pub fn inherited(end: End<K>, pid: u32) -> Self {
        end.revoke_of(pid);
        let holding = Self::new();
        holding.begin(end, pid);
        holding
    }

    /// The end, if there is one.
    #[inline]
    pub fn end(&self) -> Option<&End<K>> {
        self.end.get()
    }

    /// The socket has an end from here on, and the process `pid` has been counted. An end that it
    /// has already stays. One thread at a time calls it.
    pub fn begin(&self, end: End<K>, pid: u32) {
        if self.end.set(end).is_ok() {
            self.holder.store(pid, Ordering::Release);
        }
    }

    /// Whether this process counts as a holder.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder.load(Ordering::Acquire) != 0
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

    /// Whether the socket has not been told of this fork yet: several descriptors may stand for it,
    /// and a `fork` counts once.
    #[must_use]
    pub(crate) fn is_first_of(&self, fork: u32) -> bool {
        self.fork.swap(fork, Ordering::Relaxed) != fork
    }

    /// The child that the process `parent` was to have has not been born.
    pub(crate) fn not_forked(&self, parent: u32) {
        if self.fork.swap(0, Ordering::Relaxed) != 0
            && let Some(end) = self.end()
        {
            end.expect_no_child(parent);
        }
    }

    /// This is the child of `parent`, just born, and its number is `child`.
    pub(crate) fn forked(&self, parent: u32, child: u32) {
        let turned =
            self.holder.compare_exchange(parent, child, Ordering::AcqRel, Ordering::Relaxed);
        if turned.is_ok()
            && let Some(end) = self.end()
        {
            end.child_born(parent, child);
        }
    }

    /// The last descriptor of this process is about to be closed. The slot is given back by
    /// [`Holding::let_go`], with the last reference: a call of another thread may be under way, as
    /// the kernel keeps the socket for it.
    pub fn closing(&self, socket: K::Socket<'_>) {
        let Some(end) = self.end() else { return };
        let unread = end.unread() > 0;
        if end.part() {
            end.hush(socket); // A process that goes on may be asleep until its wakeup.
        }
        if unread && end.is_sole_holder() {
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
            let unread = end.unread() > 0;
            leave();
            end.part();
            end.hush(socket);
            if unread {
                K::reset_at_close(socket);
            }
        }
        self.let_go();
    }
}
