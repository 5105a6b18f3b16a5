//! Children that are born beside a thread that opens a socket. From when the kernel has made it
//! until it stands in the table nobody can count who gets it.
//!
//! Who opens one looks before it asks the kernel ([`Opening`]), and again once the socket stands in
//! the table. Who has a child says so before it looks into the table ([`Births`]). Of the two one
//! sees the other: the socket is prepared for the child, or known to be perhaps the child's, too.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Children of one kind.
#[derive(Debug)]
pub(crate) struct Births {
    begun: AtomicU32,
    under_way: AtomicU32,
}

/// Children that get all descriptors.
pub(crate) static FORKS: Births = Births::new();
/// Programs, which get those that stay open.
pub(crate) static STARTS: Births = Births::new();

impl Births {
    const fn new() -> Self {
        Self { begun: AtomicU32::new(0), under_way: AtomicU32::new(0) }
    }

    /// One begins; [`Births::end`] follows. Returns its number, which is not 0.
    pub(crate) fn begin(&self) -> u32 {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.note()
    }

    /// In the parent, the child has been born, or will not be.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// One that has its descriptors already: what is opened from here on it does not get.
    /// Returns its number.
    pub(crate) fn note(&self) -> u32 {
        let before = self.begun.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst); // Of this and `is_since`, one sees what the other did before.
        before + 1
    }

    /// What has begun so far; `None` while one is under way.
    fn mark(&self) -> Option<u32> {
        let begun = self.begun.load(Ordering::SeqCst);
        (self.under_way.load(Ordering::SeqCst) == 0).then_some(begun)
    }

    fn is_since(&self, mark: Option<u32>) -> bool {
        fence(Ordering::SeqCst);
        mark != Some(self.begun.load(Ordering::SeqCst))
    }
}

/// A program is being started: until the call that does so has returned.
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

/// A socket that is being opened or copied: from before the kernel's call.
#[derive(Debug)]
pub(crate) struct Opening {
    forks: Option<u32>,
    starts: Option<u32>,
}

impl Opening {
    pub(crate) fn begin() -> Self {
        Self { forks: FORKS.mark(), starts: STARTS.mark() }
    }

    /// Whether a child may have got the socket, which is in the table by now, uncounted: by a
    /// fork, or as a program if it `stays_open`.
    pub(crate) fn is_beside_birth(&self, stays_open: impl FnOnce() -> bool) -> bool {
        FORKS.is_since(self.forks) || self.is_beside_start(stays_open)
    }

    /// The same of programs alone.
    pub(crate) fn is_beside_start(&self, stays_open: impl FnOnce() -> bool) -> bool {
        STARTS.is_since(self.starts) && stays_open()
    }
}

/// This is a child just born: the births under way are the parent's.
pub(crate) fn forked() {
    for births in [&FORKS, &STARTS] {
        births.under_way.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Births;

    #[test]
    fn an_opening_sees_births_that_were_under_way_or_have_begun_since_and_no_others() {
        let births = Births::new();
        let before = births.mark();
        assert!(!births.is_since(before));
        births.begin();
        let beside = births.mark();
        assert!(births.is_since(before) && births.is_since(beside));
        births.end();
        assert!(births.is_since(before) && births.is_since(beside), "it may have been born");
        let after = births.mark();
        assert!(!births.is_since(after));
        births.note();
        assert!(births.is_since(after) && births.mark().is_some());
    }
}
