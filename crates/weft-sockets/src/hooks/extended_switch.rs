//! Switching a connected socket to extended mode.

use std::os::fd::{AsFd as _, RawFd};
use std::time::Duration;

use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt;
use weft_sys::calls::socket_timeout;

use crate::descriptor::{Descriptor, is_hung_up, is_nonblocking};
use crate::limits::SWITCH_SLEEP_MAX;
use crate::stream::Stream;
use crate::{brief, wait};

/// How long a switch waits for the peer if the program has set no time limit.
const SWITCH_LIMIT: Duration = Duration::from_secs(5);
pub(super) const SLEEP_MIN: Duration = Duration::from_micros(20);

/// Switches a connected socket to extended mode, as soon as the peer does the same.
///
/// # Errors
/// The errors that `weft_socket.h` documents.
pub(super) fn switch(stream: &Stream, fd: RawFd) -> Result<(), Errno> {
    brief::PLACES.turn_off();
    let limit = socket_timeout(Descriptor::of(fd).as_fd(), sockopt::Timeout::Recv).ok().flatten();
    let deadline = wait::now() + nanoseconds(limit.unwrap_or(SWITCH_LIMIT));
    let mut sleep_time = SLEEP_MIN;
    loop {
        if let Some(end) = stream.seek(fd)? {
            end.extend();
            end.advance(Descriptor::of(fd).as_fd());
            if end.is_extended() {
                stream.extend();
                return Ok(());
            }
            if end.has_fallen_back() {
                return Err(Errno::OPNOTSUPP);
            }
        }
        if is_nonblocking(fd, 0) {
            return Err(Errno::AGAIN);
        }
        if is_hung_up(fd) {
            return Err(Errno::CONNRESET);
        }
        if wait::now() >= deadline {
            return Err(Errno::TIMEDOUT);
        }
        std::thread::sleep(sleep_time);
        sleep_time = (sleep_time * 2).min(SWITCH_SLEEP_MAX);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}
