//! Sends a long message without copying it twice.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use weft_stream::{SrcAvailNumber, Way};
use weft_sys::calls::event::Timespec;
use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, Spin, with_cleanup};

use super::{SendContext, Sender, deferred};
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
    pub(crate) fn note_write_fault(&self) {
        self.write_faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Defers the send of the first bytes of the buffers, and returns how many, or `EAGAIN`.
    /// `None`: they have to take another path, and no earlier bytes are deferred any more.
    pub(crate) fn defer_send(
        &self,
        context: &SendContext<'_>,
        buffers: Buffers<'_>,
        nonblocking: bool,
    ) -> Option<Result<usize, Errno>> {
        let end = context.end;
        let follows = end.has_deferred_sends();
        let len = buffers.len();
        if len < LEN_MIN && !follows {
            return None;
        }
        let write_faults = self.write_faults.swap(0, Ordering::Relaxed);
        if len < LEN_MIN || self.fault_backoff.lock().may_defer(write_faults) {
            let most = if !follows || len < PIECE_LEN + LEN_MIN { len } else { PIECE_LEN };
            let wanted = if follows { most } else { 1 };
            let waits = !nonblocking && len >= LEN_MIN;
            let in_time = !waits || wait_for_room(end, wanted, context.spin);
            let deferral = match end.room().min(most) {
                0 => deferred::Deferral::NoRoom,
                room => deferred::defer_send(self, context, buffers, room, !nonblocking),
            };
            match deferral {
                deferred::Deferral::Made(deferred) => return Some(Ok(deferred)),
                deferred::Deferral::NoRoom if nonblocking && len >= LEN_MIN => {
                    return Some(Err(Errno::AGAIN));
                }
                deferred::Deferral::NoRoom if waits && in_time => return Some(Ok(0)),
                deferred::Deferral::NoRoom => {}
                deferred::Deferral::Impossible => self.note_write_fault(),
                deferred::Deferral::Unprotected(errno) => {
                    reason::log_unprotected(errno);
                    self.note_write_fault();
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

    /// Offers the message to the peer, and returns how many bytes the peer has read or the ring has
    /// taken. The second value says that a signal was handled, which ends the call.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled, the peer has read nothing, and there is no room.
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
        let socket = Descriptor::of(fd);
        let Some(number) = end.post_source(socket.as_fd(), buffers, &identity::owner()) else {
            return Ok((0, false));
        };
        let has_room = nonblocking || len <= weft_stream::limits::BIG_RING_LEN;
        let timeout = if has_room { TIMEOUT_WITH_ROOM_NS } else { TIMEOUT_NS };
        let wait = |_: &mut _| wait_until_over(end, number, timeout, spin);
        // A signal handler may jump out of the wait, and the buffers would be the program's again.
        let waited = with_cleanup(&mut (end, socket, buffers, number), wait, |abandoned| {
            let (end, socket, buffers, number) = *abandoned;
            let _ = end.withdraw_source(socket.as_fd(), number, buffers);
        });
        match end.withdraw_source(socket.as_fd(), number, buffers) {
            0 => waited.map(|()| (0, false)),
            sent => Ok((sent, waited.is_err())),
        }
    }
}

/// Waits until this many bytes can be deferred, but not longer than for a slow peer: without Weft
/// TCP would have taken the bytes, so the call must not block for ever. Returns whether any bytes
/// can be deferred.
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
    number: SrcAvailNumber,
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
