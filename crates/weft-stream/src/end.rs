//! One end of a connection: the byte stream moves from TCP to the rings when both ends have agreed,
//! and nothing of it is lost or told twice on the way.
//!
//! Each direction is, in this order: `switch_at` bytes over TCP; bytes through the rings; and, if
//! one end has left, bytes over TCP again from position `back_at` on. In the second phase the bytes
//! that come over TCP are bells: one wakes a process that sleeps on the socket.
//!
//! Nothing here blocks. Who wants to wait says so ([`End::begin_sleep`]), looks once more, and then
//! sleeps on the socket itself: whatever comes, bell, end of stream or reset, wakes it.

mod bells;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{SendFlags, Shutdown, connect_unspec, send, shutdown, sockopt};
use rustix::thread::futex;
use rustix::time::Timespec;
use weft_sys::{Buffers, SharedGuard, SharedLock};

use self::bells::Heard;
use crate::flow::{Flow, Queue};
use crate::grants::Grants;
use crate::how::{DONTWAIT, How};
use crate::layout::{entry, entry_at, side, totals};
use crate::registry::Registry;
use crate::ring::Broken;
use crate::source::{Owner, SourceNumber, Sources};
use crate::tuple::Tuple;
use crate::words::{NONE, Role, Side, joined};

/// Somebody sleeps on the word until there is room.
const WANTED_BY_FUTEX: u32 = 1;
/// Somebody sleeps in the kernel's poll until there is room.
const WANTED_BY_POLL: u32 = 2;
const BELL: [u8; 1] = [b'!'];

impl From<Broken> for Errno {
    fn from(_: Broken) -> Self {
        Self::CONNRESET
    }
}

/// What carries the bytes that come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel's TCP.
    Tcp,
    /// The rings.
    Memory,
}

/// One end of a connection that is, or may be, carried by shared memory.
#[derive(Clone, Copy, Debug)]
pub struct End {
    registry: &'static Registry,
    slot: usize,
    generation: u32,
    role: Role,
    own: Side,
    peer: Side,
    tx: Queue,
    rx: Queue,
    sources_out: Sources,
    sources_in: Sources,
}

impl End {
    /// The connector's end of a connection just made: offers it, with the flow control that it
    /// prefers. `None` if there is no room.
    #[must_use]
    pub fn offer(
        registry: &'static Registry,
        tuple: &Tuple,
        me: &Process,
        flow: Flow,
    ) -> Option<Self> {
        let slot = registry.take(tuple)?;
        // Credits stand for buffers, which have to be there.
        let has_buffers = || (0..2).all(|direction| registry.fill(slot, direction, 0) > 0);
        let flow = if flow == Flow::Credit && has_buffers() { flow } else { Flow::Packed };
        registry.word(entry_at(slot) + entry::FLOW).store(flow as u32, Ordering::Relaxed);
        let end = Self::at(registry, slot, Role::Connector);
        for (side, role) in [(end.own, Role::Connector), (end.peer, Role::Acceptor)] {
            if side.extended.load(Ordering::Relaxed) != 0 {
                Grants::of(registry, slot, role).reset();
            }
        }
        end.own.reset();
        end.peer.reset();
        end.tx.words().reset();
        end.rx.words().reset();
        end.introduce(me);
        // Whoever finds the offer has it from that moment on.
        end.peer.refs.store(1, Ordering::Relaxed);
        if !registry.publish(slot, tuple) {
            registry.release(slot);
            return None;
        }
        registry.total(totals::OFFERED).fetch_add(1, Ordering::Relaxed);
        Some(end)
    }

    /// The acceptor's end of a connection that the connector offers. So far `tcp_sent` bytes have
    /// been sent and `tcp_read` read. `None` if it offers nothing.
    #[must_use]
    pub fn find(
        registry: &'static Registry,
        tuple: &Tuple,
        me: &Process,
        (tcp_sent, tcp_read): (u64, u64),
    ) -> Option<Self> {
        let slot = registry.find(tuple)?;
        let end = Self::at(registry, slot, Role::Acceptor);
        end.introduce(me);
        end.tx.words().tcp_sent.store(tcp_sent, Ordering::Relaxed);
        end.rx.words().tcp_read.store(tcp_read, Ordering::Relaxed);
        Some(end)
    }

    /// The end that the socket with this number of the kernel's is, in a program that has
    /// inherited it.
    #[must_use]
    pub fn inherited(registry: &'static Registry, cookie: u64) -> Option<Self> {
        let ends =
            registry.live().filter(|&slot| registry.open_slot(slot).is_ok()).flat_map(|slot| {
                [Role::Connector, Role::Acceptor].map(|role| Self::at(registry, slot, role))
            });
        ends.into_iter().find(|end| end.own.cookie.load(Ordering::Relaxed) == cookie)
    }

    fn at(registry: &'static Registry, slot: usize, role: Role) -> Self {
        let flow = registry.flow(slot);
        Self {
            registry,
            slot,
            generation: registry.generation(slot),
            role,
            own: Side::of(registry, slot, role),
            peer: Side::of(registry, slot, role.other()),
            tx: Queue::of(registry, slot, role, flow),
            rx: Queue::of(registry, slot, role.other(), flow),
            sources_out: Sources::of(registry, slot, role),
            sources_in: Sources::of(registry, slot, role.other()),
        }
    }

    fn introduce(&self, me: &Process) {
        self.own.pid.store(me.pid, Ordering::Relaxed);
        self.own.cookie.store(me.cookie, Ordering::Relaxed);
        for (word, part) in self.own.program.iter().zip(me.program.chunks_exact(8)) {
            let part = part.try_into().unwrap_or([0; 8]);
            word.store(u64::from_ne_bytes(part), Ordering::Relaxed);
        }
        self.own.refs.store(1, Ordering::Release);
    }

    /// Another process of ours has the socket, too.
    pub fn retain(&self) {
        self.own.refs.fetch_add(1, Ordering::AcqRel);
    }

    /// The socket is about to be closed: who waits asks the kernel.
    pub fn part(&self) {
        if self.own.refs.load(Ordering::Relaxed) <= 1 {
            self.own.parted.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        self.wake_dozers();
    }

    /// This process does not have the socket any more. Returns whether it was the last one, as far
    /// as is known.
    pub fn release(&self) -> bool {
        if self.registry.generation(self.slot) != self.generation {
            return true; // The peer has found all of us gone.
        }
        let mut refs = self.own.refs.load(Ordering::Acquire);
        loop {
            let Some(fewer) = refs.checked_sub(1) else { return true };
            if fewer == 0 && self.own.extended.load(Ordering::Relaxed) != 0 {
                self.own_grants().revoke_all();
            }
            let done =
                self.own.refs.compare_exchange(refs, fewer, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) if fewer > 0 => return false,
                Ok(_) => break,
                Err(now) => refs = now,
            }
        }
        fence(Ordering::SeqCst); // Of two that go at once, one sees the other gone.
        let nobody_came =
            self.role == Role::Connector && self.registry.find(&self.tuple()) == Some(self.slot);
        // Where the kernel has told of the peer's end it may still have its own, and look into the
        // slot until it closes that. If it was killed, the slot is found by a sweep.
        if nobody_came || self.peer.refs.load(Ordering::Acquire) == 0 {
            self.give_back();
        }
        true
    }

    /// Both sides may come here at once; one of them gives the slot back.
    fn give_back(&self) {
        const GIVEN: u32 = u32::MAX;
        let first = self.registry_side().joined.swap(GIVEN, Ordering::AcqRel) != GIVEN;
        if first {
            self.registry.add_to_totals(self.slot);
            self.registry.release(self.slot);
        }
    }

    /// The side whose word decides who gives the slot back.
    fn registry_side(&self) -> &Side {
        if self.role == Role::Connector { &self.own } else { &self.peer }
    }

    /// The addresses of both ends.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        self.registry.tuple_of(self.slot)
    }

    /// Takes part: from here on this process looks at the rings as well as at the socket. Moves the
    /// own direction to the rings as soon as the peer does the same.
    #[inline]
    pub fn advance(&self, socket: BorrowedFd<'_>) {
        if self.tx.words().switch_at.load(Ordering::Relaxed) == NONE {
            self.agree(socket);
        }
    }

    #[cold]
    fn agree(&self, socket: BorrowedFd<'_>) {
        if let Some(held) = SharedLock::on(self.tx.words().lock).lock() {
            self.agree_held(socket, &held);
        }
    }

    /// Whether the own direction is carried by the rings now. Its lock is held.
    fn agree_held(&self, socket: BorrowedFd<'_>, held: &SharedGuard<'_>) -> bool {
        if self.tx.words().switch_at.load(Ordering::Relaxed) != NONE {
            return true;
        }
        let agreed = match self.role {
            Role::Connector => self.peer.joined.load(Ordering::Acquire) == joined::JOINED,
            Role::Acceptor => {
                if self.own.joined.load(Ordering::Relaxed) == joined::NO {
                    self.own.joined.store(joined::JOINED, Ordering::SeqCst);
                    self.registry.total(totals::JOINED).fetch_add(1, Ordering::Relaxed);
                }
                self.peer.joined.load(Ordering::Acquire) == joined::CONFIRMED
            }
        };
        if agreed {
            self.switch(socket, held);
        }
        agreed
    }

    /// Moves the own direction to the rings. Its lock is held, and the peer looks at them.
    fn switch(&self, socket: BorrowedFd<'_>, _held: &SharedGuard<'_>) {
        let words = self.tx.words();
        // A bell must not wait for others to go with it.
        let nodelay = sockopt::tcp_nodelay(socket).unwrap_or(false);
        self.own.nodelay.store(nodelay.into(), Ordering::Relaxed);
        let _ = sockopt::set_tcp_cork(socket, false);
        let _ = sockopt::set_tcp_nodelay(socket, true);
        words.switch_at.store(words.tcp_sent.load(Ordering::Relaxed), Ordering::Release);
        if self.role == Role::Connector {
            self.own.joined.store(joined::CONFIRMED, Ordering::SeqCst);
        }
    }

    /// Sends as much as there is room for (`sendmsg(2)` with `MSG_DONTWAIT`).
    ///
    /// # Errors
    /// `EAGAIN`: no room; `EPIPE`, `ECONNRESET` and whatever else the kernel says of the socket;
    /// `EDEADLK` in a signal handler that has interrupted the same call of its own thread.
    #[inline]
    pub fn try_send(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let words = self.tx.words();
        let held = SharedLock::on(words.lock).lock().ok_or(Errno::DEADLK)?;
        if words.switch_at.load(Ordering::Relaxed) == NONE && !self.agree_held(socket, &held) {
            let sent = buffers.send(socket, flags | DONTWAIT)?;
            words.tcp_sent.fetch_add(sent as u64, Ordering::Relaxed);
            return Ok(sent);
        }
        if self.peer.parted.load(Ordering::Relaxed) != 0 {
            self.ask_for_peer(socket);
        }
        if self.is_the_kernels_to_send() {
            let sent = buffers.send(socket, flags | DONTWAIT);
            if matches!(sent, Err(Errno::CONNRESET | Errno::PIPE)) {
                self.own.reset_told.store(1, Ordering::Relaxed);
            }
            return sent;
        }
        // What comes behind a source waits until it is over.
        let put = if self.sources_out.are_open() { 0 } else { self.tx.put(buffers)? };
        if put == 0 {
            if buffers.is_empty() {
                return Ok(0);
            }
            self.tx.count_stall();
            return Err(Errno::AGAIN);
        }
        self.tx.count_message();
        self.announce_bytes(socket, &held);
        Ok(put)
    }

    /// The last one of the peer's, as far as it knew, was about to close the socket. If that was
    /// so, the kernel has seen the end.
    #[cold]
    fn ask_for_peer(&self, socket: BorrowedFd<'_>) {
        let asked = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut set = [PollFd::from_borrowed_fd(socket, asked)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut set, Some(&now)).is_ok_and(|ready| ready > 0) {
            self.hang_up();
        }
    }

    /// Names a long message instead of putting it, for the peer to pull it out of the owner's
    /// memory: it must stay there, and as it is, until the source is over. `None`: not now.
    pub fn post_source(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        owner: &Owner,
    ) -> Option<SourceNumber> {
        let words = self.tx.words();
        let held = SharedLock::on(words.lock).lock()?;
        let in_memory = words.switch_at.load(Ordering::Relaxed) != NONE;
        if !in_memory || self.is_the_kernels_to_send() || self.sources_out.are_open() {
            return None;
        }
        let number = self.sources_out.post(buffers, owner)?;
        self.tx.count_message();
        self.announce_bytes(socket, &held);
        Some(number)
    }

    /// How much of a source has been pulled so far. `None`: it is over, or will not go on.
    #[must_use]
    pub fn source_progress(&self, number: SourceNumber) -> Option<u64> {
        let lost = self.registry.generation(self.slot) != self.generation
            || self.sources_out.are_refused()
            || self.is_the_kernels_to_send();
        if lost { None } else { self.sources_out.progress(number) }
    }

    /// Ends a source of the caller's. Returns how many bytes of it the peer has pulled.
    #[must_use]
    pub fn withdraw_source(&self, number: SourceNumber) -> usize {
        if self.registry.generation(self.slot) != self.generation {
            return 0; // Both ends have gone; the slot is another connection's.
        }
        self.sources_out.withdraw(number)
    }

    /// Whether another process sleeps at the other end until something comes.
    #[must_use]
    pub fn is_peer_waiting(&self) -> bool {
        let sleeps = self.peer.sleepers.load(Ordering::Relaxed) != 0
            || self.peer.doze.load(Ordering::Relaxed) != 0;
        sleeps && self.peer.pid.load(Ordering::Relaxed) != self.own.pid.load(Ordering::Relaxed)
    }

    /// Something has been put: wakes whoever waits for it at the other end. The lock of the own
    /// direction is held.
    #[inline]
    fn announce_bytes(&self, socket: BorrowedFd<'_>, held: &SharedGuard<'_>) {
        fence(Ordering::SeqCst);
        self.wake_dozers();
        let asleep = self.peer.sleepers.load(Ordering::Relaxed) != 0;
        // Of one that has shut down its half, only the kernel can say whether it still lives.
        if asleep || self.peer.shut_write.load(Ordering::Relaxed) != 0 {
            self.ring_bell(socket, held);
        }
        if self.rx.acknowledge() {
            self.announce_room_held(socket, held);
        }
    }

    fn is_the_kernels_to_send(&self) -> bool {
        self.tx.words().back_at.load(Ordering::Relaxed) != NONE
            || self.own.gone.load(Ordering::Relaxed) != 0
            || self.own.shut_write.load(Ordering::Relaxed) != 0
            || self.does_nobody_receive()
    }

    /// The peer has closed its socket, or shut down both halves: the kernel takes what comes, and
    /// answers with a reset.
    fn does_nobody_receive(&self) -> bool {
        self.peer.refs.load(Ordering::Relaxed) == 0
            || (self.peer.shut_read.load(Ordering::Relaxed) != 0
                && self.peer.shut_write.load(Ordering::Relaxed) != 0)
    }

    /// Wakes who sleeps at the other end on the word.
    #[inline]
    fn wake_dozers(&self) {
        if self.peer.doze.load(Ordering::Relaxed) != 0 {
            self.peer.doze.store(0, Ordering::Relaxed);
            let _ = futex::wake(self.peer.doze, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Wakes whoever sleeps at the other end. The lock of the own direction is held, and it is the
    /// rings'.
    fn ring_bell(&self, socket: BorrowedFd<'_>, _held: &SharedGuard<'_>) {
        if self.own.shut_write.load(Ordering::Relaxed) != 0 {
            return; // The kernel sends nothing any more: see `can_be_rung`.
        }
        if self.peer.bell.swap(1, Ordering::AcqRel) != 0 {
            return; // The last one is still to be heard.
        }
        let words = self.tx.words();
        match send(socket, &BELL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => {
                words.bells.fetch_add(1, Ordering::Relaxed);
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                // What fills the socket wakes the peer as well. When that has been read, it takes
                // another bell.
                self.peer.bell.store(0, Ordering::Release);
            }
            Err(_) => self.own.gone.store(1, Ordering::Relaxed),
        }
    }

    /// Receives what is there (`recvmsg(2)` with `MSG_DONTWAIT`). 0: the stream has ended.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there; `ECONNRESET` and whatever else the kernel says of the socket;
    /// `EDEADLK` as [`End::try_send`].
    #[inline]
    pub fn try_recv(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        how: How,
    ) -> Result<usize, Errno> {
        self.advance(socket);
        let words = self.rx.words();
        let _held = SharedLock::on(words.reader_lock).lock().ok_or(Errno::DEADLK)?;
        loop {
            let switch_at = words.switch_at.load(Ordering::Acquire);
            let tcp_read = words.tcp_read.load(Ordering::Relaxed);
            if tcp_read < switch_at {
                match self.recv_over_tcp(socket, buffers, how)? {
                    Some(received) => return Ok(received),
                    None => continue,
                }
            }
            let taken = if how.discard && how.keep {
                self.rx.available()?.min(buffers.len())
            } else if how.discard {
                self.rx.skip(buffers.len())?
            } else {
                self.rx.take(buffers, how.keep)?
            };
            let named = self.sources_in.may_be_open();
            let pulled = if named { self.pull(socket, buffers, how, taken) } else { 0 };
            if taken + pulled > 0 {
                if taken > 0 && !how.keep {
                    self.announce_room(socket);
                }
                return Ok(taken + pulled);
            }
            // A call for no bytes waits for bytes all the same (tcp_recvmsg).
            if buffers.is_empty() && self.rx.available()? > 0 {
                return Ok(0);
            }
            if self.is_back() {
                self.take_last_bells(socket)?;
                return buffers.recv(socket, how.flags());
            }
            if !how.look {
                return Err(Errno::AGAIN);
            }
            if let Some(ended) = self.ask_kernel(socket)? {
                return Ok(ended);
            }
        }
    }

    /// Fills the buffers out of the peer's memory, behind the `taken` bytes of the ring.
    #[cold]
    fn pull(&self, socket: BorrowedFd<'_>, buffers: Buffers<'_>, how: How, taken: usize) -> usize {
        let kept = if how.keep { taken } else { 0 };
        let is_next = || self.rx.available() == Ok(kept);
        let pulled = self.sources_in.pull(buffers.after(taken), how.keep, how.discard, is_next);
        if pulled.over {
            fence(Ordering::SeqCst);
            if self.peer.space_wanted.load(Ordering::Relaxed) != 0 {
                self.announce_room_to_waiter(socket);
            }
        }
        pulled.bytes
    }

    /// The first phase. `None` if it has just ended.
    #[cold]
    fn recv_over_tcp(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        how: How,
    ) -> Result<Option<usize>, Errno> {
        let words = self.rx.words();
        let before = words.tcp_read.load(Ordering::Relaxed);
        let most = match words.switch_at.load(Ordering::Acquire) {
            NONE => {
                let come = ioctl_fionread(socket)?;
                if words.switch_at.load(Ordering::Acquire) != NONE {
                    return Ok(None);
                }
                come.max(1)
            }
            switch_at => switch_at.saturating_sub(before),
        };
        // Behind the last byte of the first phase there may be bells, and bytes of the third.
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let received = match buffers.recv_most(socket, most, how.flags()) {
            Ok(received) => received,
            Err(Errno::AGAIN) if words.switch_at.load(Ordering::Acquire) == before => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // What has come behind it meanwhile is a bell. Who rang it has said before where the phase
        // ends.
        let left = words.switch_at.load(Ordering::Acquire).saturating_sub(before);
        let bytes = usize::try_from(left).map_or(received, |left| received.min(left));
        if !how.keep {
            words.tcp_read.store(before + bytes as u64, Ordering::Relaxed);
            self.count_bells(received - bytes);
        }
        if bytes == 0 && received > 0 { Ok(None) } else { Ok(Some(bytes)) }
    }

    /// The rings are empty: has the stream ended? `Some(0)` if so, `None` if something has come
    /// meanwhile.
    #[cold]
    fn ask_kernel(&self, socket: BorrowedFd<'_>) -> Result<Option<usize>, Errno> {
        let answer = self.take_bells(socket);
        fence(Ordering::SeqCst);
        if self.available()? > 0 {
            return Ok(None);
        }
        match answer {
            Ok(Heard::End) => self.ended(socket).map(Some),
            Ok(Heard::Bells(_)) => Ok(None),
            Ok(Heard::Bytes) if self.is_back() => Ok(None),
            Ok(Heard::Bytes) => Err(Broken.into()), // More than it has ever put.
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(error) => {
                self.note_reset();
                Err(error)
            }
        }
    }

    /// The kernel has no more, and neither have the rings.
    fn ended(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let said_so = self.peer.shut_write.load(Ordering::Acquire) != 0
            || self.own.shut_read.load(Ordering::Relaxed) != 0;
        if said_so || self.rx.words().switch_at.load(Ordering::Relaxed) == NONE {
            return Ok(0);
        }
        self.own.gone.store(1, Ordering::Relaxed);
        // TCP resets a connection whose closing end has not read everything. That of a process
        // which was killed could not know: the own kernel is told.
        let unread = self.tx.available()? > 0 || self.sources_out.are_open();
        if unread && self.own.reset_told.swap(1, Ordering::Relaxed) == 0 {
            let _ = connect_unspec(socket);
            let _ = shutdown(socket, Shutdown::Both);
            let _ = sockopt::socket_error(socket);
            return Err(Errno::CONNRESET);
        }
        Ok(0)
    }

    /// The kernel has said that the connection was reset.
    pub fn note_reset(&self) {
        self.own.gone.store(1, Ordering::Relaxed);
        self.own.reset_told.store(1, Ordering::Relaxed);
    }

    /// Whether the third phase has begun, and is next.
    #[inline]
    fn is_back(&self) -> bool {
        let words = self.rx.words();
        words.back_at.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
    }

    /// Tells a writer that waits for it.
    #[inline]
    fn announce_room(&self, socket: BorrowedFd<'_>) {
        fence(Ordering::SeqCst);
        if self.peer.space_wanted.load(Ordering::Relaxed) != 0 && self.rx.has_made_room() {
            self.announce_room_to_waiter(socket);
        }
    }

    /// The same, with the lock of the own direction, which is the rings'.
    #[cold]
    fn announce_room_held(&self, socket: BorrowedFd<'_>, held: &SharedGuard<'_>) {
        fence(Ordering::SeqCst);
        if self.peer.space_wanted.load(Ordering::Relaxed) != 0
            && self.wake_writer() & WANTED_BY_POLL != 0
        {
            self.ring_bell(socket, held);
        }
    }

    /// Wakes a writer that sleeps by a futex, and returns how writers have been waiting.
    fn wake_writer(&self) -> u32 {
        // Who polls is told when it is worth it; what is still unread leads here again.
        let kept = if self.rx.is_writable() { 0 } else { WANTED_BY_POLL };
        let wanted = self.peer.space_wanted.fetch_and(kept, Ordering::AcqRel) & !kept;
        if wanted & WANTED_BY_FUTEX != 0 {
            let _ = futex::wake(self.peer.space_wanted, futex::Flags::empty(), u32::MAX);
        }
        wanted
    }

    #[cold]
    fn announce_room_to_waiter(&self, socket: BorrowedFd<'_>) {
        if self.wake_writer() & WANTED_BY_POLL != 0
            && let Some(held) = SharedLock::on(self.tx.words().lock).lock()
            && self.tx.words().back_at.load(Ordering::Relaxed) == NONE
        {
            if self.tx.words().switch_at.load(Ordering::Relaxed) == NONE {
                self.switch(socket, &held);
            }
            self.ring_bell(socket, &held);
        }
    }

    /// Whether the first phase is over for the reader.
    #[inline]
    fn has_switched_in(&self) -> bool {
        let words = self.rx.words();
        words.tcp_read.load(Ordering::Relaxed) >= words.switch_at.load(Ordering::Acquire)
    }

    /// What carries the bytes to be read next.
    #[inline]
    #[must_use]
    pub fn carrier_in(&self) -> Carrier {
        let words = self.rx.words();
        let before = !self.has_switched_in();
        let after = words.back_at.load(Ordering::Relaxed) == words.tail.load(Ordering::Relaxed)
            && !self.sources_in.are_open();
        if before || after { Carrier::Tcp } else { Carrier::Memory }
    }

    /// What carries the bytes to be sent next.
    #[inline]
    #[must_use]
    pub fn carrier_out(&self) -> Carrier {
        let before = self.tx.words().switch_at.load(Ordering::Relaxed) == NONE;
        if before || self.is_the_kernels_to_send() { Carrier::Tcp } else { Carrier::Memory }
    }

    /// Bytes that can be read from the ring and from sources.
    #[inline]
    fn available(&self) -> Result<usize, Broken> {
        let named = if self.sources_in.may_be_open() { self.sources_in.unread() } else { 0 };
        Ok(self.rx.available()? + named)
    }

    /// Bytes in memory that have not been read. Those that the peer has broken count as
    /// something to be read, which will say so.
    #[inline]
    #[must_use]
    pub fn unread(&self) -> usize {
        if self.carrier_in() == Carrier::Tcp { 0 } else { self.available().unwrap_or(1) }
    }

    /// Bytes that the peer has not read from the rings.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.tx.available().unwrap_or(0)
    }

    /// Free bytes in the ring to the peer; the ring can grow when it is full for the first time.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        if self.waits_for_source() {
            return 0;
        }
        self.tx.room().unwrap_or(usize::MAX)
    }

    /// How many bytes have ever come into and gone out of the rings, as seen from here: two numbers
    /// that change whenever readiness may have.
    #[inline]
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let come = self.rx.words().head.load(Ordering::Acquire);
        let named = self.rx.words().posted.load(Ordering::Acquire);
        (come.wrapping_add(named), self.tx.returned())
    }

    /// Whether the program is told that it may write.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !self.waits_for_source() && self.tx.is_writable()
    }

    /// Whether nothing can be put because the peer is still to pull a message before it.
    #[inline]
    fn waits_for_source(&self) -> bool {
        self.sources_out.may_be_open() && self.sources_out.are_open()
    }

    /// Whether the peer can put no more before something is read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rx.room() == Ok(0)
    }

    /// Lets the peer's writer have what has been read, as a reader does that will not come back
    /// soon: under flow control by credits that may not have been due.
    pub fn acknowledge(&self, socket: BorrowedFd<'_>) {
        if self.rx.acknowledge() {
            self.announce_room(socket);
        }
    }

    /// From here on the peer rings a bell when it has put something.
    pub fn begin_sleep(&self) {
        self.own.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The end of what [`End::begin_sleep`] began.
    pub fn end_sleep(&self) {
        self.own.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Sleeps until the peer has put something, for `time` at most: waking from this costs less
    /// than a bell, but only the peer itself can do it, and it may have died.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    pub fn doze(&self, time: &Timespec) -> Result<(), Errno> {
        self.own.doze.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let ends =
            self.peer.parted.load(Ordering::Relaxed) | self.peer.shut_write.load(Ordering::Relaxed);
        if ends != 0 || self.unread() > 0 {
            return Ok(()); // What ends is the kernel's to tell.
        }
        match futex::wait(self.own.doze, futex::Flags::empty(), 1, Some(time)) {
            Err(Errno::INTR) => Err(Errno::INTR),
            _ => Ok(()),
        }
    }

    /// From here on the peer rings a bell, once, when it has made room.
    pub fn want_room(&self) {
        self.own.space_wanted.fetch_or(WANTED_BY_POLL, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// How many bells have been taken from the socket: who takes one that another waits for has to
    /// tell.
    #[inline]
    #[must_use]
    pub fn bells_taken(&self) -> u64 {
        self.rx.words().bells_taken.load(Ordering::Relaxed)
    }

    /// Whether the peer can still ring. Who waits for room of one that cannot, because it has shut
    /// down its half, has to look again and again.
    #[must_use]
    pub fn can_be_rung(&self) -> bool {
        self.peer.shut_write.load(Ordering::Relaxed) == 0 && self.carrier_in() == Carrier::Memory
    }

    /// The word on which a writer sleeps by a futex, and its value, after which it looks for room
    /// once more.
    #[must_use]
    pub fn want_room_by_futex(&self) -> (&'static AtomicU32, u32) {
        let before = self.own.space_wanted.fetch_or(WANTED_BY_FUTEX, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        (self.own.space_wanted, before | WANTED_BY_FUTEX)
    }

    /// The own direction ends (`shutdown(2)` of the writing half): to be called before the kernel
    /// is told.
    pub fn shut_write(&self) {
        // Behind a send that is under way.
        let _held = SharedLock::on(self.tx.words().lock).lock();
        self.own.shut_write.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.wake_dozers();
    }

    /// Nothing more will be read (`shutdown(2)` of the reading half).
    pub fn shut_read(&self) {
        self.own.shut_read.store(1, Ordering::SeqCst);
    }

    /// Whether an end has begun, in either direction, as far as both ends have said so.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let said = |side: &Side| {
            side.shut_write.load(Ordering::Relaxed) != 0
                || side.shut_read.load(Ordering::Relaxed) != 0
                || side.gone.load(Ordering::Relaxed) != 0
        };
        said(&self.own) || said(&self.peer) || self.peer.refs.load(Ordering::Relaxed) == 0
    }

    /// Whether the peer has gone for good.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        self.own.gone.load(Ordering::Relaxed) != 0
    }

    /// `TCP_NODELAY` as the program has set it; `None` while the kernel knows.
    #[must_use]
    pub fn nodelay(&self) -> Option<&AtomicU32> {
        (self.tx.words().switch_at.load(Ordering::Relaxed) != NONE).then_some(self.own.nodelay)
    }

    /// This side wants one-sided operations.
    pub fn extend(&self) {
        self.own.extended.store(1, Ordering::SeqCst);
    }

    /// Whether both sides want one-sided operations, and both directions have left TCP.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        [&self.own, &self.peer].iter().all(|side| side.extended.load(Ordering::Acquire) != 0)
            && [&self.tx, &self.rx]
                .iter()
                .all(|ring| ring.words().switch_at.load(Ordering::Acquire) != NONE)
    }

    /// A process of this side has become another program: the memory that it had is gone.
    pub fn revoke_of(&self, pid: u32) {
        if self.own.extended.load(Ordering::Relaxed) != 0 {
            self.own_grants().revoke_of(pid);
        }
    }

    /// Whether a direction has gone back to TCP for good.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.tx.words().back_at.load(Ordering::Relaxed) != NONE
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

    /// Goes back to TCP in both directions for good: for what the rings cannot carry, and before
    /// the socket goes to somebody who does not know them. What the rings hold is read first, so
    /// the next reader must know them unless [`End::unread`] is 0 after this.
    pub fn leave(&self, socket: BorrowedFd<'_>) {
        let [first, second] = match self.role {
            Role::Connector => [&self.tx, &self.rx],
            Role::Acceptor => [&self.rx, &self.tx],
        };
        let Some(_first) = SharedLock::on(first.words().lock).lock() else { return };
        let Some(held) = SharedLock::on(second.words().lock).lock() else { return };
        if self.tx.words().back_at.load(Ordering::Relaxed) != NONE {
            return;
        }
        // A writer that sleeps until there is room goes on over TCP.
        let wanted = self.peer.space_wanted.swap(0, Ordering::AcqRel);
        if wanted != 0 && self.tx.words().switch_at.load(Ordering::Relaxed) != NONE {
            self.ring_bell(socket, &held);
            let _ = futex::wake(self.peer.space_wanted, futex::Flags::empty(), u32::MAX);
        }
        for ring in [first, second] {
            let words = ring.words();
            if words.switch_at.load(Ordering::Relaxed) == NONE {
                let sent = words.tcp_sent.load(Ordering::Relaxed);
                words.switch_at.store(sent, Ordering::Release);
            }
            words.back_at.store(words.head.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Takes the bells that have come, and returns whether the stream has ended behind what the
    /// rings hold. It is asked for only if it `may_have_ended`.
    ///
    /// # Errors
    /// What the kernel says of the socket, which it says only once.
    pub fn settle(&self, socket: BorrowedFd<'_>, may_have_ended: bool) -> Result<bool, Errno> {
        if self.carrier_in() == Carrier::Tcp {
            return Ok(false);
        }
        let held = SharedLock::on(self.rx.words().reader_lock).lock();
        let Some(_held) = held else { return Ok(false) };
        loop {
            match self.take_bells(socket) {
                Ok(Heard::End) => return self.ended(socket).map(|_| true),
                Ok(Heard::Bytes) => return Ok(false),
                Ok(Heard::Bells(taken)) if taken < bells::AT_ONCE && !may_have_ended => {
                    return Ok(false);
                }
                Ok(Heard::Bells(_)) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => {
                    self.note_reset();
                    return Err(error);
                }
            }
        }
    }

    /// The kernel says that the peer sends no more. If it has not said so itself, it has gone.
    pub fn hang_up(&self) {
        if self.peer.shut_write.load(Ordering::Acquire) == 0 {
            self.own.gone.store(1, Ordering::Relaxed);
        }
    }

    /// Takes the bells that have come, before the socket is closed or goes to somebody who would
    /// take them for data: the kernel resets a connection that is closed with bytes unread.
    pub fn hush(&self, socket: BorrowedFd<'_>) {
        if self.has_switched_in()
            && let Some(_held) = SharedLock::on(self.rx.words().reader_lock).lock()
        {
            while let Ok(Heard::Bells(_)) = self.take_bells(socket) {}
        }
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
}

/// Who one end is.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The kernel's number for the socket (`SO_COOKIE`).
    pub cookie: u64,
    /// The program's name, padded with zeros.
    pub program: [u8; side::PROGRAM_LEN],
}
