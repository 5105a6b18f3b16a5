//! Unread bytes go from memory back into the kernel's queues, before the socket goes to somebody
//! who does not know the rings.
//!
//! A byte comes into a socket's queue only by the other end's socket. So the process that leaves
//! fetches the peer's ([`crate::peer_socket`]) and sends by it what has not been read, while it
//! holds the locks of both directions, by which the peer's sends and notifications are excluded;
//! what the peer sends later comes behind it. Its own socket does the same for the peer.
//!
//! Bytes that have been put back belong to the first phase, by which the direction began on TCP.
//! So it may be a part of them: the rest stays in memory, and is read behind that part. When all of
//! them have been put back the kernel has the whole stream.
//!
//! Who is killed in the middle leaves a mark (`returning`), because it is not known which bytes
//! have been sent and not counted. The process that takes one of the locks next resets the
//! connection.

use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::time::Timespec;
use weft_sys::calls::{is_ready, tcp_outstanding, tcp_received};
use weft_sys::{Buffers, Linux, SharedGuard};

use super::wakeups::Drained;
use super::{End, PutBack};
use crate::how::How;
use crate::kernel::Kernel;
use crate::limits::{KERNEL_WAITS_MAX, TAKEN_LEN_MAX};
use crate::words::NONE;
use crate::{peer_socket, pullers};

/// Bytes that are sent at once. They are on the stack: a child of `vfork` takes no memory.
const CHUNK_LEN: usize = 8 << 10;
/// How long the kernel may take to bring what has been sent, at a time.
const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

impl PutBack for Linux {
    fn leave(end: &End, socket: BorrowedFd<'_>) {
        end.leave_and_put_back(socket);
    }

    fn put_back_own(end: &End, socket: BorrowedFd<'_>) {
        end.put_back_before_the_end(socket);
    }

    fn put_back_rest(end: &End, socket: BorrowedFd<'_>) {
        end.put_back_before_later(socket);
    }
}

impl<K: PutBack> End<K> {
    /// Goes back to TCP in both directions for good: for what the rings cannot carry, and before
    /// the socket goes to somebody who does not know them. What neither end has read is put back
    /// into the kernel's queues. What cannot be is read first, so that the next reader must know
    /// the rings unless the end [is over](End::is_over).
    pub fn leave(&self, socket: K::Socket<'_>) {
        K::leave(self, socket);
    }

    /// Puts back what the peer has not read, before this half is shut or the socket is closed: the
    /// kernel sends nothing more then, and the peer might have to hand on its end. If there is
    /// something, the connection goes back to TCP with it.
    pub fn put_back_own(&self, socket: K::Socket<'_>) {
        K::put_back_own(self, socket);
    }

    /// Puts back what has been left in memory ([`End::leave_unread`]), because nobody would find it
    /// there any more.
    pub fn put_back_rest(&self, socket: K::Socket<'_>) {
        K::put_back_rest(self, socket);
    }
}

/// What is before the bytes that are put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Only such as are read before them.
    Clear,
    /// Notifications, which nobody must take for data: nothing has changed.
    Blocked,
    /// Bytes have been taken that could not be sent again.
    Torn,
}

impl End<Linux> {
    /// [`End::leave`].
    fn leave_and_put_back(&self, socket: BorrowedFd<'_>) {
        let Some(_readers) = self.lock_readers() else { return self.leave_unread(socket) };
        let Some(held) = self.begin_to_leave(socket) else { return };
        let peer = self.other();
        if (self.has_to_put_back() || peer.has_to_put_back())
            && let Some(fetched) = self.fetch_peer(socket)
        {
            self.put_back(socket, fetched.as_fd());
            peer.put_back(fetched.as_fd(), socket);
        }
        self.finish_leaving(held);
        for end in [self, &peer] {
            end.forget_phases();
        }
    }

    /// [`End::put_back_rest`]. What the peer has sent by TCP since is taken first, and sent again
    /// behind it.
    fn put_back_before_later(&self, socket: BorrowedFd<'_>) {
        let Some(_readers) = self.lock_readers() else { return };
        let [first, second] = self.in_order();
        let Some(_first) = Self::lock(&first.words().lock) else { return };
        let Some(_second) = Self::lock(&second.words().lock) else { return };
        if self.has_left()
            && self.has_to_put_back()
            && !self.is_torn()
            && let Some(fetched) = self.fetch_peer(socket)
            && self.renew_all(socket, fetched.as_fd()).is_err()
        {
            // Bytes are missing, or in another order.
            Linux::dissolve(socket);
        }
        self.forget_phases();
    }

    /// Takes all that the kernel has for this end, and sends it again with the bytes of memory at
    /// their place in it. All locks of the connection are held.
    ///
    /// # Errors
    /// The stream is torn.
    fn renew_all(&self, socket: BorrowedFd<'_>, writer: BorrowedFd<'_>) -> Result<(), Errno> {
        let words = self.rx.words();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Behind its end the kernel sends nothing more, and urgent data have a place of their own.
        if send(writer, &[], flags).is_err() || is_ready(socket, PollFlags::PRI) {
            return Ok(());
        }
        // What is still on its way would come before what is sent again.
        let has_all_come = || tcp_outstanding(writer) == Ok(0);
        if !becomes_true(has_all_come) {
            return Ok(());
        }
        let received = tcp_received(socket)?;
        let come = ioctl_fionread(socket)?;
        let switch_at = words.switch_at.load(Ordering::Relaxed);
        let first = switch_at.saturating_sub(words.tcp_read.load(Ordering::Relaxed));
        let wakeups = self.wakeups_left();
        // The kernel counts its own memory, which is less than twice the bytes.
        let room = sockopt::socket_send_buffer_size(writer).unwrap_or(0);
        let fits = self.rx.available().is_ok_and(|unread| unread <= room / 4);
        if come > TAKEN_LEN_MAX || first.saturating_add(wakeups) > come || !fits {
            return Ok(());
        }
        words.returning.store(1, Ordering::SeqCst);
        let mut bytes = vec![0; usize::try_from(come).unwrap_or(0)];
        let mut taken = 0;
        while taken < bytes.len() {
            match recv(socket, &mut bytes[taken..], RecvFlags::DONTWAIT)? {
                (0, _) => return Err(Errno::CONNRESET),
                (more, _) => taken += more,
            }
        }
        self.count_wakeups(usize::try_from(wakeups).unwrap_or(0));
        let (first, rest) = bytes.split_at(usize::try_from(first).unwrap_or(0));
        let later = &rest[usize::try_from(wakeups).unwrap_or(0)..];
        self.sources_in.turn_away();
        let before = words.switch_at.load(Ordering::Relaxed);
        self.send_again(writer, first).map_err(|_| Errno::CONNRESET)?;
        self.send_back(writer)?;
        self.send_again(writer, later).map_err(|_| Errno::CONNRESET)?;
        // A program that knows nothing of the locks may have sent beside this.
        let moved = words.switch_at.load(Ordering::Relaxed) - before;
        let sent = first.len() as u64 + moved + later.len() as u64;
        let come = || tcp_received(socket).map_or(0, |all| all - received);
        becomes_true(|| come() >= sent);
        if come() > sent {
            return Err(Errno::CONNRESET);
        }
        words.returning.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// The readers' locks of both directions, which are taken before those of the writers.
    fn lock_readers(&self) -> Option<[SharedGuard<'static, Linux>; 2]> {
        let [first, second] = self.in_order();
        let first = Self::lock(&first.words().reader_lock)?;
        Some([first, Self::lock(&second.words().reader_lock)?])
    }

    fn fetch_peer(&self, socket: BorrowedFd<'_>) -> Option<OwnedFd> {
        let likely = self.peer.pid.load(Ordering::Relaxed);
        let others = self.peer_holders().processes().filter(move |&it| it != likely);
        let fd = self.peer.fd.load(Ordering::Relaxed);
        peer_socket::fetch(socket, std::iter::once(likely).chain(others), fd)
    }

    /// [`End::put_back_own`].
    fn put_back_before_the_end(&self, socket: BorrowedFd<'_>) {
        if self.unsent() == 0 || self.is_the_kernels_to_send() {
            return;
        }
        let peer = self.other();
        let Some(_reader) = Self::lock(&self.tx.words().reader_lock) else { return };
        let Some(held) = self.begin_to_leave(socket) else { return };
        if peer.has_to_put_back() && !peer.is_torn() {
            peer.put_behind_notifications(socket);
        }
        self.finish_leaving(held);
    }

    /// Puts back all that this end has not read, where notifications may be before it, which the
    /// reader takes first: those belong to the second phase, so all goes into the third. It is
    /// done only if the kernel takes it all for sure.
    fn put_behind_notifications(&self, writer: BorrowedFd<'_>) {
        let words = self.rx.words();
        let unread = self.rx.available().unwrap_or(usize::MAX);
        // The kernel counts its own memory, which is less than twice the bytes.
        let room = sockopt::socket_send_buffer_size(writer).unwrap_or(0);
        if unread > room / 4 || self.sources_in.are_open() {
            return;
        }
        words.returning.store(1, Ordering::SeqCst);
        let mut chunk = [0_u8; CHUNK_LEN];
        let mut is_first = true;
        loop {
            let slices = &mut [IoSliceMut::new(&mut chunk)];
            let Ok(len) = self.rx.take(Buffers::of(slices), true) else { return };
            if len == 0 {
                break;
            }
            match self.send_again(writer, &chunk[..len]) {
                Ok(()) if self.rx.skip(len) == Ok(len) => is_first = false,
                Err(0) if is_first => break,
                _ => return, // Torn.
            }
        }
        words.returning.store(0, Ordering::SeqCst);
    }

    /// The other end, as this process sees it.
    fn other(&self) -> Self {
        Self::at(self.registry, self.slot, self.generation, self.role.other())
    }

    /// Whether bytes are unread in memory that could be put back. Those of a message whose sender
    /// waits until it has been pulled go over TCP by themselves. An end that has shut down both
    /// halves would be reset by bytes that come now (tcp_rcv_state_process).
    fn has_to_put_back(&self) -> bool {
        self.rx.words().switch_at.load(Ordering::Relaxed) != NONE
            && !self.is_shut()
            && (self.rx.available().is_ok_and(|bytes| bytes > 0) || self.sources_in.are_open())
    }

    fn is_shut(&self) -> bool {
        let halves = [&self.own.shut_read, &self.own.shut_write];
        halves.into_iter().all(|half| half.load(Ordering::Relaxed) != 0)
    }

    /// Puts back what this end has not read, by the other end's socket. All locks of the connection
    /// are held.
    fn put_back(&self, socket: BorrowedFd<'_>, writer: BorrowedFd<'_>) {
        let words = self.rx.words();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Behind its end the kernel sends nothing more.
        if !self.has_to_put_back() || self.is_torn() || send(writer, &[], flags).is_err() {
            return;
        }
        words.returning.store(1, Ordering::SeqCst);
        match self.clear_way(socket, writer) {
            Way::Clear => {
                self.sources_in.turn_away();
                if self.send_back(writer).is_ok() {
                    words.returning.store(0, Ordering::SeqCst);
                }
            }
            Way::Blocked => words.returning.store(0, Ordering::SeqCst),
            Way::Torn => {}
        }
    }

    /// Takes the notifications out of the kernel's queue.
    fn clear_way(&self, socket: BorrowedFd<'_>, writer: BorrowedFd<'_>) -> Way {
        if !self.has_switched_in() {
            return if self.wakeups_left() == 0 { Way::Clear } else { self.renew(socket, writer) };
        }
        for _ in 0..KERNEL_WAITS_MAX {
            while let Ok(Drained::Wakeups(1..)) = self.take_wakeups(socket) {}
            if self.wakeups_left() == 0 {
                return Way::Clear;
            }
            wait(socket, PollFlags::IN);
        }
        Way::Blocked
    }

    /// Takes the bytes of the first phase and the notifications behind them, and sends the bytes
    /// again.
    fn renew(&self, socket: BorrowedFd<'_>, writer: BorrowedFd<'_>) -> Way {
        let words = self.rx.words();
        let read = words.tcp_read.load(Ordering::Relaxed);
        let first = words.switch_at.load(Ordering::Relaxed).saturating_sub(read);
        let wakeups = self.wakeups_left();
        let all = first.saturating_add(wakeups);
        let has_come = || ioctl_fionread(socket).is_ok_and(|come| come >= all);
        if all > TAKEN_LEN_MAX || !becomes_true(has_come) {
            return Way::Blocked;
        }
        let mut bytes = vec![0; usize::try_from(all).unwrap_or(0)];
        let mut taken = 0;
        while taken < bytes.len() {
            match recv(socket, &mut bytes[taken..], RecvFlags::DONTWAIT) {
                Ok((more, _)) if more > 0 => taken += more,
                _ => return if taken == 0 { Way::Blocked } else { Way::Torn },
            }
        }
        self.count_wakeups(usize::try_from(wakeups).unwrap_or(0));
        bytes.truncate(usize::try_from(first).unwrap_or(0));
        if self.send_again(writer, &bytes).is_ok() { Way::Clear } else { Way::Torn }
    }

    /// Sends what is unread, as far as the kernel takes it.
    ///
    /// # Errors
    /// Bytes have been sent that could not be counted.
    fn send_back(&self, writer: BorrowedFd<'_>) -> Result<(), Errno> {
        let words = self.rx.words();
        let mut chunk = [0_u8; CHUNK_LEN];
        loop {
            let keep = How { keep: true, ..How::default() };
            let slices = &mut [IoSliceMut::new(&mut chunk)];
            let len = self.take_from_memory(Buffers::of(slices), keep);
            if len == 0 {
                return Ok(());
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = self.count_again(len, || send(writer, &chunk[..len], flags).unwrap_or(0));
            if sent == 0 {
                return Ok(());
            }
            words.switch_at.fetch_add(sent as u64, Ordering::AcqRel);
            let drop = How { discard: true, ..How::default() };
            let mut dropped = 0;
            while dropped < sent {
                let slices = &mut [IoSliceMut::new(&mut chunk[dropped..sent])];
                match self.take_from_memory(Buffers::of(slices), drop) {
                    0 => return Err(Errno::CONNRESET),
                    more => dropped += more,
                }
            }
        }
    }

    /// Sends all of these bytes, which had come before, as [`send_all`].
    ///
    /// # Errors
    /// So many were sent.
    fn send_again(&self, writer: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), usize> {
        let send = || send_all(writer, bytes).map_or_else(|sent| sent, |()| bytes.len());
        match self.count_again(bytes.len(), send) {
            sent if sent == bytes.len() => Ok(()),
            sent => Err(sent),
        }
    }

    /// Counts what is sent again of `len` bytes. That is done before the kernel brings them, so
    /// that nobody whom they wake takes them for new ones.
    fn count_again(&self, len: usize, send: impl FnOnce() -> usize) -> usize {
        let words = self.rx.words();
        words.resent.fetch_add(len as u64, Ordering::AcqRel);
        let sent = send();
        words.resent.fetch_sub(len.saturating_sub(sent) as u64, Ordering::AcqRel);
        sent
    }

    /// Takes bytes out of the ring or, if it is empty, of deferred messages.
    fn take_from_memory(&self, buffers: Buffers<'_>, how: How) -> usize {
        let taken =
            if how.discard { self.rx.skip(buffers.len()) } else { self.rx.take(buffers, how.keep) };
        match taken {
            Ok(0) => {
                let is_next = || self.rx.available() == Ok(0);
                let is_peer =
                    |pid| pullers::is_side(self.registry, self.slot, self.role.other(), pid);
                self.sources_in.pull(buffers, how.keep, how.discard, is_next, is_peer).bytes
            }
            taken => taken.unwrap_or(0),
        }
    }
}

impl<K: Kernel> End<K> {
    /// Where nothing is left in memory, and no notification in the kernel's queue, there are no
    /// phases any more: whatever comes is the kernel's. The reader's lock is held: since the
    /// connection has left, nobody else moves the end of the first phase. Returns whether it is so.
    pub(super) fn forget_phases(&self) -> bool {
        let words = self.rx.words();
        let is_so = self.is_over() && !self.is_torn();
        if is_so {
            let read = words.tcp_read.load(Ordering::Relaxed);
            words.switch_at.store(read, Ordering::Release);
        }
        is_so
    }

    /// Whether a process was killed while it put back what this end has not read. A lock of the
    /// direction is held.
    #[inline]
    pub(super) fn is_torn(&self) -> bool {
        self.rx.words().returning.load(Ordering::Relaxed) != 0
    }
}

/// Sends all bytes, for which there is room, if not at once.
///
/// # Errors
/// So many were sent.
fn send_all(writer: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), usize> {
    let mut sent = 0;
    let mut sleeps = 0;
    while sent < bytes.len() {
        match send(writer, &bytes[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(more) => sent += more,
            Err(Errno::AGAIN) if sleeps < KERNEL_WAITS_MAX => {
                sleeps += 1;
                wait(writer, PollFlags::OUT);
            }
            Err(_) => return Err(sent),
        }
    }
    Ok(())
}

/// Waits a moment for something to happen to a socket.
fn wait(socket: BorrowedFd<'_>, what: PollFlags) {
    let _ = poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&SLEEP_TIME));
}

/// Whether a condition becomes true soon.
fn becomes_true(condition: impl Fn() -> bool) -> bool {
    let wait_a_moment = || {
        let _ = rustix::thread::nanosleep(&SLEEP_TIME);
        false
    };
    (0..KERNEL_WAITS_MAX).any(|_| condition() || wait_a_moment()) || condition()
}
