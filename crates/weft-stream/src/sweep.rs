//! Finds slots that nobody uses any more: their processes were killed.

use std::collections::HashSet;
use std::fs::read_to_string;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::kernel::Kernel;
use crate::registry::Registry;
use crate::tuple::Tuple;

/// Gives back the slots of connections of which no process has either end. Several processes may do
/// so at once.
pub(crate) fn sweep<K: Kernel>(registry: &Registry) {
    for (slot, generation) in abandoned::<K>(registry) {
        registry.release(slot, generation);
    }
}

/// The slots of connections of which no process has either end, and their generations. A connection
/// may have been handed on to processes that nobody has counted, so the kernel decides; where it
/// does not know, because the connection is of another network namespace or it has no `tcp_diag`,
/// the slot is taken for one in use.
pub(crate) fn abandoned<K: Kernel>(registry: &Registry) -> Vec<(usize, u32)> {
    let Ok(namespace) = K::namespace() else { return Vec::new() };
    if !K::is_own(registry) {
        return Vec::new();
    }
    // First the generation, then the question: what is another's by then is not released.
    let live = registry.live().filter(|&(slot, _)| registry.is_accessible(slot));
    let is_abandoned = |slot| is_abandoned::<K>(&registry.tuple_of(slot), namespace);
    let mut suspects: Vec<_> = live.filter(|&(slot, _)| is_abandoned(slot)).collect();
    if !suspects.is_empty() {
        // A socket that is bound to an interface is found by no question that leaves that open.
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

/// Every connection in the kernel that has an owner, named both ways round.
pub(crate) fn listed(namespace: u64) -> HashSet<Tuple> {
    let files = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let texts = files.map(|file| read_to_string(file).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    let pairs = lines.filter_map(parse);
    let both_ways = pairs.flat_map(|(own, peer)| [Tuple::new(own, peer), Tuple::new(peer, own)]);
    both_ways.map(|tuple| tuple.in_namespace(namespace)).collect()
}

/// A line of `/proc/net/tcp` (proc(5)): both addresses. `None` for a socket that no process has.
fn parse(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut fields = line.split_whitespace().skip(1);
    let (own, peer) = (address(fields.next()?)?, address(fields.next()?)?);
    let inode = fields.nth(6)?;
    (inode != "0").then_some((own, peer))
}

/// Hexadecimal words in the CPU's byte order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    if ip.len() == 8 {
        return Some(SocketAddr::from((Ipv4Addr::from(word(0)?), port)));
    }
    let mut bytes = [0; 16];
    for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(8 * index)?);
    }
    Some(SocketAddr::from((Ipv6Addr::from(bytes), port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::Ordering;

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
    fn connections_without_ends_are_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let (slot, generation) = registry.take::<Linux>(&tuple(1)).expect("room");
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
    fn what_a_process_has_open_is_not_swept_whoever_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &'static Registry =
            Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let ends = client.local_addr().and_then(|own| Ok((own, client.peer_addr()?)));
        let (own, peer) = ends.expect("connected");
        let tuple = here(Tuple::new(own, peer));
        let (slot, generation) = registry.take::<Linux>(&tuple).expect("room");
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
    fn the_kernels_list_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (own, peer) = (client.local_addr(), client.peer_addr());
        let (own, peer) = (own.expect("connected"), peer.expect("connected"));
        assert!(listed(3).contains(&Tuple::new(own, peer).in_namespace(3)));
        let other = Tuple::new("127.0.0.1:1".parse().expect("an address"), peer);
        assert!(!listed(0).contains(&other));
    }

    #[test]
    fn connections_of_other_networks_are_not_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let elsewhere = tuple(1).in_namespace(u64::MAX);
        let (slot, generation) = registry.take::<Linux>(&elsewhere).expect("room");
        assert!(registry.publish(slot, generation, &elsewhere));
        sweep::<Linux>(&registry);
        assert_eq!(registry.in_use(), 1);
    }
}
