//! Sending: into the peer's ring, or over TCP.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, SharedLock};

use super::clock::Clock;
use super::end::{Broken, GRACE, Remote};
use super::window::{COPY, RING_LEN, StateWord, is_set, reset, state};
use super::wire::{Ticket, Wire};
use crate::recv_options::DONTWAIT;

/// Free bytes from which a stream is reported as writable. The reader keeps back the news of fewer
/// bytes than that.
const WRITABLE_LEN: usize = RING_LEN / 2;

/// How long a call that closes waits for the sent bytes to arrive.
const AT_ONCE_NS: u64 = 100_000;

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Sends as many bytes as there is room for (`sendmsg(2)` with `MSG_DONTWAIT`).
    ///
    /// # Errors
    /// `EAGAIN`: there is no room; `EPIPE`, `ECONNRESET` or another error of the kernel's socket;
    /// `EDEADLK`: a signal handler has interrupted the same call of its own thread.
    pub fn try_send(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let held = SharedLock::on(&self.local().tx_lock).lock().ok_or(Errno::DEADLK)?;
        if !self.is_ring_ready() {
            let sent = buffers.send(socket, flags | DONTWAIT)?;
            self.local().tcp_sent.fetch_add(sent as u64, Ordering::Relaxed);
            if self.is_pending() {
                self.starts.sent(buffers, sent);
            }
            return Ok(sent);
        }
        let fall_back = || self.fall_back_held(&held).map_err(|Broken| self.abort(socket));
        if self.peer_falls_back() {
            fall_back()?;
        }
        if self.is_the_kernels_to_send() {
            return self.send_by_kernel(socket, buffers, flags);
        }
        if buffers.is_empty() {
            return Ok(0);
        }
        let put = self.put(buffers).map_err(|Broken| self.abort(socket))?;
        if put == 0 {
            if self.is_broken() {
                return self.send_to_the_dead(socket, buffers, flags);
            }
            return Err(Errno::AGAIN);
        }
        if let Some(stat_slot) = self.stat_slot.get() {
            stat_slot.sent(put);
        }
        if self.peer_falls_back() {
            // The peer may not notice later bytes in the ring any more, but it will read these.
            fall_back()?;
        }
        Ok(put)
    }

    /// Whether the ring carries what is sent next, or has carried it before a fallback. Changes
    /// over to the ring if that is possible now. The caller holds the lock.
    fn is_ring_ready(&self) -> bool {
        if self.has_switched() {
            return true;
        }
        let Some(wire) = self.wire() else { return false };
        let may = self.peer_state_has(state::BEGUN)
            && !wire.is_broken()
            && !is_set(&self.local().shut_write)
            && !is_set(&self.local().falls_back)
            && !self.peer_falls_back()
            && !self.peer_state_has(state::CLOSED);
        let sent = self.local().tcp_sent.load(Ordering::Relaxed);
        if !may || wire.post(&[], StateWord::Switch, sent + 1).is_none() {
            return false;
        }
        self.window.local_state(StateWord::Switch).store(sent + 1, Ordering::Release);
        true
    }

    /// Number of free bytes in the peer's ring.
    fn free(&self) -> Result<usize, Broken> {
        let head = self.window.local_state(StateWord::Head).load(Ordering::Relaxed);
        let tail = self.window.peer_state(StateWord::Tail).load(Ordering::Acquire);
        let used = usize::try_from(head.checked_sub(tail).ok_or(Broken)?).map_err(|_| Broken)?;
        RING_LEN.checked_sub(used).ok_or(Broken)
    }

    /// Posts as many bytes as there is room for, and returns how many. The caller holds the lock.
    fn put(&self, buffers: Buffers<'_>) -> Result<usize, Broken> {
        let Some(wire) = self.wire() else { return Err(Broken) };
        let mut free = self.free()?;
        if free == 0 {
            wire.drive();
            free = self.free()?;
        }
        let first = self.window.local_state(StateWord::Head).load(Ordering::Relaxed);
        let (mut head, mut left) = (first, free);
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() && left > 0 {
                let at = head as usize % RING_LEN;
                let len = (RING_LEN - at).min(left).min(region.len() - done);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                // The peer has taken the bytes that were here, so the Write that carried them is
                // over.
                self.window.memory().copy_from(COPY + at, &part);
                done += len;
                left -= len;
                head = head.wrapping_add(len as u64);
            }
        }
        let len = head.wrapping_sub(first) as usize;
        if len == 0 {
            return Ok(0);
        }
        let at = first as usize % RING_LEN;
        let run = len.min(RING_LEN - at);
        let parts = [(at, run), (0, len - run)];
        let parts = if run == len { &parts[..1] } else { &parts[..] };
        let tail = self.window.local_state(StateWord::Tail);
        if wire.post_head(parts, head, tail).is_none() {
            wire.drive();
            if wire.post_head(parts, head, tail).is_none() {
                return Ok(0); // Too many Writes are under way: treat the ring as full.
            }
        }
        self.window.local_state(StateWord::Head).store(head, Ordering::SeqCst);
        Ok(len)
    }

    /// Free bytes of the peer's ring. Drives the wire if there are few.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.peer_falls_back() || self.is_the_kernels_to_send() || self.is_broken() {
            return usize::MAX; // The next call reports the state.
        }
        let room = || if self.is_crowded() { Ok(0) } else { self.free() };
        match room() {
            Ok(free) if free < WRITABLE_LEN => {
                self.drive();
                room().unwrap_or(usize::MAX)
            }
            free => free.unwrap_or(usize::MAX),
        }
    }

    /// Whether so many Writes are under way that nothing more can be posted.
    pub(super) fn is_crowded(&self) -> bool {
        self.wire().is_some_and(Wire::is_crowded)
    }

    /// Whether the socket is reported as writable.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.room() >= WRITABLE_LEN
    }

    pub(super) fn is_the_kernels_to_send(&self) -> bool {
        self.back_out().is_some() || self.is_send_answered()
    }

    /// Whether the kernel answers a send at once, because this end's writing half is shut, or no
    /// process receives any more.
    #[must_use]
    pub fn is_send_answered(&self) -> bool {
        let state = self.window.peer_state(StateWord::State).load(Ordering::Acquire);
        const BOTH: u64 = state::SHUT_READ | state::SHUT_WRITE;
        is_set(&self.local().gone)
            || is_set(&self.local().shut_write)
            || state & state::CLOSED != 0
            || state & BOTH == BOTH
    }

    fn send_by_kernel(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        if let Some(error) = self.unreported_reset(socket) {
            return Err(error);
        }
        // A peer that has gone takes nothing. One that only seems to have gone, because the wire
        // has ended and it sends no more, must not take these bytes for those that are missing
        // before them.
        if is_set(&self.local().gone)
            && !is_set(&self.local().shut_write)
            && !self.is_reset()
            && self.has_switched()
            && self.may_have_lost()
        {
            return Err(self.abort(socket));
        }
        let sent = buffers.send(socket, flags | DONTWAIT);
        // A shutdown by the program itself says nothing about the peer.
        let may_be_own = is_set(&self.local().shut_write);
        if sent == Err(Errno::CONNRESET) || sent == Err(Errno::PIPE) && !may_be_own {
            self.local().reset.store(reset::REPORTED, Ordering::Relaxed);
        }
        sent
    }

    /// Handles a send after the wire has ended: the peer has died, which the kernel knows, or the
    /// stream cannot go on.
    #[cold]
    fn send_to_the_dead(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        // A peer that has only shut down its half would take these bytes for those that it has not
        // got.
        let asked = PollFlags::HUP | PollFlags::ERR;
        let may_go = self.has_peer_read_all() && !self.peer_state_has(state::SHUT_WRITE);
        let asked = if may_go { asked | PollFlags::RDHUP } else { asked };
        if !self.clock.waits_for(socket, asked, &GRACE) {
            return Err(self.abort(socket));
        }
        self.local().gone.store(1, Ordering::Relaxed);
        self.send_by_kernel(socket, buffers, flags)
    }

    /// Shuts down the sending direction (`shutdown(2)` of the writing half). Called before the
    /// kernel's call. When this returns, everything sent has arrived, or the connection has been
    /// reset.
    pub fn shut_write(&self, socket: BorrowedFd<'_>) {
        let _held = SharedLock::on(&self.local().tx_lock).lock();
        if self.local().shut_write.swap(1, Ordering::SeqCst) == 0
            && !self.add_to_state(state::SHUT_WRITE)
            && self.has_switched()
            && self.may_have_lost()
        {
            self.reset_silently(socket);
        }
    }

    /// Whether the peer may miss bytes that were sent by the ring, if nothing more arrives.
    fn may_have_lost(&self) -> bool {
        !self.has_peer_read_all()
            && self.back_out().is_none()
            && !self.peer_state_has(state::CLOSED)
    }

    /// Publishes bits of the state, which stay set. Returns whether the peer has them.
    pub(super) fn add_to_state(&self, bits: u64) -> bool {
        let before = self.window.local_state(StateWord::State).fetch_or(bits, Ordering::SeqCst);
        self.wire().is_some_and(|wire| !wire.is_broken())
            && self.publish_and_wait(StateWord::State, before | bits)
    }

    /// Records that nothing more will be read (`shutdown(2)` of the reading half). If both halves
    /// are shut, the peer sends through the kernel, which resets the connection.
    pub fn shut_read(&self) {
        if self.local().shut_read.swap(1, Ordering::SeqCst) == 0 && self.wire().is_some() {
            self.add_to_state(state::SHUT_READ);
        }
    }

    /// Prepares for the close of the last descriptor; if `resets`, that close resets the
    /// connection.
    pub fn close(&self, resets: bool) -> Closing {
        let fewer = |refs: u32| refs.checked_sub(1);
        let refs = &self.local().refs;
        if refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer).is_ok() {
            return Closing::Over;
        }
        if resets || self.unread() > 0 {
            // Makes the peer's next call ask the kernel, which soon knows.
            let published =
                self.window.local_state(StateWord::State).fetch_or(state::CLOSED, Ordering::SeqCst);
            self.wire().map(|wire| wire.post(&[], StateWord::State, published | state::CLOSED));
            return Closing::Reset;
        }
        let is_unreported = self.local().reset.load(Ordering::Relaxed) == reset::UNREPORTED;
        if is_unreported {
            return Closing::Reset; // No later call of the program could report it.
        }
        if self.is_broken() && !self.has_fallen_back() && !self.is_reset() {
            return if self.may_have_lost() { Closing::Reset } else { Closing::Over };
        }
        let is_over = self.wire().is_none()
            || self.back_out().is_some()
            || is_set(&self.local().gone)
            || !self.has_switched() && self.switch_in().is_none();
        if is_over {
            return Closing::Over;
        }
        let _held = SharedLock::on(&self.local().tx_lock).lock();
        let bits = state::SHUT_WRITE | state::CLOSED;
        let published =
            self.window.local_state(StateWord::State).fetch_or(bits, Ordering::SeqCst) | bits;
        let mut final_flush = FinalFlush { published, ticket: None };
        let mut closing = None;
        self.drive_until(AT_ONCE_NS, || {
            closing = self.is_closed(&mut final_flush);
            closing.is_some()
        });
        closing.unwrap_or(Closing::Flushing(final_flush))
    }

    /// Whether all bytes sent before the end have arrived, or cannot arrive. Drives the wire.
    pub fn is_closed(&self, final_flush: &mut FinalFlush) -> Option<Closing> {
        let Some(wire) = self.wire() else { return Some(Closing::Over) };
        wire.drive();
        if self.seen() > 0 {
            return Some(Closing::Reset); // No process reads the bytes that have arrived.
        }
        if final_flush.ticket.is_none() {
            final_flush.ticket = wire.post(&[], StateWord::State, final_flush.published);
        }
        let has_arrived = final_flush.ticket.is_some_and(|ticket| wire.done() >= ticket);
        if has_arrived || self.peer_state_has(state::CLOSED) {
            return Some(Closing::Over);
        }
        let broken = || if self.may_have_lost() { Closing::Reset } else { Closing::Over };
        wire.is_broken().then(broken)
    }
}

/// The remaining work before the kernel's socket may be closed.
#[derive(Debug)]
pub enum Closing {
    /// Nothing.
    Over,
    /// Reset the connection, as TCP does: bytes have not been read, or have not arrived.
    Reset,
    /// Wait until [`Remote::is_closed`].
    Flushing(FinalFlush),
}

/// What tells the peer of the end, behind all that was sent.
#[derive(Debug)]
pub struct FinalFlush {
    published: u64,
    ticket: Option<Ticket>,
}
