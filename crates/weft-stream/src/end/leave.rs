//! The end: of memory, back to TCP, and of the stream.

use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use weft_sys::SharedGuard;

use super::wakeups::{AT_ONCE, Drained};
use super::{Carrier, End, WAKEUP};
use crate::kernel::Kernel;
use crate::queue::Queue;
use crate::reason::Reason;
use crate::words::{NONE, Role, Side};

impl<K: Kernel> End<K> {
    /// The own direction ends (`shutdown(2)` of the writing half): to be called before the kernel's
    /// call.
    pub fn shut_write(&self) {
        // Behind a send that is under way.
        let _held = Self::lock(&self.tx.words().lock);
        self.own.shut_write.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.wake_dozers();
    }

    /// Nothing more will be read (`shutdown(2)` of the reading half).
    pub fn shut_read(&self) {
        self.own.shut_read.store(1, Ordering::SeqCst);
    }

    /// Whether an end has begun, in either direction, as far as both ends have published it.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let has_shut = |side: &Side| {
            side.shut_write.load(Ordering::Relaxed) != 0
                || side.shut_read.load(Ordering::Relaxed) != 0
                || side.gone.load(Ordering::Relaxed) != 0
        };
        has_shut(self.own) || has_shut(self.peer) || self.peer.refs.load(Ordering::Relaxed) == 0
    }

    /// Whether the peer has shut down its writing half: behind what is unread the stream ends.
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

    /// Whether the kernel answers at once what this end sends: its half is shut, or nobody
    /// receives any more. Of a connection that has left memory only the kernel knows: who holds
    /// the other end need not be counted.
    #[must_use]
    pub fn is_send_answered(&self) -> bool {
        !self.has_left() && self.is_answered()
    }

    fn is_answered(&self) -> bool {
        self.is_peer_gone()
            || self.own.shut_write.load(Ordering::Relaxed) != 0
            || self.does_nobody_receive()
    }

    /// Goes back to TCP, and puts nothing back: what the rings hold is read first.
    pub fn leave_unread(&self, socket: K::Socket<'_>) {
        if let Some(held) = self.begin_to_leave(socket) {
            self.finish_leaving(held);
        }
    }

    /// Both directions, in the order in which a thread that needs both takes their locks.
    pub(super) fn in_order(&self) -> [&Queue; 2] {
        match self.role {
            Role::Connector => [&self.tx, &self.rx],
            Role::Acceptor => [&self.rx, &self.tx],
        }
    }

    /// Takes the locks of both directions, and wakes a writer that waits for room. `None` if it has
    /// left already.
    pub(super) fn begin_to_leave(
        &self,
        socket: K::Socket<'_>,
    ) -> Option<[SharedGuard<'static, K>; 2]> {
        let [first, second] = self.in_order();
        let first = Self::lock(&first.words().lock)?;
        let held = Self::lock(&second.words().lock)?;
        if self.tx.words().back_at.load(Ordering::Relaxed) != NONE {
            return None;
        }
        // A writer that sleeps until there is room goes on over TCP.
        let wanted = self.peer.space_wanted.swap(0, Ordering::AcqRel);
        if wanted != 0 && self.tx.words().switch_at.load(Ordering::Relaxed) != NONE {
            self.send_wakeup(socket, &held);
            K::wake_all(&self.peer.space_wanted);
        }
        Some([first, held])
    }

    /// From here on both directions are TCP's.
    pub(super) fn finish_leaving(&self, _held: [SharedGuard<'static, K>; 2]) {
        for ring in self.in_order() {
            let words = ring.words();
            if words.switch_at.load(Ordering::Relaxed) == NONE {
                let sent = words.tcp_sent.load(Ordering::Relaxed);
                words.switch_at.store(sent, Ordering::Release);
            }
            words.back_at.store(words.head.load(Ordering::Relaxed), Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.wake_dozers();
    }

    /// Says why it has left, for those who watch. The first reason counts.
    pub fn note_left(&self, why: Reason) {
        if self.registry.note_left(self.slot, why) {
            self.registry.count_fallback(why);
        }
    }

    /// Whether the connection is the kernel's again, as if there had been no rings: both directions
    /// have left, and neither bytes nor wakeups of before are to be read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let words = self.rx.words();
        words.back_at.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
            && !self.sources_in.are_open()
            && self.wakeups_left() == 0
    }

    /// Whether nothing of either direction is in memory any more.
    #[must_use]
    pub fn is_over_for_both(&self) -> bool {
        let words = self.tx.words();
        self.is_over()
            && words.back_at.load(Ordering::Acquire) == words.tail.load(Ordering::Relaxed)
            && !self.sources_out.are_open()
    }

    /// Takes the wakeups that have come, and returns whether the stream has ended behind what the
    /// rings hold. It is asked for only if it `may_have_ended`. So many of those that count as
    /// asleep are the caller's `own`: if others sleep, wakeups that they need are left.
    ///
    /// # Errors
    /// What the kernel says of the socket, which it says only once.
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
        // The end wakes all of them, and keeps them awake.
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

    /// The same where the kernel has reported that the connection was reset. The error stays with
    /// the socket: the process that asks next is to get it, which may be another one. Returns
    /// whether nothing more comes by the socket.
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

    /// Whether the kernel has no byte for this end. It is asked first where nothing may be there:
    /// a call that takes something would get an error, which the kernel reports once.
    fn has_nothing(&self, socket: K::Socket<'_>) -> bool {
        K::unread(socket) == Ok(0)
    }

    /// The kernel says that the peer sends no more. If the peer has not published that, it has
    /// gone.
    pub fn hang_up(&self) {
        if self.peer.shut_write.load(Ordering::Acquire) == 0 {
            self.own.gone.store(1, Ordering::Relaxed);
        }
    }

    /// The same where the peer has left something unread: it was killed, and by what was sent since
    /// TCP would have found the connection reset.
    pub fn hang_up_unread(&self, socket: K::Socket<'_>) {
        self.hang_up();
        if self.is_peer_gone() {
            let _ = K::put(socket, &WAKEUP); // Nobody is there to receive it.
        }
    }

    /// Takes the wakeups that have come, before the socket is closed or goes to a process that
    /// would take them for data: the kernel resets a connection that is closed with bytes unread.
    pub fn drain_wakeups(&self, socket: K::Socket<'_>) {
        // A peer that has left sends no more wakeups, and the kernel's error is the program's to
        // see.
        let may_be_woken = || self.has_wakeups() || !self.has_left();
        self.drain(socket, may_be_woken, || self.take_wakeups(socket));
    }

    /// The same while others hold the socket and may be asleep: what they need is left.
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
        // One that is being sent, for bytes that have been received already: the peer sends it
        // under this lock, and others only to who sleeps.
        drop(Self::lock(&self.rx.words().lock));
        if let Some(_held) = Self::lock(&self.rx.words().reader_lock) {
            while may_be_woken()
                && !self.has_nothing(socket)
                && let Ok(Drained::Wakeups(_)) = take()
            {}
        }
    }
}
