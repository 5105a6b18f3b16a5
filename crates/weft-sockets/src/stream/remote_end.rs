//! Sleeping on a connection to another host, and closing it.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt;
use weft_stream::remote::Closing;

use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::remote::{self, RemoteEnd};
use crate::{errno, handlers, wait};

/// Sleeps until the peer says something, or the kernel's socket is ready for one of `events`, as a
/// blocking call does. No lock is held: the program may cancel the thread.
///
/// # Errors
/// `EAGAIN` when the deadline, in nanoseconds of [`wait::now`], has passed; `EINTR` where the
/// handlers of signals, or a deadline, want that (signal(7)).
pub(super) fn sleep(
    fd: RawFd,
    remote: &RemoteEnd,
    events: PollFlags,
    deadline: Option<u64>,
) -> Result<(), Errno> {
    let place = |fd: RawFd, events: PollFlags| libc::pollfd {
        fd,
        events: events.bits().cast_signed(),
        revents: 0,
    };
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

/// The last descriptor of this process is about to be closed. What is still under way is waited for
/// elsewhere, where the kernel's socket stays open so long.
pub(super) fn close(fd: RawFd, remote: &Arc<RemoteEnd>) {
    if remote.is_off() {
        return;
    }
    let resets = sockopt::socket_linger(Descriptor::of(fd)) == Ok(Some(Duration::ZERO));
    let closing = remote.close(resets);
    if remote.is_needed() {
        // A child still reads what the peer sends through our queue pair.
        std::mem::forget(Arc::clone(remote));
    }
    match closing {
        Closing::Over => {}
        Closing::Flushing(farewell) => {
            if remote::linger(Descriptor::of(fd).as_fd(), remote, farewell).is_err() {
                reset(fd); // Rather than an end before all has arrived.
            }
        }
        Closing::Reset => reset(fd),
    }
}

fn reset(fd: RawFd) {
    let _ = sockopt::set_socket_linger(Descriptor::of(fd), Some(Duration::ZERO));
}
