//! Extended sockets: one-sided and asynchronous operations beside the ordinary stream.
//!
//! `include/weft_socket.h` says what programs may expect. A program finds the calls by an option
//! of its socket, so that it is linked to nothing and hears from the kernel that there is no such
//! option where this library is not loaded.
//!
//! * `memory`: memory that peers can map, and that of peers;
//! * `onesided`: getting, putting and changing words there;
//! * `queue`: posted operations and their completions;
//! * `calls`: the C functions.

mod calls;
pub(crate) mod memory;
mod onesided;
mod queue;

use std::os::fd::RawFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use weft_sys::SectionLock;
use weft_sys::calls::socket_timeout;

pub(crate) use calls::{get_option, set_option};

use crate::descriptor::{borrow, is_hung_up, is_nonblocking};
use crate::stream::Stream;
use crate::wait;

/// How long a switch to extended mode waits for the peer, if the program has set no time limit.
const SWITCH_LIMIT: Duration = Duration::from_secs(5);
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);

/// What a socket in extended mode has beside its stream.
#[derive(Debug)]
pub(crate) struct Extended {
    peer: onesided::Peer,
    work: SectionLock<queue::Work>,
}

impl Extended {
    /// Nothing is mapped or posted yet.
    pub(crate) fn new() -> Self {
        Self { peer: onesided::Peer::new(), work: SectionLock::new(queue::Work::default()) }
    }
}

/// Switches a connected socket to extended mode, as soon as its peer does the same.
///
/// # Errors
/// As `weft_socket.h` says.
fn switch(stream: &Stream, fd: RawFd) -> Result<(), Errno> {
    let limit = socket_timeout(borrow(fd), sockopt::Timeout::Recv).ok().flatten();
    let deadline = wait::now() + nanoseconds(limit.unwrap_or(SWITCH_LIMIT));
    let mut nap = NAP_MIN;
    loop {
        if let Some(end) = stream.seek(fd)? {
            end.extend();
            end.advance(borrow(fd));
            if end.is_extended() {
                stream.extend();
                return Ok(());
            }
            if end.has_left() {
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
        std::thread::sleep(nap);
        nap = (nap * 2).min(NAP_MAX);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}
