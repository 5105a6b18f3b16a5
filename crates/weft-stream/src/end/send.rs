//! Sending: into the ring, by naming a source, or over TCP; and waking who waits for it.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use weft_sys::{Buffers, SharedGuard, Sleeper, Stage, Tag, time_stamp};

use super::{End, WAKEUP};
use crate::alarms;
use crate::how::DONTWAIT;
use crate::kernel::{Kernel, says_nothing};
use crate::source::{Owner, SourceNumber};
use crate::words::NONE;

impl<K: Kernel> End<K> {
    /// Sends as much as there is room for (`sendmsg(2)` with `MSG_DONTWAIT`).
    ///
    /// # Errors
    /// `EAGAIN`: no room; `EPIPE`, `ECONNRESET` and whatever else the kernel says of the socket;
    /// `EDEADLK` in a signal handler that has interrupted the same call of its own thread.
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
            self.own.gone.store(1, Ordering::Relaxed); // Torn: see `put_back`.
            self.reset(socket)?;
        }
        if words.switch_at.load(Ordering::Relaxed) == NONE && !self.agree_held(socket, &held) {
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
        // What comes behind a source waits until it is over.
        let put = if self.sources_out.are_open() {
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
        self.announce_bytes(socket, &held);
        Ok(put)
    }

    /// Something is about to be put: says when, if nothing else is unread. Who reads from several
    /// connections takes first what has come first. The lock of the own direction is held.
    #[inline]
    fn stamp_arrival(&self) -> Result<(), Errno> {
        if self.tx.available()? == 0 && !self.sources_out.may_be_open() {
            self.tx.words().arrived_at.store(time_stamp(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The last one of the peer's, as far as it knew, was about to close the socket. If that was
    /// so, the kernel has seen the end.
    #[cold]
    fn ask_for_peer(&self, socket: K::Socket<'_>) {
        if K::is_hung_up(socket) {
            self.hang_up();
        }
    }

    /// Names a long message instead of putting it, for the peer to pull it out of the owner's
    /// memory: it must stay there, and as it is, until the source is over. `None`: not now.
    pub fn post_source(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        owner: &Owner,
    ) -> Option<SourceNumber> {
        self.name_bytes(socket, || {
            if self.sources_out.are_open() {
                return None;
            }
            self.sources_out.post(buffers, owner, false)
        })
    }

    /// Posts a source, under the lock of the own direction, if the rings carry it.
    pub(super) fn name_bytes(
        &self,
        socket: K::Socket<'_>,
        post: impl FnOnce() -> Option<SourceNumber>,
    ) -> Option<SourceNumber> {
        let words = self.tx.words();
        let held = Self::lock(&words.lock)?;
        let in_memory = words.switch_at.load(Ordering::Relaxed) != NONE;
        if !in_memory || self.is_the_kernels_to_send() {
            return None;
        }
        self.stamp_arrival().ok()?;
        let number = post()?;
        self.tx.count_message();
        self.announce_bytes(socket, &held);
        Some(number)
    }

    /// How much of a source has been pulled so far. `None`: it is over, or will not go on.
    #[must_use]
    pub fn source_progress(&self, number: SourceNumber) -> Option<u64> {
        let lost =
            !self.is_current() || self.sources_out.are_refused() || self.is_the_kernels_to_send();
        if lost { None } else { self.sources_out.progress(number) }
    }

    /// Ends a source of the caller's. Returns how many bytes of it the peer has pulled.
    #[must_use]
    pub fn withdraw_source(&self, number: SourceNumber) -> usize {
        if !self.is_current() {
            return 0; // Both ends have gone; the slot is another connection's.
        }
        self.sources_out.withdraw(number)
    }

    /// Whether another process sleeps at the other end until something comes.
    #[must_use]
    pub fn is_peer_waiting(&self) -> bool {
        let sleeps = self.peer.sleepers.load(Ordering::Relaxed) != 0
            || self.peer.futex_wait.load(Ordering::Relaxed) != 0;
        sleeps && self.peer.pid.load(Ordering::Relaxed) != self.own.pid.load(Ordering::Relaxed)
    }

    /// Something has been put: wakes the threads that wait for it at the other end. The lock of the
    /// own direction is held.
    #[inline]
    pub(super) fn announce_bytes(&self, socket: K::Socket<'_>, held: &SharedGuard<'_, K>) {
        match self.peer.waits().wake_futex_waiters() {
            Sleeper::Tagged(tag) => self.wake_unless_woken(socket, held, tag),
            // Of one that has shut down its half, only the kernel can say whether it still lives.
            Sleeper::None if self.peer.shut_write.load(Ordering::Relaxed) == 0 => {}
            Sleeper::Some | Sleeper::None => {
                self.send_wakeup(socket, held);
            }
        }
        if self.rx.acknowledge() {
            self.announce_room_held(socket, held);
        }
    }

    /// Wakes one who sleeps for other connections, too, unless something has come by one of those
    /// just now.
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
        self.tx.words().back_at.load(Ordering::Relaxed) != NONE || self.is_send_answered()
    }

    /// The peer has closed its socket, or shut down both halves: the kernel takes what comes, and
    /// answers with a reset.
    pub(super) fn does_nobody_receive(&self) -> bool {
        self.peer.refs.load(Ordering::Relaxed) == 0
            || (self.peer.shut_read.load(Ordering::Relaxed) != 0
                && self.peer.shut_write.load(Ordering::Relaxed) != 0)
    }

    /// Wakes who sleeps at the other end on the word.
    #[inline]
    pub(super) fn wake_dozers(&self) {
        self.peer.waits().futex.wake();
    }

    /// Wakes the threads that sleep at the other end. The lock of the own direction is held, and it
    /// is the rings'. Returns whether it has been rung just now.
    pub(super) fn send_wakeup(&self, socket: K::Socket<'_>, _held: &SharedGuard<'_, K>) -> bool {
        if self.own.shut_write.load(Ordering::Relaxed) != 0 {
            return false; // The kernel sends nothing any more: see `can_be_woken`.
        }
        if self.peer.refs.load(Ordering::Acquire) == 0 {
            return false; // Nobody is there to be woken, and the kernel would reset the connection.
        }
        if !self.peer.waits().claim_wakeup() {
            return false; // The last one has not been drained.
        }
        let words = self.tx.words();
        match K::put(socket, &WAKEUP) {
            Ok(_) => {
                words.wakeups.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Err(error) if says_nothing(error) => self.peer.waits().unclaim_wakeup(),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                // What fills the socket wakes the peer as well. When that has been read, it takes
                // another wakeup.
                self.peer.waits().unclaim_wakeup();
            }
            Err(_) => self.own.gone.store(1, Ordering::Relaxed),
        }
        false
    }
}
