//! Addresses whose hosts have answered that no program receives there.
//!
//! Such an answer shows that a process is gone; one that is stopped keeps its socket. But a host
//! may also answer so for a moment, while its firewall or its addresses change. So a peer is
//! given up only when the answers have come for a while and it has said nothing meanwhile.

use std::net::SocketAddr;

use super::limits::{REFUSED_FOR, REFUSING_MAX};

/// The addresses, and when each refused first. What its peers say clears an address.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<(SocketAddr, u64)>);

impl Refusals {
    /// Notes an answer. Returns whether the peers at the address are gone.
    pub(super) fn add(&mut self, now: u64, address: SocketAddr) -> bool {
        if let Some(&(_, since)) = self.0.iter().find(|(refusing, _)| *refusing == address) {
            return now.saturating_sub(since) >= REFUSED_FOR;
        }
        if self.0.len() >= REFUSING_MAX {
            self.0.remove(0);
        }
        self.0.push((address, now));
        false
    }

    /// Forgets an address.
    pub(super) fn clear(&mut self, address: SocketAddr) {
        if !self.0.is_empty() {
            self.0.retain(|(refusing, _)| *refusing != address);
        }
    }
}
