//! Addresses of one host.

use std::net::IpAddr;

/// Returns the same address for all addresses that one host may have as it likes: in IPv6 it has a
/// network of 64 bits. An IPv4 address in the form of an IPv6 one counts as the IPv4 address.
#[must_use]
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::host_of;

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
}
