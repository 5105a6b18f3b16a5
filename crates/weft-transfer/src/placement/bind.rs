//! Binds the calling thread, and so all threads that it starts, to the processors of a placement.

use std::net::IpAddr;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use weft_sys::interface_addresses;

use super::rule::{Device, Placement, Reason, place};
use super::topology::{Cpus, Topology, interface_node};
use crate::limits::CPUS_MAX;

const _: () = assert!(CPUS_MAX <= CpuSet::MAX_CPU);

/// The placement of a copy, while it runs. When it is dropped, the thread may run where it could
/// before.
#[derive(Debug)]
pub struct Binding {
    placement: Placement,
    before: Option<CpuSet>,
}

impl Binding {
    /// Returns the placement.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    fn anywhere(reason: Reason) -> Self {
        Self { placement: Placement::Anywhere(reason), before: None }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before.
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Binds the calling thread to the nodes of the device that has this address, if that is of use.
/// `sysfs` is where sysfs is mounted, and `threads` the number of threads for files that the copy
/// would have on all processors.
#[must_use]
pub fn settle(sysfs: &Path, address: Option<IpAddr>, threads: usize) -> Binding {
    let device = address.and_then(|address| device_of(sysfs, address));
    // A kernel without NUMA shows no nodes.
    let topology = Topology::read(sysfs).unwrap_or_default();
    let before = match sched_getaffinity(None) {
        Ok(before) => before,
        Err(errno) => return Binding::anywhere(Reason::Refused(errno.to_string())),
    };
    let allowed: Cpus = (0..CPUS_MAX).filter(|&cpu| before.is_set(cpu)).collect();
    bind(place(&topology, device.as_ref(), &allowed, threads), before)
}

fn bind(placement: Placement, before: CpuSet) -> Binding {
    let Placement::Bound { cpus, .. } = &placement else {
        return Binding { placement, before: None };
    };
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    match sched_setaffinity(None, &set) {
        Ok(()) => Binding { placement, before: Some(before) },
        Err(errno) => Binding::anywhere(Reason::Refused(errno.to_string())),
    }
}

/// Returns the device of the interface that has an address. A loopback interface has none.
fn device_of(sysfs: &Path, address: IpAddr) -> Option<Device> {
    let address = address.to_canonical();
    let all = interface_addresses().ok()?;
    let found = all.into_iter().find(|it| it.address == address && !it.loopback)?;
    let node = interface_node(sysfs, &found.name);
    Some(Device { name: found.name, node })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Cpus {
        let set = sched_getaffinity(None).expect("processors");
        (0..CPUS_MAX).filter(|&cpu| set.is_set(cpu)).collect()
    }

    #[test]
    fn threads_of_a_bound_thread_are_bound_until_the_end() {
        let before = allowed();
        let cpus = Cpus::from([*before.last().expect("a processor")]);
        let bound = |cpus| Placement::Bound { device: "eth0".into(), nodes: vec![0], cpus };
        let set = sched_getaffinity(None).expect("processors");
        let binding = bind(bound(cpus.clone()), set);
        assert_eq!(std::thread::spawn(allowed).join().expect("no panic"), cpus);
        drop(binding);
        assert_eq!(allowed(), before);
        // A processor that does not exist.
        let binding = bind(bound(Cpus::from([CPUS_MAX - 1])), set);
        let placement = binding.placement();
        assert!(matches!(placement, Placement::Anywhere(Reason::Refused(_))), "{placement:?}");
        assert_eq!(allowed(), before);
    }

    #[test]
    fn copies_over_loopback_have_no_device() {
        let binding = settle(Path::new("/sys"), Some(IpAddr::from([127, 0, 0, 1])), 2);
        assert_eq!(*binding.placement(), Placement::Anywhere(Reason::NoDevice));
    }
}
