//! The table of an endpoint's peers.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::limits::SWEEP;
use super::peer::RdPeer;
use super::request::Route;
use super::shared::EndpointState;

/// Peers by route. A peer keeps its slot until it is forgotten.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<RdPeer>>,
    free: Vec<u32>,
    index: HashMap<Route, u32>,
    /// Where the search for idle peers continues.
    hand: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, route: &Route) -> Option<u32> {
        self.index.get(route).copied()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut RdPeer> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The slots of all peers at an address.
    pub(super) fn at(&self, address: SocketAddr) -> Vec<u32> {
        let here = self.index.iter().filter(|(route, _)| route.peer().socket == address);
        here.map(|(_, &slot)| slot).collect()
    }

    /// Adds a peer with a new route. `None` if all slots are used by peers that cannot be
    /// forgotten.
    pub(super) fn insert(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        peer: RdPeer,
    ) -> Option<u32> {
        self.sweep(now, shared);
        if self.len() >= shared.config.peers_max {
            return None;
        }
        let route = peer.route;
        shared.unproven += usize::from(!peer.dialled && !peer.proven);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        self.slots[slot as usize] = Some(peer);
        self.index.insert(route, slot);
        Some(slot)
    }

    /// Forgets idle peers among the next few slots.
    pub(super) fn sweep(&mut self, now: u64, shared: &mut EndpointState) {
        for _ in 0..SWEEP.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            let place = &mut self.slots[self.hand];
            let Some(mut peer) = place.take_if(|peer| peer.may_be_forgotten(now)) else {
                continue;
            };
            peer.drop_inbox(shared);
            shared.unproven -= usize::from(!peer.dialled && !peer.proven);
            self.index.remove(&peer.route);
            // Fits in 32 bits, as checked when the slot was made.
            self.free.push(self.hand as u32);
        }
    }

    /// Refuses slow incomplete Sends of the next few peers, which use room for too long.
    pub(super) fn reclaim(&mut self, now: u64, shared: &mut EndpointState) {
        for _ in 0..SWEEP.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            if let Some(peer) = &mut self.slots[self.hand] {
                peer.drop_slow_partial(now, shared);
            }
        }
    }
}
