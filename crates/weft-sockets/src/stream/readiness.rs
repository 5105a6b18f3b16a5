//! What poll, select and epoll report.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use weft_stream::Carrier;

use super::Stream;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::link::Link;
use crate::remote::RemoteEnd;
use crate::sleepers;

/// Unread bytes behind which an end is not reported yet. TCP's own bound is the receiver's buffer
/// (`tcp_rmem`, tcp(7)), but there the end rarely comes before most of it has been read.
const EARLY_LEN: usize = 4 << 10;

impl Stream {
    /// What has been found out about the socket's end, as bits of `poll(2)`.
    pub(crate) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }

    /// The kernel has woken us, and says this of the socket: takes the wakeups, and remembers if it
    /// was the end.
    pub(crate) fn settle(&self, fd: RawFd, kernel: u32) {
        let Some(end) = self.link() else { return };
        const RESET: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let lasting = kernel & (RESET | libc::EPOLLRDHUP.cast_unsigned());
        let own = self.armed.load(Ordering::Relaxed);
        let socket = Descriptor::of(fd);
        let settled = match end {
            Link::Local(end) if lasting & RESET == RESET => Ok(end.settle_reset(socket.as_fd())),
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

    /// The kernel has reported an error that the program is to learn later.
    pub(super) fn keep_error(&self, error: Errno) {
        if !matches!(error, Errno::AGAIN | Errno::INTR) {
            self.error.store(error.raw_os_error(), Ordering::Relaxed);
        }
    }

    /// A call has reported an error of the socket's to the program: the socket has it no more.
    pub(super) fn error_has_come(&self, error: Errno) {
        if matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT) {
            self.ended.fetch_and(!libc::EPOLLERR.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// The program has asked the kernel for the error: there is none any more.
    pub(crate) fn error_reported(&self, error: libc::c_int) {
        self.ended.fetch_and(!libc::EPOLLERR.cast_unsigned(), Ordering::Relaxed);
        if error != 0
            && let Some(end) = self.link()
        {
            end.note_reset();
        }
    }

    /// The error that the kernel has reported to us, once.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let error = self.error.swap(0, Ordering::Relaxed);
        (error != 0).then(|| Errno::from_raw_os_error(error))
    }

    /// Whether a program that waits for room waits for the peer to read.
    pub(crate) fn lacks_room(&self) -> bool {
        self.link().is_some_and(|end| end.carrier_out() == Carrier::Memory && !end.is_writable())
    }

    /// A writer finds that there is no room.
    pub(crate) fn be_full(&self) {
        self.full.store(1, Ordering::Relaxed);
        if let Some(end) = self.end() {
            end.note_edge(None); // Room is news then, in any process.
        }
        if self.armed.load(Ordering::SeqCst) == 0 {
            return;
        }
        // A thread may sleep in an instance until there is room, and not for ever.
        if let Some(end) = self.link()
            && end.carrier_out() == Carrier::Memory
        {
            end.want_room();
            sleepers::room_is_wanted();
        }
    }

    /// Whether a writer has found that there is no room.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) != 0
    }

    /// The same; `true` once.
    pub(crate) fn take_full(&self) -> bool {
        self.is_full() && self.full.swap(0, Ordering::Relaxed) != 0
    }

    /// An error that is to be reported to the program now, once (`SO_ERROR`).
    pub(crate) fn pending_error(&self, fd: RawFd) -> Option<Errno> {
        let of_the_kernel = || Host::take_error(Descriptor::of(fd).as_fd());
        let error = self.take_error().or_else(of_the_kernel)?;
        self.error_reported(error.raw_os_error());
        Some(error)
    }

    /// How many of those that watch it wait for a wakeup.
    pub(crate) fn armed(&self) -> &AtomicU32 {
        &self.armed
    }

    /// How many epoll instances announce what waits in memory.
    pub(crate) fn announced(&self) -> &AtomicU32 {
        &self.announced
    }

    /// How many epoll instances watch it.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        &self.watches
    }

    /// Whether an end of the peer's, if the kernel tells of one, has overtaken bytes: with TCP it
    /// comes behind them. Programs that poll rely on it that little is unread when they see a
    /// hang-up (stunnel drops what it has not asked for by then).
    pub(crate) fn has_early_end(&self, end: Link<'_>) -> bool {
        end.carrier_in() == Carrier::Memory
            && end.seen() > EARLY_LEN
            && self.ended() & libc::EPOLLERR.cast_unsigned() == 0
    }

    /// Whether this process has learnt nothing of the socket but that it has `ended` so far, and
    /// no writer waits for room.
    #[inline]
    pub(crate) fn is_calm(&self, ended: u32) -> bool {
        self.ended.load(Ordering::Relaxed) == ended
            && self.error.load(Ordering::Relaxed) == 0
            && self.full.load(Ordering::Relaxed) == 0
            && self.armed_early.load(Ordering::Relaxed) == 0
    }

    /// The readiness that is ours to tell, as bits of `poll(2)`, and those bits that are.
    pub(crate) fn readiness(&self, end: Link<'_>) -> (u32, u32) {
        const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        let mut ready = self.ended();
        let mut ours = 0;
        if self.error.load(Ordering::Relaxed) != 0 {
            ready |= libc::EPOLLERR.cast_unsigned();
        }
        if ready & libc::EPOLLHUP.cast_unsigned() != 0 {
            // Nothing waits any more (tcp_poll): reads and writes return at once.
            return (ready | IN | OUT, IN | OUT);
        }
        if end.remote().is_some_and(RemoteEnd::is_cut) {
            return (ready | IN | OUT, IN | OUT); // A call says that it is over.
        }
        if end.carrier_in() == Carrier::Memory {
            ours |= IN;
            let unread = end.seen() > 0;
            if unread || ready & libc::EPOLLIN.cast_unsigned() != 0 {
                ready |= IN;
            }
            if unread && end.has_peer_shut() {
                ready |= libc::EPOLLRDHUP.cast_unsigned(); // The kernel is about to say so.
            }
        }
        if end.is_send_answered() {
            ours |= OUT;
            ready |= OUT; // The kernel answers at once.
        } else if end.carrier_out() == Carrier::Memory {
            ours |= OUT;
            if end.is_writable() {
                ready |= OUT;
            }
        }
        (ready, ours)
    }
}
