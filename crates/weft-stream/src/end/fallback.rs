//! Falling back from memory to TCP, and the end of the stream.

use std::sync::atomic::{Ordering, fence};

use weft_sys::calls::io::Errno;

use weft_sys::SharedGuard;

use super::wakeups::{AT_ONCE, Drained};
use super::{Carrier, End, WAKEUP};
use crate::kernel::Kernel;
use crate::queue::Queue;
use crate::reason::Reason;
use crate::words::{NONE, Role, Side};

impl<K: Kernel> End<K> {
    /// Shuts down the sending direction (`shutdown(2)` of the writing half). Called before the
    /// kernel's call.
    pub fn shut_write(&self) {
        // Wait for a send that is under way.
        let _held = Self::lock(&self.tx.words().lock);
        self.own.shut_write.store(1, Ordering::SeqCst);
        K::moment();
        fence(Ordering::SeqCst);
        self.wake_futex_waiters();
    }

    /// Records that nothing more will be read (`shutdown(2)` of the reading half).
    pub fn shut_read(&self) {
        self.own.shut_read.store(1, Ordering::SeqCst);
    }

    /// Whether either direction has begun to end, as far as the two ends have published.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let has_shut = |side: &Side| {
            side.shut_write.load(Ordering::Relaxed) != 0
                || side.shut_read.load(Ordering::Relaxed) != 0
                || side.gone.load(Ordering::Relaxed) != 0
        };
        has_shut(self.own) || has_shut(self.peer) || self.peer.refs.load(Ordering::Relaxed) == 0
    }

    /// Whether the peer has shut down its writing half, so that the stream ends behind the unread
    /// bytes.
    #[inline]
    #[must_use]
    pub fn has_peer_shut(&self) -> bool {
        self.peer.shut_write.load(Ordering::Acquire) != 0
    }

    /// Whether the peer has gone for good.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        self.own.gone.load(Ordering::Relaxed) != 0
    }

    /// Whether the kernel answers a send at once, because this end's writing half is shut, or no
    /// process receives any more. Always `false` after a fallback to TCP, where only the kernel
    /// knows: the peer's holders need not be counted then.
    #[must_use]
    pub fn is_send_answered(&self) -> bool {
        !self.has_fallen_back() && self.is_answered()
    }

    fn is_answered(&self) -> bool {
        self.is_peer_gone()
            || self.own.shut_write.load(Ordering::Relaxed) != 0
            || self.does_nobody_receive()
    }

    /// Falls back to TCP without putting anything back: readers take the bytes in the rings first.
    pub fn fall_back_unread(&self, socket: K::Socket<'_>) {
        if let Some(held) = self.begin_fallback(socket) {
            self.finish_fallback(&held);
        }
    }

    /// Both directions, in the order in which a thread that needs both takes their locks.
    pub(super) fn in_order(&self) -> [&Queue; 2] {
        match self.role {
            Role::Connector => [&self.tx, &self.rx],
            Role::Acceptor => [&self.rx, &self.tx],
        }
    }

    /// Takes the locks of both directions, and wakes a writer that waits for room. `None` if the
    /// connection has fallen back already.
    pub(super) fn begin_fallback(
        &self,
        socket: K::Socket<'_>,
    ) -> Option<[SharedGuard<'static, K>; 2]> {
        let [first, second] = self.in_order();
        let first = Self::lock(&first.words().lock)?;
        let held = Self::lock(&second.words().lock)?;
        if self.tx.words().tcp_resume_seq.load(Ordering::Relaxed) != NONE {
            return None;
        }
        // A writer that sleeps until there is room goes on over TCP.
        let wanted = self.peer.space_wanted.swap(0, Ordering::AcqRel);
        K::moment();
        if wanted != 0 && self.tx.words().shm_start_seq.load(Ordering::Relaxed) != NONE {
            self.send_wakeup(socket, &held);
            K::wake_all(&self.peer.space_wanted);
        }
        Some([first, held])
    }

    /// Makes both directions TCP's from here on.
    pub(super) fn finish_fallback(&self, _held: &[SharedGuard<'static, K>; 2]) {
        for ring in self.in_order() {
            let words = ring.words();
            if words.shm_start_seq.load(Ordering::Relaxed) == NONE {
                let sent = words.tcp_sent.load(Ordering::Relaxed);
                words.shm_start_seq.store(sent, Ordering::Release);
            }
            K::moment();
            words.tcp_resume_seq.store(words.head.load(Ordering::Relaxed), Ordering::Release);
            K::moment();
        }
        fence(Ordering::SeqCst);
        self.wake_futex_waiters();
    }

    /// Records why the connection has fallen back, for `weft stat`. Only the first reason is kept.
    pub fn note_fallback(&self, why: Reason) {
        if self.registry.note_fallback(self.slot, why) {
            self.registry.count_fallback(why);
        }
    }

    /// Whether the reader can treat the connection as plain TCP: it has fallen back, and no bytes
    /// or wakeups from before are unread.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let words = self.rx.words();
        words.tcp_resume_seq.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
            && !self.src_avails_in.are_open()
            && self.wakeups_left() == 0
    }

    /// Whether no bytes of either direction are left in memory.
    #[must_use]
    pub fn is_over_for_both(&self) -> bool {
        let words = self.tx.words();
        self.is_over()
            && words.tcp_resume_seq.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
            && !self.src_avails_out.are_open()
    }

    /// Takes the wakeups that have come, and returns whether the stream has ended behind the bytes
    /// in the rings. The kernel is asked for that only if the stream `may_have_ended`. `own` is the
    /// number of sleepers that are the caller's: if there are others, the wakeups that they need
    /// stay.
    ///
    /// # Errors
    /// An error of the socket, which the kernel reports only once.
    pub fn settle(
        &self,
        socket: K::Socket<'_>,
        may_have_ended: bool,
        own: u32,
    ) -> Result<bool, Errno> {
        if self.carrier_in() == Carrier::Tcp {
            return Ok(false);
        }
        let held = Self::lock(&self.rx.words().reader_lock);
        let Some(_held) = held else { return Ok(false) };
        K::moment();
        // The end of the stream wakes all sleepers, and keeps them awake.
        let leaves = !may_have_ended && self.do_others_sleep(own);
        loop {
            let drained = if leaves {
                self.take_wakeups_of_nothing(socket)
            } else {
                self.take_wakeups(socket)
            };
            match drained {
                Ok(Drained::End) => return self.ended(socket).map(|_| true),
                Ok(Drained::Bytes | Drained::Left) => return Ok(false),
                Ok(Drained::Wakeups(taken)) if taken < AT_ONCE && !may_have_ended => {
                    return Ok(false);
                }
                Ok(Drained::Wakeups(_)) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => {
                    self.note_reset();
                    return Err(error);
                }
            }
        }
    }

    /// Takes the wakeups that have come when the kernel has reported a reset. The error stays in
    /// the socket for the next call of the program, which may be another process's. Returns whether
    /// nothing more comes by the socket.
    pub fn settle_reset(&self, socket: K::Socket<'_>) -> bool {
        if self.carrier_in() == Carrier::Tcp {
            return false;
        }
        let Some(_held) = Self::lock(&self.rx.words().reader_lock) else { return false };
        while !self.has_nothing(socket) {
            let Ok(Drained::Wakeups(1..)) = self.take_wakeups(socket) else { return false };
        }
        self.note_reset();
        true
    }

    /// Whether the kernel has no byte for this end. Checked before a call that takes bytes: in an
    /// empty socket that call would take the error, which the kernel reports once.
    fn has_nothing(&self, socket: K::Socket<'_>) -> bool {
        K::unread(socket) == Ok(0)
    }

    /// Notes that the kernel has reported the end of what the peer sends. If the peer has not
    /// published a shutdown, it has gone.
    pub fn hang_up(&self) {
        if self.peer.shut_write.load(Ordering::Acquire) == 0 {
            self.own.gone.store(1, Ordering::Relaxed);
        }
    }

    /// Does the same for a call that sends. TCP resets a connection whose receiver goes with bytes
    /// unread, but the kernel of a receiver that was killed did not know of those in memory. So
    /// this end resets the connection, and the kernel reports that to the next call.
    pub fn hang_up_unread(&self, socket: K::Socket<'_>) {
        self.hang_up();
        if !self.is_peer_gone()
            || !self.has_unread_out()
            || self.own.reset_reported.load(Ordering::Relaxed) != 0
        {
            return;
        }
        self.drain_wakeups(socket);
        if self.has_nothing(socket) {
            self.own.reset_reported.store(1, Ordering::Relaxed);
            K::dissolve(socket);
        } else if !K::has_error(socket) {
            // To reset here would lose bytes of the peer. This byte makes its host do that. If its
            // host has done so already, the call would take the error, which is the program's.
            let _ = K::put(socket, &WAKEUP);
        }
    }

    /// Whether bytes that the peer has not read are in memory.
    pub(super) fn has_unread_out(&self) -> bool {
        self.unsent() > 0 || self.src_avails_out.are_open()
    }

    /// Takes the wakeups that have come, before the socket is closed or passed to a process that
    /// would read them as data. The kernel resets a connection that is closed with bytes unread.
    pub fn drain_wakeups(&self, socket: K::Socket<'_>) {
        // A peer that has fallen back sends no more wakeups, and the kernel's error is for the
        // program.
        let may_be_woken = || self.has_wakeups() || !self.has_fallen_back();
        self.drain(socket, may_be_woken, || self.take_wakeups(socket));
    }

    /// Does the same while other processes hold the socket: wakeups that their sleepers need stay.
    pub(crate) fn drain_wakeups_of_nothing(&self, socket: K::Socket<'_>) {
        let take = || self.take_wakeups_of_nothing(socket);
        self.drain(socket, || self.has_wakeups(), take);
    }

    /// Takes wakeups as long as there may be any.
    fn drain(
        &self,
        socket: K::Socket<'_>,
        may_be_woken: impl Fn() -> bool,
        take: impl Fn() -> Result<Drained, Errno>,
    ) {
        if !self.has_switched_in() {
            return;
        }
        // Wait for a wakeup that is being sent for bytes that have been received already: the peer
        // sends it under this lock. Later ones are sent only to sleepers.
        drop(Self::lock(&self.rx.words().lock));
        if let Some(_held) = Self::lock(&self.rx.words().reader_lock) {
            while may_be_woken()
                && !self.has_nothing(socket)
                && let Ok(Drained::Wakeups(_)) = take()
            {}
        }
    }
}
