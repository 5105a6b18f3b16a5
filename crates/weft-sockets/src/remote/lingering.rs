//! Connections that the program has closed before all that it sent had arrived.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use weft_stream::remote::{Closing, Farewell};

use super::wire::RemoteEnd;

/// How long a peer may take to let everything arrive. (TCP gives up after some minutes.)
const LONGEST: Duration = Duration::from_secs(60);
/// How long the end of the process waits.
const AT_EXIT: Duration = Duration::from_secs(2);

static LINGER: AtomicUsize = AtomicUsize::new(0);

/// The kernel's socket, which is closed with this value, and what is to happen before.
#[derive(Debug)]
pub(super) struct Lingering {
    socket: OwnedFd,
    remote: Arc<RemoteEnd>,
    farewell: Farewell,
    until: Instant,
}

impl Lingering {
    pub(super) fn new(socket: OwnedFd, remote: Arc<RemoteEnd>, farewell: Farewell) -> Self {
        LINGER.fetch_add(1, Ordering::AcqRel);
        Self { socket, remote, farewell, until: Instant::now() + LONGEST }
    }

    /// Whether it may be dropped.
    pub(super) fn is_over(&mut self) -> bool {
        let is_late = || Instant::now() >= self.until;
        match self.remote.is_closed(&mut self.farewell) {
            Some(Closing::Over) => return true,
            Some(Closing::Reset) => {}
            Some(Closing::Flushing(_)) | None if is_late() => {}
            Some(Closing::Flushing(_)) | None => return false,
        }
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        true
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        LINGER.fetch_sub(1, Ordering::AcqRel);
    }
}

/// This is a child just born: they are the parent's.
pub(super) fn forked() {
    LINGER.store(0, Ordering::Release);
}

/// The process ends or forks: waits until no connection lingers, or for as long as it should.
pub(crate) fn finish() {
    const SLEEP_TIME: Duration = Duration::from_micros(200);
    let began = Instant::now();
    while LINGER.load(Ordering::Acquire) > 0 && began.elapsed() < AT_EXIT {
        std::thread::sleep(SLEEP_TIME);
    }
}
