//! Children that are forked or started while another thread opens a socket. Between the kernel's
//! call and the entry in the descriptor table nobody can tell whether the child inherits the
//! socket.
//!
//! A thread that opens a socket takes a mark before the kernel's call ([`Opening`]), and compares
//! once the socket is in the table. A thread that forks counts its child before it reads the table
//! ([`ChildStarts`]). So at least one of the two sees the other: either the socket is prepared for
//! the child, or the opener knows that the child may have it, too.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Counts the children of one kind.
#[derive(Debug)]
pub(crate) struct ChildStarts {
    begun: AtomicU32,
    under_way: AtomicU32,
}

/// Forks: the child inherits all descriptors.
pub(crate) static FORKS: ChildStarts = ChildStarts::new();
/// Program starts: the new program inherits the descriptors without `FD_CLOEXEC`.
pub(crate) static STARTS: ChildStarts = ChildStarts::new();

impl ChildStarts {
    const fn new() -> Self {
        Self { begun: AtomicU32::new(0), under_way: AtomicU32::new(0) }
    }

    /// Begins one start; [`ChildStarts::end`] must follow. Returns its number, which is not 0.
    pub(crate) fn begin(&self) -> u32 {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.note()
    }

    /// Ends a start, in the parent: the child exists, or the fork has failed.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts a child that has its descriptors already, and so gets none that is opened from here
    /// on. Returns its number.
    pub(crate) fn note(&self) -> u32 {
        let before = self.begun.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `is_since`: at least one side sees the other.
        fence(Ordering::SeqCst);
        before + 1
    }

    /// Returns how many starts have begun; `None` while one is under way.
    fn mark(&self) -> Option<u32> {
        let begun = self.begun.load(Ordering::SeqCst);
        (self.under_way.load(Ordering::SeqCst) == 0).then_some(begun)
    }

    fn is_since(&self, mark: Option<u32>) -> bool {
        fence(Ordering::SeqCst);
        mark != Some(self.begun.load(Ordering::SeqCst))
    }
}

/// A program start in progress, until the call that starts the program has returned.
#[derive(Debug)]
pub(crate) struct ProgramStart(());

impl ProgramStart {
    pub(crate) fn begin() -> Self {
        STARTS.begin();
        Self(())
    }
}

impl Drop for ProgramStart {
    fn drop(&mut self) {
        STARTS.end();
    }
}

/// A socket that a thread is opening or copying; created before the kernel's call.
#[derive(Debug)]
pub(crate) struct Opening {
    forks: Option<u32>,
    starts: Option<u32>,
}

impl Opening {
    pub(crate) fn begin() -> Self {
        Self { forks: FORKS.mark(), starts: STARTS.mark() }
    }

    /// Returns whether a child may have inherited the socket, which is in the table by now, without
    /// having been counted: by a fork, or by a program start if the socket `stays_open`.
    pub(crate) fn is_beside_child_start(&self, stays_open: impl FnOnce() -> bool) -> bool {
        FORKS.is_since(self.forks) || self.is_beside_start(stays_open)
    }

    /// Returns the same for program starts alone.
    pub(crate) fn is_beside_start(&self, stays_open: impl FnOnce() -> bool) -> bool {
        STARTS.is_since(self.starts) && stays_open()
    }
}

/// This is a new child: the starts under way are the parent's.
pub(crate) fn forked() {
    for starts in [&FORKS, &STARTS] {
        starts.under_way.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::ChildStarts;

    #[test]
    fn an_opening_sees_starts_that_were_under_way_or_have_begun_since_and_no_others() {
        let starts = ChildStarts::new();
        let before = starts.mark();
        assert!(!starts.is_since(before));
        starts.begin();
        let beside = starts.mark();
        assert!(starts.is_since(before) && starts.is_since(beside));
        starts.end();
        assert!(starts.is_since(before) && starts.is_since(beside), "the child may have started");
        let after = starts.mark();
        assert!(!starts.is_since(after));
        starts.note();
        assert!(starts.is_since(after) && starts.mark().is_some());
    }
}
