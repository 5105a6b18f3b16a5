//! Zero copy: long messages that the receiver pulls out of the sender's memory (SDP's Source
//! Avail). The call returns when that has happened, as `send(2)` must: the buffer is the program's
//! again.

use std::os::fd::RawFd;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;
use weft_stream::{End, Judge, SourceNumber, Way};
use weft_sys::{Buffers, Lock, Spin};

use crate::process;
use crate::settings::{self, ZeroCopy};
use crate::stream::borrow;
use crate::wait::{self, Wait};

/// Shorter messages are cheaper to copy twice.
const LEN_MIN: usize = 256 << 10;
/// How long the peer may do nothing before the rest is copied. If the ring has room for all of it,
/// the call would have returned at once.
const PATIENCE_NS: u64 = 2_000_000;
const PATIENCE_WITH_ROOM_NS: u64 = 200_000;
const SPIN_MAX_NS: u64 = 2_000_000;

/// What a connection knows of zero copy.
#[derive(Debug)]
pub(crate) struct Sender {
    judge: Lock<Judge>,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self { judge: Lock::new(Judge::default()) }
    }

    /// Whether a message may go without being copied twice.
    #[inline]
    pub(crate) fn is_for(&self, buffers: Buffers<'_>) -> bool {
        buffers.len() >= LEN_MIN && settings::zero_copy() != ZeroCopy::Off
    }

    /// Sends what the peer pulls, and returns how many bytes that was: the others are to be copied,
    /// unless a signal was handled, which the second value says.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled before anything was pulled.
    pub(crate) fn send(
        &self,
        end: &End,
        fd: RawFd,
        buffers: Buffers<'_>,
        nonblocking: bool,
        spin: &Spin,
    ) -> Result<(usize, bool), Errno> {
        let len = buffers.len();
        let judged = settings::zero_copy() == ZeroCopy::Auto;
        if judged && self.judge.lock().choose(len, wait::now()) == Way::Ring {
            return Ok((0, false));
        }
        // Who must not wait relies on a peer that does.
        if nonblocking && !end.is_peer_waiting() {
            return Ok((0, false));
        }
        let Some(number) = end.post_source(borrow(fd), buffers, &process::owner()) else {
            return Ok((0, false));
        };
        let has_room = nonblocking || len <= weft_stream::limits::BIG_RING_LEN;
        let patience = if has_room { PATIENCE_WITH_ROOM_NS } else { PATIENCE_NS };
        let waited = wait_until_over(end, number, patience, spin);
        match end.withdraw_source(number) {
            0 => waited.map(|()| (0, false)),
            pulled => Ok((pulled.min(len), waited.is_err())),
        }
    }
}

/// Waits until a source is over, or has not gone on for as long as `patience` says, in nanoseconds.
fn wait_until_over(
    end: &End,
    number: SourceNumber,
    patience: u64,
    spin: &Spin,
) -> Result<(), Errno> {
    let nap = Timespec { tv_sec: 0, tv_nsec: patience.cast_signed() };
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
            Some(_) if now >= since + patience => return Ok(()),
            Some(_) => {}
        }
        let (word, value) = end.want_room_by_futex();
        if end.source_progress(number).is_none() {
            return Ok(());
        }
        let slept = futex::wait(word, futex::Flags::empty(), value, Some(&nap));
        if slept == Err(Errno::INTR) && !process::handlers_restart() {
            return Err(Errno::INTR);
        }
    }
}
