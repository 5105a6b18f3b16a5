//! Fetches the peer's socket as a descriptor of this process (`pidfd_getfd(2)`). Only by that
//! socket can bytes be put into the queue from which this end reads.
//!
//! The shared words say which processes may have the socket, but any process of the user can write
//! those. So the kernel is asked which socket is the other end (`sock_diag`), and whether the
//! fetched one is that. If the kernel does not permit the fetch, there is none.

use std::fs::read_link;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weft_sys::calls::net::{SocketType, getpeername, getsockname, sockopt};
use weft_sys::calls::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};
use weft_sys::network_namespace;

use crate::pullers::descriptor_of;
use crate::sock_diag::holder_of;
use crate::tuple::Tuple;

/// Fetches the other end of the connection of `own` from one of the processes `pids`, of which the
/// first probably has it as descriptor `likely`. The program's descriptor limit does not count.
pub(crate) fn fetch(
    own: BorrowedFd<'_>,
    pids: impl Iterator<Item = u32> + Clone,
    likely: u32,
) -> Option<OwnedFd> {
    fetch_within(own, pids.clone(), likely).or_else(|| {
        let _raised = Raised::begin()?;
        fetch_within(own, pids, likely)
    })
}

/// Raises the soft limit of descriptors (`RLIMIT_NOFILE`) to the hard limit until it is dropped.
struct Raised {
    before: Rlimit,
}

impl Raised {
    fn begin() -> Option<Self> {
        let before = getrlimit(Resource::Nofile);
        let highest = Rlimit { current: before.maximum, ..before };
        if before == highest {
            return None;
        }
        setrlimit(Resource::Nofile, highest).ok()?;
        Some(Self { before })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Another thread may have set a limit meanwhile.
        if getrlimit(Resource::Nofile).current == self.before.maximum {
            let _ = setrlimit(Resource::Nofile, self.before);
        }
    }
}

fn fetch_within(
    own: BorrowedFd<'_>,
    pids: impl Iterator<Item = u32>,
    likely: u32,
) -> Option<OwnedFd> {
    let (here, there) = ends(own)?;
    let held = holder_of(there, here).ok()??;
    // A child of `vfork` in a PID namespace of its own could not open its parent's files in
    // `/proc`.
    let own_copy = copy_of(held.inode, likely);
    if own_copy.as_ref().is_some_and(|copy| is_other_end(copy.as_fd(), own)) {
        return own_copy;
    }
    pids.filter_map(|pid| {
        let fd = descriptor_of(pid, held.inode, likely).or_else(|| hidden(pid, likely))?;
        let process = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
        pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).ok()
    })
    .find(|fetched| is_other_end(fetched.as_fd(), own))
}

/// The descriptor `likely` of a process into whose files this one may not look: its effective user
/// is not its real one, which decides whether it may fetch them.
fn hidden(pid: u32, likely: u32) -> Option<i32> {
    let is_denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    let look = read_link(format!("/proc/{pid}/fd/{likely}"));
    if look.is_err_and(is_denied) { i32::try_from(likely).ok() } else { None }
}

/// A copy of this process's descriptor `fd`, if that is the socket with this inode.
fn copy_of(inode: u32, fd: u32) -> Option<OwnedFd> {
    let link = read_link(format!("/proc/self/fd/{fd}")).ok()?;
    if link.to_str()? != format!("socket:[{inode}]") {
        return None;
    }
    let process = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    pidfd_getfd(process, i32::try_from(fd).ok()?, PidfdGetfdFlags::empty()).ok()
}

/// Whether two sockets are the ends of one connection.
fn is_other_end(fetched: BorrowedFd<'_>, own: BorrowedFd<'_>) -> bool {
    let (Some((here, there)), Some((its, ours))) = (ends(own), ends(fetched)) else {
        return false;
    };
    sockopt::socket_type(fetched) == Ok(SocketType::STREAM)
        && network_namespace(fetched) == network_namespace(own)
        && Tuple::new(here, there) == Tuple::new(ours, its)
}

/// A socket's own address and its peer's, with IPv4-mapped ones as IPv4.
fn ends(socket: BorrowedFd<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let own = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
    Some(Tuple::new(own, peer).addresses())
}
