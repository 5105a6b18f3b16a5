//! The inbox of a socket: a ring of datagrams with many senders, and the socket's holders as
//! receivers.
//!
//! One word holds the number of units put and, in its lower 16 bits, the window. The window is zero
//! while the owner watches the inbox; otherwise it has the number of the owner's threads that sleep
//! in the kernel, and whether the inbox has been shut. A sender publishes a datagram by exchanging
//! that word. If the window is not zero any more the exchange fails, and the datagram goes through
//! the kernel.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use weft_sys::calls::io::Errno;
use weft_sys::calls::time::Timespec;
use weft_sys::{Buffers, FutexWord, SharedLock};

use super::layout::{Entry, HEADER_LEN, RING_LEN, UNIT, Words, ring_at};
use super::registry::Datagrams;
use crate::limits::DATAGRAM_LEN_MAX;

const WINDOW_BITS: u32 = 16;
const WINDOW: u64 = (1 << WINDOW_BITS) - 1;
/// Window bit: the inbox is shut until the owner opens it.
const SHUT: u64 = 1 << (WINDOW_BITS - 1);
/// Positions count units, modulo this number.
const POSITIONS: u64 = 1 << (u64::BITS - WINDOW_BITS);

/// The socket that owns an inbox.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The port that the socket is bound to.
    pub port: u16,
    /// The kernel's number for the socket (`SO_COOKIE`).
    pub cookie: u64,
    /// The process that registers the inbox.
    pub pid: u32,
    /// Number of bytes that may wait (`SO_RCVBUF`).
    pub limit: u32,
    /// Whether other sockets may have the same address (`SO_REUSEADDR`).
    pub shared: bool,
}

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The datagram waits for the owner.
    Done,
    /// There was no room. The datagram is lost, as with UDP.
    Dropped,
    /// The owner does not watch the inbox; the datagram must go through the kernel.
    Shut,
    /// The inbox belongs to another socket, or to none.
    Gone,
}

/// A datagram that has been taken or peeked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's address.
    pub from: SocketAddr,
    /// The datagram's length.
    pub len: usize,
    /// Number of bytes that were copied.
    pub copied: usize,
}

/// A reference to an inbox of one generation.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    datagrams: &'static Datagrams,
    slot: usize,
    generation: u32,
    words: &'static Words,
}

impl Inbox {
    /// Registers a socket's inbox: the one that another process has made for the socket, or a new
    /// one, which is shut. `None` if there is no free slot.
    #[must_use]
    pub fn register(datagrams: &'static Datagrams, owner: &Owner) -> Option<Self> {
        let _alone = datagrams.lock();
        if let Some(inbox) = datagrams.find(owner.port, owner.cookie) {
            inbox.retain();
            return Some(inbox);
        }
        let (slot, generation) = datagrams.take()?;
        let inbox = Self::at(datagrams, slot, generation);
        {
            let (words, entry) = (inbox.words, inbox.entry());
            // A sender that has not noticed the change may still use the last owner's inbox.
            let _held = SharedLock::on(&words.lock).lock();
            words.head.fetch_or(SHUT, Ordering::AcqRel);
            words.head.fetch_and(!(WINDOW & !SHUT), Ordering::AcqRel);
            words.tail.store(words.head.load(Ordering::Acquire) >> WINDOW_BITS, Ordering::Release);
            words.reset();
            entry.port.store(owner.port.into(), Ordering::Relaxed);
            entry.refs.store(1, Ordering::Relaxed);
            entry.left.store(0, Ordering::Relaxed);
            entry.pid.store(owner.pid, Ordering::Relaxed);
            entry.limit.store(owner.limit, Ordering::Relaxed);
            entry.shared.store(owner.shared.into(), Ordering::Relaxed);
            entry.cookie.store(owner.cookie, Ordering::Relaxed);
        }
        datagrams.publish(slot, generation);
        datagrams.change(owner.port);
        Some(inbox)
    }

    fn at(datagrams: &'static Datagrams, slot: usize, generation: u32) -> Self {
        Self { datagrams, slot, generation, words: datagrams.words(slot) }
    }

    /// Whether no datagram waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.head.load(Ordering::Acquire) >> WINDOW_BITS
            == self.words.tail.load(Ordering::Relaxed)
    }

    /// The position up to which datagrams have been taken. It changes with each one.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.words.tail.load(Ordering::Relaxed)
    }

    /// The position up to which datagrams have been put. It changes with each one.
    #[must_use]
    pub fn put_until_now(&self) -> u64 {
        self.words.head.load(Ordering::Relaxed) >> WINDOW_BITS
    }

    /// Whether a sender that knows inboxes has ever sent to this one.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let counts = [&self.words.datagrams, &self.words.by_kernel];
        counts.iter().any(|count| count.load(Ordering::Relaxed) != 0)
    }

    /// Whether other sockets may have the same address.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.entry().shared.load(Ordering::Relaxed) != 0
    }

    /// Marks that other sockets may have the same address from here on.
    pub fn become_shared(&self) {
        self.entry().shared.store(1, Ordering::Relaxed);
        self.datagrams.change(self.port());
    }

    /// Sets the number of bytes that may wait.
    pub fn limit(&self, bytes: u32) {
        self.entry().limit.store(bytes, Ordering::Relaxed);
    }

    /// Records that the socket has another port, or another peer.
    pub fn moved(&self, port: u16) {
        let before = self.port();
        self.entry().port.store(port.into(), Ordering::Release);
        self.datagrams.change(before);
        self.datagrams.change(port);
    }

    /// Number of datagrams that have been put so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.words.datagrams.load(Ordering::Relaxed)
    }

    /// Number of datagrams that found the inbox shut, and went through the kernel, so far.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.words.by_kernel.load(Ordering::Relaxed)
    }

    /// Puts a datagram and wakes the owner, if the owner watches the inbox.
    #[must_use]
    pub fn put(&self, from: SocketAddr, buffers: Buffers<'_>) -> Put {
        let put = self.put_without_wakeup(from, buffers);
        if put == Put::Done {
            fence(Ordering::SeqCst);
            self.futex_word().wake();
        }
        put
    }

    fn put_without_wakeup(&self, from: SocketAddr, buffers: Buffers<'_>) -> Put {
        if !self.is_ours() {
            return Put::Gone;
        }
        if self.words.head.load(Ordering::Relaxed) & WINDOW != 0 {
            self.words.by_kernel.fetch_add(1, Ordering::Relaxed);
            return Put::Shut;
        }
        // A signal handler has interrupted a sender in this thread: the kernel takes the datagram.
        let Some(_held) = SharedLock::on(&self.words.lock).lock() else { return Put::Shut };
        if !self.is_ours() {
            return Put::Gone;
        }
        let len = buffers.len();
        let size = (HEADER_LEN + len).next_multiple_of(UNIT);
        let word = self.words.head.load(Ordering::Acquire);
        let (head, tail) = (word >> WINDOW_BITS, self.words.tail.load(Ordering::Acquire));
        let Some(used) = used(head, tail) else { return Put::Shut };
        let limit = self.entry().limit.load(Ordering::Relaxed) as usize;
        if used > limit || used + size > RING_LEN {
            add(&self.words.dropped, 1);
            return Put::Dropped;
        }
        self.write(head, from, len, buffers);
        let next = (head + (size / UNIT) as u64) % POSITIONS;
        // Only the window can have changed meanwhile, from zero to another value.
        let (old, new) = (head << WINDOW_BITS, next << WINDOW_BITS);
        if self.words.head.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            self.words.by_kernel.fetch_add(1, Ordering::Relaxed);
            return Put::Shut;
        }
        add(&self.words.datagrams, 1);
        add(&self.words.bytes, len as u64);
        Put::Done
    }

    /// Takes the next datagram into the buffers, and drops what does not fit; with `keep` it stays.
    #[must_use]
    pub fn take(&self, buffers: Buffers<'_>, keep: bool) -> Option<Arrival> {
        if self.is_empty() {
            return None;
        }
        let _held = SharedLock::on(&self.words.reader_lock).lock()?;
        let (from, len, size) = self.next()?;
        let tail = self.words.tail.load(Ordering::Relaxed);
        let mut at = (place(tail) + HEADER_LEN) % RING_LEN;
        let mut left = len;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() && left > 0 {
                let run = (region.len() - done).min(left).min(RING_LEN - at);
                let Some(part) = region.part(done, run) else { break };
                self.datagrams.memory().copy_to(ring_at(self.slot) + at, &part);
                done += run;
                left -= run;
                at = (at + run) % RING_LEN;
            }
        }
        if !keep {
            let next = tail.wrapping_add((size / UNIT) as u64) % POSITIONS;
            self.words.tail.store(next, Ordering::Release);
        }
        Some(Arrival { from, len, copied: len - left })
    }

    /// The length of the next datagram.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        let _held = SharedLock::on(&self.words.reader_lock).lock()?;
        self.next().map(|(_, len, _)| len)
    }

    /// Reads the next record: sender, length of the datagram, length of the record. The caller
    /// holds the reader's lock.
    fn next(&self) -> Option<(SocketAddr, usize, usize)> {
        let head = self.words.head.load(Ordering::Acquire) >> WINDOW_BITS;
        let tail = self.words.tail.load(Ordering::Relaxed);
        if head == tail {
            return None;
        }
        let mut header = [0; HEADER_LEN];
        self.copy_out(tail, &mut header);
        let [a, b, c, d, e, f, _, _, ip @ ..] = header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let from = SocketAddr::new(
            IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(),
            u16::from_ne_bytes([e, f]),
        );
        let size = (HEADER_LEN + len.min(RING_LEN)).next_multiple_of(UNIT);
        if used(head, tail).is_none_or(|used| used < size) || len > DATAGRAM_LEN_MAX {
            // A hostile process has written an impossible record: drop everything.
            self.shut();
            self.words.tail.store(head, Ordering::Release);
            return None;
        }
        Some((from, len, size))
    }

    /// Opens the inbox: senders may put datagrams unless a thread of the owner sleeps.
    pub fn open(&self) {
        self.words.head.fetch_and(!SHUT, Ordering::AcqRel);
    }

    /// Whether the inbox has been shut and not opened since.
    #[must_use]
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.words.head.load(Ordering::Relaxed) & SHUT != 0
    }

    /// Shuts the inbox: datagrams go through the kernel.
    pub fn shut(&self) {
        self.words.head.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Leaves the socket's datagrams to the kernel for good, in all processes that have the socket.
    pub fn fall_back_to_udp(&self) {
        self.entry().left.store(1, Ordering::Relaxed);
        self.shut();
    }

    /// Whether [`Inbox::fall_back_to_udp`] has been called.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.entry().left.load(Ordering::Relaxed) != 0
    }

    /// Waits until a sender has put something, for `time` at most. The inbox stays open. Returns at
    /// once if it is shut, or a datagram waits.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    pub fn futex_wait(&self, time: &Timespec) -> Result<(), Errno> {
        self.begin_futex_wait().map_or(Ok(()), |word| word.wait(time))
    }

    /// The word for a futex wait. `None` if a datagram waits, or the inbox is shut.
    #[must_use]
    pub fn begin_futex_wait(&self) -> Option<FutexWord<'static>> {
        let word = self.futex_word();
        word.begin_wait();
        let is_open = self.words.head.load(Ordering::Relaxed) & WINDOW == 0;
        (is_open && self.is_empty()).then_some(word)
    }

    fn futex_word(&self) -> FutexWord<'static> {
        FutexWord::on(&self.words.futex_wait)
    }

    /// Counts a thread that is about to sleep in the kernel. Datagrams put before are visible now;
    /// no more are put until the last sleeper is awake and the inbox has been opened.
    pub fn begin_sleep(&self) {
        self.words.head.fetch_add(1, Ordering::AcqRel);
        self.shut();
    }

    /// Counts that the thread is awake.
    pub fn end_sleep(&self) {
        self.words.head.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a child, born by `fork`, as a holder of the socket.
    pub fn retain(&self) {
        self.entry().refs.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends this process's use of the inbox. If it was the last, waiting datagrams are lost.
    /// Otherwise datagrams go through the kernel until another process opens the inbox.
    pub fn release(&self) {
        self.shut();
        let _alone = self.datagrams.lock();
        if self.is_ours() && self.entry().refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let is_mine = {
                // With this lock held, no sender uses the inbox any more.
                let _held = SharedLock::on(&self.words.lock).lock();
                self.datagrams.change(self.port());
                self.datagrams.state(self.slot).release(self.generation)
            };
            if is_mine {
                self.datagrams.free(self.slot, self.generation);
            }
        }
    }

    fn is_ours(&self) -> bool {
        self.datagrams.state(self.slot).live() == Some(self.generation)
    }

    fn write(&self, head: u64, from: SocketAddr, len: usize, buffers: Buffers<'_>) {
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&u32::try_from(len).unwrap_or(0).to_ne_bytes());
        header[4..6].copy_from_slice(&from.port().to_ne_bytes());
        let ip = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        header[8..].copy_from_slice(&ip.octets());
        self.copy_in(head, &header);
        let mut at = (place(head) + HEADER_LEN) % RING_LEN;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() {
                let run = (region.len() - done).min(RING_LEN - at);
                let Some(part) = region.part(done, run) else { break };
                self.datagrams.memory().copy_from(ring_at(self.slot) + at, &part);
                done += run;
                at = (at + run) % RING_LEN;
            }
        }
    }

    fn copy_in(&self, position: u64, bytes: &[u8; HEADER_LEN]) {
        let at = place(position);
        let (first, second) = bytes.split_at(HEADER_LEN.min(RING_LEN - at));
        self.datagrams.memory().copy_in(ring_at(self.slot) + at, first);
        self.datagrams.memory().copy_in(ring_at(self.slot), second);
    }

    fn copy_out(&self, position: u64, bytes: &mut [u8; HEADER_LEN]) {
        let at = place(position);
        let (first, second) = bytes.split_at_mut(HEADER_LEN.min(RING_LEN - at));
        self.datagrams.memory().copy_out(ring_at(self.slot) + at, first);
        self.datagrams.memory().copy_out(ring_at(self.slot), second);
    }

    fn port(&self) -> u16 {
        self.entry().port.load(Ordering::Relaxed) as u16
    }

    #[inline]
    fn entry(&self) -> &'static Entry {
        self.datagrams.entry(self.slot)
    }
}

impl Datagrams {
    /// Finds the inbox of the socket with this port and cookie.
    #[must_use]
    pub fn find(&'static self, port: u16, cookie: u64) -> Option<Inbox> {
        let (slot, generation) = self.find_slot(port, cookie)?;
        Some(Inbox::at(self, slot, generation))
    }
}

/// Adds to a counter of the senders. The caller holds their lock.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The offset of a position in the ring.
fn place(position: u64) -> usize {
    (position % (RING_LEN / UNIT) as u64) as usize * UNIT
}

/// Number of bytes between two positions. `None` if the positions are impossible.
fn used(head: u64, tail: u64) -> Option<usize> {
    let units = head.wrapping_sub(tail) % POSITIONS;
    let bytes = usize::try_from(units).ok()?.checked_mul(UNIT)?;
    (bytes <= RING_LEN).then_some(bytes)
}
