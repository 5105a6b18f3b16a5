//! Connections that the program has closed before everything that it sent had arrived.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_stream::remote::{Closing, FinalFlush};
use weft_sys::calls::event::Timespec;
use weft_sys::calls::net::sockopt;

use super::wire::RemoteEnd;
use crate::kernel::{Host, Kernel as _};

/// How long a peer may take to receive everything. (TCP gives up after some minutes.)
const LINGER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the end of the process waits.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

static LINGERING: AtomicUsize = AtomicUsize::new(0);

/// The kernel's socket, which is closed with this value, and the connection to flush first.
#[derive(Debug)]
pub(super) struct Lingering {
    socket: OwnedFd,
    remote: Arc<RemoteEnd>,
    final_flush: FinalFlush,
    until: Instant,
}

impl Lingering {
    pub(super) fn new(socket: OwnedFd, remote: Arc<RemoteEnd>, final_flush: FinalFlush) -> Self {
        LINGERING.fetch_add(1, Ordering::AcqRel);
        Self { socket, remote, final_flush, until: Instant::now() + LINGER_TIMEOUT }
    }

    /// Returns whether the connection may be dropped.
    pub(super) fn is_over(&mut self) -> bool {
        let is_late = || Instant::now() >= self.until;
        match self.remote.is_closed(&mut self.final_flush) {
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
        LINGERING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Forgets lingering connections in a forked child: they are the parent's.
pub(super) fn forked() {
    LINGERING.store(0, Ordering::Release);
}

/// Waits at the end of the process, or before a fork, until no connection lingers, or the time is
/// over.
pub(crate) fn finish() {
    const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };
    let began = Instant::now();
    while LINGERING.load(Ordering::Acquire) > 0 && began.elapsed() < EXIT_TIMEOUT {
        Host::sleep_for(&SLEEP_TIME); // No cancellation point, as a fork is none.
    }
}
