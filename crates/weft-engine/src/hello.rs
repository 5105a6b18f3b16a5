//! The hello of Weft peers: a trailer behind the program's MPA private data.
//!
//! ```text
//! | program's private data | magic, 8 | version, 1 | flags, 1 | length of the program's, 2 |
//! | QP number, 4 | wanted QP number, 4 | STag of the acknowledgements, 4 | GID, 16 |
//! | process, 16 |
//! ```
//!
//! All fields are big-endian. A foreign iWARP peer takes the trailer for padding, which programs
//! written for InfiniBand expect, and sends no trailer itself. Private data that does not match the
//! format in every byte comes from a foreign peer and goes to the program unchanged.

use crate::device::Gid;

/// Length of the trailer in bytes.
pub const TRAILER_LEN: usize = 56;

const MAGIC: [u8; 8] = *b"\xf7WeftQP\x1a";
const VERSION: u8 = 2;
const VERSION_AT: usize = 8;
const FLAGS_AT: usize = 9;
const LENGTH_AT: usize = 10;
const QP_NUM_AT: usize = 12;
const WANTED_QP_AT: usize = 16;
const ACK_STAG_AT: usize = 20;
const GID_AT: usize = 24;
const PROCESS_AT: usize = 40;
const _: () = assert!(GID_AT + size_of::<Gid>() == PROCESS_AT);
const _: () = assert!(PROCESS_AT + size_of::<ProcessId>() == TRAILER_LEN);

/// The name by which processes of the same host find a process to share memory with it. It is
/// random, so that no other process on any host has the same; all zero if the process cannot be
/// found.
pub type ProcessId = [u8; 16];

/// A queue pair's identity, as its Weft peer needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Queue pair number.
    pub qp_num: u32,
    /// STag under which the queue pair takes acknowledgements.
    pub ack_stag: u32,
    /// GID of the queue pair's address.
    pub gid: Gid,
    /// The process that the queue pair belongs to.
    pub process: ProcessId,
}

/// The decoded trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's identity.
    pub identity: Identity,
    /// The queue pair that the sender wants to reach; 0 if the listener chooses.
    pub wanted_qp: u32,
}

/// Appends the trailer to the program's private data. `wanted_qp` is 0 in a request to a listener
/// of the connection manager, and in replies.
///
/// # Panics
/// If the private data is longer than the trailer's length field can express (65,535 bytes).
#[must_use]
pub fn append(private_data: &[u8], identity: &Identity, wanted_qp: u32) -> Vec<u8> {
    let length = u16::try_from(private_data.len()).expect("private data is checked by the caller");
    let mut out = Vec::with_capacity(private_data.len() + TRAILER_LEN);
    out.extend_from_slice(private_data);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, 0]);
    out.extend_from_slice(&length.to_be_bytes());
    for word in [identity.qp_num, wanted_qp, identity.ack_stag] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(&identity.gid);
    out.extend_from_slice(&identity.process);
    out
}

/// Separates the program's private data from the trailer. Without a trailer the peer is foreign and
/// all bytes are the program's. Never panics.
#[must_use]
pub fn split(private_data: &[u8]) -> (&[u8], Option<Hello>) {
    let Some((programs, trailer)) = private_data.split_last_chunk::<TRAILER_LEN>() else {
        return (private_data, None);
    };
    let length = u16::from_be_bytes([trailer[LENGTH_AT], trailer[LENGTH_AT + 1]]);
    let is_ours = trailer.starts_with(&MAGIC)
        && trailer[VERSION_AT] == VERSION
        && trailer[FLAGS_AT] == 0
        && usize::from(length) == programs.len();
    if !is_ours {
        return (private_data, None);
    }
    let word = |at: usize| {
        u32::from_be_bytes([trailer[at], trailer[at + 1], trailer[at + 2], trailer[at + 3]])
    };
    let mut gid = Gid::default();
    gid.copy_from_slice(&trailer[GID_AT..PROCESS_AT]);
    let mut process = ProcessId::default();
    process.copy_from_slice(&trailer[PROCESS_AT..]);
    let identity = Identity { qp_num: word(QP_NUM_AT), ack_stag: word(ACK_STAG_AT), gid, process };
    (programs, Some(Hello { identity, wanted_qp: word(WANTED_QP_AT) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity =
        Identity { qp_num: 0x1234_5607, ack_stag: 0xaabb_ccdd, gid: [7; 16], process: [9; 16] };

    #[test]
    fn split_undoes_append() {
        for programs in [&b""[..], b"x", &[0xff; 196]] {
            let all = append(programs, &IDENTITY, 0x99);
            assert_eq!(all.len(), programs.len() + TRAILER_LEN);
            let hello = Hello { identity: IDENTITY, wanted_qp: 0x99 };
            assert_eq!(split(&all), (programs, Some(hello)));
        }
    }

    #[test]
    fn private_data_without_valid_trailer_is_left_whole() {
        let good = append(b"abc", &IDENTITY, 0);
        let mut longer = good.clone();
        longer.push(0);
        let shifted: Vec<u8> = [b"z", good.as_slice()].concat();
        for bytes in [&longer, &shifted, &good[1..].to_vec(), &good[..good.len() - 1].to_vec()] {
            assert_eq!(split(bytes), (bytes.as_slice(), None));
        }
        // A changed bit in any of magic, version, flags and length makes the trailer invalid.
        for at in 3..3 + QP_NUM_AT {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(split(&bad), (bad.as_slice(), None), "byte {at}");
        }
        assert_eq!(split(&[]), (&[][..], None));
    }
}
