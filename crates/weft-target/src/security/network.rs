//! Networks of IP addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// The addresses that begin with the same bits, in the notation of CIDR: `192.0.2.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_len: u8,
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// It has another form.
    #[error("{0:?} is no network: write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32")]
    Form(String),
    /// The address has bits behind the prefix, so that it may be a mistake.
    #[error("{0} has bits behind its prefix: {1} is the network of this address")]
    Bits(String, Network),
}

impl Network {
    /// Whether an address is one of them. An IPv4 address counts as such in IPv6 notation too.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.prefix_len) == Some(self.address)
    }

    /// The network of `address` with this many bits.
    ///
    /// `None` if the address has fewer bits.
    #[must_use]
    pub fn of(address: IpAddr, prefix_len: u8) -> Option<Self> {
        masked(address, prefix_len).map(|address| Self { address, prefix_len })
    }
}

/// The address without the bits behind its first `prefix_len` ones.
fn masked(address: IpAddr, prefix_len: u8) -> Option<IpAddr> {
    let prefix_len = u32::from(prefix_len);
    match address {
        IpAddr::V4(address) => {
            let rest = 32_u32.checked_sub(prefix_len)?;
            let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
            Some(IpAddr::V4((u32::from(address) & mask).into()))
        }
        IpAddr::V6(address) => {
            let rest = 128_u32.checked_sub(prefix_len)?;
            let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
            Some(IpAddr::V6((u128::from(address) & mask).into()))
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let form = || NetworkError::Form(text.to_owned());
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, len)) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                (address, Some(len.parse().map_err(|_| form())?))
            }
            Some(_) => return Err(form()),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        let prefix_len = prefix_len.unwrap_or_else(|| if address.is_ipv4() { 32 } else { 128 });
        let network = Self::of(address, prefix_len).ok_or_else(form)?;
        if network.address != address {
            return Err(NetworkError::Bits(text.to_owned(), network));
        }
        // Addresses are compared in their IPv4 form if they have one.
        if address != address.to_canonical() {
            return Err(form());
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_network_begin_with_its_bits() {
        for (network, address, is_in) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7/32", "192.0.2.6", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "192.0.2.1", false),
            ("192.0.2.0/24", "::ffff:192.0.2.1", true),
            ("::/0", "::ffff:192.0.2.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("::1", "::1", true),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), is_in, "{network} {address}");
        }
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in [
            "",
            "/",
            "/0",
            "192.0.2.0/",
            "192.0.2.0/33",
            "192.0.2.0/256",
            "192.0.2.0/-1",
            "192.0.2.0/+8",
            "192.0.2/24",
            "2001:db8::/129",
            "host",
            "*",
            "192.0.2.*",
            "::ffff:192.0.2.0/120",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError::Form(text.into())), "{text}");
        }
        let error = "192.0.2.7/24".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("192.0.2.0/24"), "{error}");
    }
}
