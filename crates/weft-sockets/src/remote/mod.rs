//! Connections to other hosts over the engine's verbs: making the queue pairs, and using them.
//!
//! [`weft_stream::remote`] moves the bytes. The engine starts only if the user wants this
//! (`settings::between_hosts`) and the first such connection is made.

mod broker;
mod hello;
mod lingering;
mod wire;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::sync::Arc;

use weft_engine::reactor::Handle;
use weft_stream::remote::FinalFlush;
use weft_stream::{Role, StatSlot, Tuple};
use weft_sys::calls::io::{Errno, fcntl_dupfd_cloexec};
use weft_sys::network_namespace;

use self::broker::Wanted;
use self::lingering::Lingering;
pub(crate) use self::lingering::finish;
pub(crate) use self::wire::RemoteEnd;
use crate::descriptor::Descriptor;
use crate::{identity, shared_files};

/// Weft's descriptors start here, because programs expect the lowest numbers for themselves.
const LOWEST_FD: RawFd = 64;

/// Polls all connections to other hosts for new data.
#[inline]
pub(crate) fn drive() {
    if wire::is_any() {
        Handle::of_process().get().poll();
    }
}

/// Forgets the queue pairs in a forked child: they are the parent's.
pub(crate) fn forked() {
    stop();
    lingering::forked();
}

/// Stops driving all connections.
pub(crate) fn stop() {
    wire::forget_all();
}

/// Returns the end of a new connection, for which the background thread looks for the peer. `None`
/// if there is no memory.
pub(crate) fn seek(fd: RawFd, role: Role, ends: [SocketAddr; 2]) -> Option<Arc<RemoteEnd>> {
    let ends = ends.map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    let remote = Arc::new(RemoteEnd::new().ok()?);
    let tuple =
        Tuple::new(ends[0], ends[1]).in_namespace(network_namespace(Descriptor::of(fd).as_fd()));
    let me = identity::me(fd);
    if let Some(shown) =
        shared_files::registry().and_then(|all| StatSlot::new(all, &tuple, role, &me))
    {
        remote.show(shown);
    }
    broker::want(Wanted { remote: Arc::downgrade(&remote), role, ends });
    Some(remote)
}

/// Closes a connection in the background when everything that was sent has arrived.
///
/// # Errors
/// `EMFILE` and other errors of duplicating a descriptor.
pub(crate) fn linger(
    socket: BorrowedFd<'_>,
    remote: &Arc<RemoteEnd>,
    final_flush: FinalFlush,
) -> Result<(), Errno> {
    let socket = fcntl_dupfd_cloexec(socket, LOWEST_FD)?;
    broker::linger(Lingering::new(socket, Arc::clone(remote), final_flush));
    Ok(())
}
