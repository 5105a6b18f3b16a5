//! Puts unread bytes from memory back into the kernel's queues, before a process that does not know
//! the rings gets the socket.
//!
//! Bytes get into a socket's queue only through the other end's socket. So the process that falls
//! back fetches the peer's socket ([`crate::peer_socket`]) and sends the unread bytes by it.
//! Meanwhile it holds the locks of both directions, so the peer neither sends nor notifies; later
//! bytes of the peer come behind. By its own socket it puts back what the peer has not read.
//!
//! Bytes that have been put back belong to the first TCP phase, with which the direction began. So
//! it is enough to put back a part: the rest stays in memory, and is read behind it. Once all have
//! been put back the kernel has the whole stream.
//!
//! A process that is killed in the middle leaves a mark (`returning`), because no process knows
//! which bytes have been sent but not counted. The next process that takes one of the locks resets
//! the connection.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, Linux, SharedGuard};

use super::wakeups::Drained;
use super::{End, PutBack};
use crate::fetch::Fetch;
use crate::kernel::Kernel;
use crate::limits::{KERNEL_WAITS_MAX, TAKEN_LEN_MAX};
use crate::pullers;
use crate::recv_options::RecvOptions;
use crate::words::NONE;

/// Bytes sent by one call. The buffer is on the stack, because a child of `vfork` must not
/// allocate.
const CHUNK_LEN: usize = 8 << 10;

impl PutBack for Linux {
    fn fall_back_to_tcp(end: &End, socket: BorrowedFd<'_>) {
        end.fall_back_and_put_back(socket);
    }

    fn put_back_own(end: &End, socket: BorrowedFd<'_>) {
        end.put_back_before_the_end(socket);
    }

    fn put_back_rest(end: &End, socket: BorrowedFd<'_>) {
        end.put_back_before_later(socket);
    }
}

impl<K: PutBack> End<K> {
    /// Falls back to TCP in both directions for good: for operations that the rings cannot carry,
    /// and before the socket goes to a process that does not know them. Puts the bytes that either
    /// end has not read back into the kernel's queues. Those that cannot be put back are read
    /// first, so the next reader must know the rings unless [`End::is_over`].
    pub fn fall_back_to_tcp(&self, socket: K::Socket<'_>) {
        let had_fallen_back = self.has_fallen_back();
        K::fall_back_to_tcp(self, socket);
        if !had_fallen_back && self.has_unread_out() && K::is_hung_up(socket) {
            self.hang_up_unread(socket);
        }
    }

    /// Puts back what the peer has not read, before this half is shut or the socket is closed.
    /// Afterwards the kernel sends nothing more, although the peer may still pass on its end. The
    /// connection falls back to TCP if there is something to put back.
    pub fn put_back_own(&self, socket: K::Socket<'_>) {
        K::put_back_own(self, socket);
    }

    /// Puts back what has been left in memory ([`End::fall_back_unread`]), because the next holder
    /// of the socket would not find it there.
    pub fn put_back_rest(&self, socket: K::Socket<'_>) {
        K::put_back_rest(self, socket);
    }
}

/// Whether bytes can be sent behind what is in the kernel's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    /// The queue has only stream bytes, which are read first.
    Clear,
    /// Wakeups are in the queue, and a reader must not take them for data. Nothing has changed.
    Blocked,
    /// Bytes have been taken from the queue that could not be sent again.
    Torn,
}

impl<K: Fetch> End<K> {
    /// Implements [`End::fall_back_to_tcp`].
    pub fn fall_back_and_put_back(&self, socket: K::Socket<'_>) {
        let Some(_readers) = self.lock_readers() else { return self.fall_back_unread(socket) };
        let Some(held) = self.begin_fallback(socket) else { return };
        let peer = self.other();
        if (self.has_to_put_back() || peer.has_to_put_back())
            && let Some(fetched) = self.fetch_peer(socket)
        {
            self.put_back(socket, K::fetched(&fetched));
            peer.put_back(K::fetched(&fetched), socket);
        }
        self.finish_fallback(&held);
        drop(held);
        for end in [self, &peer] {
            end.forget_phases();
        }
    }

    /// Implements [`End::put_back_rest`]. Takes what the peer has sent by TCP since, and sends it
    /// again behind the bytes from memory.
    pub fn put_back_before_later(&self, socket: K::Socket<'_>) {
        let Some(_readers) = self.lock_readers() else { return };
        let [first, second] = self.in_order();
        let Some(_first) = Self::lock(&first.words().lock) else { return };
        let Some(_second) = Self::lock(&second.words().lock) else { return };
        if self.has_fallen_back()
            && self.has_to_put_back()
            && !self.is_torn()
            && let Some(fetched) = self.fetch_peer(socket)
            && self.renew_all(socket, K::fetched(&fetched)).is_err()
        {
            // Bytes are missing or in the wrong order.
            K::dissolve(socket);
        }
        self.forget_phases();
    }

    /// Takes everything that the kernel has for this end, and sends it again with the bytes from
    /// memory in their place. The caller holds all locks of the connection.
    ///
    /// # Errors
    /// The stream is incomplete.
    fn renew_all(&self, socket: K::Socket<'_>, writer: K::Socket<'_>) -> Result<(), Errno> {
        let words = self.rx.words();
        // The kernel sends nothing after a FIN, and urgent data have a position that would be lost.
        if K::send_at_once(writer, &[]).is_err() || K::has_urgent(socket) {
            return Ok(());
        }
        // Bytes that are still on their way would come before those that are sent again.
        let has_all_come = || K::outstanding(writer) == Ok(0);
        if !becomes_true::<K>(has_all_come) {
            return Ok(());
        }
        let received = K::has_received(socket)?;
        let come = K::unread(socket)? as u64;
        let shm_start_seq = words.shm_start_seq.load(Ordering::Relaxed);
        let first = shm_start_seq.saturating_sub(words.tcp_read.load(Ordering::Relaxed));
        let wakeups = self.wakeups_left();
        // The send buffer counts the kernel's own memory, too, which is less than twice the bytes.
        let room = K::send_buffer_size(writer);
        let fits = self.rx.available().is_ok_and(|unread| unread <= room / 4);
        if come > TAKEN_LEN_MAX || first.saturating_add(wakeups) > come || !fits {
            return Ok(());
        }
        words.returning.store(1, Ordering::SeqCst);
        let mut bytes = vec![0; usize::try_from(come).unwrap_or(0)];
        let mut taken = 0;
        while taken < bytes.len() {
            match K::take(socket, &mut bytes[taken..], false)? {
                0 => return Err(Errno::CONNRESET),
                more => taken += more,
            }
        }
        self.count_wakeups(usize::try_from(wakeups).unwrap_or(0));
        let (first, rest) = bytes.split_at(usize::try_from(first).unwrap_or(0));
        let later = &rest[usize::try_from(wakeups).unwrap_or(0)..];
        self.src_avails_in.turn_away();
        let before = words.shm_start_seq.load(Ordering::Relaxed);
        self.send_again(writer, first).map_err(|_| Errno::CONNRESET)?;
        self.send_back(writer)?;
        self.send_again(writer, later).map_err(|_| Errno::CONNRESET)?;
        // A program that does not know the locks may have sent at the same time.
        let moved = words.shm_start_seq.load(Ordering::Relaxed) - before;
        let sent = first.len() as u64 + moved + later.len() as u64;
        let come = || K::has_received(socket).map_or(0, |all| all - received);
        becomes_true::<K>(|| come() >= sent);
        if come() > sent {
            return Err(Errno::CONNRESET);
        }
        words.returning.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Takes the readers' locks of both directions. They are taken before the writers' locks.
    fn lock_readers(&self) -> Option<[SharedGuard<'static, K>; 2]> {
        let [first, second] = self.in_order();
        let first = Self::lock(&first.words().reader_lock)?;
        Some([first, Self::lock(&second.words().reader_lock)?])
    }

    fn fetch_peer(&self, socket: K::Socket<'_>) -> Option<K::Fetched> {
        let likely = self.peer.pid.load(Ordering::Relaxed);
        let others = self.peer_holders().processes().filter(move |&it| it != likely);
        let fd = self.peer.fd.load(Ordering::Relaxed);
        K::fetch(socket, std::iter::once(likely).chain(others), fd)
    }

    /// Implements [`End::put_back_own`].
    pub fn put_back_before_the_end(&self, socket: K::Socket<'_>) {
        if self.unsent() == 0 || self.is_the_kernels_to_send() {
            return;
        }
        let peer = self.other();
        let Some(_reader) = Self::lock(&self.tx.words().reader_lock) else { return };
        let Some(held) = self.begin_fallback(socket) else { return };
        let puts = peer.has_to_put_back() && !peer.is_torn();
        let is_whole = puts && peer.put_behind_notifications(socket);
        self.finish_fallback(&held);
        if is_whole {
            // From here on the reader looks for them in the kernel's queue. A thread that gets the
            // locks and still finds the mark resets the connection.
            peer.rx.words().returning.store(0, Ordering::SeqCst);
        }
    }

    /// Puts back all that this end has not read, behind wakeups that its reader takes first. Those
    /// belong to the second phase, so all bytes have to move to the last phase: this is done only
    /// if the kernel certainly has room for all of them. Returns whether the stream is whole; until
    /// the last phase has begun the bytes count as on their way.
    fn put_behind_notifications(&self, writer: K::Socket<'_>) -> bool {
        let words = self.rx.words();
        let unread = self.rx.available().unwrap_or(usize::MAX);
        // The send buffer counts the kernel's own memory, too, which is less than twice the bytes.
        let room = K::send_buffer_size(writer);
        if unread > room / 4 || self.src_avails_in.are_open() {
            return true;
        }
        words.returning.store(1, Ordering::SeqCst);
        let mut chunk = [0_u8; CHUNK_LEN];
        let mut is_first = true;
        loop {
            let slices = &mut [IoSliceMut::new(&mut chunk)];
            let Ok(len) = self.rx.take(Buffers::of(slices), true) else { return false };
            if len == 0 {
                return true;
            }
            match self.send_again(writer, &chunk[..len]) {
                Ok(()) if self.rx.skip(len) == Ok(len) => is_first = false,
                Err(0) if is_first => return true,
                _ => return false, // The stream is torn.
            }
        }
    }

    /// The other end, as seen by this process.
    fn other(&self) -> Self {
        Self::at(self.registry, self.slot, self.generation, self.role.other())
    }

    /// Whether there are unread bytes in memory that could be put back. A message whose sender
    /// waits for it to be pulled is not counted: the sender sends it over TCP by itself. Bytes that
    /// come to an end that has shut down both halves would reset it (`tcp_rcv_state_process`).
    fn has_to_put_back(&self) -> bool {
        self.rx.words().shm_start_seq.load(Ordering::Relaxed) != NONE
            && !self.is_shut()
            && (self.rx.available().is_ok_and(|bytes| bytes > 0) || self.src_avails_in.are_open())
    }

    fn is_shut(&self) -> bool {
        let halves = [&self.own.shut_read, &self.own.shut_write];
        halves.into_iter().all(|half| half.load(Ordering::Relaxed) != 0)
    }

    /// Puts back what this end has not read, by the other end's socket. The caller holds all locks
    /// of the connection.
    fn put_back(&self, socket: K::Socket<'_>, writer: K::Socket<'_>) {
        let words = self.rx.words();
        // The kernel sends nothing after a FIN.
        if !self.has_to_put_back() || self.is_torn() || K::send_at_once(writer, &[]).is_err() {
            return;
        }
        words.returning.store(1, Ordering::SeqCst);
        match self.clear_way(socket, writer) {
            QueueState::Clear => {
                self.src_avails_in.turn_away();
                if self.send_back(writer).is_ok() {
                    words.returning.store(0, Ordering::SeqCst);
                }
            }
            QueueState::Blocked => words.returning.store(0, Ordering::SeqCst),
            QueueState::Torn => {}
        }
    }

    /// Takes the wakeups out of the kernel's queue.
    fn clear_way(&self, socket: K::Socket<'_>, writer: K::Socket<'_>) -> QueueState {
        if !self.has_switched_in() {
            return if self.wakeups_left() == 0 {
                QueueState::Clear
            } else {
                self.renew(socket, writer)
            };
        }
        for _ in 0..KERNEL_WAITS_MAX {
            while let Ok(Drained::Wakeups(1..)) = self.take_wakeups(socket) {}
            if self.wakeups_left() == 0 {
                return QueueState::Clear;
            }
            K::wait_briefly(socket, PollFlags::IN);
        }
        QueueState::Blocked
    }

    /// Takes the bytes of the first phase and the wakeups behind them, and sends the bytes again.
    fn renew(&self, socket: K::Socket<'_>, writer: K::Socket<'_>) -> QueueState {
        let words = self.rx.words();
        let read = words.tcp_read.load(Ordering::Relaxed);
        let first = words.shm_start_seq.load(Ordering::Relaxed).saturating_sub(read);
        let wakeups = self.wakeups_left();
        let all = first.saturating_add(wakeups);
        let has_come = || K::unread(socket).is_ok_and(|come| come as u64 >= all);
        if all > TAKEN_LEN_MAX || !becomes_true::<K>(has_come) {
            return QueueState::Blocked;
        }
        let mut bytes = vec![0; usize::try_from(all).unwrap_or(0)];
        let mut taken = 0;
        while taken < bytes.len() {
            match K::take(socket, &mut bytes[taken..], false) {
                Ok(more) if more > 0 => taken += more,
                _ => return if taken == 0 { QueueState::Blocked } else { QueueState::Torn },
            }
        }
        self.count_wakeups(usize::try_from(wakeups).unwrap_or(0));
        bytes.truncate(usize::try_from(first).unwrap_or(0));
        if self.send_again(writer, &bytes).is_ok() { QueueState::Clear } else { QueueState::Torn }
    }

    /// Sends what is unread, as far as the kernel takes it.
    ///
    /// # Errors
    /// Bytes have been sent that could not be counted.
    fn send_back(&self, writer: K::Socket<'_>) -> Result<(), Errno> {
        let words = self.rx.words();
        let mut chunk = [0_u8; CHUNK_LEN];
        loop {
            let keep = RecvOptions { keep: true, ..RecvOptions::default() };
            let slices = &mut [IoSliceMut::new(&mut chunk)];
            let len = self.take_from_memory(Buffers::of(slices), keep);
            if len == 0 {
                return Ok(());
            }
            let send = || K::send_at_once(writer, &chunk[..len]).unwrap_or(0);
            let sent = self.count_again(len, send);
            if sent == 0 {
                return Ok(());
            }
            words.shm_start_seq.fetch_add(sent as u64, Ordering::AcqRel);
            let drop = RecvOptions { discard: true, ..RecvOptions::default() };
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

    /// Sends all of these bytes, which the kernel had delivered before, as [`send_all`] does.
    ///
    /// # Errors
    /// The number of bytes that were sent.
    fn send_again(&self, writer: K::Socket<'_>, bytes: &[u8]) -> Result<(), usize> {
        let send = || send_all::<K>(writer, bytes).map_or_else(|sent| sent, |()| bytes.len());
        match self.count_again(bytes.len(), send) {
            sent if sent == bytes.len() => Ok(()),
            sent => Err(sent),
        }
    }

    /// Counts the bytes that `send` sends again, of `len`. They are counted before the kernel
    /// delivers them, so that a thread that they wake does not take them for new ones.
    fn count_again(&self, len: usize, send: impl FnOnce() -> usize) -> usize {
        let words = self.rx.words();
        words.resent.fetch_add(len as u64, Ordering::AcqRel);
        let sent = send();
        words.resent.fetch_sub(len.saturating_sub(sent) as u64, Ordering::AcqRel);
        sent
    }

    /// Takes bytes out of the ring or, if that is empty, of deferred messages.
    fn take_from_memory(&self, buffers: Buffers<'_>, options: RecvOptions) -> usize {
        let taken = if options.discard {
            self.rx.skip(buffers.len())
        } else {
            self.rx.take(buffers, options.keep)
        };
        match taken {
            Ok(0) => {
                let is_next = || self.rx.available() == Ok(0);
                let is_peer =
                    |pid| pullers::is_side(self.registry, self.slot, self.role.other(), pid);
                self.src_avails_in
                    .pull(buffers, options.keep, options.discard, is_next, is_peer)
                    .bytes
            }
            taken => taken.unwrap_or(0),
        }
    }
}

impl<K: Kernel> End<K> {
    /// Ends the phases if nothing is left in memory and no wakeup in the kernel's queue: whatever
    /// comes is plain TCP. Returns whether that is so. The caller holds the reader's lock; after
    /// the fallback no other process moves the end of the first phase.
    pub(super) fn forget_phases(&self) -> bool {
        let words = self.rx.words();
        let is_so = self.is_over() && !self.is_torn();
        if is_so {
            let read = words.tcp_read.load(Ordering::Relaxed);
            words.shm_start_seq.store(read, Ordering::Release);
        }
        is_so
    }

    /// Whether a process was killed while it put back what this end has not read. The caller holds
    /// a lock of the direction.
    #[inline]
    pub(super) fn is_torn(&self) -> bool {
        self.rx.words().returning.load(Ordering::Relaxed) != 0
    }
}

/// Sends all bytes, waiting for room if necessary.
///
/// # Errors
/// The number of bytes that were sent.
fn send_all<K: Fetch>(writer: K::Socket<'_>, bytes: &[u8]) -> Result<(), usize> {
    let mut sent = 0;
    let mut sleeps = 0;
    while sent < bytes.len() {
        match K::send_at_once(writer, &bytes[sent..]) {
            Ok(more) => sent += more,
            Err(Errno::AGAIN) if sleeps < KERNEL_WAITS_MAX => {
                sleeps += 1;
                K::wait_briefly(writer, PollFlags::OUT);
            }
            Err(_) => return Err(sent),
        }
    }
    Ok(())
}

/// Waits up to [`KERNEL_WAITS_MAX`] times for a condition, and returns whether it became true.
fn becomes_true<K: Fetch>(condition: impl Fn() -> bool) -> bool {
    let wait_a_moment = || {
        K::pause();
        false
    };
    (0..KERNEL_WAITS_MAX).any(|_| condition() || wait_a_moment()) || condition()
}
