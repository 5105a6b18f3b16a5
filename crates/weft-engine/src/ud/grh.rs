//! The global routing header: 40 bytes in front of a received datagram with its source.
//!
//! RoCEv2 puts the IP header there: a whole IPv6 header, or an IPv4 header behind 20 undefined
//! bytes (InfiniBand Architecture annex A17.4.5.2). `ibv_init_ah_from_wc(3)` reads it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const GRH_LEN: usize = 40;

const IPV4_LEN: usize = 20;
const UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
/// The system's default; the actual value is not known here.
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];

/// The header of a datagram with `payload_len` bytes of the program's data.
pub(super) fn of(from: IpAddr, to: IpAddr, payload_len: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let udp_len = UDP_HEADER_LEN + weft_wire::datagram::HEADER_LEN + payload_len;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, udp_len, &mut grh[IPV4_LEN..]),
        (from, to) => {
            grh[0] = 6 << 4;
            grh[4..6].copy_from_slice(&length(udp_len));
            (grh[6], grh[7]) = (UDP, HOP_LIMIT);
            grh[8..24].copy_from_slice(&ipv6(from).octets());
            grh[24..40].copy_from_slice(&ipv6(to).octets());
        }
    }
    grh
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, udp_len: usize, header: &mut [u8]) {
    const IHL_WORDS: u8 = 5;
    header[0] = 4 << 4 | IHL_WORDS;
    header[2..4].copy_from_slice(&length(IPV4_LEN + udp_len));
    header[6..8].copy_from_slice(&DONT_FRAGMENT);
    (header[8], header[9]) = (HOP_LIMIT, UDP);
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn length(len: usize) -> [u8; 2] {
    // The length of a single IP packet fits; that of a reassembled one may exceed the field by the
    // CRC.
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_ipv4_header_is_valid() {
        let (from, to) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(192, 168, 255, 254));
        let grh = of(from.into(), to.into(), 4096);
        assert_eq!(grh[..20], [0; 20]);
        let words = grh[20..].chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(grh[20], 0x45);
        assert_eq!(grh[32..36], from.octets());
        assert_eq!(grh[36..], to.octets());
    }

    #[test]
    fn ipv6_header_fills_the_grh() {
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::from([0xfe; 16]));
        let grh = of(from.into(), to.into(), 1);
        assert_eq!((grh[0], grh[6]), (0x60, 17));
        assert_eq!(grh[8..24], from.octets());
        assert_eq!(grh[24..], to.octets());
    }
}
