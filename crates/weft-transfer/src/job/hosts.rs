//! How many copies the clients of each host have at a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use weft_sys::{host_of, lock};

/// The copies of all hosts.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// A copy of a host, until this is dropped.
#[derive(Debug)]
pub(super) struct OfHost {
    all: Arc<Hosts>,
    host: IpAddr,
    count: usize,
}

impl Hosts {
    /// Counts a copy of the host with this address.
    pub(super) fn add(self: &Arc<Self>, from: IpAddr) -> OfHost {
        let host = host_of(from);
        let mut counts = lock(&self.counts);
        let count = counts.entry(host).or_default();
        *count += 1;
        OfHost { all: Arc::clone(self), host, count: *count }
    }
}

impl OfHost {
    /// How many copies its host had when it began, this one included.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

impl Drop for OfHost {
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
    fn each_host_has_a_count_of_its_own() {
        let hosts = Arc::new(Hosts::default());
        let add = |from: &str| hosts.add(from.parse().expect("an address"));
        let all = ["192.0.2.1", "2001:db8::1", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::2"];
        let all = all.map(add);
        assert_eq!(all.each_ref().map(OfHost::count), [1, 1, 2, 3, 2]);
        drop(all);
        assert!(lock(&hosts.counts).is_empty());
        assert_eq!(add("192.0.2.1").count(), 1);
    }
}
