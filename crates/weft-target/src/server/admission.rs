//! Connections that have not logged in: how many there may be, and for how long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_sys::{host_of, lock};

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

/// Counts them.
#[derive(Debug)]
pub(super) struct Admission {
    limits: LoginLimits,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// The place of a connection, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    host: IpAddr,
}

impl Admission {
    /// There are none.
    pub(super) fn new(limits: LoginLimits) -> Self {
        Self { limits, counts: Mutex::default() }
    }

    /// How long a connection may take to log in.
    pub(super) fn time(&self) -> Duration {
        self.limits.time
    }

    /// Takes a place for a connection from `address`. `None` if there is none.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Permit> {
        let host = host_of(address);
        let mut counts = lock(&self.counts);
        let total: usize = counts.values().sum();
        let count = counts.get(&host).copied().unwrap_or_default();
        if total >= self.limits.count || count >= self.limits.count_per_address {
            return None;
        }
        counts.insert(host, count + 1);
        Some(Permit { admission: Arc::clone(self), host })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.admission.counts);
        if let Some(count) = counts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_total_and_for_each_address() {
        let limits = LoginLimits { count: 3, count_per_address: 2, ..LoginLimits::default() };
        let admission = Arc::new(Admission::new(limits));
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        let first = admit("192.0.2.1").unwrap();
        let second = admit("::ffff:192.0.2.1").unwrap();
        assert!(admit("192.0.2.1").is_none());
        let other = admit("2001:db8::1").unwrap();
        assert!(admit("192.0.2.2").is_none(), "the total");
        drop(first);
        let again = admit("2001:db8::2").unwrap();
        drop(second);
        assert!(admit("2001:db8::3").is_none(), "the same network");
        drop((other, again));
        assert!(lock(&admission.counts).is_empty());
    }
}
