//! What sharing memory needs of the queue pairs of this process.

use std::sync::{Arc, OnceLock};

use super::keys::Granted;
use super::peer::Peer;
use super::segment::Rings;
use super::session::{Offer, Session};
use crate::hello::Identity;

/// A queue pair whose connection may share memory.
pub(crate) trait Endpoint: Send + Sync + std::fmt::Debug {
    /// What a peer must know to talk to it.
    fn identity(&self) -> Identity;

    /// The peer offers to share memory.
    fn offered(&self, offer: Offer);

    /// The peer has accepted our offer.
    fn offer_accepted(&self, rings: Rings, peer: Peer);

    /// The peer has not accepted our offer.
    fn offer_refused(&self);

    /// The peer's offer, for which there has been no connection, is void.
    fn offer_withdrawn(&self, session: &Session);

    /// The socket beside the connection has ended.
    fn session_ended(&self);

    /// There may be something in shared memory. What the peer is to be told may wait for more,
    /// unless it is `due`.
    fn ring_ready(&self, due: bool);

    /// The peer's answer to a question for a key.
    fn learn_key(&self, key: u32, granted: Option<Granted>);

    /// The peer asks for a key.
    fn grant_key(&self, key: u32) -> Option<Granted>;
}

/// Finds an endpoint by the number of its queue pair.
pub(crate) type Find = fn(u32) -> Option<Arc<dyn Endpoint>>;

static FIND: OnceLock<Find> = OnceLock::new();

/// Says how endpoints are found; those that have an identity have said so before.
pub(crate) fn find_by(find: Find) {
    FIND.get_or_init(|| find);
}

/// The endpoint with this number.
pub(super) fn find(number: u32) -> Option<Arc<dyn Endpoint>> {
    FIND.get().and_then(|find| find(number))
}
