//! Checks whose memory a receiver reads: the process that a source names must have the other end of
//! the connection open, as the kernel reports.
//!
//! The words that name a message lie in memory that every process of the user can write. A process
//! with more rights (a daemon that has changed its user) must not be tricked into reading the
//! memory of a third process, or its own, and delivering it to its program as received data.

use std::fs::{read_dir, read_link};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use weft_sys::calls::process::geteuid;

use crate::registry::Registry;
use crate::sock_diag::holder_of;
use crate::words::Role;

/// Whether the process `pid` has the socket of the side `role` open. The last process that the
/// kernel has confirmed is remembered for each side.
pub(crate) fn is_side(registry: &Registry, slot: usize, role: Role, pid: u32) -> bool {
    let Some(known) = registry.pullers.get(2 * slot + role as usize) else { return false };
    let proven = u64::from(registry.generation(slot)) << 32 | u64::from(pid);
    if known.load(Ordering::Relaxed) == proven {
        return true;
    }
    let (connector, acceptor) = registry.tuple_of(slot).addresses();
    let (own, peer) = match role {
        Role::Connector => (connector, acceptor),
        Role::Acceptor => (acceptor, connector),
    };
    let Ok(Some(held)) = holder_of(own, peer) else { return false };
    let is_side = held.user == geteuid().as_raw() && descriptor_of(pid, held.inode, 0).is_some();
    if is_side {
        known.store(proven, Ordering::Relaxed);
    }
    is_side
}

/// A descriptor of a process that refers to the socket with this inode (`proc_pid_fd(5)`). `likely`
/// is tried first.
pub(crate) fn descriptor_of(pid: u32, inode: u32, likely: u32) -> Option<i32> {
    let name = format!("socket:[{inode}]");
    let is_it = |link: PathBuf| link.to_str() == Some(&name);
    if read_link(format!("/proc/{pid}/fd/{likely}")).is_ok_and(is_it) {
        return i32::try_from(likely).ok();
    }
    let mut fds = read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let fd = fds.find(|fd| read_link(fd.path()).is_ok_and(is_it))?;
    fd.file_name().to_str()?.parse().ok()
}
