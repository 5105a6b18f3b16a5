//! Whose memory a receiver reads: the process that names a long message is one that has the other
//! end of the connection open, as the kernel says.
//!
//! The words that name a message lie in memory that every process of the user can write. A process
//! that has more rights than those (a daemon that has changed its user) must not be led to read
//! the memory of a third process, or its own, and to hand it to its program as received.

use std::fs::{read_dir, read_link};
use std::sync::atomic::Ordering;

use rustix::process::geteuid;

use crate::registry::Registry;
use crate::sock_diag::holder_of;
use crate::words::Role;

/// Whether the process `pid` has the socket of the side `role` of a slot open. What the kernel has
/// said of a process is remembered for the connection.
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
    let is_side = held.user == geteuid().as_raw() && has_open(pid, held.inode);
    if is_side {
        known.store(proven, Ordering::Relaxed);
    }
    is_side
}

/// Whether one of a process's descriptors is the socket of this inode (proc_pid_fd(5)).
fn has_open(pid: u32, inode: u32) -> bool {
    let name = format!("socket:[{inode}]");
    let fds = read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = fds.filter_map(|fd| read_link(fd.path()).ok());
    links.any(|link| link.to_str() == Some(&name))
}
