//! Who has to be woken: how many of a process's threads sleep until somebody brings something.
//!
//! A thread that is about to sleep says so and then looks once more; a peer that has brought
//! something asks whether anybody sleeps. Each side writes before it reads, with a full barrier
//! between, so that at least one of them sees the other.

use crate::atomic::{AtomicU32, Ordering, fence};

/// A thread is about to sleep, after one more look.
pub(crate) fn settle_down(sleepers: &AtomicU32) {
    sleepers.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// It sleeps no more.
pub(crate) fn rise(sleepers: &AtomicU32) {
    sleepers.fetch_sub(1, Ordering::Release);
}

/// Whether a process to which something has just been brought must be woken.
#[inline]
pub(crate) fn is_asleep(sleepers: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    sleepers.load(Ordering::Relaxed) != 0
}

#[cfg(not(loom))]
pub use shared::{OwnPresence, PeerPresence, Sleeping};

#[cfg(not(loom))]
mod shared {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::io::Errno;

    use super::{is_asleep, rise, settle_down};
    use crate::SharedMemory;

    const PAGE_LEN: usize = 4_096;
    const SLEEPERS_AT: usize = 0;

    /// This process's count, in a page that peers read.
    #[derive(Debug)]
    pub struct OwnPresence {
        page: SharedMemory,
        fd: OwnedFd,
    }

    impl OwnPresence {
        /// A page that says that nobody sleeps.
        ///
        /// # Errors
        /// `EMFILE`, `ENOMEM` and the like.
        pub fn new() -> Result<Self, Errno> {
            let (page, fd) = SharedMemory::create_for_readers(PAGE_LEN)?;
            Ok(Self { page, fd })
        }

        /// The descriptor for peers.
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }

        /// The calling thread is about to sleep, and must look once more before it does.
        pub fn settle_down(&self) -> Sleeping<'_> {
            settle_down(self.page.word32(SLEEPERS_AT));
            Sleeping(self)
        }
    }

    /// A thread sleeps, until this is dropped.
    #[derive(Debug)]
    pub struct Sleeping<'a>(&'a OwnPresence);

    impl Drop for Sleeping<'_> {
        fn drop(&mut self) {
            rise(self.0.page.word32(SLEEPERS_AT));
        }
    }

    /// A peer's count.
    #[derive(Debug)]
    pub struct PeerPresence(SharedMemory);

    impl PeerPresence {
        /// Maps the page of a peer.
        ///
        /// # Errors
        /// `EINVAL` for a descriptor that is none; what `mmap(2)` reports.
        pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
            SharedMemory::open(fd, PAGE_LEN, false).map(Self)
        }

        /// Whether the peer, to which something has just been brought, must be woken.
        #[inline]
        #[must_use]
        pub fn is_asleep(&self) -> bool {
            is_asleep(self.0.word32(SLEEPERS_AT))
        }
    }
}
