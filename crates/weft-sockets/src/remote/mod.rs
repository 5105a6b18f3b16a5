//! Connections to other hosts over the engine's verbs: who makes the queue pairs, and what they
//! are.
//!
//! [`weft_stream::remote`] moves the bytes. The engine begins only when the user wants this
//! (`settings::between_hosts`) and the first such connection is made.

mod broker;
mod hello;
mod lingering;
mod wire;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use weft_engine::reactor::Handle;
use weft_stream::remote::Farewell;
use weft_stream::{Role, Shown, Tuple};
use weft_sys::network_namespace;

use self::broker::Wanted;
use self::lingering::Lingering;
pub(crate) use self::lingering::finish;
pub(crate) use self::wire::RemoteEnd;
use crate::descriptor::Descriptor;
use crate::{identity, shared_files};

/// Descriptors that programs do not expect are not among the lowest.
const LOWEST_FD: RawFd = 64;

/// Takes what has come from other hosts, for all connections.
#[inline]
pub(crate) fn drive() {
    if wire::is_any() {
        Handle::of_process().get().poll();
    }
}

/// This is a child just born: queue pairs are the parent's.
pub(crate) fn forked() {
    stop();
    lingering::forked();
}

/// No connection is driven any more.
pub(crate) fn stop() {
    wire::forget_all();
}

/// The end of a connection just made, for which the peer is looked for in the background. `None` if
/// there is no memory.
pub(crate) fn seek(fd: RawFd, role: Role, ends: [SocketAddr; 2]) -> Option<Arc<RemoteEnd>> {
    let ends = ends.map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    let remote = Arc::new(RemoteEnd::new().ok()?);
    let tuple =
        Tuple::new(ends[0], ends[1]).in_namespace(network_namespace(Descriptor::of(fd).as_fd()));
    let me = identity::me(fd);
    if let Some(shown) = shared_files::registry().and_then(|all| Shown::new(all, &tuple, role, &me))
    {
        remote.show(shown);
    }
    broker::want(Wanted { remote: Arc::downgrade(&remote), role, ends });
    Some(remote)
}

/// Closes a connection when all that was sent has arrived, in the background.
///
/// # Errors
/// `EMFILE` and the like.
pub(crate) fn linger(
    socket: BorrowedFd<'_>,
    remote: &Arc<RemoteEnd>,
    farewell: Farewell,
) -> Result<(), Errno> {
    let socket = fcntl_dupfd_cloexec(socket, LOWEST_FD)?;
    broker::linger(Lingering::new(socket, Arc::clone(remote), farewell));
    Ok(())
}
