//! Sends a long message without copying it twice.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use rustix::event::Timespec;
use rustix::io::Errno;
use weft_stream::{SourceNumber, Way};
use weft_sys::{Buffers, Spin};

use super::{Lender, Sender, deferred};
use crate::descriptor::Descriptor;
use crate::kernel::{End, Host, Kernel as _};
use crate::settings::{self, ZeroCopy};
use crate::wait::{self, Wait};
use crate::{handlers, identity, reason};

/// Shorter messages are cheaper to copy twice.
const LEN_MIN: usize = 256 << 10;
/// Bytes that are deferred at once behind earlier ones, unless the remainder would be short: the
/// peer reads some while the next are being deferred.
const PIECE_LEN: usize = 512 << 10;
/// How long the peer may make no progress before the rest is copied; shorter if the ring has room
/// for everything, because the call could have returned at once.
const TIMEOUT_NS: u64 = 2_000_000;
const TIMEOUT_WITH_ROOM_NS: u64 = 200_000;
const SPIN_MAX_NS: u64 = 2_000_000;

impl Sender {
    /// Counts a write fault on a deferred buffer.
    pub(crate) fn touched(&self) {
        self.touches.fetch_add(1, Ordering::Relaxed);
    }

    /// Defers the send of the first bytes of the buffers, and returns how many, or `EAGAIN`.
    /// `None`: they have to take another path, and no earlier bytes are deferred any more.
    pub(crate) fn defer_send(
        &self,
        lender: &Lender<'_>,
        buffers: Buffers<'_>,
        nonblocking: bool,
    ) -> Option<Result<usize, Errno>> {
        let end = lender.end;
        let follows = end.has_deferred_sends();
        let len = buffers.len();
        if len < LEN_MIN && !follows {
            return None;
        }
        let touches = self.touches.swap(0, Ordering::Relaxed);
        if len < LEN_MIN || self.fault_backoff.lock().may_defer(touches) {
            let most = if !follows || len < PIECE_LEN + LEN_MIN { len } else { PIECE_LEN };
            let wanted = if follows { most } else { 1 };
            let waits = !nonblocking && len >= LEN_MIN;
            let in_time = !waits || wait_for_room(end, wanted, lender.spin);
            let deferral = match end.room().min(most) {
                0 => deferred::Deferral::NoRoom,
                room => deferred::defer_send(self, lender, buffers, room, !nonblocking),
            };
            match deferral {
                deferred::Deferral::Made(deferred) => return Some(Ok(deferred)),
                deferred::Deferral::NoRoom if nonblocking && len >= LEN_MIN => {
                    return Some(Err(Errno::AGAIN));
                }
                deferred::Deferral::NoRoom if waits && in_time => return Some(Ok(0)),
                deferred::Deferral::NoRoom => {}
                deferred::Deferral::Impossible => self.touched(),
                deferred::Deferral::Unprotected(errno) => {
                    reason::log_unprotected(errno);
                    self.touched();
                }
            }
        }
        if follows && !deferred::reclaim(self) {
            return Some(Err(Errno::AGAIN));
        }
        None
    }

    /// Returns whether a message may be sent without being copied twice.
    #[inline]
    pub(crate) fn is_for(&self, buffers: Buffers<'_>) -> bool {
        buffers.len() >= LEN_MIN && settings::zero_copy() != ZeroCopy::Off
    }

    /// Offers the message to the peer, and returns how many bytes it has read; the others have to
    /// be copied. The second value says that a signal was handled, which ends the call.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled before the peer had read anything.
    pub(crate) fn send(
        &self,
        end: &End,
        fd: RawFd,
        buffers: Buffers<'_>,
        nonblocking: bool,
        spin: &Spin,
    ) -> Result<(usize, bool), Errno> {
        let len = buffers.len();
        let judged = settings::zero_copy() != ZeroCopy::Sync;
        if judged && self.path_selector.lock().choose(len, wait::now()) == Way::Ring {
            return Ok((0, false));
        }
        // A non-blocking send needs a peer that is waiting for data.
        if nonblocking && !end.is_peer_waiting() {
            return Ok((0, false));
        }
        let Some(number) = end.post_source(Descriptor::of(fd).as_fd(), buffers, &identity::owner())
        else {
            return Ok((0, false));
        };
        let has_room = nonblocking || len <= weft_stream::limits::BIG_RING_LEN;
        let timeout = if has_room { TIMEOUT_WITH_ROOM_NS } else { TIMEOUT_NS };
        let waited = wait_until_over(end, number, timeout, spin);
        match end.withdraw_source(number) {
            0 => waited.map(|()| (0, false)),
            pulled => Ok((pulled.min(len), waited.is_err())),
        }
    }
}

/// Waits until so many bytes can be deferred, but not longer than for a slow peer: without Weft TCP
/// would have taken the bytes, so the call must not block for ever. Returns whether any bytes can
/// be deferred.
fn wait_for_room(end: &End, wanted: usize, spin: &Spin) -> bool {
    if end.room() >= wanted {
        return true;
    }
    let sleep_time = Timespec { tv_sec: 0, tv_nsec: TIMEOUT_NS.cast_signed() };
    let limit = wait::now() + TIMEOUT_NS;
    let wait = Wait::begin(spin);
    loop {
        if wait.look(SPIN_MAX_NS, || end.room() >= wanted) {
            wait.end();
            return true;
        }
        let (word, value) = end.want_room_by_futex();
        if end.room() >= wanted {
            return true;
        }
        let slept = Host::wait_on_word(word, value, &sleep_time);
        if slept == Err(Errno::INTR) || wait::now() >= limit {
            return end.room() > 0;
        }
    }
}

/// Waits until a source is finished, or has made no progress for `timeout` nanoseconds.
fn wait_until_over(
    end: &End,
    number: SourceNumber,
    timeout: u64,
    spin: &Spin,
) -> Result<(), Errno> {
    let sleep_time = Timespec { tv_sec: 0, tv_nsec: timeout.cast_signed() };
    let wait = Wait::begin(spin);
    let mut seen = 0;
    let mut since = wait::now();
    loop {
        if wait.look(SPIN_MAX_NS, || end.source_progress(number).is_none()) {
            wait.end();
            return Ok(());
        }
        let now = wait::now();
        match end.source_progress(number) {
            None => return Ok(()),
            Some(pulled) if pulled != seen => (seen, since) = (pulled, now),
            Some(_) if now >= since + timeout => return Ok(()),
            Some(_) => {}
        }
        let (word, value) = end.want_room_by_futex();
        if end.source_progress(number).is_none() {
            return Ok(());
        }
        let slept = Host::wait_on_word(word, value, &sleep_time);
        if slept == Err(Errno::INTR) && !handlers::restart() {
            return Err(Errno::INTR);
        }
    }
}
