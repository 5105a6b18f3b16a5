//! Sleeping on a connection to another host, and closing it.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use weft_stream::remote::Closing;
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt;

use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::remote::{self, RemoteEnd};
use crate::{errno, handlers, wait};

/// Sleeps like a blocking call until the peer notifies, or the kernel's socket has one of `events`.
/// The caller holds no lock: the program may cancel the thread.
///
/// # Errors
/// `EAGAIN` when the deadline, in nanoseconds of [`wait::now`], has passed; `EINTR` if the signal
/// handlers, or a deadline, require it (signal(7)).
pub(super) fn sleep(
    fd: RawFd,
    remote: &RemoteEnd,
    events: PollFlags,
    deadline: Option<u64>,
) -> Result<(), Errno> {
    let place =
        |fd: RawFd, events: PollFlags| libc::pollfd { fd, events: events.bits(), revents: 0 };
    let wakeup = remote.wakeup_fd();
    let mut set = [place(fd, events), place(wakeup.as_fd().as_raw_fd(), PollFlags::IN)];
    let limit = deadline.map(|deadline| wait::timespec(deadline.saturating_sub(wait::now())));
    match Host::poll_as_program(&mut set, limit.as_ref()) {
        0 => Err(Errno::AGAIN),
        1.. => {
            if set[1].revents != 0 {
                remote.clear_wakeup();
            }
            Ok(())
        }
        _ if errno::last() == Errno::INTR && deadline.is_none() && handlers::restart() => Ok(()),
        _ => Err(errno::last()),
    }
}

/// Closes this process's last descriptor of a connection. The broker delivers outstanding data in
/// the background, and keeps the kernel's socket open meanwhile.
pub(super) fn close(fd: RawFd, remote: &Arc<RemoteEnd>) {
    if remote.is_off() {
        return;
    }
    let resets = sockopt::socket_linger(Descriptor::of(fd)) == Ok(Some(Duration::ZERO));
    let closing = remote.close(resets);
    if remote.is_needed() {
        // A child still reads what the peer sends through this process's queue pair.
        std::mem::forget(Arc::clone(remote));
    }
    match closing {
        Closing::Over => {}
        Closing::Flushing(final_flush) => {
            if remote::linger(Descriptor::of(fd).as_fd(), remote, final_flush).is_err() {
                reset(fd); // A reset is better than an EOF before all bytes.
            }
        }
        Closing::Reset => reset(fd),
    }
}

fn reset(fd: RawFd) {
    let _ = sockopt::set_socket_linger(Descriptor::of(fd), Some(Duration::ZERO));
}
