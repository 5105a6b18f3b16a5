//! Drops single packets out of the long segments that a network device without segmentation gets.
//!
//! The kernel passes up to 64 KiB of TCP data as one packet, and its header says how many bytes
//! each packet on the wire would have. A path that loses one packet in a thousand loses one of
//! those, so what remains is the part before it and the part behind it.

use crate::tun::HEADER_LEN;

/// Header: the flag of a packet whose checksum the receiver completes.
const NEEDS_CHECKSUM: u8 = 1;
/// Header: the type of a packet that is not divided.
const NOT_DIVIDED: u8 = 0;
/// Header: the types of TCP segments over IPv4 and IPv6. A flag for ECN may be added.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const ECN: u8 = 0x80;
/// TCP flags of only the first packet (CWR), and of only the last one (PSH, FIN).
const FIRST_ONLY: u8 = 0x80;
const LAST_ONLY: u8 = 0x08 | 0x01;
/// The number of TCP in IP headers.
const TCP: u32 = 6;

/// A packet of several, as its header describes it.
#[derive(Clone, Copy, Debug)]
struct Divided {
    /// Where the TCP header begins, and where the data does, from the beginning of the IP header.
    tcp: usize,
    data: usize,
    /// Bytes of data in each packet on the wire, and in all.
    each: usize,
    len: usize,
    is_v4: bool,
}

fn number(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0, |two| usize::from(u16::from_be_bytes([two[0], two[1]])))
}

fn set(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The header's numbers are in the processor's order.
fn native(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
}

impl Divided {
    /// Reads the headers of a packet. `None` if it is a single packet on the wire.
    fn read(packet: &[u8]) -> Option<Self> {
        let (header, ip) = packet.split_at_checked(HEADER_LEN)?;
        let kind = header[1] & !ECN;
        if kind != TCP_V4 && kind != TCP_V6 {
            return None;
        }
        let (each, tcp) = (native(header, 4), native(header, 6));
        let data = tcp + usize::from(ip.get(tcp + 12)? >> 4) * 4;
        let len = ip.len().checked_sub(data)?;
        let is_long = each > 0 && len > each && data >= tcp + 20;
        is_long.then_some(Self { tcp, data, each, len, is_v4: kind == TCP_V4 })
    }

    /// The packets on the wire.
    fn count(&self) -> usize {
        self.len.div_ceil(self.each)
    }

    /// Returns the packets from `first` to before `end` as a packet of their own.
    fn part(&self, packet: &[u8], first: usize, end: usize) -> Vec<u8> {
        let range = first * self.each..self.len.min(end * self.each);
        let (headers, data) = packet.split_at(HEADER_LEN + self.data);
        let mut part = [headers, &data[range.clone()]].concat();
        let (header, ip) = part.split_at_mut(HEADER_LEN);
        if range.len() <= self.each {
            header[1] = NOT_DIVIDED;
            header[4..6].fill(0);
        }
        header[0] = NEEDS_CHECKSUM;
        let total = ip.len();
        if self.is_v4 {
            set(ip, 2, total);
            set(ip, 10, 0);
            let sum = fold(sum(&ip[..self.tcp]));
            set(ip, 10, usize::from(!sum));
        } else {
            set(ip, 4, total - 40);
        }
        let addresses = if self.is_v4 { 12..20 } else { 8..40 };
        // The receiver completes the sum of this part.
        let length = u32::try_from(total - self.tcp).unwrap_or(u32::MAX);
        let pseudo = fold(sum(&ip[addresses]) + TCP + length);
        let tcp = &mut ip[self.tcp..];
        set(tcp, 16, pseudo.into());
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let seq = seq.wrapping_add(u32::try_from(range.start).unwrap_or(0));
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        if first > 0 {
            tcp[13] &= !FIRST_ONLY;
        }
        if range.end < self.len {
            tcp[13] &= !LAST_ONLY;
        }
        part
    }
}

/// The sum of 16-bit words, at most 64 KiB of them.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|two| number(&[two[0], *two.get(1).unwrap_or(&0)], 0) as u32).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

/// Asks for each packet on the wire whether it is lost. Returns `None` if none is, and otherwise
/// what remains of them, and the number of lost ones.
pub(crate) fn lose(
    packet: &[u8],
    mut is_lost: impl FnMut() -> bool,
) -> Option<(Vec<Vec<u8>>, u64)> {
    let Some(divided) = Divided::read(packet) else {
        return is_lost().then(|| (Vec::new(), 1));
    };
    let lost: Vec<usize> = (0..divided.count()).filter(|_| is_lost()).collect();
    if lost.is_empty() {
        return None;
    }
    let starts = std::iter::once(0).chain(lost.iter().map(|at| at + 1));
    let ends = lost.iter().copied().chain(std::iter::once(divided.count()));
    let parts = starts.zip(ends).filter(|(first, end)| first < end);
    let parts = parts.map(|(first, end)| divided.part(packet, first, end)).collect();
    Some((parts, lost.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of 10 bytes of data in packets of 4 bytes, over IPv4.
    fn segment() -> Vec<u8> {
        let mut packet = vec![NEEDS_CHECKSUM, TCP_V4];
        for number in [40_u16, 4, 20, 16] {
            packet.extend(number.to_ne_bytes());
        }
        let mut ip = vec![0_u8; 40];
        ip[0] = 0x45;
        set(&mut ip, 2, 50);
        ip[9] = 6;
        ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        ip[24..28].copy_from_slice(&[0xff, 0xff, 0xff, 0xfe]);
        ip[32] = 5 << 4;
        ip[33] = FIRST_ONLY | 0x10 | LAST_ONLY;
        packet.extend(ip);
        packet.extend(0..10);
        packet
    }

    #[test]
    fn a_packet_that_is_not_lost_stays_as_it_is() {
        assert!(lose(&segment(), || false).is_none());
        assert!(lose(&[0; 50], || false).is_none());
        assert_eq!(lose(&[0; 50], || true), Some((Vec::new(), 1)));
    }

    #[test]
    fn the_packets_around_a_lost_one_remain() {
        let mut answers = [false, true, false].into_iter();
        let (parts, lost) = lose(&segment(), || answers.next().unwrap()).unwrap();
        assert_eq!((parts.len(), lost), (2, 1));
        let ip = |part: &Vec<u8>| part[HEADER_LEN..].to_vec();
        let (before, behind) = (ip(&parts[0]), ip(&parts[1]));
        assert_eq!((&before[40..], &behind[40..]), (&[0, 1, 2, 3][..], &[8, 9][..]));
        // Sequence numbers wrap.
        assert_eq!(
            (&before[24..28], &behind[24..28]),
            (&[0xff, 0xff, 0xff, 0xfe][..], &[0, 0, 0, 6][..])
        );
        assert_eq!((before[33], behind[33]), (FIRST_ONLY | 0x10, 0x10 | LAST_ONLY));
        for (part, len) in [(&before, 44), (&behind, 42)] {
            assert_eq!(number(part, 2), len);
            assert_eq!(fold(sum(&part[..20])), 0xffff, "the checksum of the IP header");
            let length = u32::try_from(len - 20).unwrap();
            assert_eq!(number(part, 36), usize::from(fold(sum(&part[12..20]) + TCP + length)));
        }
        assert!(parts.iter().all(|part| part[1] == NOT_DIVIDED && part[4..6] == [0, 0]));
    }

    #[test]
    fn several_packets_remain_one_segment() {
        let mut answers = [false, false, true].into_iter();
        let (parts, _) = lose(&segment(), || answers.next().unwrap()).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0][1], native(&parts[0], 4)), (TCP_V4, 4));
        assert_eq!(lose(&segment(), || true), Some((Vec::new(), 3)));
    }
}
