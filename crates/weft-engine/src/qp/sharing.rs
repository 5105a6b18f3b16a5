//! Shared memory of a queue pair's connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Qp;
use super::work::{WORK_DRAIN, WORK_RECEIVE, WORK_RING, WORK_SEND};
use crate::access::Access;
use crate::attr::QpState;
use crate::hello::Identity;
use crate::reactor::Handle;
use crate::registered::{self, Keyed};
use crate::shm::{
    Endpoint, Granted, Grants, Offer, RingOwner, Rings, Session, ShmPeer, Terms, own_id,
};

impl RingOwner for Qp {
    fn ring_ready(&self, due: bool) {
        self.drive(if due { WORK_RING | WORK_SEND } else { WORK_RING });
    }
}

impl Endpoint for Qp {
    fn identity(&self) -> Identity {
        Self::identity(self)
    }

    fn reactor(&self) -> Handle {
        Self::reactor(self)
    }

    fn probe(&self) -> u64 {
        own_id().as_ptr() as u64
    }

    fn offered(&self, offer: Offer) {
        self.conn.lock().offered(self, offer);
        self.drive(WORK_RING | WORK_SEND);
    }

    fn offer_accepted(&self, rings: Rings, peer: ShmPeer) {
        self.conn.lock().offer_accepted(self, rings, peer);
        self.drive(WORK_RING | WORK_SEND);
    }

    fn offer_refused(&self) {
        self.conn.lock().offer_refused(self);
        self.drive(WORK_RECEIVE | WORK_DRAIN | WORK_SEND);
    }

    fn offer_withdrawn(&self, session: &Session) {
        self.conn.lock().offer_withdrawn(session);
        self.drive(WORK_RING | WORK_SEND);
    }

    fn session_ended(&self) {
        self.conn.lock().session_ended(self);
        self.drive(WORK_SEND);
    }

    fn learn_key(&self, key: u32, granted: Option<Granted>) {
        self.conn.lock().link.learn_key(key, granted);
        self.drive(WORK_SEND);
    }

    fn grant_key(&self, key: u32) -> Option<Granted> {
        let grants = self.conn.lock().link.grants();
        // Do the work that other threads left while this thread held the lock.
        self.drive(0);
        self.grant(&grants?, key)
    }
}

impl Qp {
    /// Grants a key to the peer if it is the key of a region that the peer may access. Operations
    /// on windows, which are bound and unbound, and on observed regions go through the ring.
    fn grant(&self, grants: &Arc<Grants>, key: u32) -> Option<Granted> {
        let Some(Keyed::Region(mr)) = registered::find(key) else { return None };
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let current = || mr.access() & self.remote_access() & remote;
        let rights = current();
        if !Arc::ptr_eq(mr.pd(), &self.pd) || rights.is_empty() || mr.is_observed() {
            return None;
        }
        mr.granted.store(true, Ordering::SeqCst);
        let writing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let grants_writing = rights.contains(mr.access() & writing);
        let terms = Terms { rights, grants_writing, iova: mr.iova(), len: mr.len() };
        grants.grant(key, terms, || (mr.is_valid() && current() == rights).then(|| mr.reach())?)
    }

    /// The peer's access rights in the current state.
    fn remote_access(&self) -> Access {
        match self.state() {
            QpState::Rtr | QpState::Rts | QpState::Sqd => self.attr.lock().qp_access_flags,
            _ => Access::empty(),
        }
    }
}
