//! Readiness as poll, select and epoll report it.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use weft_stream::{Carrier, Kernel as _};
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;

use super::Stream;
use crate::descriptor::{Descriptor, events_now};
use crate::kernel::{Host, Kernel as _};
use crate::link::AnyEnd;
use crate::remote::RemoteEnd;
use crate::sleepers;

/// With more unread bytes than this a hang-up is not reported yet. TCP's own bound is the receive
/// buffer (`tcp_rmem`, tcp(7)), but there the FIN rarely arrives before most bytes have been read.
const EARLY_LEN: usize = 4 << 10;

impl Stream {
    /// Returns the known end events, as bits of `poll(2)`.
    pub(crate) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Handles a kernel event of the socket: drains the wakeups, and records an end.
    pub(crate) fn settle(&self, fd: RawFd, kernel: u32) {
        let Some(end) = self.link() else { return };
        const RESET: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let lasting = kernel & (RESET | libc::EPOLLRDHUP.cast_unsigned());
        let own = self.armed.load(Ordering::Relaxed);
        let socket = Descriptor::of(fd);
        let settled = match end {
            AnyEnd::Local(end) if lasting & RESET == RESET => Ok(end.settle_reset(socket.as_fd())),
            end => end.settle(socket.as_fd(), lasting != 0, own),
        };
        let mut ended = lasting;
        if let Err(error) = settled {
            self.keep_error(error);
            ended = (libc::EPOLLHUP | libc::EPOLLRDHUP).cast_unsigned();
        }
        if settled != Ok(false) || lasting & !libc::EPOLLRDHUP.cast_unsigned() != 0 {
            ended |= libc::EPOLLIN.cast_unsigned();
        }
        self.ended.fetch_or(ended, Ordering::Relaxed);
    }

    /// Keeps an error that the kernel has reported for a later call.
    pub(super) fn keep_error(&self, error: Errno) {
        if !matches!(error, Errno::AGAIN | Errno::INTR) {
            self.error.store(error.raw_os_error(), Ordering::Relaxed);
        }
    }

    /// Clears the error bit after a call has returned the error to the program.
    pub(super) fn error_has_come(&self, error: Errno) {
        if matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT) {
            self.ended.fetch_and(!libc::EPOLLERR.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// Clears the error after the program has asked the kernel for it (`SO_ERROR`).
    pub(crate) fn error_reported(&self, error: libc::c_int) {
        self.ended.fetch_and(!libc::EPOLLERR.cast_unsigned(), Ordering::Relaxed);
        if error != 0
            && let Some(end) = self.link()
        {
            end.note_reset();
        }
    }

    /// Clears the error bit if the kernel has no error any more: another process that has the
    /// socket has been given it.
    pub(crate) fn follow_error(&self, fd: RawFd) {
        const ERROR: u32 = libc::EPOLLERR.cast_unsigned();
        if self.ended() & ERROR != 0
            && !events_now(Descriptor::of(fd).as_fd(), PollFlags::empty()).contains(PollFlags::ERR)
        {
            self.ended.fetch_and(!ERROR, Ordering::Relaxed);
        }
    }

    /// Takes the kept error.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let error = self.error.swap(0, Ordering::Relaxed);
        (error != 0).then(|| Errno::from_raw_os_error(error))
    }

    /// Returns whether a writer has to wait for the peer to read.
    pub(crate) fn lacks_room(&self) -> bool {
        self.link().is_some_and(|end| end.carrier_out() == Carrier::Memory && !end.is_writable())
    }

    /// Records that a writer has found no room in memory. Returns whether the connection has fallen
    /// back to TCP by then. The writer is to try again in that case: the kernel has refused
    /// nothing, so it would not report that there is room, and a thread that has learnt of the
    /// fallback before this record has not reported it either.
    pub(crate) fn be_full(&self) -> bool {
        self.full.store(1, Ordering::Relaxed);
        // A thread that learns of the fallback after the check below finds the record.
        fence(Ordering::SeqCst);
        if let Some(end) = self.end() {
            end.note_edge(None); // New room then raises an edge, in any process.
        }
        let Some(end) = self.link() else { return false };
        if self.armed.load(Ordering::SeqCst) > 0 && self.kernels_room.load(Ordering::SeqCst) == 0 {
            // A thread that sleeps in an instance for room must not sleep for ever.
            if end.carrier_out() == Carrier::Memory {
                end.want_room();
            }
            sleepers::room_is_wanted();
        }
        end.has_fallen_back() && end.carrier_out() == Carrier::Tcp
    }

    /// Records that an instance has the kernel watch for room of a connection that has fallen back
    /// to TCP.
    pub(crate) fn kernel_watches_room(&self) {
        self.kernels_room.store(1, Ordering::SeqCst);
    }

    /// Returns whether a writer has found no room.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) != 0
    }

    /// Returns the same, and resets it.
    pub(crate) fn take_full(&self) -> bool {
        self.is_full() && self.full.swap(0, Ordering::Relaxed) != 0
    }

    /// Records that a reader may have taken everything that TCP had: bytes that come now are news
    /// for edges, even those that were in memory before. Returns whether that was not recorded yet.
    /// The reader is to look again in that case, because a thread that has reported nothing of
    /// bytes which came after its call may not have seen the record.
    pub(super) fn be_dry(&self) -> bool {
        let is_new = self.dry.swap(1, Ordering::SeqCst) == 0;
        fence(Ordering::SeqCst);
        is_new
    }

    /// Returns whether a reader may have taken everything that TCP had.
    pub(crate) fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed) != 0
    }

    /// Forgets that: an edge is being reported, so the program reads again.
    pub(crate) fn forget_dry(&self) {
        if self.is_dry() {
            self.dry.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the error that the program is to get now (`SO_ERROR`).
    pub(crate) fn pending_error(&self, fd: RawFd) -> Option<Errno> {
        let of_the_kernel = || Host::take_error(Descriptor::of(fd).as_fd());
        let error = self.take_error().or_else(of_the_kernel)?;
        self.error_reported(error.raw_os_error());
        Some(error)
    }

    /// Returns how many instances that watch it wait for a wakeup.
    pub(crate) fn armed(&self) -> &AtomicU32 {
        &self.armed
    }

    /// Returns how many epoll instances announce data in memory.
    pub(crate) fn announced(&self) -> &AtomicU32 {
        &self.announced
    }

    /// Returns how many epoll instances watch it.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        &self.watches
    }

    /// Returns whether an end that the kernel reports would overtake unread bytes. With TCP it
    /// follows them, and programs rely on little being unread when poll reports a hang-up (stunnel
    /// drops what it has not read by then).
    pub(crate) fn has_early_end(&self, end: AnyEnd<'_>) -> bool {
        end.carrier_in() == Carrier::Memory
            && end.seen() > EARLY_LEN
            && self.ended() & libc::EPOLLERR.cast_unsigned() == 0
    }

    /// Returns whether the socket's state is unchanged since it had these `ended` bits, and no
    /// writer waits for room.
    #[inline]
    pub(crate) fn is_unchanged_since(&self, ended: u32) -> bool {
        self.ended.load(Ordering::Relaxed) == ended
            && self.error.load(Ordering::Relaxed) == 0
            && self.full.load(Ordering::Relaxed) == 0
            && self.armed_early.load(Ordering::Relaxed) == 0
    }

    /// Returns the readiness as bits of `poll(2)`, and which of the bits the rings decide.
    pub(crate) fn readiness(&self, end: AnyEnd<'_>) -> (u32, u32) {
        const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        let mut ready = self.ended();
        let mut ours = 0;
        if self.error.load(Ordering::Relaxed) != 0 {
            ready |= libc::EPOLLERR.cast_unsigned();
        }
        if ready & libc::EPOLLHUP.cast_unsigned() != 0 {
            // Nothing blocks any more (tcp_poll): reads and writes return at once.
            return (ready | IN | OUT, IN | OUT);
        }
        if end.remote().is_some_and(RemoteEnd::is_cut) {
            return (ready | IN | OUT, IN | OUT); // Calls report the end at once.
        }
        Host::moment();
        let is_memory = || end.carrier_in() == Carrier::Memory;
        // Nothing is unread there either if the connection has fallen back to TCP in between.
        if is_memory()
            && let unread = end.seen() > 0
            && (unread || is_memory())
        {
            ours |= IN;
            Host::moment();
            if unread || ready & libc::EPOLLIN.cast_unsigned() != 0 {
                ready |= IN;
            }
            if unread && end.has_peer_shut() {
                ready |= libc::EPOLLRDHUP.cast_unsigned(); // The kernel is about to report it.
            }
        }
        Host::moment();
        if end.is_send_answered() {
            ours |= OUT;
            ready |= OUT; // The kernel's call returns at once.
        } else if end.carrier_out() == Carrier::Memory {
            ours |= OUT;
            if end.is_writable() {
                ready |= OUT;
            }
        }
        (ready, ours)
    }
}
