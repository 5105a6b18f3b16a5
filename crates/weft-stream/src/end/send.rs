//! Sending: into the ring, by posting a source, or over TCP; and waking the peer's sleepers.

use std::sync::atomic::Ordering;

use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, SharedGuard, Sleeper, Stage, Tag, time_stamp};

use super::{End, WAKEUP};
use crate::alarms;
use crate::kernel::{Kernel, is_descriptor_error};
use crate::recv_options::DONTWAIT;
use crate::src_avail::{Owner, SrcAvailNumber};
use crate::words::NONE;

impl<K: Kernel> End<K> {
    /// Sends as many bytes as there is room for (`sendmsg(2)` with `MSG_DONTWAIT`).
    ///
    /// # Errors
    /// `EAGAIN`: there is no room; `EPIPE`, `ECONNRESET` or another error of the kernel's socket;
    /// `EDEADLK`: a signal handler has interrupted the same call of its own thread.
    #[inline]
    pub fn try_send(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let words = self.tx.words();
        let held = Self::lock(&words.lock).ok_or(Errno::DEADLK)?;
        if words.returning.load(Ordering::Relaxed) != 0 {
            self.own.gone.store(1, Ordering::Relaxed); // A process died in `put_back`.
            self.reset(socket)?;
        }
        if words.shm_start_seq.load(Ordering::Relaxed) == NONE && !self.agree_held(socket, &held) {
            let sent_before = words.tcp_sent.load(Ordering::Relaxed);
            if words.tcp_read.load(Ordering::Relaxed) >= sent_before {
                words.arrived_at.store(time_stamp(), Ordering::Relaxed);
            }
            let sent = K::send(socket, buffers, flags | DONTWAIT)?;
            words.tcp_sent.store(sent_before + sent as u64, Ordering::Relaxed);
            return Ok(sent);
        }
        if self.peer.parted.load(Ordering::Relaxed) != 0 {
            self.ask_for_peer(socket);
        }
        if self.is_the_kernels_to_send() {
            let sent = K::send(socket, buffers, flags | DONTWAIT);
            if matches!(sent, Err(Errno::CONNRESET | Errno::PIPE)) {
                self.own.reset_reported.store(1, Ordering::Relaxed);
            }
            return sent;
        }
        // Bytes behind an open source wait until that is over.
        let put = if self.src_avails_out.are_open() {
            0
        } else {
            self.stamp_arrival()?;
            self.tx.put(buffers)?
        };
        if put == 0 {
            if buffers.is_empty() {
                return Ok(0);
            }
            self.tx.count_stall();
            return Err(Errno::AGAIN);
        }
        self.tx.count_message();
        K::moment();
        self.announce_bytes(socket, &held);
        Ok(put)
    }

    /// Records the time if nothing is unread and something is about to be put. A reader of several
    /// connections takes first what came first. The caller holds the sending direction's lock.
    #[inline]
    fn stamp_arrival(&self) -> Result<(), Errno> {
        if self.tx.available()? == 0 && !self.src_avails_out.may_be_open() {
            self.tx.words().arrived_at.store(time_stamp(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Asks the kernel whether the peer has gone, after its last known holder announced that it
    /// would close the socket.
    #[cold]
    fn ask_for_peer(&self, socket: K::Socket<'_>) {
        if K::is_hung_up(socket) {
            self.hang_up();
        }
    }

    /// Posts a source for a long message instead of copying it; the peer pulls it out of the
    /// owner's memory. The bytes must stay unchanged there until the source is over. `None` if that
    /// is not possible now.
    pub fn post_source(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        owner: &Owner,
    ) -> Option<SrcAvailNumber> {
        self.name_bytes(socket, || {
            if self.src_avails_out.are_open() {
                return None;
            }
            self.src_avails_out.post(buffers, owner, false)
        })
    }

    /// Calls `post` under the sending direction's lock, if the rings carry that direction.
    pub(super) fn name_bytes(
        &self,
        socket: K::Socket<'_>,
        post: impl FnOnce() -> Option<SrcAvailNumber>,
    ) -> Option<SrcAvailNumber> {
        let words = self.tx.words();
        let held = Self::lock(&words.lock)?;
        let in_memory = words.shm_start_seq.load(Ordering::Relaxed) != NONE;
        if !in_memory || self.is_the_kernels_to_send() {
            return None;
        }
        self.stamp_arrival().ok()?;
        let number = post()?;
        self.tx.count_message();
        self.announce_bytes(socket, &held);
        Some(number)
    }

    /// Number of bytes of a source that have been pulled so far. `None` if the source is over, or
    /// the peer will pull no more of it.
    #[must_use]
    pub fn source_progress(&self, number: SrcAvailNumber) -> Option<u64> {
        let lost = !self.is_current()
            || self.src_avails_out.are_refused()
            || self.is_the_kernels_to_send();
        if lost { None } else { self.src_avails_out.progress(number) }
    }

    /// Closes a source of the caller's, puts into the ring what the peer has not pulled, as far as
    /// there is room, and returns how many of its bytes have been pulled or put. So bytes that the
    /// peer has seen in the source do not vanish: it finds them in the ring, or sees that they are
    /// on their way there ([`End::try_recv_shown`]).
    #[must_use]
    pub fn withdraw_source(
        &self,
        socket: K::Socket<'_>,
        number: SrcAvailNumber,
        buffers: Buffers<'_>,
    ) -> usize {
        if !self.is_current() {
            return 0; // Both ends have gone; the slot belongs to another connection.
        }
        let is_over = self.src_avails_out.progress(number).is_none();
        let held = if is_over { None } else { Self::lock(&self.tx.words().lock) };
        let Some(held) = held else {
            return self.src_avails_out.withdraw(number).min(buffers.len());
        };
        self.tx.begin_withdrawal();
        let pulled = self.src_avails_out.withdraw(number).min(buffers.len());
        let is_rings = !self.is_the_kernels_to_send() && !self.src_avails_out.are_open();
        let put = if is_rings { self.tx.put(buffers.after(pulled)).unwrap_or(0) } else { 0 };
        self.tx.end_withdrawal();
        if put > 0 {
            self.announce_bytes(socket, &held);
        }
        pulled + put
    }

    /// Whether another process sleeps at the other end until something comes.
    #[must_use]
    pub fn is_peer_waiting(&self) -> bool {
        let sleeps = self.peer.sleepers.load(Ordering::Relaxed) != 0
            || self.peer.futex_wait.load(Ordering::Relaxed) != 0;
        sleeps && self.peer.pid.load(Ordering::Relaxed) != self.own.pid.load(Ordering::Relaxed)
    }

    /// Wakes the threads at the other end that wait for what has just been put. The caller holds
    /// the sending direction's lock.
    #[inline]
    pub(super) fn announce_bytes(&self, socket: K::Socket<'_>, held: &SharedGuard<'_, K>) {
        match self.peer.waits().wake_futex_waiters() {
            Sleeper::Tagged(tag) => self.wake_unless_woken(socket, held, tag),
            // If a sleeper has shut down its writing half, only the kernel knows whether it still
            // lives.
            Sleeper::None if self.peer.shut_write.load(Ordering::Relaxed) == 0 => {}
            Sleeper::Some | Sleeper::None => {
                self.send_wakeup(socket, held);
            }
        }
        if self.rx.acknowledge() {
            self.announce_room_held(socket, held);
        }
    }

    /// Wakes a sleeper that waits for several connections, unless one of them has just woken it.
    #[cold]
    fn wake_unless_woken(&self, socket: K::Socket<'_>, held: &SharedGuard<'_, K>, tag: Tag) {
        let alarm = alarms::of_peer(self.registry, tag);
        let is_asleep = alarm.is_none_or(|alarm| alarm.stage(tag) != Stage::Woken);
        let may_live = self.peer.shut_write.load(Ordering::Relaxed) == 0;
        if (is_asleep || !may_live)
            && (may_live && alarms::ring(self.registry, tag) || self.send_wakeup(socket, held))
            && let Some(alarm) = alarm
        {
            alarm.has_woken(tag);
        }
    }

    pub(super) fn is_the_kernels_to_send(&self) -> bool {
        self.tx.words().tcp_resume_seq.load(Ordering::Relaxed) != NONE || self.is_send_answered()
    }

    /// Whether the peer has closed its socket, or shut down both halves: the kernel then accepts a
    /// send, and answers it with a reset.
    pub(super) fn does_nobody_receive(&self) -> bool {
        self.peer.refs.load(Ordering::Relaxed) == 0
            || (self.peer.shut_read.load(Ordering::Relaxed) != 0
                && self.peer.shut_write.load(Ordering::Relaxed) != 0)
    }

    /// Wakes the threads at the other end that wait on the futex word.
    #[inline]
    pub(super) fn wake_futex_waiters(&self) {
        self.peer.waits().futex.wake();
    }

    /// Sends a wakeup to the threads that sleep at the other end, and returns whether it did. The
    /// caller holds the sending direction's lock, and the rings carry that direction.
    pub(super) fn send_wakeup(&self, socket: K::Socket<'_>, _held: &SharedGuard<'_, K>) -> bool {
        if self.own.shut_write.load(Ordering::Relaxed) != 0 {
            return false; // The kernel sends nothing any more: see `can_be_woken`.
        }
        if self.peer.refs.load(Ordering::Acquire) == 0 {
            return false; // No process is left to wake, and the kernel would reset the connection.
        }
        if !self.peer.waits().claim_wakeup() {
            return false; // The last wakeup has not been drained.
        }
        let words = self.tx.words();
        match K::put(socket, &WAKEUP) {
            Ok(_) => {
                K::moment();
                words.wakeups.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Err(error) if is_descriptor_error(error) => self.peer.waits().unclaim_wakeup(),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                // The bytes that fill the socket wake the peer as well. Once they have been read,
                // the peer's next sleep can get a wakeup again.
                self.peer.waits().unclaim_wakeup();
            }
            Err(_) => self.own.gone.store(1, Ordering::Relaxed),
        }
        false
    }
}
