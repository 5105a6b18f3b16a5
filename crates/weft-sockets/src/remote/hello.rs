//! The hello that two ends exchange when they connect: which connection they mean, and which memory
//! each may write and read at the other. It is the private data of `rdma_cm`.
//!
//! ```text
//! | magic, 8 | version, 4 | ring's length, 4 | connector, 16+2 | acceptor, 16+2 |
//! | peer state, 8+4 | ring, 8+4 | moved, 2+2 | proof, 32 |
//! ```
//!
//! All fields are big-endian; an IPv4 address has its IPv6 form. `peer_state` and `ring` are an
//! address and a key each. `proof` is a keyed hash over everything before it and, in an answer,
//! over the proof that it answers. The key is the first bytes of the stream; `moved` says how many
//! of them, towards the acceptor and towards the connector ([`weft_stream::remote`]).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use weft_stream::Role;
use weft_stream::remote::window::RING_LEN;
use weft_stream::remote::{Moved, PROOF_LEN, Proof, Remote, Wire};

const MAGIC: [u8; 8] = *b"\xf7WeftSt\x1a";
const VERSION: u32 = 2;
const LEN: usize = 8 + 4 + 4 + 2 * 18 + 2 * 12 + 2 * 2 + PROOF_LEN;

/// A remote memory location: address and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) addr: u64,
    pub(super) key: u32,
}

/// The hello of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The addresses of the connector and of the acceptor.
    pub(super) ends: [SocketAddr; 2],
    /// Where the peer may write its state words.
    pub(super) peer_state: Place,
    /// Where the peer may write bytes.
    pub(super) ring: Place,
    /// How much of the stream the proof covers.
    pub(super) moved: Moved,
    pub(super) proof: [u8; PROOF_LEN],
}

impl Hello {
    /// Returns the hello with the proof of `role`, which is this end. `asked` is the hello that it
    /// answers. `None` if this end does not know enough of the stream.
    pub(super) fn proved(
        self,
        remote: &Remote<impl Wire>,
        role: Role,
        asked: Option<&Self>,
    ) -> Option<Self> {
        let proof = remote.proof(role, role, self.moved, &self.signed_bytes(asked))?.bytes();
        Some(Self { proof, ..self })
    }

    /// Returns whether `prover`, the other end, has proved that it has the stream.
    pub(super) fn is_proved(
        &self,
        remote: &Remote<impl Wire>,
        prover: Role,
        asked: Option<&Self>,
    ) -> bool {
        let own = match prover {
            Role::Connector => Role::Acceptor,
            Role::Acceptor => Role::Connector,
        };
        let known = remote.proof(own, prover, self.moved, &self.signed_bytes(asked));
        known.is_some_and(|known: Proof| known.is(&self.proof))
    }

    /// Returns the bytes that a proof covers.
    fn signed_bytes(&self, asked: Option<&Self>) -> Vec<u8> {
        let mut bytes = self.emit();
        bytes.truncate(LEN - PROOF_LEN);
        bytes.extend(asked.map(|asked| asked.proof).into_iter().flatten());
        bytes
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend((RING_LEN as u32).to_be_bytes());
        for end in self.ends {
            bytes.extend(mapped(end.ip()).octets());
            bytes.extend(end.port().to_be_bytes());
        }
        for place in [self.peer_state, self.ring] {
            bytes.extend(place.addr.to_be_bytes());
            bytes.extend(place.key.to_be_bytes());
        }
        for len in self.moved {
            // A proof covers far fewer bytes than that.
            bytes.extend(u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
        }
        bytes.extend(self.proof);
        bytes
    }

    /// Parses a hello. `None` if it is something else, or of another version.
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
        let (peer_state, ring) = (place()?, place()?);
        let mut len = || Some(usize::from(u16::from_be_bytes(take(2).try_into().ok()?)));
        let moved = [len()?, len()?];
        let proof = take(PROOF_LEN).try_into().ok()?;
        Some(Self { ends, peer_state, ring, moved, proof })
    }

    /// Returns whether the hello is about the connection between these ends.
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
