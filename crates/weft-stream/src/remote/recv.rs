//! Receiving: from TCP, and from the ring.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::{RecvFlags, recv};
use weft_sys::{Buffers, SharedLock};

use super::clock::Clock;
use super::end::{Broken, GRACE, Remote, TIMEOUT_NS};
use super::window::{RING, RING_LEN, StateWord, is_set, state};
use super::wire::Wire;
use crate::delivery;
use crate::end::Carrier;
use crate::kernel::Linux;
use crate::recv_options::RecvOptions;
use crate::tcp_recv::recv_over_tcp;

/// What the kernel's socket has for a reader of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelState {
    /// Bytes of the last TCP phase.
    Bytes,
    /// The end of the peer's stream.
    End,
}

impl<W: Wire, C: Clock> Remote<W, C> {
    /// Receives the bytes that are there (`recvmsg(2)` with `MSG_DONTWAIT`). 0 means that the
    /// stream has ended.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there; `ECONNRESET` or another error of the kernel's socket; `EDEADLK`
    /// as for [`Remote::try_send`].
    pub fn try_recv(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        let _held = SharedLock::on(&self.local().rx_lock).lock().ok_or(Errno::DEADLK)?;
        self.recv_held(socket, buffers, options)
    }

    /// Peeks at the bytes that are there, shows them to `deliver`, and takes as many of them as
    /// that returns. No other thread receives meanwhile. Returns how many it has taken.
    ///
    /// # Errors
    /// As [`Remote::try_recv`].
    pub fn recv_delivered(
        &self,
        socket: BorrowedFd<'_>,
        bytes: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<usize, Errno> {
        let _held = SharedLock::on(&self.local().rx_lock).lock().ok_or(Errno::DEADLK)?;
        delivery::deliver(bytes, deliver, &mut |buffers, options| {
            self.recv_held(socket, buffers, options)
        })
    }

    /// Receives as [`Remote::try_recv`]. The caller holds the lock.
    fn recv_held(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        loop {
            let read = self.local().tcp_read.load(Ordering::Relaxed);
            if self.switch_in().is_none_or(|switch| read < switch) {
                match self.recv_over_tcp(socket, buffers, options) {
                    Ok(Some(received)) => return self.unless_unreported(socket, buffers, received),
                    Ok(None) => continue,
                    // Bytes that are still to come over TCP do not need the wire.
                    Err(Errno::AGAIN) if self.is_cut() && self.switch_in().is_none() => {
                        match self.dead(socket) {
                            // The connection does not count as cut any more.
                            Err(Errno::AGAIN) => continue,
                            ended => return ended,
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            let taken = self.take(buffers, options).map_err(|Broken| self.abort(socket))?;
            if taken > 0 {
                return Ok(taken);
            }
            // Even a call for no bytes waits until there are some (`tcp_recvmsg`).
            if buffers.is_empty() && self.unread() > 0 {
                return Ok(0);
            }
            let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
            if self.back_in() == Some(tail) {
                let received = recv_over_tcp::<Linux>(socket, buffers, usize::MAX, options)?;
                return self.unless_unreported(socket, buffers, received);
            }
            if !options.look {
                return Err(Errno::AGAIN);
            }
            let answer = self.look_at_kernel(socket);
            fence(Ordering::SeqCst);
            if self.unread() > 0 {
                continue;
            }
            match answer {
                Ok(KernelState::End) => {
                    self.unless_unreported(socket, buffers, 0)?;
                    if let Some(ended) = self.ended(socket)? {
                        return Ok(ended);
                    }
                }
                // These bytes follow bytes of the ring that never arrive.
                Ok(KernelState::Bytes) if !self.wait_for_the_rest() => {
                    return Err(self.abort(socket));
                }
                Ok(KernelState::Bytes) => {}
                // If an end has fallen back, everything that follows comes over TCP, an end
                // included.
                Err(Errno::AGAIN)
                    if self.is_broken() && self.available() == Ok(0) && !self.has_fallen_back() =>
                {
                    return self.dead(socket);
                }
                Err(error) => {
                    if error != Errno::AGAIN {
                        self.note_reset();
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Maps the kernel's EOF, unless a reset has not been reported to the program yet.
    fn unless_unreported(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        received: usize,
    ) -> Result<usize, Errno> {
        if received > 0 || buffers.is_empty() {
            return Ok(received);
        }
        self.unreported_reset(socket).map_or(Ok(received), Err)
    }

    /// Receives in the first TCP phase. `None` if the phase has just ended.
    fn recv_over_tcp(
        &self,
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<Option<usize>, Errno> {
        let before = self.local().tcp_read.load(Ordering::Relaxed);
        let most = match self.switch_in() {
            None => match buffers.recv(socket, RecvOptions::COUNT.flags()) {
                Ok(_) | Err(Errno::AGAIN) if self.switch_in().is_some() => return Ok(None),
                Ok(0) => return Ok(Some(0)),
                come => come? as u64,
            },
            // The peer may have ended the phase at the bytes that have been read. A call for no
            // bytes would return 0 if the peer's FIN were there.
            Some(switch) if switch <= before => return Ok(None),
            Some(switch) => switch - before,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let received = match recv_over_tcp::<Linux>(socket, buffers, most, options) {
            Ok(received) => received,
            Err(Errno::AGAIN) if self.switch_in() == Some(before) => return Ok(None),
            Err(error) => return Err(error),
        };
        if !options.keep {
            let read = before + received as u64;
            self.local().tcp_read.store(read, Ordering::Relaxed);
            if self.is_pending() && options.discard {
                self.starts.skipped();
            } else if self.is_pending() {
                self.starts.received(buffers, received);
            }
            if self.switch_in() == Some(read) && self.local().sleepers.load(Ordering::Relaxed) > 0 {
                self.wakeup_fd.ring(); // The ring had bytes before.
            }
        }
        Ok(Some(received))
    }

    /// Takes bytes out of the ring, and publishes the room to the peer when there is enough.
    fn take(&self, buffers: Buffers<'_>, options: RecvOptions) -> Result<usize, Broken> {
        let available = match self.available()? {
            0 => {
                self.drive();
                self.available()?
            }
            some => some,
        };
        let first = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        let (mut tail, mut left) = (first, available);
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() && left > 0 {
                let at = tail as usize % RING_LEN;
                let len = (RING_LEN - at).min(left).min(region.len() - done);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                if !options.discard {
                    self.window.memory().copy_to(RING + at, &part);
                }
                done += len;
                left -= len;
                tail = tail.wrapping_add(len as u64);
            }
        }
        let len = tail.wrapping_sub(first) as usize;
        if !options.keep && len > 0 {
            self.window.local_state(StateWord::Tail).store(tail, Ordering::Release);
            if let Some(stat_slot) = self.stat_slot.get() {
                stat_slot.received(len);
            }
            self.report_tail(tail, RING_LEN / 4);
        }
        Ok(len)
    }

    /// Publishes the tail to the peer, if at least `least` bytes are new. The caller holds the
    /// lock.
    pub(super) fn report_tail(&self, tail: u64, least: usize) {
        if self.is_new_tail(tail, least)
            && let Some(wire) = self.wire()
            && wire.post(&[], StateWord::Tail, tail).is_some()
        {
            self.local().reported_tail.store(tail, Ordering::Relaxed);
        }
    }

    /// Whether the peer does not know about the last `least` bytes taken.
    pub(super) fn is_new_tail(&self, tail: u64, least: usize) -> bool {
        let reported = self.local().reported_tail.load(Ordering::Relaxed);
        tail.wrapping_sub(reported) >= least as u64
    }

    /// Peeks at what the socket has for a reader of the ring.
    fn look_at_kernel(&self, socket: BorrowedFd<'_>) -> Result<KernelState, Errno> {
        let mut byte = [0];
        let (seen, _) = recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
        Ok(if seen == 0 { KernelState::End } else { KernelState::Bytes })
    }

    /// Waits for the bytes that the peer put before it fell back, and returns whether all are here.
    fn wait_for_the_rest(&self) -> bool {
        let head = || self.window.peer_state(StateWord::Head).load(Ordering::Acquire);
        // A position that has been read already is a lie: it would block the caller until the
        // timeout.
        let tail = self.window.local_state(StateWord::Tail).load(Ordering::Relaxed);
        let is_here = || self.back_in().is_some_and(|back| back >= tail && head() >= back);
        self.drive_until(TIMEOUT_NS, || is_here() || self.is_broken()) && is_here()
    }

    /// Handles the kernel's end of stream while the ring is empty. `None` if something has come
    /// meanwhile.
    fn ended(&self, socket: BorrowedFd<'_>) -> Result<Option<usize>, Errno> {
        if is_set(&self.local().shut_read) || self.switch_in().is_none() {
            return Ok(Some(0));
        }
        if !self.peer_state_has(state::SHUT_WRITE) && self.back_in().is_none() {
            // The peer has died, or soon publishes that it has ended: its bytes come before either.
            let is_known = || self.is_broken() || self.peer_state_has(state::SHUT_WRITE);
            let is_known = self.drive_until(TIMEOUT_NS, is_known);
            if self.unread() > 0 {
                return Ok(None);
            }
            if !is_known || self.is_broken() {
                return self.dead(socket).map(Some);
            }
        }
        Ok((self.unread() == 0).then_some(0))
    }

    /// Handles the death of a peer of which everything that came has been read. `EAGAIN` if the
    /// peer has not left TCP, and bytes are still to be read there.
    fn dead(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.local().gone.store(1, Ordering::Relaxed);
        if let Some(error) = self.unreported_reset(socket) {
            return Err(error);
        }
        if self.switch_in().is_some() && self.peer_state_has(state::SHUT_WRITE) {
            return Ok(0);
        }
        // The end of the kernel's connection may come after that of the wire.
        self.clock.waits_for(socket, PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR, &GRACE);
        let mut byte = [0];
        let ended = recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK);
        match ended {
            Ok((0, _)) if self.has_peer_read_all() => Ok(0),
            Ok((1.., _)) if self.switch_in().is_none() => Err(Errno::AGAIN),
            _ if is_set(&self.local().reset) => Ok(0),
            Err(error) if error != Errno::AGAIN => {
                self.note_reset();
                Err(error)
            }
            _ => Err(self.abort(socket)),
        }
    }

    /// Whether the peer has read everything that this end has sent. TCP resets a connection when
    /// the closing end has unread bytes; the kernel of a killed peer did not know of those in the
    /// ring. Bytes whose reading the peer has not published count as unread.
    pub(super) fn has_peer_read_all(&self) -> bool {
        let head = self.window.local_state(StateWord::Head).load(Ordering::Relaxed);
        head == self.window.peer_state(StateWord::Tail).load(Ordering::Relaxed)
    }

    /// Returns whether the stream has ended behind the bytes in the ring. The kernel is asked only
    /// if the stream `may_have_ended`. No wakeup is taken, however many threads sleep.
    ///
    /// # Errors
    /// An error of the socket, which the kernel reports only once.
    pub fn settle(
        &self,
        socket: BorrowedFd<'_>,
        may_have_ended: bool,
        _own: u32,
    ) -> Result<bool, Errno> {
        if !may_have_ended || self.carrier_in() == Carrier::Tcp {
            return Ok(false);
        }
        let Some(_held) = SharedLock::on(&self.local().rx_lock).lock() else {
            return Ok(false);
        };
        match self.look_at_kernel(socket) {
            Ok(KernelState::End) if self.unread() > 0 => Ok(true),
            Ok(KernelState::End) => match self.unreported_reset(socket) {
                Some(error) => Err(error),
                None => self.ended(socket).map(|_| true),
            },
            Ok(KernelState::Bytes) | Err(Errno::AGAIN) => Ok(false),
            Err(error) => {
                self.note_reset();
                Err(error)
            }
        }
    }
}
