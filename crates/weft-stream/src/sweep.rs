//! Finds slots that nobody uses any more: their processes were killed.

use std::collections::HashSet;
use std::fs::read_to_string;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::registry::Registry;
use crate::tuple::Tuple;

/// Gives back the slots of connections of which neither end exists any more.
pub(crate) fn sweep(registry: &Registry) {
    for slot in abandoned(registry) {
        registry.add_to_totals(slot);
        registry.release(slot);
    }
}

/// The slots of connections of which neither end exists any more. A connection may have been
/// handed on to processes that we do not know of, so it is the kernel's list that decides; and
/// since the list is not of one moment, it is asked twice.
pub(crate) fn abandoned(registry: &Registry) -> Vec<usize> {
    if !registry.is_own() {
        return Vec::new();
    }
    let mut suspects: Vec<_> =
        registry.live().filter(|&slot| registry.is_accessible(slot)).collect();
    for _ in 0..2 {
        if !suspects.is_empty() {
            let ends = ends();
            suspects.retain(|&slot| !ends.contains(&registry.tuple_of(slot)));
        }
    }
    suspects
}

/// Every connection in the kernel that has an owner, named both ways round.
fn ends() -> HashSet<Tuple> {
    let files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let texts = files.map(|file| read_to_string(file).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    let pairs = lines.filter_map(parse);
    pairs.flat_map(|(own, peer)| [Tuple::new(own, peer), Tuple::new(peer, own)]).collect()
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
    use crate::layout::{direction, direction_at};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::Ordering;

    use crate::layout::{side, side_at};

    #[test]
    fn the_kernels_list_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (own, peer) = (client.local_addr(), client.peer_addr());
        let (own, peer) = (own.expect("connected"), peer.expect("connected"));
        assert!(ends().contains(&Tuple::new(own, peer)));
        let other = Tuple::new("127.0.0.1:1".parse().expect("an address"), peer);
        assert!(!ends().contains(&other));
    }

    #[test]
    fn connections_without_ends_are_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let tuple = Tuple::new(address(1), address(2));
        let slot = registry.take(&tuple).expect("room");
        assert!(registry.publish(slot, &tuple));
        for end in 0..2 {
            registry.word(side_at(slot, end) + side::REFS).store(0, Ordering::Relaxed);
            let moved = registry.word64(direction_at(slot, end) + direction::HEAD);
            moved.store(7, Ordering::Relaxed);
        }
        assert_eq!(registry.connections().count(), 0);
        let seen = Registry::existing(dir.path());
        assert_eq!(seen[0].connections().count(), 0);
        assert_eq!(seen[0].totals().bytes, 14);
        sweep(&registry);
        assert_eq!(registry.in_use(), 0);
        assert_eq!(registry.totals().bytes, 14);
    }
}
