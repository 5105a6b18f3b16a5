//! One end of a connection to another host: its state, and its getters.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weft_sys::SectionOnce;

use weft_sys::calls::event::Timespec;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::{Shutdown, connect_unspec, shutdown, sockopt};

use super::clock::{Clock, SystemClock};
use super::proof::{Moved, Proof, Starts};
use super::wakeup_fd::WakeupFd;
use super::window::{Local, RING_LEN, StateWord, Window, is_set, reset, state};
use super::wire::{Ticket, Wire};
use crate::Role;
use crate::end::Carrier;
use crate::stat_slot::StatSlot;

/// The peer has written impossible values, or the wire has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// How long bytes under way may take, where a call has to wait for them (at the end of a stream,
/// and when falling back to TCP), before the connection counts as broken.
pub(super) const FLUSH_NS: u64 = 2_000_000_000;
/// How long a call waits for the state word of a peer whose end or answer is expected.
pub(super) const TIMEOUT_NS: u64 = 1_000_000_000;

/// How long the end of the kernel's connection may come after that of the wire.
pub(super) const GRACE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Values of the word that says whether a connection gets a wire.
mod decision {
    pub(super) const PENDING: u32 = 0;
    pub(super) const OFF: u32 = 1;
    pub(super) const BEGUN: u32 = 2;
}

/// One end of a connection to another host that is, or may come to be, carried by a [`Wire`].
#[derive(Debug)]
pub struct Remote<W, C = SystemClock> {
    pub(super) clock: C,
    pub(super) window: Window,
    wire: SectionOnce<W>,
    /// Whether the connection gets a wire: a value of [`decision`].
    decision: AtomicU32,
    /// The wire belongs to a parent of this process.
    disowned: AtomicU32,
    pub(super) stat_slot: SectionOnce<StatSlot>,
    pub(super) wakeup_fd: Arc<WakeupFd>,
    pub(super) starts: Starts,
}

impl<W: Wire> Remote<W> {
    /// Creates the end of a connection over which nothing has been sent or read yet.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and similar errors.
    pub fn new() -> Result<Self, Errno> {
        Self::with_clock(SystemClock)
    }
}

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Creates an end that waits by this clock.
    ///
    /// # Errors
    /// Those of [`Remote::new`].
    pub fn with_clock(clock: C) -> Result<Self, Errno> {
        Ok(Self {
            clock,
            window: Window::new()?,
            wire: SectionOnce::new(),
            decision: AtomicU32::new(decision::PENDING),
            disowned: AtomicU32::new(0),
            stat_slot: SectionOnce::new(),
            wakeup_fd: Arc::new(WakeupFd::new()?),
            starts: Starts::new(),
        })
    }

    /// How many of the stream's first bytes this end, whose role is `own`, can prove to know.
    /// `None` if it cannot prove any.
    #[must_use]
    pub fn moved(&self, own: Role) -> Option<Moved> {
        self.starts.moved(own)
    }

    /// The proof that the end `prover` knows the first bytes of the stream, computed by the end
    /// `own`. `None` if this end does not know that many bytes, or if they are too few.
    #[must_use]
    pub fn proof(&self, own: Role, prover: Role, moved: Moved, message: &[u8]) -> Option<Proof> {
        self.starts.proof(own, prover, moved, message)
    }

    /// The memory that the wire has to be made for.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Wakes the sleepers. The service thread notifies it of what the peer writes into
    /// [`PEER_STATE`](super::window::PEER_STATE).
    #[must_use]
    pub fn wakeup_fd(&self) -> &Arc<WakeupFd> {
        &self.wakeup_fd
    }

    /// Attaches the slot by which observers of this host see the connection.
    pub fn show(&self, stat_slot: StatSlot) {
        let _ = self.stat_slot.set(stat_slot); // Only the first call counts.
    }

    /// Starts using the wire: from now on this end reads what comes over it, and publishes that.
    /// Its sender leaves TCP once the peer has published the same. If this end has given up
    /// meanwhile, the wire is dropped, by which the peer learns it.
    pub fn begin(&self, wire: W) {
        if !self.decide(decision::BEGUN) {
            return;
        }
        if let Some(stat_slot) = self.stat_slot.get() {
            stat_slot.begun();
        }
        let _ = self.wire.set(wire); // Only the first call counts.
        self.publish_begin();
        self.answer_leave(); // The peer may have begun, and fallen back, before.
    }

    /// Publishes that this end has begun, with the state from before there was a wire.
    fn publish_begin(&self) {
        let Some(wire) = self.wire() else { return };
        let word = self.window.local_state(StateWord::State);
        let mut state = word.fetch_or(state::BEGUN, Ordering::SeqCst) | state::BEGUN;
        loop {
            let posted = state;
            if wire.post(&[], StateWord::State, posted).is_none() {
                return; // It is broken: the peer stays on TCP.
            }
            // Bits that another thread has published meanwhile would be taken back.
            state = word.load(Ordering::SeqCst);
            if state == posted {
                return;
            }
        }
    }

    /// Gives up waiting for a wire: the connection stays on TCP. Does nothing if it has one.
    pub fn give_up(&self) {
        if self.decide(decision::OFF)
            && let Some(stat_slot) = self.stat_slot.get().filter(|_| self.is_owner())
        {
            stat_slot.given_up();
        }
    }

    /// Decides whether the connection gets a wire. Returns `false` if that has been decided.
    fn decide(&self, decision: u32) -> bool {
        let pending = decision::PENDING;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.decision.compare_exchange(pending, decision, success, failure).is_ok()
    }

    /// Whether the connection stays on TCP for good.
    pub fn is_off(&self) -> bool {
        self.decision.load(Ordering::Acquire) == decision::OFF
    }

    /// Whether it is not decided yet what carries the connection.
    pub fn is_pending(&self) -> bool {
        !self.is_off() && self.wire.get().is_none()
    }

    /// The wire, in the process that may use it.
    pub(super) fn wire(&self) -> Option<&W> {
        self.wire.get().filter(|_| self.is_owner())
    }

    /// Whether this process made the connection. Children only share what has come.
    pub fn is_owner(&self) -> bool {
        self.disowned.load(Ordering::Relaxed) == 0
    }

    /// Called in a child just born, whose parent owns the wire.
    pub fn disown(&self) {
        self.disowned.store(1, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.wire().is_some_and(Wire::is_broken)
    }

    /// The words of this end that all processes which share it use.
    pub(super) fn local(&self) -> &Local {
        self.window.local()
    }

    pub(super) fn peer_state_has(&self, bits: u64) -> bool {
        self.window.peer_state(StateWord::State).load(Ordering::Acquire) & bits != 0
    }

    /// Whether the ring has begun to carry the sending direction.
    pub(super) fn has_switched(&self) -> bool {
        self.window.local_state(StateWord::Switch).load(Ordering::Acquire) != 0
    }

    /// The position at which the peer has left TCP; `None` if it has not.
    pub(super) fn switch_in(&self) -> Option<u64> {
        self.window.peer_state(StateWord::Switch).load(Ordering::Acquire).checked_sub(1)
    }

    /// The position from which this end sends over TCP again.
    pub(super) fn back_out(&self) -> Option<u64> {
        self.window.local_state(StateWord::Back).load(Ordering::Acquire).checked_sub(1)
    }

    /// The position from which the peer sends over TCP again.
    pub(super) fn back_in(&self) -> Option<u64> {
        self.window.peer_state(StateWord::Back).load(Ordering::Acquire).checked_sub(1)
    }

    /// What carries the bytes to be read next.
    #[must_use]
    pub fn carrier_in(&self) -> Carrier {
        let read = self.local().tcp_read.load(Ordering::Relaxed);
        let before = self.switch_in().is_none_or(|switch| read < switch);
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        if before || self.back_in() == Some(tail) { Carrier::Tcp } else { Carrier::Memory }
    }

    /// What carries the bytes to be sent next.
    #[must_use]
    pub fn carrier_out(&self) -> Carrier {
        if !self.has_switched() || self.back_out().is_some() {
            Carrier::Tcp
        } else {
            Carrier::Memory
        }
    }

    /// Number of bytes that have come by the ring and have not been read.
    pub(super) fn available(&self) -> Result<usize, Broken> {
        let head = self.window.peer_state(StateWord::Head).load(Ordering::Acquire);
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        let used = head.checked_sub(tail).ok_or(Broken)?;
        usize::try_from(used).ok().filter(|&used| used <= RING_LEN).ok_or(Broken)
    }

    /// Number of unread bytes that have come by the ring. Drives the wire if there are none.
    #[must_use]
    pub fn unread(&self) -> usize {
        match self.seen() {
            0 if self.carrier_in() == Carrier::Memory => {
                self.drive();
                self.seen()
            }
            seen => seen,
        }
    }

    /// Number of unread bytes that came before the wire was last driven.
    #[must_use]
    pub fn seen(&self) -> usize {
        match self.carrier_in() {
            Carrier::Tcp => 0,
            Carrier::Memory => self.available().unwrap_or(1), // The next call reports the error.
        }
    }

    /// Counts of what has come in, and of what the peer has taken: numbers that change whenever
    /// readiness may have changed.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let come = self.window.peer_state(StateWord::Head).load(Ordering::Acquire);
        (come, self.window.peer_state(StateWord::Tail).load(Ordering::Relaxed))
    }

    /// Whether the peer can put nothing more before this side reads.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.available() == Ok(RING_LEN)
    }

    /// Drives the wire.
    pub fn drive(&self) {
        if let Some(wire) = self.wire() {
            wire.drive();
        }
    }

    /// Drives the wire until `is_so` holds, for `limit` nanoseconds at most. Returns whether it
    /// does.
    pub(super) fn drive_until(&self, limit: u64, mut is_so: impl FnMut() -> bool) -> bool {
        const BUSY_NS: u64 = 50_000;
        let began = self.clock.now();
        loop {
            if is_so() {
                return true;
            }
            self.drive();
            let waited = self.clock.now() - began;
            if waited >= limit {
                return is_so();
            }
            if waited > BUSY_NS {
                self.clock.sleep(20_000);
            }
        }
    }

    /// Waits until everything posted up to `ticket` has taken effect. `false` if it has not.
    pub(super) fn wait_for(&self, ticket: Ticket, limit: u64) -> bool {
        let Some(wire) = self.wire() else { return false };
        self.drive_until(limit, || wire.done() >= ticket || wire.is_broken())
            && wire.done() >= ticket
    }

    /// Publishes a word that was 0, or bits with those that were set before, and waits until the
    /// peer has it. Returns whether it does.
    pub(super) fn publish_and_wait(&self, word: StateWord, value: u64) -> bool {
        self.window.local_state(word).fetch_or(value, Ordering::SeqCst);
        let Some(wire) = self.wire() else { return false };
        let mut ticket = None;
        let posted = self.drive_until(FLUSH_NS, || {
            ticket = wire.post(&[], word, value);
            ticket.is_some() || wire.is_broken()
        });
        posted && ticket.is_some_and(|ticket| self.wait_for(ticket, FLUSH_NS))
    }

    /// Counts another process that has the socket.
    pub fn retain(&self) {
        self.local().refs.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether other processes still need what this process's wire brings.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.is_owner()
            && self.local().refs.load(Ordering::Acquire) > 0
            && self.switch_in().is_some()
            && self.back_in().is_none()
    }

    /// Whether the peer has gone for good.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        is_set(&self.local().gone)
    }

    /// Whether the peer has shut down its writing half, so that the stream ends behind the unread
    /// bytes.
    #[must_use]
    pub fn has_peer_shut(&self) -> bool {
        self.peer_state_has(state::SHUT_WRITE)
    }

    /// Whether either direction has begun to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        is_set(&self.local().gone)
            || is_set(&self.local().shut_read)
            || is_set(&self.local().shut_write)
            || self.peer_state_has(state::SHUT_WRITE | state::CLOSED)
            || self.is_broken()
    }

    /// Records that the kernel has reported a reset.
    pub fn note_reset(&self) {
        self.local().gone.store(1, Ordering::Relaxed);
        self.local().reset.store(reset::REPORTED, Ordering::Relaxed);
    }

    /// Notes that the kernel has reported the end of what the peer sends. If the peer has not
    /// published a shutdown, which arrives earlier, it has gone.
    pub fn hang_up(&self) {
        if self.wire().is_none() {
            return; // The kernel carries the connection, and knows.
        }
        let is_known = || self.peer_state_has(state::SHUT_WRITE) || self.is_broken();
        if !self.drive_until(TIMEOUT_NS, is_known) || !self.peer_state_has(state::SHUT_WRITE) {
            self.local().gone.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the wire has ended before it carried all bytes. The next call reports that, and ends
    /// the connection.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_broken()
            && (self.has_switched() || self.switch_in().is_some())
            && !self.has_fallen_back()
            && !is_set(&self.local().gone)
            && !self.peer_state_has(state::CLOSED) // The kernel's connection ends soon.
    }

    /// Resets a connection whose stream cannot go on, and returns the error for the program.
    #[cold]
    pub(super) fn abort(&self, socket: BorrowedFd<'_>) -> Errno {
        self.local().gone.store(1, Ordering::Relaxed);
        if self.local().reset.swap(reset::REPORTED, Ordering::Relaxed) != reset::REPORTED {
            let _ = sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
            let _ = connect_unspec(socket);
            let _ = shutdown(socket, Shutdown::Both);
            let _ = sockopt::socket_error(socket);
        }
        Errno::CONNRESET
    }

    /// Resets the connection in a call that cannot report the error. A dead peer does not notice. A
    /// live peer, which may have shut down its own half just now, must not treat the truncated
    /// stream as complete.
    pub(super) fn reset_silently(&self, socket: BorrowedFd<'_>) {
        if self.local().reset.load(Ordering::Relaxed) != reset::REPORTED {
            self.abort(socket);
            self.keep_reset();
        }
    }

    /// Records a reset that a call without a result has found. The next call resets the connection,
    /// and reports the error.
    pub(super) fn keep_reset(&self) {
        self.local().gone.store(1, Ordering::Relaxed);
        self.local().reset.store(reset::UNREPORTED, Ordering::Relaxed);
    }

    /// Whether a reset has been reported to the program, or will be.
    pub(super) fn is_reset(&self) -> bool {
        self.local().reset.load(Ordering::Relaxed) != reset::NONE
    }

    /// Reports a reset that was found where it could not be reported, once.
    pub(super) fn unreported_reset(&self, socket: BorrowedFd<'_>) -> Option<Errno> {
        let is_unreported = self.local().reset.load(Ordering::Relaxed) == reset::UNREPORTED;
        is_unreported.then(|| self.abort(socket))
    }
}

impl<W, C> Drop for Remote<W, C> {
    fn drop(&mut self) {
        let (wire, stat_slot) = (self.wire.take(), self.stat_slot.take());
        if self.disowned.load(Ordering::Relaxed) != 0 {
            std::mem::forget((wire, stat_slot)); // They belong to a parent.
        } else {
            drop(wire); // Before the window, into which the peer writes through the wire.
        }
    }
}
