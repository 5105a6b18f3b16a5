//! Connections that have not logged in: how many there may be, and for how long.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weft_sys::{HostCount, HostCounts};

use crate::limits::{LOGIN_TIME_MAX, LOGINS_MAX, LOGINS_PER_ADDRESS_MAX};

/// Limits for connections that have not logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginLimits {
    /// How many there may be.
    pub count: usize,
    /// How many there may be from one address; for IPv6, from one network of 64 bits.
    pub count_per_address: usize,
    /// They are closed after this time.
    pub time: Duration,
}

impl Default for LoginLimits {
    fn default() -> Self {
        let (count, count_per_address) = (LOGINS_MAX, LOGINS_PER_ADDRESS_MAX);
        Self { count, count_per_address, time: LOGIN_TIME_MAX }
    }
}

/// Admits them.
#[derive(Debug)]
pub(super) struct Admission {
    limits: LoginLimits,
    hosts: Arc<HostCounts>,
}

impl Admission {
    /// There are none.
    pub(super) fn new(limits: LoginLimits) -> Self {
        Self { limits, hosts: Arc::default() }
    }

    /// How long a connection may take to log in.
    pub(super) fn time(&self) -> Duration {
        self.limits.time
    }

    /// Takes a place for a connection from `address`, which is free again when the result is
    /// dropped. `None` if there is none.
    pub(super) fn admit(&self, address: IpAddr) -> Option<HostCount> {
        let LoginLimits { count, count_per_address, .. } = self.limits;
        self.hosts.add_within(address, count, count_per_address)
    }
}
