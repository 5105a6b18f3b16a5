//! Reserves slots, and releases those whose processes were all killed.

use std::sync::atomic::Ordering;

use crate::holders::Holders;
use crate::kernel::Kernel;
use crate::registry::Registry;
use crate::tuple::Tuple;
use crate::words::Role;

/// Reserves a slot for a connection, and returns it with its generation. If all are taken, slots
/// without live processes are released first. `None` if all are in use, or there is no memory.
pub(crate) fn take_slot<K: Kernel>(registry: &Registry, tuple: &Tuple) -> Option<(usize, u32)> {
    let slot = registry.reserve().or_else(|| {
        sweep_now_and_then::<K>(registry);
        registry.reserve()
    })?;
    registry.prepare(slot, tuple)
}

/// Sweeps at most once a second: while live processes use all slots, each sweep would find nothing.
#[cold]
fn sweep_now_and_then<K: Kernel>(registry: &Registry) {
    let second = K::second();
    if registry.swept.swap(second, Ordering::Relaxed) != second {
        sweep::<K>(registry);
    }
}

/// Withdraws offers whose makers were all killed, at most once a second, so that acceptors need not
/// look them up. A sweep releases their slots.
#[cold]
pub(crate) fn sweep_offers_now_and_then<K: Kernel>(registry: &'static Registry) {
    let second = K::second();
    let is_due = registry.offers_swept.swap(second, Ordering::Relaxed) != second;
    if is_due && registry.has_offers() && K::is_own(registry) {
        registry.withdraw_offers(|slot| {
            let holders = || Holders::of(registry, slot, Role::Connector);
            registry.open_slot(slot).is_ok() && holders().are_killed::<K>()
        });
    }
}

/// Releases the slots of connections of which no process has either end. Several processes may do
/// so at once.
pub(crate) fn sweep<K: Kernel>(registry: &Registry) {
    for (slot, generation) in abandoned::<K>(registry) {
        registry.release(slot, generation);
    }
}

/// The slots of connections of which no process has either end, with their generations. The
/// connection may have been passed to processes that Weft has not counted, so the kernel decides. A
/// slot counts as in use if the kernel cannot say: the connection is in another network namespace,
/// or there is no `tcp_diag`.
pub(crate) fn abandoned<K: Kernel>(registry: &Registry) -> Vec<(usize, u32)> {
    let Ok(namespace) = K::namespace() else { return Vec::new() };
    if !K::is_own(registry) {
        return Vec::new();
    }
    // Read the generation before asking: a slot that changes owners meanwhile is not released.
    let live = registry.live().filter(|&(slot, _)| registry.is_accessible(slot));
    let is_abandoned = |slot| is_abandoned::<K>(&registry.tuple_of(slot), namespace);
    let mut suspects: Vec<_> = live.filter(|&(slot, _)| is_abandoned(slot)).collect();
    if !suspects.is_empty() {
        // A lookup that names no interface does not find a socket that is bound to one.
        let listed = K::connections(namespace);
        suspects.retain(|&(slot, _)| !listed.contains(&registry.tuple_of(slot)));
    }
    suspects
}

fn is_abandoned<K: Kernel>(tuple: &Tuple, namespace: u64) -> bool {
    let (connector, acceptor) = tuple.addresses();
    tuple.namespace() == namespace
        && K::holder_of(connector, acceptor) == Ok(None)
        && K::holder_of(acceptor, connector) == Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use crate::holders::{Holder, Holders};
    use crate::kernel::Linux;
    use crate::words::Role;

    fn here(tuple: Tuple) -> Tuple {
        tuple.in_namespace(Linux::namespace().expect("a socket"))
    }

    fn tuple(port: u16) -> Tuple {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        here(Tuple::new(address(port), address(2)))
    }

    #[test]
    fn slots_without_open_sockets_are_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let (slot, generation) = take_slot::<Linux>(&registry, &tuple(1)).expect("room");
        assert!(registry.publish(slot, generation, &tuple(1)));
        for end in 0..2 {
            let moved = &registry.page(slot).directions[end].head;
            moved.store(7, Ordering::Relaxed);
        }
        assert_eq!(registry.connections().count(), 0);
        let seen = Registry::existing(dir.path());
        assert_eq!(seen[0].connections().count(), 0);
        assert_eq!(seen[0].totals().bytes, 14);
        sweep::<Linux>(&registry);
        assert_eq!(registry.in_use(), 0);
        assert_eq!(registry.totals().bytes, 14);
    }

    #[test]
    fn slot_is_not_swept_while_a_socket_is_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &'static Registry =
            Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let ends = client.local_addr().and_then(|own| Ok((own, client.peer_addr()?)));
        let (own, peer) = ends.expect("connected");
        let tuple = here(Tuple::new(own, peer));
        let (slot, generation) = take_slot::<Linux>(registry, &tuple).expect("room");
        assert!(registry.publish(slot, generation, &tuple));
        Holders::of(registry, slot, Role::Connector).add(Holder::Process(i32::MAX as u32));
        sweep::<Linux>(registry);
        assert_eq!(registry.live_generation(slot), Some(generation));
        drop(client);
        drop(listener);
        sweep::<Linux>(registry);
        assert_eq!(registry.live_generation(slot), None);
    }

    #[test]
    fn offers_of_killed_processes_are_withdrawn() {
        const NOBODY: u32 = 1 << 28; // No process has such a number.
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &'static Registry =
            Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
        let [killed, living, passed_on] = [1, 2, 3].map(|port| {
            let (slot, generation) = take_slot::<Linux>(registry, &tuple(port)).expect("room");
            (tuple(port), Holders::of(registry, slot, Role::Connector), (slot, generation))
        });
        killed.1.add(Holder::Process(NOBODY));
        living.1.add(Holder::Process(NOBODY));
        living.1.add(Holder::Process(std::process::id()));
        passed_on.1.add(Holder::Process(NOBODY));
        passed_on.1.add(Holder::Receiver);
        for (tuple, _, (slot, generation)) in [&killed, &living, &passed_on] {
            assert!(registry.publish(*slot, *generation, tuple));
        }
        sweep_offers_now_and_then::<Linux>(registry);
        assert_eq!(registry.find(&killed.0), None);
        assert_eq!(registry.find(&living.0), Some(living.2));
        assert!(registry.has_offers());
        assert_eq!(registry.find(&passed_on.0), Some(passed_on.2));
        assert!(!registry.has_offers());
    }

    #[test]
    fn slots_of_other_network_namespaces_are_not_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let elsewhere = tuple(1).in_namespace(u64::MAX);
        let (slot, generation) = take_slot::<Linux>(&registry, &elsewhere).expect("room");
        assert!(registry.publish(slot, generation, &elsewhere));
        sweep::<Linux>(&registry);
        assert_eq!(registry.in_use(), 1);
    }
}
