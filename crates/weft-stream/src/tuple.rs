//! The name of a connection: the addresses of both ends, as both ends see them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The addresses of a TCP connection and its network namespace. An IPv4 address equals its
/// IPv4-mapped IPv6 address, because a server may have one socket for both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub(crate) connector: Ipv6Addr,
    pub(crate) acceptor: Ipv6Addr,
    pub(crate) ports: u32,
    pub(crate) namespace: u64,
}

impl Tuple {
    /// The tuple of the connection from `connector` to `acceptor`.
    #[must_use]
    pub fn new(connector: SocketAddr, acceptor: SocketAddr) -> Self {
        Self {
            connector: mapped(connector.ip()),
            acceptor: mapped(acceptor.ip()),
            ports: u32::from(connector.port()) << 16 | u32::from(acceptor.port()),
            namespace: 0,
        }
    }

    /// The same addresses in the network namespace with this number (`SO_NETNS_COOKIE`; 0 if the
    /// kernel reports none).
    #[must_use]
    pub fn in_namespace(self, namespace: u64) -> Self {
        Self { namespace, ..self }
    }

    /// The network namespace's number.
    pub(crate) fn namespace(&self) -> u64 {
        self.namespace
    }

    /// The addresses of the connector and of the acceptor.
    #[must_use]
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let [a, b, c, d] = self.ports.to_be_bytes();
        let address = |ip: Ipv6Addr, port| SocketAddr::new(ip.to_canonical(), port);
        (
            address(self.connector, u16::from_be_bytes([a, b])),
            address(self.acceptor, u16::from_be_bytes([c, d])),
        )
    }

    /// A hash of the tuple for the table of offers.
    pub(crate) fn hash(&self) -> u64 {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(ODD).rotate_left(29);
        let [a, b] = halves(self.connector);
        let [c, d] = halves(self.acceptor);
        [a, b, c, d, self.ports.into(), self.namespace].into_iter().fold(ODD, mix)
    }
}

/// The two words that hold an address in shared memory.
pub(crate) fn halves(ip: Ipv6Addr) -> [u64; 2] {
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

pub(crate) fn from_halves([high, low]: [u64; 2]) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ipv4_address_equals_ipv4_address() {
        let (client, server) = ("127.0.0.1:4000", "127.0.0.1:80");
        let (mapped_client, mapped_server) = ("[::ffff:127.0.0.1]:4000", "[::ffff:127.0.0.1]:80");
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let tuple = Tuple::new(address(client), address(server));
        assert_eq!(tuple, Tuple::new(address(mapped_client), address(mapped_server)));
        assert_eq!(tuple.addresses(), (address(client), address(server)));
        assert_ne!(tuple, Tuple::new(address(server), address(client)));
        assert_eq!(from_halves(halves(tuple.connector)), tuple.connector);
    }
}
