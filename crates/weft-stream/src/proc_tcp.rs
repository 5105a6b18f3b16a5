//! Lists the TCP connections of a network namespace, from `/proc/net/tcp` (`proc(5)`).

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use weft_sys::{Uncancelled, read_text};

use crate::tuple::Tuple;

/// Every connection of the kernel that has an owner, in both orders of its ends.
pub(crate) fn listed(namespace: u64) -> HashSet<Tuple> {
    // `getrandom`, which a thread's first hash table calls, is a cancellation point.
    let _uncancelled = Uncancelled::begin();
    let files = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let texts = files.map(|file| read_text(file).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    let pairs = lines.filter_map(parse);
    let both_ways = pairs.flat_map(|(own, peer)| [Tuple::new(own, peer), Tuple::new(peer, own)]);
    both_ways.map(|tuple| tuple.in_namespace(namespace)).collect()
}

/// Parses the addresses in a line of `/proc/net/tcp`. `None` for a socket that no process has.
fn parse(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut fields = line.split_whitespace().skip(1);
    let (own, peer) = (address(fields.next()?)?, address(fields.next()?)?);
    let inode = fields.nth(6)?;
    (inode != "0").then_some((own, peer))
}

/// Parses hexadecimal words in the CPU's byte order, and a port.
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

    #[test]
    fn list_contains_an_open_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (own, peer) = (client.local_addr(), client.peer_addr());
        let (own, peer) = (own.expect("connected"), peer.expect("connected"));
        assert!(listed(3).contains(&Tuple::new(own, peer).in_namespace(3)));
        let other = Tuple::new("127.0.0.1:1".parse().expect("an address"), peer);
        assert!(!listed(0).contains(&other));
    }
}
