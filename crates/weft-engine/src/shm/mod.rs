//! Shared memory between queue pairs of one host.
//!
//! Two queue pairs are connected over TCP as usual. Each names its process in the hello; the
//! initiator looks for the other process on this host ([`listener`]) and, if it is found and its
//! credentials allow, offers it a segment with two rings ([`segment`], [`session`]). Then the DDP
//! segments of the connection go through the rings, and RDMA Writes and Reads directly to the
//! memory of a key ([`keys`], [`grants`]). The TCP connection carries nothing more; its end reports
//! that of the peer.

mod directory;
mod grants;
mod keys;
mod listener;
mod peer;
mod policy;
mod remapping;
mod segment;
mod session;

pub(crate) use grants::{Grants, Terms, revoke};
pub(crate) use keys::{Found, Granted, PeerKeys, Targets};
pub(crate) use listener::own_id;
pub(crate) use peer::ShmPeer;
pub(crate) use policy::{Choice, choice};
pub(crate) use remapping::{Reach, Remapping};
pub(crate) use segment::{Progress, RingOwner, RingPort, Rings};
pub(crate) use session::{Endpoint, Offer, Session, find_by};
