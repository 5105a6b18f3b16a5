//! What two ends tell each other when they connect: which connection they mean, and where each may
//! write and read at the other. It is the private data of `rdma_cm`.
//!
//! ```text
//! | magic, 8 | version, 4 | ring's length, 4 | connector, 16+2 | acceptor, 16+2 |
//! | heard, 8+4 | ring, 8+4 |
//! ```
//!
//! All fields are big-endian; an IPv4 address has its IPv6 form. `heard` and `ring`
//! are an address and a key each.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use weft_stream::remote::window::RING_LEN;

const MAGIC: [u8; 8] = *b"\xf7WeftSt\x1a";
const VERSION: u32 = 1;
const LEN: usize = 8 + 4 + 4 + 2 * 18 + 2 * 12;

/// A place at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) addr: u64,
    pub(super) key: u32,
}

/// One end's introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The connector's and the acceptor's address.
    pub(super) ends: [SocketAddr; 2],
    /// Where the other may say something.
    pub(super) heard: Place,
    /// Where the other may put bytes.
    pub(super) ring: Place,
}

impl Hello {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend((RING_LEN as u32).to_be_bytes());
        for end in self.ends {
            bytes.extend(mapped(end.ip()).octets());
            bytes.extend(end.port().to_be_bytes());
        }
        for place in [self.heard, self.ring] {
            bytes.extend(place.addr.to_be_bytes());
            bytes.extend(place.key.to_be_bytes());
        }
        bytes
    }

    /// `None` if it is something else, or of another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(..LEN)?;
        let mut take = |len: usize| {
            let (field, behind) = rest.split_at(len);
            rest = behind;
            field
        };
        let is_ours = take(8) == MAGIC
            && take(4) == VERSION.to_be_bytes()
            && take(4) == (RING_LEN as u32).to_be_bytes();
        if !is_ours {
            return None;
        }
        let mut end = || {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(take(16)).ok()?);
            let port = u16::from_be_bytes(take(2).try_into().ok()?);
            Some(SocketAddr::new(ip.to_canonical(), port))
        };
        let ends = [end()?, end()?];
        let mut place = || {
            let addr = u64::from_be_bytes(take(8).try_into().ok()?);
            Some(Place { addr, key: u32::from_be_bytes(take(4).try_into().ok()?) })
        };
        Some(Self { ends, heard: place()?, ring: place()? })
    }

    /// Whether it is about the connection between these ends.
    pub(super) fn is_of(&self, ends: &[SocketAddr; 2]) -> bool {
        let same = |a: &SocketAddr, b: &SocketAddr| {
            mapped(a.ip()) == mapped(b.ip()) && a.port() == b.port()
        };
        same(&self.ends[0], &ends[0]) && same(&self.ends[1], &ends[1])
    }
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}
