//! The rules of a target, or of discovery.

use std::net::IpAddr;

use super::chap::Chap;
use super::names::is_named;
use super::network::Network;

/// The rules for logins. All of them must allow it.
#[derive(Debug, Default)]
pub struct Access {
    /// How initiators prove who they are. `None`: they need not.
    pub chap: Option<Chap>,
    /// The iSCSI names of initiators that may log in. `None`: all.
    pub initiators: Option<Vec<String>>,
    /// The networks from which initiators may log in. `None`: all.
    pub networks: Option<Vec<Network>>,
}

impl Access {
    /// Whether an initiator at this address may log in.
    #[must_use]
    pub fn admits_address(&self, address: IpAddr) -> bool {
        let networks = self.networks.as_ref();
        networks.is_none_or(|networks| networks.iter().any(|network| network.contains(address)))
    }

    /// Whether an initiator of this iSCSI name may log in.
    #[must_use]
    pub fn admits_name(&self, initiator: &str) -> bool {
        self.initiators.as_ref().is_none_or(|names| is_named(names, initiator))
    }
}
