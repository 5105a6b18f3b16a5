//! Counts a process's threads that sleep until a peer brings something, so that peers know whether
//! they have to wake the process.
//!
//! A thread announces its sleep and then checks once more; a peer brings something and then asks
//! whether a thread sleeps. Each side writes before it reads, with a full barrier between, so at
//! least one of them sees the other.

use crate::atomic::{AtomicU32, Ordering, fence};

/// Counts a thread that is about to sleep. It must check once more before it does.
pub(crate) fn begin_sleep(sleepers: &AtomicU32) {
    sleepers.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Counts that the thread has woken.
pub(crate) fn end_sleep(sleepers: &AtomicU32) {
    sleepers.fetch_sub(1, Ordering::Release);
}

/// Whether a process must be woken, after something has been brought to it.
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

    use crate::calls::io::Errno;

    use super::{AtomicU32, begin_sleep, end_sleep, is_asleep};
    use crate::{SharedMemory, shared_layout};

    shared_layout! {
        /// The page that peers read.
        struct Page[4_096] {
            /// The number of sleeping threads.
            0: sleepers: AtomicU32,
            4: _rest: [AtomicU32; 1_023],
        }
    }

    fn sleepers(page: &SharedMemory) -> &AtomicU32 {
        &page.structure::<Page>(0).sleepers
    }

    /// This process's count, in a page that peers can read.
    #[derive(Debug)]
    pub struct OwnPresence {
        page: SharedMemory,
        fd: OwnedFd,
    }

    impl OwnPresence {
        /// Creates a page with a count of zero.
        ///
        /// # Errors
        /// `EMFILE`, `ENOMEM` and similar errors.
        pub fn new() -> Result<Self, Errno> {
            let (page, fd) = SharedMemory::create_for_readers(size_of::<Page>())?;
            Ok(Self { page, fd })
        }

        /// The descriptor that peers map.
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }

        /// Counts the calling thread as asleep. It must check once more before it sleeps.
        pub fn begin_sleep(&self) -> Sleeping<'_> {
            begin_sleep(sleepers(&self.page));
            Sleeping(self)
        }
    }

    /// A sleeping thread, which is counted until this is dropped.
    #[derive(Debug)]
    pub struct Sleeping<'a>(&'a OwnPresence);

    impl Drop for Sleeping<'_> {
        fn drop(&mut self) {
            end_sleep(sleepers(&self.0.page));
        }
    }

    /// The count of a peer.
    #[derive(Debug)]
    pub struct PeerPresence(SharedMemory);

    impl PeerPresence {
        /// Maps the page of a peer.
        ///
        /// # Errors
        /// `EINVAL` for a descriptor of anything else; an error of `mmap(2)`.
        pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
            SharedMemory::open(fd, size_of::<Page>(), false).map(Self)
        }

        /// Whether the peer must be woken, after something has been brought to it.
        #[inline]
        #[must_use]
        pub fn is_asleep(&self) -> bool {
            is_asleep(sleepers(&self.0))
        }
    }
}
