//! The networks in which a server may connect data channels to other servers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address, and how many of its bits the addresses of the network share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Addresses that mean something else than another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usual,
    Loopback,
    LinkLocal,
    /// No connection leads there.
    Never,
}

fn kind(address: IpAddr) -> Kind {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    match address {
        _ if address.is_loopback() => Kind::Loopback,
        _ if is_link_local => Kind::LinkLocal,
        IpAddr::V4(address) if address.is_broadcast() || address.octets()[0] == 0 => Kind::Never,
        _ if address.is_unspecified() || address.is_multicast() => Kind::Never,
        _ => Kind::Usual,
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the bits of an address from the top of a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Network {
    /// All addresses of IPv4 and IPv6.
    pub const ALL: [Self; 2] = [
        Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 0 },
        Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), bits: 0 },
    ];

    /// Whether a host of the network has this address. Loopback and link-local addresses are in no
    /// network but those that consist of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let kind = kind(address);
        let is_meant = match kind {
            Kind::Usual => true,
            Kind::Never => false,
            Kind::Loopback | Kind::LinkLocal => kind == self::kind(self.address),
        };
        let differ = number(address) ^ number(self.address);
        let is_in = self.bits == 0 || differ >> (128 - u32::from(self.bits)) == 0;
        is_meant && is_in && address.is_ipv4() == self.address.is_ipv4()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address such as 192.0.2.7, or a network such as 192.0.2.0/24")]
pub struct NetworkError;

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let (address, width) = (address.to_canonical(), width(address.to_canonical()));
        let bits = bits.map_or(Ok(width), |bits| bits.parse::<u8>().map_err(|_| NetworkError))?;
        if bits > width { Err(NetworkError) } else { Ok(Self { address, bits }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let network: Network = network.parse().expect("a network");
        network.contains(address.parse().expect("an address"))
    }

    #[test]
    fn network_contains_what_shares_its_bits() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("10.0.0.0/9", "10.127.0.1", "10.128.0.1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("0.0.0.0/0", "203.0.113.1", "2001:db8::1"),
            ("::/0", "2001:db8::1", "203.0.113.1"),
            // An IPv4 address may be written as one of IPv6.
            ("192.0.2.0/24", "::ffff:192.0.2.1", "::ffff:192.0.3.1"),
        ] {
            assert!(contains(network, inside), "{inside} is in {network}");
            assert!(!contains(network, outside), "{outside} is not in {network}");
        }
    }

    #[test]
    fn loopback_and_link_local_addresses_have_to_be_meant() {
        for address in ["127.0.0.1", "127.1.2.3", "169.254.169.254", "::ffff:127.0.0.1"] {
            assert!(!contains("0.0.0.0/0", address), "{address}");
        }
        for address in ["::1", "fe80::1"] {
            assert!(!contains("::/0", address), "{address}");
        }
        assert!(contains("127.0.0.0/8", "127.1.2.3") && contains("::1", "::1"));
        assert!(contains("169.254.0.0/16", "169.254.169.254"));
        assert!(!contains("96.0.0.0/3", "127.0.0.1"));
        // Nothing is there, in any network.
        for (network, address) in [
            ("0.0.0.0/0", "0.0.0.0"),
            ("0.0.0.0/0", "0.1.2.3"),
            ("224.0.0.0/4", "224.0.0.1"),
            ("255.255.255.255", "255.255.255.255"),
            ("::/0", "::"),
            ("ff02::/16", "ff02::1"),
        ] {
            assert!(!contains(network, address), "{address}");
        }
    }

    #[test]
    fn other_texts_are_no_networks() {
        for text in ["", "host", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0.0/-1", "/8", "10/8"]
        {
            assert_eq!(text.parse::<Network>(), Err(NetworkError), "{text}");
        }
        let shown = |text: &str| text.parse::<Network>().expect("a network").to_string();
        assert_eq!([shown("10.0.0.0/8"), shown("::1")], ["10.0.0.0/8", "::1/128"]);
    }
}
