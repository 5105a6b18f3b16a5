//! Which addresses count as one host, and how much each host has at a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::mutex::lock;

/// Returns the same address for all addresses that one host may have as it likes: in IPv6 it has a
/// network of 64 bits. An IPv4 address in the form of an IPv6 one counts as the IPv4 address.
#[must_use]
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

/// Counts what the hosts have at a time, such as connections.
#[derive(Debug, Default)]
pub struct HostCounts {
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One that a host has, until this is dropped.
#[derive(Debug)]
pub struct HostCount {
    all: Arc<HostCounts>,
    host: IpAddr,
    count: usize,
}

impl HostCounts {
    /// Counts one more of the host with this address.
    #[must_use]
    pub fn add(self: &Arc<Self>, from: IpAddr) -> HostCount {
        let host = host_of(from);
        let mut counts = lock(&self.counts);
        self.count(&mut counts, host)
    }

    /// Counts one more of the host with this address, unless all hosts have `total`, or this one
    /// has `each`.
    #[must_use]
    pub fn add_within(
        self: &Arc<Self>,
        from: IpAddr,
        total: usize,
        each: usize,
    ) -> Option<HostCount> {
        let host = host_of(from);
        let mut counts = lock(&self.counts);
        let all: usize = counts.values().sum();
        let of_host = counts.get(&host).copied().unwrap_or_default();
        (all < total && of_host < each).then(|| self.count(&mut counts, host))
    }

    fn count(self: &Arc<Self>, counts: &mut HashMap<IpAddr, usize>, host: IpAddr) -> HostCount {
        let count = counts.entry(host).or_default();
        *count += 1;
        HostCount { all: Arc::clone(self), host, count: *count }
    }
}

impl HostCount {
    /// How many its host had when this one was counted, this one included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for HostCount {
    fn drop(&mut self) {
        let mut counts = lock(&self.all.counts);
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
    fn network_of_64_bits_is_one_host() {
        let host = |address: &str| host_of(address.parse().expect("an address")).to_string();
        for (address, expected) in [
            ("2001:db8::1", "2001:db8::"),
            ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::"),
            ("2001:db8:0:1::1", "2001:db8:0:1::"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(host(address), expected, "{address}");
        }
    }

    #[test]
    fn each_host_has_a_count_of_its_own() {
        let hosts = Arc::new(HostCounts::default());
        let add = |from: &str| hosts.add(from.parse().expect("an address"));
        let all = ["192.0.2.1", "2001:db8::1", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::2"];
        let all = all.map(add);
        assert_eq!(all.each_ref().map(HostCount::count), [1, 1, 2, 3, 2]);
        drop(all);
        assert!(lock(&hosts.counts).is_empty());
        assert_eq!(add("192.0.2.1").count(), 1);
    }

    #[test]
    fn places_are_limited_in_total_and_for_each_host() {
        let hosts = Arc::new(HostCounts::default());
        let add = |from: &str| hosts.add_within(from.parse().expect("an address"), 3, 2);
        let first = add("192.0.2.1").expect("a place");
        let second = add("::ffff:192.0.2.1").expect("a place");
        assert!(add("192.0.2.1").is_none());
        let other = add("2001:db8::1").expect("a place");
        assert!(add("192.0.2.2").is_none(), "the total");
        drop(first);
        let again = add("2001:db8::2").expect("a place");
        drop(second);
        assert!(add("2001:db8::3").is_none(), "the same network");
        drop((other, again));
        assert!(lock(&hosts.counts).is_empty());
    }
}
