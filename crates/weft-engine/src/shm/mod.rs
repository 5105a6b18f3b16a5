//! Shared memory between queue pairs of one host.
//!
//! Two queue pairs are connected over TCP as always. Each names its process in the hello; the side
//! that opened the connection looks for the other's process on this host ([`listener`]) and, if it
//! finds it and its credentials allow, offers it a segment with two rings ([`segment`],
//! [`session`]). From then on the DDP segments of the connection go through the rings, and RDMA
//! Writes and Reads straight to the memory that a key names ([`keys`], [`grants`]). The TCP
//! connection carries nothing any more; its end tells of the peer's.

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
pub(crate) use peer::Peer;
pub(crate) use policy::{Choice, choice};
pub(crate) use remapping::{Reach, Remapping};
pub(crate) use segment::{BULK_LEN, Progress, RingOwner, RingPort, Rings, SLOTS};
pub(crate) use session::{Endpoint, Offer, Session, find_by};
