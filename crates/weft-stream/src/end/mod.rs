//! One end of a connection. Its byte stream moves from TCP to the rings when both ends have agreed,
//! without losing or repeating a byte.
//!
//! Each direction has up to three phases: `shm_start_seq` bytes over TCP; then bytes through the
//! rings; and, if one end has fallen back, bytes over TCP again from position `tcp_resume_seq` on.
//! In the second phase the bytes that come over TCP are wakeups: one byte wakes a process that
//! sleeps on the socket.
//!
//! No call here blocks. A thread that wants to wait calls [`End::begin_sleep`], checks once more,
//! and then sleeps on the socket itself: a wakeup, the end of the stream and a reset all wake it.

mod deferred_send;
mod fallback;
mod put_back;
mod recv;
#[cfg(test)]
mod recv_tests;
mod send;
mod sleep;
mod wakeups;

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use weft_sys::calls::io::Errno;
use weft_sys::{SharedGuard, SharedLock};

use crate::flow::Flow;
use crate::grants::Grants;
use crate::holders::{Holder, Holders};
use crate::kernel::{Kernel, Linux};
use crate::layout::PROGRAM_LEN;
use crate::limits::{MOVE_LOOKS_MAX, MOVE_PAUSES_MAX, WRITABLE_LEN};
use crate::queue::Queue;
use crate::registry::Registry;
use crate::ring::Broken;
use crate::src_avail::SrcAvails;
use crate::sweep::{sweep_offers_now_and_then, take_slot};
use crate::tuple::Tuple;
use crate::words::{NONE, Role, Side, joined};

/// Value of `space_wanted`: a writer waits for room by a futex on that word.
const WANTED_BY_FUTEX: u32 = 1;
/// Value of `space_wanted`: a writer waits for room in the kernel's poll.
const WANTED_BY_POLL: u32 = 2;
const WAKEUP: [u8; 1] = [b'!'];

impl From<Broken> for Errno {
    fn from(_: Broken) -> Self {
        Self::CONNRESET
    }
}

/// The outcome of a look at the incoming bytes ([`End::look_until_settled`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The result stands, wherever bytes are.
    Enough,
    /// There are no bytes, unless some have moved during the look.
    Nothing,
    /// Bytes are on their way.
    Moving,
}

/// What carries the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel's TCP.
    Tcp,
    /// The rings.
    Memory,
}

/// Remembers how many bytes had come to an end. Checking for more reads one cache line of the slot,
/// where the end's own methods read several.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalMark {
    head: &'static AtomicU64,
    posted: &'static AtomicU64,
    tcp_resume_seq: &'static AtomicU64,
    come: u64,
}

/// Bytes put into a ring, plus sources posted, so far.
#[inline]
fn come(head: &AtomicU64, posted: &AtomicU64) -> u64 {
    head.load(Ordering::Acquire).wrapping_add(posted.load(Ordering::Acquire))
}

impl ArrivalMark {
    #[inline]
    fn stays(&self) -> bool {
        self.tcp_resume_seq.load(Ordering::Relaxed) == NONE
    }

    /// Whether nothing has come since, and the peer is still in memory.
    #[inline]
    #[must_use]
    pub fn is_the_same(&self) -> bool {
        come(self.head, self.posted) == self.come && self.stays()
    }
}

/// An edge that an epoll instance has reported to a program. Another process that shares the
/// instance does not report it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedEdge {
    /// The instance's number, the same in all processes that share it.
    pub instance: u64,
    /// The events that the program asked `epoll_ctl(2)` for; not 0.
    pub asked: u32,
    /// How much had come through memory ([`End::progress`]).
    pub come: u64,
    /// What was known of the stream's end, as event bits of `epoll_ctl(2)`.
    pub ends: u32,
    /// Whether memory carried what came in by then; otherwise `come` tells nothing of bytes by TCP.
    pub was_in_memory: bool,
    /// How many bytes the kernel's socket had received, if the kernel will report those again.
    pub received: Option<u64>,
}

/// Bit of [`ReportedEdge::was_in_memory`] beside the event bits of the stream's end, in shared
/// memory.
const EDGE_IN_MEMORY: u32 = 1 << 31;

/// A kernel in which a process may put unread bytes back into the socket queues.
pub trait PutBack: Kernel {
    /// Falls back to TCP for good, and puts unread bytes back if the process can get the peer's
    /// socket: [`End::fall_back_to_tcp`].
    fn fall_back_to_tcp(end: &End<Self>, socket: Self::Socket<'_>) {
        end.fall_back_unread(socket);
    }

    /// Puts back what the peer has not read, if the process can: [`End::put_back_own`].
    fn put_back_own(_end: &End<Self>, _socket: Self::Socket<'_>) {}

    /// Puts back what stayed in memory when the connection fell back, if the process can:
    /// [`End::put_back_rest`].
    fn put_back_rest(_end: &End<Self>, _socket: Self::Socket<'_>) {}
}

/// One end of a connection that is, or may come to be, carried by shared memory.
#[derive(Clone, Copy, Debug)]
pub struct End<K: Kernel = Linux> {
    registry: &'static Registry,
    slot: usize,
    generation: u32,
    role: Role,
    own: &'static Side,
    peer: &'static Side,
    tx: Queue,
    rx: Queue,
    src_avails_out: SrcAvails,
    src_avails_in: SrcAvails,
    kernel: PhantomData<K>,
}

impl<K: Kernel> End<K> {
    /// Offers a connection just made, with the flow control that the connector prefers, and returns
    /// the connector's end. `None` if there is no free slot.
    #[must_use]
    pub fn offer(
        registry: &'static Registry,
        tuple: &Tuple,
        me: &Process,
        flow: Flow,
    ) -> Option<Self> {
        let (slot, generation) = take_slot::<K>(registry, tuple)?;
        // Each credit is a buffer, so all buffers need memory now.
        let has_buffers = || (0..2).all(|direction| registry.fill(slot, direction, 0) > 0);
        let flow = if flow == Flow::Credit && has_buffers() { flow } else { Flow::Packed };
        registry.entry(slot).flow.store(flow as u32, Ordering::Relaxed);
        let end = Self::at(registry, slot, generation, Role::Connector);
        for (side, role) in [(end.own, Role::Connector), (end.peer, Role::Acceptor)] {
            if side.extended.load(Ordering::Relaxed) != 0 {
                Grants::of(registry, slot, role).reset();
            }
        }
        end.own.reset();
        end.peer.reset();
        end.tx.words().reset();
        end.rx.words().reset();
        end.holders().reset();
        end.peer_holders().reset();
        end.introduce(me);
        end.holders().add(Holder::Process(me.pid));
        // The process that finds the offer holds the other end from that moment on.
        end.peer_holders().add(Holder::Acceptor);
        if !registry.publish(slot, generation, tuple) {
            registry.release(slot, generation);
            return None;
        }
        // Behind the offer itself: see [`Registry::offers`].
        registry.counters().offered.fetch_add(1, Ordering::Release);
        Some(end)
    }

    /// Finds the connector's offer and returns the acceptor's end. So far this side has sent
    /// `tcp_sent` bytes and read `tcp_read`. `None` if there is no offer.
    #[must_use]
    pub fn find(
        registry: &'static Registry,
        tuple: &Tuple,
        me: &Process,
        (tcp_sent, tcp_read): (u64, u64),
    ) -> Option<Self> {
        let Some((slot, generation)) = registry.find(tuple) else {
            sweep_offers_now_and_then::<K>(registry);
            return None;
        };
        let end = Self::at(registry, slot, generation, Role::Acceptor);
        end.introduce(me);
        end.holders().replace(Holder::Acceptor, Holder::Process(me.pid));
        end.tx.words().tcp_sent.store(tcp_sent, Ordering::Relaxed);
        end.rx.words().tcp_read.store(tcp_read, Ordering::Relaxed);
        Some(end)
    }

    /// Finds the end of a socket that the process `pid` has got from another process, by its
    /// addresses and its cookie. The kernel reports no peer of a connection that both ends have
    /// shut down, though bytes and wakeups may be unread. The process becomes a holder: in place of
    /// the expected receiver, or as one more.
    #[must_use]
    pub fn inherited(
        registry: &'static Registry,
        (own, peer): (SocketAddr, Option<SocketAddr>),
        (namespace, cookie): (u64, u64),
        pid: u32,
    ) -> Option<Self> {
        let is_of = |tuple: Tuple, role: &Role| {
            let (connector, acceptor) = tuple.addresses();
            let ends = match role {
                Role::Connector => Tuple::new(own, peer.unwrap_or(acceptor)),
                Role::Acceptor => Tuple::new(peer.unwrap_or(connector), own),
            };
            ends.in_namespace(namespace) == tuple
        };
        let mut ends = registry.live().filter_map(|(slot, generation)| {
            let tuple = registry.tuple_of(slot);
            let role = [Role::Connector, Role::Acceptor].into_iter().find(|it| is_of(tuple, it))?;
            registry.open_slot(slot).ok()?;
            Some(Self::at(registry, slot, generation, role))
        });
        let end = ends.find(|end| end.own.cookie.load(Ordering::Relaxed) == cookie)?;
        if !end.holders().replace(Holder::Receiver, Holder::Process(pid)) {
            end.holders().add(Holder::Process(pid));
        }
        Some(end)
    }

    fn at(registry: &'static Registry, slot: usize, generation: u32, role: Role) -> Self {
        let flow = registry.flow(slot);
        Self {
            registry,
            slot,
            generation,
            role,
            own: Side::of(registry, slot, role),
            peer: Side::of(registry, slot, role.other()),
            tx: Queue::of(registry, slot, role, flow),
            rx: Queue::of(registry, slot, role.other(), flow),
            src_avails_out: SrcAvails::of(registry, slot, role),
            src_avails_in: SrcAvails::of(registry, slot, role.other()),
            kernel: PhantomData,
        }
    }

    /// Takes a lock of the slot. `None` if the calling thread holds it already.
    #[inline]
    fn lock(word: &'static AtomicU32) -> Option<SharedGuard<'static, K>> {
        SharedLock::of(word).lock()
    }

    fn introduce(&self, me: &Process) {
        self.own.pid.store(me.pid, Ordering::Relaxed);
        self.own.fd.store(me.fd, Ordering::Relaxed);
        self.own.cookie.store(me.cookie, Ordering::Relaxed);
        for (word, part) in self.own.program.iter().zip(me.program.chunks_exact(8)) {
            let part = part.try_into().unwrap_or([0; 8]);
            word.store(u64::from_ne_bytes(part), Ordering::Relaxed);
        }
    }

    fn holders(&self) -> Holders {
        Holders::of(self.registry, self.slot, self.role)
    }

    fn peer_holders(&self) -> Holders {
        Holders::of(self.registry, self.slot, self.role.other())
    }

    /// Adds a holder for the process that will receive the socket, which is being passed on.
    pub fn pass_on(&self) {
        self.add_holder(Holder::Receiver);
    }

    /// Takes back that holder: a process that has the end already has received its socket once
    /// more.
    pub fn received_again(&self) {
        self.holders().remove(Holder::Receiver);
    }

    /// Marks that the process `pid` becomes another program, which finds the end by
    /// [`End::inherited`].
    pub fn hand_over(&self, pid: u32) {
        self.holders().replace(Holder::Process(pid), Holder::Receiver);
    }

    /// Makes the process `pid` a holder again, after it has let go of the end or handed it over.
    /// `false` if the slot belongs to another connection by now.
    #[must_use]
    pub fn hold_again(&self, pid: u32) -> bool {
        if self.is_current() && self.holders().replace(Holder::Receiver, Holder::Process(pid)) {
            return true;
        }
        self.holders().add(Holder::Process(pid));
        fence(Ordering::SeqCst);
        let holds = self.registry.live_generation(self.slot) == Some(self.generation);
        if !holds {
            // It belongs to another connection, which never counted this process.
            self.holders().remove(Holder::Process(pid));
        }
        holds
    }

    /// Whether another program of this process's user would find the connection.
    #[must_use]
    pub fn can_be_found(&self) -> bool {
        self.registry.user() == K::user() && K::is_own(self.registry)
    }

    /// Adds a holder for the child that the process `parent` is about to have.
    pub fn expect_child(&self, parent: u32) {
        self.add_holder(Holder::ChildOf(parent));
    }

    /// Makes the new process `child` the holder in place of the expected child. If none was
    /// expected, because the end began during the `fork`, the child joins the other holders;
    /// `false` if they have gone.
    #[must_use]
    pub fn child_born(&self, parent: u32, child: u32) -> bool {
        if !self.is_current() {
            return false;
        }
        if self.holders().replace(Holder::ChildOf(parent), Holder::Process(child)) {
            return true;
        }
        let holds = self.holders().join(Holder::Process(child));
        fence(Ordering::SeqCst);
        if holds && self.registry.live_generation(self.slot) != Some(self.generation) {
            self.holders().remove(Holder::Process(child)); // The slot is another connection's.
            return false;
        }
        if holds {
            self.own.waits().tag(None);
        }
        holds
    }

    /// Takes back the holder that [`End::expect_child`] added: there is no child after all.
    pub fn expect_no_child(&self, parent: u32) {
        self.holders().remove(Holder::ChildOf(parent));
    }

    fn add_holder(&self, holder: Holder) {
        self.holders().add(holder);
        // A tag names one sleep. With two holders, waking the sleep with that tag says nothing of
        // the other.
        fence(Ordering::SeqCst);
        self.own.waits().tag(None);
    }

    /// Whether the slot still belongs to this connection.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.registry.generation(self.slot) == self.generation
    }

    /// Whether the slot belongs to this connection and is in use.
    #[cfg(test)]
    pub(crate) fn is_live(&self) -> bool {
        self.registry.live_generation(self.slot) == Some(self.generation)
    }

    /// The kernel's number for the socket (`SO_COOKIE`).
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.own.cookie.load(Ordering::Relaxed)
    }

    /// Whether no other process is known to hold the socket.
    #[must_use]
    pub fn is_sole_holder(&self) -> bool {
        self.own.refs.load(Ordering::Acquire) <= 1
    }

    /// Removes holders that were killed, and so could not remove themselves.
    pub fn forget_killed(&self) {
        if K::is_own(self.registry) {
            let holders = self.holders();
            for pid in holders.processes().filter(|&pid| !K::is_alive(pid)) {
                holders.remove(Holder::Process(pid));
            }
        }
    }

    /// Whether all processes that held the other end were killed.
    fn is_peer_killed(&self) -> bool {
        K::is_own(self.registry) && self.peer_holders().are_killed::<K>()
    }

    /// Records that the kernel has not reported a hang-up at a time ([`weft_sys::time_stamp`]).
    pub fn note_live_peer(&self, now: u64) {
        if let Some(process) = self.peer_holders().only() {
            self.registry.live_peers.note(process, now);
        }
    }

    /// Whether that was recorded less than `within` stamps before `now`, for this connection or
    /// another one that has the same only holder.
    #[must_use]
    pub fn has_live_peer(&self, now: u64, within: u64) -> bool {
        let only = self.peer_holders().only();
        only.is_some_and(|process| self.registry.live_peers.lived(process, now, within))
    }

    /// Announces that this process is about to close the socket, so that waiting peers ask the
    /// kernel. Returns whether no other holder is known.
    pub fn part(&self) -> bool {
        let is_last = self.own.refs.load(Ordering::Relaxed) <= 1;
        if is_last {
            self.own.parted.store(1, Ordering::SeqCst);
            // A wakeup for room would be unread when the socket is closed, and the kernel would
            // reset the connection.
            let _ = self.own.waits().take_wanted(WANTED_BY_FUTEX);
            fence(Ordering::SeqCst);
        }
        self.wake_futex_waiters();
        is_last
    }

    /// Removes the holder `pid`. Returns whether it was the last one known.
    pub fn release(&self, pid: u32) -> bool {
        if !self.is_current() {
            // The peer has found all holders of this side gone, and has released the slot.
            return true;
        }
        if self.is_sole_holder() && self.own.extended.load(Ordering::Relaxed) != 0 {
            self.own_grants().revoke_all();
        }
        if !self.holders().remove(Holder::Process(pid)) {
            return false;
        }
        fence(Ordering::SeqCst); // If both sides release at once, one of them sees the other gone.
        let own_offer = Some((self.slot, self.generation));
        let nobody_came =
            self.role == Role::Connector && self.registry.find(&self.tuple()) == own_offer;
        // If the kernel has reported the peer's end, the peer may still hold its own, and use the
        // slot until it closes that. If it was killed, a sweep finds the slot.
        let is_held = |side: &Side| side.refs.load(Ordering::Acquire) > 0;
        let holds = || is_held(self.own) || (!nobody_came && is_held(self.peer));
        if !holds() {
            self.registry.release_unless(self.slot, self.generation, holds);
        }
        true
    }

    /// The addresses of both ends.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        self.registry.tuple_of(self.slot)
    }

    /// Takes part: from here on this process reads the rings as well as the socket. Moves its
    /// sending direction to the rings once the peer does the same.
    #[inline]
    pub fn advance(&self, socket: K::Socket<'_>) {
        if self.tx.words().shm_start_seq.load(Ordering::Relaxed) == NONE {
            self.agree(socket);
        }
    }

    #[cold]
    fn agree(&self, socket: K::Socket<'_>) {
        if let Some(held) = Self::lock(&self.tx.words().lock) {
            self.agree_held(socket, &held);
        }
    }

    /// Whether the sending direction uses the rings now. The caller holds its lock.
    fn agree_held(&self, socket: K::Socket<'_>, held: &SharedGuard<'_, K>) -> bool {
        if self.tx.words().shm_start_seq.load(Ordering::Relaxed) != NONE {
            return true;
        }
        let agreed = match self.role {
            Role::Connector => self.peer.joined.load(Ordering::Acquire) == joined::JOINED,
            Role::Acceptor => {
                if self.own.joined.load(Ordering::Relaxed) == joined::NO {
                    self.own.joined.store(joined::JOINED, Ordering::SeqCst);
                    self.registry.counters().joined.fetch_add(1, Ordering::Relaxed);
                }
                self.peer.joined.load(Ordering::Acquire) == joined::CONFIRMED
            }
        };
        if agreed {
            self.switch(socket, held);
        }
        agreed
    }

    /// Moves the sending direction to the rings. The caller holds its lock, and the peer reads the
    /// rings.
    fn switch(&self, socket: K::Socket<'_>, _held: &SharedGuard<'_, K>) {
        let words = self.tx.words();
        // A wakeup must not be delayed to be sent together with later bytes.
        let before = [Delays::NODELAY, Delays::CORK].into_iter().zip(K::undelay(socket));
        before.for_each(|(option, on)| Delays(&self.own.delays).set(option, on));
        Delays(&self.own.delays).set(Delays::KEPT, true);
        words.shm_start_seq.store(words.tcp_sent.load(Ordering::Relaxed), Ordering::Release);
        K::moment();
        if self.role == Role::Connector {
            self.own.joined.store(joined::CONFIRMED, Ordering::SeqCst);
        }
    }

    /// Whether the reader has read all of the first TCP phase.
    #[inline]
    fn has_switched_in(&self) -> bool {
        let words = self.rx.words();
        words.tcp_read.load(Ordering::Relaxed) >= words.shm_start_seq.load(Ordering::Acquire)
    }

    /// What carries the bytes to be read next.
    #[inline]
    #[must_use]
    pub fn carrier_in(&self) -> Carrier {
        let words = self.rx.words();
        let before = !self.has_switched_in();
        let after = words.tcp_resume_seq.load(Ordering::Relaxed)
            == words.tail.load(Ordering::Relaxed)
            && !self.src_avails_in.are_open();
        if before || after { Carrier::Tcp } else { Carrier::Memory }
    }

    /// What carries the bytes to be sent next.
    #[inline]
    #[must_use]
    pub fn carrier_out(&self) -> Carrier {
        let before = self.tx.words().shm_start_seq.load(Ordering::Relaxed) == NONE;
        if before || self.is_the_kernels_to_send() { Carrier::Tcp } else { Carrier::Memory }
    }

    /// Bytes that can be read from the ring and from sources.
    #[inline]
    fn available(&self) -> Result<usize, Broken> {
        let named = if self.src_avails_in.may_be_open() { self.src_avails_in.unread() } else { 0 };
        Ok(self.rx.available()? + named)
    }

    /// Unread bytes in memory. Corrupt words count as one byte, so that a reader calls and gets the
    /// error.
    #[inline]
    #[must_use]
    pub fn unread(&self) -> usize {
        if self.carrier_in() == Carrier::Tcp {
            return 0;
        }
        let returning = &self.rx.words().returning;
        self.look_until_settled(|is_withdrawing| {
            // From the ring into the kernel's queue.
            let are_moving = is_withdrawing || returning.load(Ordering::Acquire) != 0;
            match self.available().unwrap_or(1) {
                0 if !are_moving => (0, Look::Nothing),
                // A peer that was killed on the way never settles them.
                0 if !self.is_peer_gone() => (0, Look::Moving),
                bytes => (bytes, Look::Enough),
            }
        })
    }

    /// Repeats a look at the incoming bytes while some of them are on their way from a source that
    /// its sender withdraws into the ring: a reader may have seen them before, and they must not
    /// seem to be gone. `look` gets whether a withdrawal is in progress.
    #[inline]
    fn look_until_settled<T>(&self, mut look: impl FnMut(bool) -> (T, Look)) -> T {
        let withdrawals = &self.rx.words().withdrawals;
        let mut looks = 0;
        loop {
            let before = withdrawals.load(Ordering::Acquire);
            let is_withdrawing = !before.is_multiple_of(2);
            let (found, outcome) = look(is_withdrawing);
            fence(Ordering::Acquire);
            let is_over = match outcome {
                Look::Enough => true,
                Look::Nothing => !is_withdrawing && withdrawals.load(Ordering::Acquire) == before,
                Look::Moving => false,
            };
            looks += 1;
            if is_over || looks == MOVE_LOOKS_MAX + MOVE_PAUSES_MAX {
                return found;
            }
            if looks < MOVE_LOOKS_MAX {
                std::thread::yield_now();
            } else {
                K::pause(); // The sender has lost its core.
            }
        }
    }

    /// Unread bytes of the first TCP phase, and those in memory behind them, if the peer has moved
    /// to memory and this side still reads TCP.
    #[must_use]
    pub fn unread_of_two_phases(&self) -> Option<(u64, usize)> {
        let words = self.rx.words();
        let shm_start_seq = words.shm_start_seq.load(Ordering::Acquire);
        let read = words.tcp_read.load(Ordering::Relaxed);
        let is_between = shm_start_seq != NONE && read < shm_start_seq;
        is_between.then(|| (shm_start_seq - read, self.available().unwrap_or(1)))
    }

    /// Bytes in the ring that the peer has not read.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.tx.available().unwrap_or(0)
    }

    /// Free bytes in the ring to the peer. A small ring counts as the big one that replaces it.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        if self.src_avails_out.may_be_open() {
            return self.room_behind_sources();
        }
        self.tx.room().unwrap_or(usize::MAX)
    }

    /// Counts of what has come in, and of what the peer has taken: numbers that change whenever
    /// readiness may have changed.
    #[inline]
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let words = self.rx.words();
        (come(&words.head, &words.posted), self.tx.returned())
    }

    /// An [`ArrivalMark`], which tells whether anything has come since; `None` if the peer has
    /// fallen back to TCP.
    #[inline]
    #[must_use]
    pub fn arrival_mark(&self) -> Option<ArrivalMark> {
        let words = self.rx.words();
        let come = come(&words.head, &words.posted);
        let arrival_mark = ArrivalMark {
            head: &words.head,
            posted: &words.posted,
            tcp_resume_seq: &words.tcp_resume_seq,
            come,
        };
        arrival_mark.stays().then_some(arrival_mark)
    }

    /// Records that an epoll instance has reported an edge; `None` has it report everything again.
    pub fn note_edge(&self, edge: Option<ReportedEdge>) {
        let words = self.rx.words();
        words.edge_asked.store(0, Ordering::Relaxed);
        if let Some(edge) = edge {
            fence(Ordering::Release);
            words.edge_instance.store(edge.instance, Ordering::Relaxed);
            words.edge_come.store(edge.come, Ordering::Relaxed);
            let in_memory = if edge.was_in_memory { EDGE_IN_MEMORY } else { 0 };
            words.edge_ends.store(edge.ends | in_memory, Ordering::Relaxed);
            words.edge_received.store(edge.received.unwrap_or(NONE), Ordering::Relaxed);
            words.edge_asked.store(edge.asked, Ordering::Release);
        }
    }

    /// The last edge that an instance has reported, in any process.
    #[must_use]
    pub fn reported_edge(&self) -> Option<ReportedEdge> {
        let words = self.rx.words();
        let asked = words.edge_asked.load(Ordering::Acquire);
        let instance = words.edge_instance.load(Ordering::Relaxed);
        let come = words.edge_come.load(Ordering::Relaxed);
        let word = words.edge_ends.load(Ordering::Relaxed);
        let (ends, was_in_memory) = (word & !EDGE_IN_MEMORY, word & EDGE_IN_MEMORY != 0);
        let received = Some(words.edge_received.load(Ordering::Relaxed)).filter(|&it| it != NONE);
        fence(Ordering::Acquire);
        let is_whole = asked != 0 && words.edge_asked.load(Ordering::Relaxed) == asked;
        is_whole.then_some(ReportedEdge { instance, asked, come, ends, was_in_memory, received })
    }

    /// When the oldest of the unread bytes came, as [`weft_sys::time_stamp`].
    #[inline]
    #[must_use]
    pub fn arrived_at(&self) -> u64 {
        self.rx.words().arrived_at.load(Ordering::Relaxed)
    }

    /// Whether the socket is reported as writable.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        if self.src_avails_out.may_be_open() {
            return self.room_behind_sources() >= WRITABLE_LEN;
        }
        self.tx.is_writable()
    }

    /// Whether the peer can put nothing more before this side reads.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rx.room() == Ok(0)
    }

    /// Options as the program has set them. `None` while the kernel's socket has them, or if the
    /// sending direction has never used the rings.
    #[must_use]
    pub fn delays(&self) -> Option<Delays<'_>> {
        Some(Delays(&self.own.delays)).filter(|delays| delays.is_set(Delays::KEPT))
    }

    /// Records that this side wants one-sided operations.
    pub fn extend(&self) {
        self.own.extended.store(1, Ordering::SeqCst);
    }

    /// Whether both sides want one-sided operations, and both directions have moved to the rings.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        [&self.own, &self.peer].iter().all(|side| side.extended.load(Ordering::Acquire) != 0)
            && [&self.tx, &self.rx]
                .iter()
                .all(|ring| ring.words().shm_start_seq.load(Ordering::Acquire) != NONE)
    }

    /// Revokes the grants of a process that has become another program: its memory is gone.
    pub fn revoke_of(&self, pid: u32) {
        if self.own.extended.load(Ordering::Relaxed) != 0 {
            self.own_grants().revoke_of(pid);
        }
    }

    /// Whether the connection has fallen back to TCP for good.
    #[must_use]
    pub fn has_fallen_back(&self) -> bool {
        self.tx.words().tcp_resume_seq.load(Ordering::Relaxed) != NONE
    }

    /// How many of `received` bytes of the kernel's socket the peer has sent by TCP since it
    /// fell back, plus one if the socket has received its FIN. The others belong to the first TCP
    /// phase, are wakeups, or were put back.
    #[must_use]
    pub fn come_behind(&self, received: u64) -> u64 {
        let words = self.rx.words();
        let counts = [&words.tcp_sent, &words.wakeups, &words.resent];
        let before = counts.into_iter().map(|count| count.load(Ordering::Acquire)).sum();
        received.saturating_sub(before)
    }

    /// What this side lets the peer do with its memory.
    #[must_use]
    pub fn own_grants(&self) -> Grants {
        Grants::of(self.registry, self.slot, self.role)
    }

    /// What the peer lets this side do with its memory.
    #[must_use]
    pub fn peer_grants(&self) -> Grants {
        Grants::of(self.registry, self.slot, self.role.other())
    }

    /// Bytes moved through memory: sent, received.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let moved = |ring: &Queue| {
            let words = ring.words();
            let pulled = words.pulled.load(Ordering::Relaxed);
            words.head.load(Ordering::Relaxed).wrapping_add(pulled)
        };
        (moved(&self.tx), moved(&self.rx))
    }

    /// Messages moved through memory, both ways.
    #[must_use]
    pub fn messages(&self) -> u64 {
        let sent = |ring: &Queue| ring.words().messages.load(Ordering::Relaxed);
        sent(&self.tx).wrapping_add(sent(&self.rx))
    }
}

/// The process that makes an end.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// The process number.
    pub pid: u32,
    /// The process's descriptor for the socket.
    pub fd: u32,
    /// The kernel's number for the socket (`SO_COOKIE`).
    pub cookie: u64,
    /// The program's name, padded with zeros.
    pub program: [u8; PROGRAM_LEN],
}

/// Options that let the kernel delay bytes to send them together with later ones (`tcp(7)`). In
/// memory they have no effect, but the program may read them back.
#[derive(Clone, Copy, Debug)]
pub struct Delays<'a>(pub(crate) &'a AtomicU32);

impl Delays<'_> {
    /// `TCP_NODELAY`.
    pub const NODELAY: u32 = 1;
    /// `TCP_CORK`.
    pub const CORK: u32 = 2;
    /// The options are kept here, and the kernel's socket does not delay.
    const KEPT: u32 = 4;

    /// Sets or clears an option.
    pub fn set(self, option: u32, on: bool) {
        if on {
            self.0.fetch_or(option, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!option, Ordering::Relaxed);
        }
    }

    /// Whether an option is set.
    #[must_use]
    pub fn is_set(self, option: u32) -> bool {
        self.0.load(Ordering::Relaxed) & option != 0
    }
}
