//! A socket's inbox: a ring of datagrams that many put and the socket's owners take.
//!
//! One word says how much has been put and, in its lower 16 bits, the window: zero while the owner
//! looks at the inbox, else how many of its threads sleep in the kernel, and whether somebody has
//! shut it. A sender publishes by exchanging that word, which fails if the window is not zero any
//! more: its datagram goes through the kernel then.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::time::Timespec;
use weft_sys::{Buffers, FutexWord, SharedLock};

use super::layout::{Entry, HEADER_LEN, RING_LEN, UNIT, Words, ring_at};
use super::registry::Datagrams;
use crate::limits::DATAGRAM_LEN_MAX;

const WINDOW_BITS: u32 = 16;
const WINDOW: u64 = (1 << WINDOW_BITS) - 1;
/// Shut until the owner looks again.
const SHUT: u64 = 1 << (WINDOW_BITS - 1);
/// Positions count units, modulo this.
const POSITIONS: u64 = 1 << (u64::BITS - WINDOW_BITS);

/// Whose an inbox is.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The port that the socket is bound to.
    pub port: u16,
    /// The socket's number of the kernel's (`SO_COOKIE`).
    pub cookie: u64,
    /// The process.
    pub pid: u32,
    /// Bytes that may wait (`SO_RCVBUF`).
    pub limit: u32,
    /// Whether other sockets may have the same address (`SO_REUSEADDR`).
    pub shared: bool,
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It waits for the owner.
    Done,
    /// There was no room: it is lost, as UDP's are.
    Dropped,
    /// The owner neither looks nor waits here: the kernel is to take it.
    Shut,
    /// The inbox is somebody else's, or nobody's.
    Gone,
}

/// A datagram that has been taken, or looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub from: SocketAddr,
    /// Its length.
    pub len: usize,
    /// How much of it was copied.
    pub copied: usize,
}

/// A reference to an inbox.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    datagrams: &'static Datagrams,
    slot: usize,
    generation: u32,
    words: &'static Words,
}

impl Inbox {
    /// The inbox of a socket: that which another process has made for it, or a new one, which is
    /// shut. `None` if there is no room.
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
            // A sender that has not noticed may still be at the last owner's.
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

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.head.load(Ordering::Acquire) >> WINDOW_BITS
            == self.words.tail.load(Ordering::Relaxed)
    }

    /// How much has been taken: changes with each datagram.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.words.tail.load(Ordering::Relaxed)
    }

    /// How much has been put: changes with each datagram.
    #[must_use]
    pub fn put_until_now(&self) -> u64 {
        self.words.head.load(Ordering::Relaxed) >> WINDOW_BITS
    }

    /// Whether anybody has ever sent to it who could put something here.
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

    /// Other sockets may have the same address from here on.
    pub fn become_shared(&self) {
        self.entry().shared.store(1, Ordering::Relaxed);
        self.datagrams.change(self.port());
    }

    /// Bytes that may wait.
    pub fn limit(&self, bytes: u32) {
        self.entry().limit.store(bytes, Ordering::Relaxed);
    }

    /// The socket has another port, or another peer.
    pub fn moved(&self, port: u16) {
        let before = self.port();
        self.entry().port.store(port.into(), Ordering::Release);
        self.datagrams.change(before);
        self.datagrams.change(port);
    }

    /// Datagrams that have been put, so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.words.datagrams.load(Ordering::Relaxed)
    }

    /// Datagrams that found it shut, and went through the kernel, so far.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.words.by_kernel.load(Ordering::Relaxed)
    }

    /// Puts a datagram, if the owner looks or waits here, and wakes it.
    #[must_use]
    pub fn put(&self, from: SocketAddr, buffers: Buffers<'_>) -> Put {
        let put = self.put_quietly(from, buffers);
        if put == Put::Done {
            fence(Ordering::SeqCst);
            self.futex_word().wake();
        }
        put
    }

    fn put_quietly(&self, from: SocketAddr, buffers: Buffers<'_>) -> Put {
        if !self.is_ours() {
            return Put::Gone;
        }
        if self.words.head.load(Ordering::Relaxed) & WINDOW != 0 {
            self.words.by_kernel.fetch_add(1, Ordering::Relaxed);
            return Put::Shut;
        }
        // In a handler of a signal that has interrupted a sender: the kernel takes it.
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
        // Only the window can have changed meanwhile, and only from zero.
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

    /// The next record: its sender, the datagram's length, its own. The reader's lock is held.
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
            // Somebody has written what cannot be: nothing of it is to be had.
            self.shut();
            self.words.tail.store(head, Ordering::Release);
            return None;
        }
        Some((from, len, size))
    }

    /// The owner looks: from here on datagrams may be put, unless one of its threads sleeps.
    pub fn open(&self) {
        self.words.head.fetch_and(!SHUT, Ordering::AcqRel);
    }

    /// Whether it has been shut and not opened again.
    #[must_use]
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.words.head.load(Ordering::Relaxed) & SHUT != 0
    }

    /// Nobody looks any more: the kernel is to take what comes.
    pub fn shut(&self) {
        self.words.head.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// It is the kernel's for good, whichever program has the socket.
    pub fn leave(&self) {
        self.entry().left.store(1, Ordering::Relaxed);
        self.shut();
    }

    /// Whether that has been noted of it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.entry().left.load(Ordering::Relaxed) != 0
    }

    /// Waits until a sender has put something, for `time` at most. The inbox stays open; where it
    /// is not, or something waits, this returns at once.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    pub fn futex_wait(&self, time: &Timespec) -> Result<(), Errno> {
        self.begin_futex_wait().map_or(Ok(()), |word| word.wait(time))
    }

    /// The word for a futex wait. `None`: something is there, or the inbox is shut.
    #[must_use]
    pub fn begin_futex_wait(&self) -> Option<FutexWord<'static>> {
        let word = self.futex_word();
        word.settle_down();
        let is_open = self.words.head.load(Ordering::Relaxed) & WINDOW == 0;
        (is_open && self.is_empty()).then_some(word)
    }

    fn futex_word(&self) -> FutexWord<'static> {
        FutexWord::on(&self.words.futex_wait)
    }

    /// A thread is about to sleep in the kernel. What has been put before is there now; nothing
    /// more comes until the last sleeper is awake and the inbox has been opened.
    pub fn begin_sleep(&self) {
        self.words.head.fetch_add(1, Ordering::AcqRel);
        self.shut();
    }

    /// The thread is awake.
    pub fn end_sleep(&self) {
        self.words.head.fetch_sub(1, Ordering::AcqRel);
    }

    /// A child, born by fork, has the socket, too.
    pub fn retain(&self) {
        self.entry().refs.fetch_add(1, Ordering::AcqRel);
    }

    /// This process will not use it any more. What waits is lost if it was the last; until the
    /// others look, the kernel takes what comes.
    pub fn release(&self) {
        self.shut();
        let _alone = self.datagrams.lock();
        if self.is_ours() && self.entry().refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let is_mine = {
                // No sender is at it from here on.
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
    /// The inbox at a port of the socket with this number of the kernel's.
    #[must_use]
    pub fn find(&'static self, port: u16, cookie: u64) -> Option<Inbox> {
        let (slot, generation) = self.find_slot(port, cookie)?;
        Some(Inbox::at(self, slot, generation))
    }
}

/// Adds to a counter of the senders'. Their lock is held.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Where in the ring a position is.
fn place(position: u64) -> usize {
    (position % (RING_LEN / UNIT) as u64) as usize * UNIT
}

/// Bytes between two positions. `None`: they cannot be.
fn used(head: u64, tail: u64) -> Option<usize> {
    let units = head.wrapping_sub(tail) % POSITIONS;
    let bytes = usize::try_from(units).ok()?.checked_mul(UNIT)?;
    (bytes <= RING_LEN).then_some(bytes)
}
