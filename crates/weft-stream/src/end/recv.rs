//! Receiving: from TCP, from the ring and from sources; and waking writers that wait for room.

use std::sync::atomic::{Ordering, fence};

use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, SharedGuard};

use super::wakeups::Drained;
use super::{End, Look, WANTED_BY_FUTEX, WANTED_BY_POLL};
use crate::delivery;
use crate::kernel::{Kernel, is_descriptor_error};
use crate::pullers;
use crate::recv_options::RecvOptions;
use crate::ring::Broken;
use crate::tcp_recv::recv_over_tcp;
use crate::words::NONE;

impl<K: Kernel> End<K> {
    /// Receives the bytes that are there (`recvmsg(2)` with `MSG_DONTWAIT`). 0 means that the
    /// stream has ended.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there; `ECONNRESET` or another error of the kernel's socket; `EDEADLK`
    /// as for [`End::try_send`].
    #[inline]
    pub fn try_recv(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        self.advance(socket);
        let _held = Self::lock(&self.rx.words().reader_lock).ok_or(Errno::DEADLK)?;
        self.recv_held(socket, buffers, options)
    }

    /// Peeks at the bytes that are there, shows them to `deliver`, and takes as many of them as
    /// that returns. No other thread or process receives meanwhile. Returns how many it has taken.
    ///
    /// # Errors
    /// As [`End::try_recv`].
    #[cold]
    pub fn recv_delivered(
        &self,
        socket: K::Socket<'_>,
        bytes: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<usize, Errno> {
        self.advance(socket);
        let _held = Self::lock(&self.rx.words().reader_lock).ok_or(Errno::DEADLK)?;
        delivery::deliver(bytes, deliver, &mut |buffers, options| {
            self.recv_held(socket, buffers, options)
        })
    }

    /// Receives as [`End::try_recv`]. The caller holds the reader's lock.
    #[inline]
    fn recv_held(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        let words = self.rx.words();
        if self.is_torn() {
            self.own.gone.store(1, Ordering::Relaxed);
            return self.reset(socket).map(|()| 0);
        }
        loop {
            let shm_start_seq = words.shm_start_seq.load(Ordering::Acquire);
            let tcp_read = words.tcp_read.load(Ordering::Relaxed);
            if tcp_read < shm_start_seq {
                if self.forget_phases() {
                    continue;
                }
                match self.recv_over_tcp(socket, buffers, options)? {
                    Some(received) => {
                        let rest = buffers.after(received);
                        return Ok(received + self.recv_behind_tcp(socket, rest, options, received));
                    }
                    None => continue,
                }
            }
            K::moment();
            let taken = self.take_from_ring(buffers, options)?;
            let named = self.src_avails_in.may_be_open();
            let pulled = if named { self.pull(socket, buffers, options, taken)? } else { 0 };
            if taken + pulled > 0 {
                if taken > 0 && !options.keep {
                    self.announce_room(socket);
                }
                let all = taken + pulled;
                if words.tcp_resume_seq.load(Ordering::Relaxed) != NONE {
                    return Ok(
                        all + self.recv_behind_memory(socket, buffers.after(all), options, all)
                    );
                }
                return Ok(all);
            }
            // Even a call for no bytes waits until there are some (`tcp_recvmsg`).
            if buffers.is_empty() && self.available()? > 0 {
                return Ok(0);
            }
            K::moment();
            if self.is_back() {
                // Sources that the peer has posted meanwhile, before it fell back, come first.
                if self.src_avails_in.are_open() && self.own.gone.load(Ordering::Relaxed) == 0 {
                    if named {
                        return Err(Errno::AGAIN); // This end cannot pull them: their sender moves.
                    }
                    continue;
                }
                self.take_last_wakeups(socket)?;
                let received = recv_over_tcp::<K>(socket, buffers, usize::MAX, options)
                    .inspect_err(|&errno| self.note_if_reset(errno))?;
                if received == 0
                    && !buffers.is_empty()
                    && self.unsent() > 0
                    && self.is_peer_killed()
                {
                    return self.ended(socket); // The killed peer has left bytes unread in memory.
                }
                return Ok(received);
            }
            if !options.look {
                return Err(Errno::AGAIN);
            }
            if let Some(ended) = self.ask_kernel(socket)? {
                return Ok(ended);
            }
        }
    }

    /// Receives as [`End::try_recv`] does, but bytes that were there before the call, in a source
    /// that its sender withdraws at this moment, are there for the call as well: what poll has
    /// reported as readable can be read.
    ///
    /// # Errors
    /// As [`End::try_recv`].
    pub fn try_recv_shown(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        let mut options = options;
        self.look_until_settled(|_| {
            let received = self.try_recv(socket, buffers, options);
            options.look = true; // The sender may have died meanwhile.
            let is_there = received != Err(Errno::AGAIN);
            (received, if is_there { Look::Enough } else { Look::Nothing })
        })
    }

    #[inline]
    fn take_from_ring(&self, buffers: Buffers<'_>, options: RecvOptions) -> Result<usize, Broken> {
        if options.discard && options.keep {
            self.rx.available().map(|bytes| bytes.min(buffers.len()))
        } else if options.discard {
            self.rx.skip(buffers.len())
        } else {
            self.rx.take(buffers, options.keep)
        }
    }

    /// After `received` bytes of the first TCP phase, takes what the ring holds, all in one call,
    /// as TCP delivers everything that is there. An error is left to the next call.
    #[cold]
    fn recv_behind_tcp(
        &self,
        socket: K::Socket<'_>,
        rest: Buffers<'_>,
        options: RecvOptions,
        received: usize,
    ) -> usize {
        let words = self.rx.words();
        let kept = if options.keep { received as u64 } else { 0 };
        let read = words.tcp_read.load(Ordering::Relaxed) + kept;
        if received == 0 || rest.is_empty() || read < words.shm_start_seq.load(Ordering::Acquire) {
            return 0;
        }
        let taken = self.take_from_ring(rest, options).unwrap_or(0);
        if options.keep {
            // The kernel cannot peek beyond the bytes of the first phase that stay in its queue.
            return taken;
        }
        if taken > 0 {
            self.announce_room(socket);
        }
        taken + self.recv_behind_memory(socket, rest.after(taken), options, taken)
    }

    /// After all bytes in memory, receives bytes that came by TCP behind them. `kept` bytes are
    /// still in memory if the call only peeks.
    #[cold]
    fn recv_behind_memory(
        &self,
        socket: K::Socket<'_>,
        rest: Buffers<'_>,
        options: RecvOptions,
        kept: usize,
    ) -> usize {
        let words = self.rx.words();
        let kept = if options.keep { kept as u64 } else { 0 };
        let tail = words.tail.load(Ordering::Relaxed) + kept;
        let is_next =
            words.tcp_resume_seq.load(Ordering::Acquire) == tail && !self.src_avails_in.are_open();
        if rest.is_empty() || !is_next {
            return 0;
        }
        // The kernel's count ends before urgent data. A call that has received something ends
        // there, too.
        let come = |socket| K::unread(socket).unwrap_or(0);
        let wakeups = usize::try_from(self.wakeups_left()).unwrap_or(usize::MAX);
        if come(socket) <= wakeups
            || self.take_last_wakeups(socket).is_err()
            || self.wakeups_left() > 0
        {
            return 0;
        }
        match come(socket) {
            0 => 0,
            most => K::recv(socket, rest, most, options.flags()).unwrap_or(0),
        }
    }

    /// Fills the buffers from the peer's memory, behind the `taken` bytes of the ring.
    ///
    /// # Errors
    /// `ECONNRESET` if there is nothing else: the process that deferred a send died before it was
    /// pulled.
    #[cold]
    pub(super) fn pull(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
        taken: usize,
    ) -> Result<usize, Errno> {
        let kept = if options.keep { taken } else { 0 };
        let is_next = || self.rx.available() == Ok(kept);
        let is_peer = |pid| pullers::is_side(self.registry, self.slot, self.role.other(), pid);
        let rest = buffers.after(taken);
        let pulled = self.src_avails_in.pull(rest, options.keep, options.discard, is_next, is_peer);
        if pulled.over && self.peer.waits().is_room_wanted() {
            self.announce_room_to_waiter(socket);
        }
        if pulled.lost && taken + pulled.bytes == 0 {
            self.own.gone.store(1, Ordering::Relaxed);
            self.reset(socket)?;
        }
        Ok(pulled.bytes)
    }

    /// Receives in the first TCP phase. `None` if the phase has just ended.
    #[cold]
    fn recv_over_tcp(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<Option<usize>, Errno> {
        let words = self.rx.words();
        K::moment();
        let before = words.tcp_read.load(Ordering::Relaxed);
        let is_decided = || words.shm_start_seq.load(Ordering::Acquire) != NONE;
        let most = match words.shm_start_seq.load(Ordering::Acquire) {
            NONE => {
                // Later bytes may be wakeups. All bytes counted here are stream bytes, because the
                // peer publishes the end of the phase before it sends a wakeup.
                match K::recv(socket, buffers, usize::MAX, RecvOptions::COUNT.flags()) {
                    Ok(_) | Err(Errno::AGAIN) if is_decided() => return Ok(None),
                    Ok(0) => return Ok(Some(0)),
                    come => come? as u64,
                }
            }
            shm_start_seq => shm_start_seq.saturating_sub(before),
        };
        // Behind the last byte of the first phase there may be wakeups, and bytes of the last
        // phase. The peer may have ended the phase at the bytes that have been read. A call for no
        // bytes would return 0 if a wakeup or the peer's FIN were there, which means the end of the
        // stream.
        if most == 0 {
            return Ok(None);
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let received = match recv_over_tcp::<K>(socket, buffers, most, options) {
            Ok(received) => received,
            Err(Errno::AGAIN) if words.shm_start_seq.load(Ordering::Acquire) == before => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !options.keep {
            words.tcp_read.store(before + received as u64, Ordering::Relaxed);
        }
        Ok(Some(received))
    }

    /// Asks the kernel, since the rings are empty, whether the stream has ended: `Some(0)` if so,
    /// `None` if something has come meanwhile.
    #[cold]
    fn ask_kernel(&self, socket: K::Socket<'_>) -> Result<Option<usize>, Errno> {
        let answer = self.take_wakeups_of_nothing(socket);
        K::moment();
        fence(Ordering::SeqCst);
        if self.available()? > 0 {
            return Ok(None);
        }
        match answer {
            Ok(Drained::End) => self.ended(socket).map(Some),
            Ok(Drained::Wakeups(_) | Drained::Left) => Ok(None),
            Ok(Drained::Bytes) if self.is_back() => Ok(None),
            Ok(Drained::Bytes) => Err(Broken.into()), // More bytes than the peer has ever counted.
            Err(error) if error == Errno::AGAIN || is_descriptor_error(error) => Err(error),
            Err(Errno::CONNRESET) if self.is_reset_for_wakeups() => self.ended(socket).map(Some),
            Err(error) => {
                self.note_reset();
                Err(error)
            }
        }
    }

    /// Whether the kernel has reset the connection only because wakeups were left in the socket of
    /// a peer that was killed. The peer had read all bytes, so that the kernel alone would have
    /// ended the stream.
    #[must_use]
    pub fn is_reset_for_wakeups(&self) -> bool {
        let words = self.tx.words();
        let has_read_tcp =
            words.tcp_read.load(Ordering::Acquire) >= words.shm_start_seq.load(Ordering::Relaxed);
        let has_announced = self.peer.parted.load(Ordering::Relaxed) != 0
            || self.peer.shut_write.load(Ordering::Relaxed) != 0
            || self.peer.refs.load(Ordering::Relaxed) == 0;
        let wakeups = words.wakeups.load(Ordering::Relaxed);
        has_read_tcp
            && !has_announced
            && !self.has_fallen_back()
            && !self.has_unread_out()
            && words.wakeups_taken.load(Ordering::Relaxed) < wakeups
    }

    /// Handles the kernel's end of stream when the rings are empty: returns 0, or the error of a
    /// reset that has not been reported yet.
    pub(super) fn ended(&self, socket: K::Socket<'_>) -> Result<usize, Errno> {
        let words = self.rx.words();
        // The peer died before its deferred bytes came.
        if self.src_avails_in.are_owed() || words.reclaiming.load(Ordering::Acquire) != 0 {
            self.own.gone.store(1, Ordering::Relaxed);
            return self.reset(socket).map(|()| 0);
        }
        let is_known = self.peer.shut_write.load(Ordering::Acquire) != 0
            || self.own.shut_read.load(Ordering::Relaxed) != 0;
        if is_known || words.shm_start_seq.load(Ordering::Relaxed) == NONE {
            return Ok(0);
        }
        self.own.gone.store(1, Ordering::Relaxed);
        // TCP resets a connection when the closing end has unread bytes. The kernel of a peer that
        // was killed did not know of those in memory, so this end resets the connection.
        if self.has_unread_out() {
            self.reset(socket)?;
        }
        Ok(0)
    }

    /// Resets a connection that is over without the kernel knowing, and reports `ECONNRESET` once.
    pub(super) fn reset(&self, socket: K::Socket<'_>) -> Result<(), Errno> {
        if self.own.reset_reported.swap(1, Ordering::Relaxed) != 0 {
            return Ok(());
        }
        K::reset(socket);
        Err(Errno::CONNRESET)
    }

    /// Records that the kernel has reported a reset.
    pub fn note_reset(&self) {
        self.own.gone.store(1, Ordering::Relaxed);
        self.own.reset_reported.store(1, Ordering::Relaxed);
    }

    /// Records a reset that the kernel reports, so that it is reported only once.
    #[cold]
    fn note_if_reset(&self, errno: Errno) {
        if errno == Errno::CONNRESET {
            self.note_reset();
        }
    }

    /// Whether the last phase has begun, and its bytes come next.
    #[inline]
    fn is_back(&self) -> bool {
        let words = self.rx.words();
        words.tcp_resume_seq.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
    }

    /// Wakes a writer that waits for room, if there is any.
    #[inline]
    pub(super) fn announce_room(&self, socket: K::Socket<'_>) {
        if self.peer.waits().is_room_wanted() && self.rx.has_made_room() {
            self.announce_room_to_waiter(socket);
        }
    }

    /// Does the same under the sending direction's lock, when the rings carry that direction.
    #[cold]
    pub(super) fn announce_room_held(&self, socket: K::Socket<'_>, held: &SharedGuard<'_, K>) {
        if self.peer.waits().is_room_wanted() {
            self.wake_writers();
            if self.is_poller_due(held) {
                self.send_wakeup(socket, held);
            }
        }
    }

    /// Wakes writers that wait by a futex.
    fn wake_writers(&self) {
        if self.peer.waits().take_wanted(WANTED_BY_POLL) != 0 {
            K::wake_all(&self.peer.space_wanted);
        }
    }

    /// Whether a writer that waits in the kernel's poll is to be woken now. The caller holds the
    /// sending direction's lock: a peer that closes takes back its wish, and then waits for that
    /// lock, so that no wakeup comes after it has looked for the last one.
    fn is_poller_due(&self, _held: &SharedGuard<'_, K>) -> bool {
        // A poller is woken only when there is enough room; reading the remaining bytes leads here
        // again.
        self.rx.is_writable() && self.peer.waits().take_wanted(WANTED_BY_FUTEX) != 0
    }

    #[cold]
    fn announce_room_to_waiter(&self, socket: K::Socket<'_>) {
        self.wake_writers();
        K::moment();
        if self.peer.waits().is_room_wanted()
            && self.rx.is_writable()
            && let Some(held) = Self::lock(&self.tx.words().lock)
            && self.tx.words().tcp_resume_seq.load(Ordering::Relaxed) == NONE
            && self.is_poller_due(&held)
        {
            if self.tx.words().shm_start_seq.load(Ordering::Relaxed) == NONE {
                self.switch(socket, &held);
            }
            self.send_wakeup(socket, &held);
        }
    }
}
