//! What becomes of a queue pair's connection when memory is shared.

use super::{KICK_DRAIN, KICK_RECEIVE, KICK_RING, KICK_SEND, Qp, QpState};
use crate::access::Access;
use crate::shm::{Granted, Offer, Peer, RingOwner, Rings, Session};

impl RingOwner for Qp {
    fn ring_ready(&self, due: bool) {
        self.drive(if due { KICK_RING | KICK_SEND } else { KICK_RING });
    }
}

impl Qp {
    /// The peer offers to share memory.
    pub(crate) fn offered(&self, offer: Offer) {
        self.conn.lock().offered(self, offer);
        self.drive(KICK_RING | KICK_SEND);
    }

    /// The peer has accepted our offer.
    pub(crate) fn offer_accepted(&self, rings: Rings, peer: Peer) {
        self.conn.lock().offer_accepted(self, rings, peer);
        self.drive(KICK_RING | KICK_SEND);
    }

    /// The peer has not accepted our offer.
    pub(crate) fn offer_refused(&self) {
        self.conn.lock().offer_refused(self);
        self.drive(KICK_RECEIVE | KICK_DRAIN | KICK_SEND);
    }

    /// The peer's offer, for which there has been no connection, is void.
    pub(crate) fn offer_withdrawn(&self, session: &Session) {
        self.conn.lock().offer_withdrawn(session);
        self.drive(KICK_RING | KICK_SEND);
    }

    /// The socket beside the connection has ended.
    pub(crate) fn session_ended(&self) {
        self.conn.lock().session_ended(self);
        self.drive(KICK_SEND);
    }

    /// The peer's answer to a question for a key.
    pub(crate) fn learn_key(&self, key: u32, granted: Option<Granted>) {
        self.conn.lock().link.learn_key(key, granted);
        self.drive(KICK_SEND);
    }

    /// The peer asks for a key.
    pub(crate) fn grant_key(&self, key: u32) -> Option<Granted> {
        let grants = self.conn.lock().link.grants();
        // Who came meanwhile has left its work to this thread.
        self.drive(0);
        grants?.grant(self, key)
    }

    /// What a peer may do to memory now.
    pub(crate) fn remote_access(&self) -> Access {
        match self.state() {
            QpState::Rtr | QpState::Rts | QpState::Sqd => self.attr.lock().qp_access_flags,
            _ => Access::empty(),
        }
    }
}
