//! The ports with which there are connections, and when one of their connections asks whether the
//! port is there. Hosts refuse datagrams to a port that is gone, so that all its connections are
//! known to be over soon, at the cost of one question for all of them.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use super::limits::LOOK;

#[derive(Debug)]
struct Neighbour {
    ends: BTreeSet<u32>,
    look_at: u64,
}

/// The ports by address.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    ports: HashMap<SocketAddr, Neighbour>,
    /// When each asks.
    looks: BTreeSet<(u64, SocketAddr)>,
}

impl Neighbours {
    /// Adds an end whose peer is at this address.
    pub(super) fn add(&mut self, now: u64, address: SocketAddr, end: u32) {
        let look_at = now + LOOK;
        let new = || Neighbour { ends: BTreeSet::new(), look_at };
        let neighbour = self.ports.entry(address).or_insert_with(new);
        if neighbour.ends.is_empty() {
            self.looks.insert((look_at, address));
        }
        neighbour.ends.insert(end);
    }

    /// Removes it.
    pub(super) fn remove(&mut self, address: SocketAddr, end: u32) {
        if let Some(neighbour) = self.ports.get_mut(&address) {
            neighbour.ends.remove(&end);
            if neighbour.ends.is_empty() {
                self.looks.remove(&(neighbour.look_at, address));
                self.ports.remove(&address);
            }
        }
    }

    /// When the next one asks.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.looks.first().map(|&(at, _)| at)
    }

    /// An end that may have to ask now. It says by [`Neighbours::put_off`] when the next one may.
    pub(super) fn due(&mut self, now: u64) -> Option<(SocketAddr, u32)> {
        let &(at, address) = self.looks.first().filter(|(at, _)| *at <= now)?;
        self.looks.remove(&(at, address));
        let neighbour = self.ports.get(&address)?;
        Some((address, *neighbour.ends.first()?))
    }

    /// Sets when the next end with a peer at this address may have to ask.
    pub(super) fn put_off(&mut self, address: SocketAddr, until: u64) {
        if let Some(neighbour) = self.ports.get_mut(&address) {
            neighbour.look_at = until;
            self.looks.insert((until, address));
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.looks.is_empty()
    }
}
