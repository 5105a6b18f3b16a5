//! The memory of one element's tail, which its reader reads while the server writes it.
//!
//! A slot has two halves. Versions are numbered; an even one is in the first half and an odd one in
//! the second. So the server writes each version over the last but one, and meanwhile the last one
//! stays whole: also when the server is stopped in the middle. Bytes of a half may be written, and
//! read, in any order: a half has a checksum, and one that does not match is being written.
//!
//! A reader reads both halves. If both are whole, the newer one is the tail. If one is, the reader
//! reads again: if the half is still of the same version, that version was the tail at some instant
//! since the first read began. Otherwise it tries again. The reason: between the two looks at that
//! half nothing was written to it, so in the other half there was the version before it or behind
//! it. The other half was seen while one of these was being written: before the earlier one was
//! whole, or before the later one was. In both cases this version became the tail, or was it, then.
//!
//! The server numbers the uses of a slot. A reader has the number of the use that it wants.

use crc_fast::crc64_nvme;

use crate::limits::{TAIL_BODY_LEN_MAX, TAIL_HALF_LEN};
use crate::model::{Fields, Item, Rank};
use crate::wire::{Malformed, Reader, Writer};

/// Bytes of a slot: whole pages, so that readers of one host can map it.
pub(super) const SLOT_LEN: usize = 2 * TAIL_HALF_LEN;
/// Bytes of a half before the tuple.
const HEADER_LEN: usize = 32;

/// An element at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of its tuples.
    pub len: u64,
    /// Its last tuple.
    pub last: Last,
}

/// The last tuple of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last {
    /// The element is empty, or does not exist.
    None,
    /// The tuple.
    Tuple(Item),
    /// The tuple with this position is too long: ask the server for it.
    Long(i64),
}

/// A version of a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) number: u64,
    /// The number of the slot's use.
    pub(super) usage: u64,
    pub(super) seen: Seen,
}

/// Where in a slot a version is.
pub(super) fn offset(number: u64) -> usize {
    if number.is_multiple_of(2) { 0 } else { TAIL_HALF_LEN }
}

/// Bytes of a tuple in the protocol.
fn body_len(rank: &Rank, fields: &Fields) -> usize {
    let fields: usize = fields.iter().map(|field| 4 + field.len()).sum();
    // The key with its length, the time stamp, the position, the number of fields.
    4 + rank.key.len() + 16 + 8 + 4 + fields
}

impl Version {
    /// A version with this tuple as the last one, or that says that it is too long.
    pub(super) fn encode(
        number: u64,
        usage: u64,
        len: u64,
        last: Option<(&Rank, &Fields)>,
    ) -> Vec<u8> {
        let mut half = Writer::default();
        half.u64(number);
        half.u64(usage);
        half.u64(len);
        let mut body = Writer::default();
        half.u32(match last {
            None => 0,
            Some((rank, fields)) if body_len(rank, fields) <= TAIL_BODY_LEN_MAX => {
                body.rank(rank);
                body.fields(fields);
                1
            }
            Some((rank, _)) => {
                body.u64(rank.position.cast_unsigned());
                2
            }
        });
        half.text(&body.0);
        half.u64(crc64_nvme(&half.0));
        half.0
    }

    /// Returns the version in the first or the second half, if it is whole.
    pub(super) fn decode(half: &[u8], is_second: bool) -> Option<Self> {
        let body_len = half.get(HEADER_LEN - 4..HEADER_LEN)?.first_chunk()?;
        let body_len = u32::from_be_bytes(*body_len) as usize;
        let (bytes, rest) = half.split_at_checked(HEADER_LEN.checked_add(body_len)?)?;
        if rest.first_chunk()? != &crc64_nvme(bytes).to_be_bytes() {
            return None;
        }
        let version = Self::read(&mut Reader(bytes)).ok()?;
        (version.number.is_multiple_of(2) != is_second).then_some(version)
    }

    fn read(it: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, usage, len, kind) = (it.u64()?, it.u64()?, it.u64()?, it.u32()?);
        let mut body = Reader(it.text()?);
        let last = match kind {
            0 => Last::None,
            1 => Last::Tuple(body.item()?),
            2 => Last::Long(body.u64()?.cast_signed()),
            _ => return Err(Malformed),
        };
        body.end()?;
        it.end()?;
        Ok(Self { number, usage, seen: Seen { len, last } })
    }
}

/// The looks of one read of a tail.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The version that was alone at an earlier look.
    alone: Option<u64>,
}

impl Looks {
    /// Returns the version in a slot that was read. `None` if it has to be read again.
    pub(super) fn look(&mut self, slot: &[u8]) -> Option<Version> {
        let (first, second) = slot.split_at_checked(TAIL_HALF_LEN)?;
        let first = Version::decode(first, false);
        let second = Version::decode(second, true);
        match (first, second) {
            (Some(first), Some(second)) => {
                Some(if first.number > second.number { first } else { second })
            }
            (Some(alone), None) | (None, Some(alone)) => {
                let earlier = self.alone.replace(alone.number);
                (earlier == Some(alone.number)).then_some(alone)
            }
            (None, None) => None,
        }
    }
}
