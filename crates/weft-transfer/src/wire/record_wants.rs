//! The sink's answer to offers: which files it wants, and which parts of them it has.
//!
//! Format: number of the first entry u64, the count of entry numbers u32, one bit for each of them,
//! beginning with the highest bit of the first byte; the count of files of which the sink has parts
//! u16, for each: file u64, pieces u16, each offset u64, length u64 and BLAKE3 of its bytes.

use crate::limits::{HAVE_PIECES_ALL_MAX, HAVE_PIECES_MAX, WANTS_SPAN_MAX};
use crate::wire::record_bytes::{Reader, Short};

/// Why bytes are no valid answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WantsError {
    /// The bytes end within a field.
    #[error("the answer ends within a field")]
    Short,
    /// Bytes follow the last field.
    #[error("{0} bytes follow the answer")]
    Long(usize),
    /// The answer spans no entries or too many.
    #[error("invalid answer for {1} entries from {0} on")]
    Span(u64, u32),
    /// The sink reports parts of a file that it does not want.
    #[error("parts of file {0}, which is not wanted")]
    File(u64),
    /// Pieces are too many, not ascending, or beyond the largest file offset.
    #[error("invalid parts of file {0}")]
    Pieces(u64),
}

impl From<Short> for WantsError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

/// The parts of a file that the sink has from an earlier session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Have {
    /// The file's number.
    pub file: u64,
    /// The pieces of these parts, ascending.
    pub pieces: Vec<HavePiece>,
}

/// A piece of a file that the sink has, as it is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HavePiece {
    /// Its offset.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// BLAKE3 of its bytes.
    pub digest: [u8; 32],
}

/// The answer to all offers of one block, or to some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    /// The first entry number that it covers.
    pub first: u64,
    /// For each number from there on, whether the sink wants the file. False for entries that were
    /// not offered.
    pub wanted: Vec<bool>,
    /// Wanted files of which the sink has parts, in the order of their numbers.
    pub have: Vec<Have>,
}

impl Wants {
    /// Whether the sink wants a file; `None` if the answer does not cover it.
    #[must_use]
    pub fn get(&self, file: u64) -> Option<bool> {
        let index = usize::try_from(file.checked_sub(self.first)?).ok()?;
        self.wanted.get(index).copied()
    }

    /// Parses an answer.
    ///
    /// # Errors
    /// If the bytes are no valid answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, WantsError> {
        let mut from = Reader::new(bytes);
        let (first, span) = (from.u64()?, from.u32()?);
        let is_possible = span != 0 && first.checked_add(span.into()).is_some();
        if !is_possible || span as usize > WANTS_SPAN_MAX {
            return Err(WantsError::Span(first, span));
        }
        let bits = from.bytes((span as usize).div_ceil(8))?;
        let bit = |index: usize| bits[index / 8] & (0x80 >> (index % 8)) != 0;
        let wanted: Vec<bool> = (0..span as usize).map(bit).collect();
        if (span as usize..bits.len() * 8).any(bit) {
            return Err(WantsError::Span(first, span));
        }
        let mut wants = Self { first, wanted, have: Vec::new() };
        let (mut next, mut total) = (first, 0);
        for _ in 0..from.u16()? {
            let (file, count) = (from.u64()?, usize::from(from.u16()?));
            total += count;
            if file < next || wants.get(file) != Some(true) {
                return Err(WantsError::File(file));
            }
            if !(1..=HAVE_PIECES_MAX).contains(&count) || total > HAVE_PIECES_ALL_MAX {
                return Err(WantsError::Pieces(file));
            }
            let (mut pieces, mut end) = (Vec::new(), 0);
            for _ in 0..count {
                let (offset, len, digest) = (from.u64()?, from.u64()?, from.array()?);
                let next_end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
                end = match next_end {
                    Some(next_end) if len > 0 && offset >= end => next_end,
                    _ => return Err(WantsError::Pieces(file)),
                };
                pieces.push(HavePiece { offset, len, digest });
            }
            wants.have.push(Have { file, pieces });
            next = file + 1;
        }
        match from.left() {
            0 => Ok(wants),
            left => Err(WantsError::Long(left)),
        }
    }

    /// Returns the answer's bytes.
    ///
    /// # Panics
    /// If the answer exceeds a limit.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        assert!((1..=WANTS_SPAN_MAX).contains(&self.wanted.len()));
        let mut out = Vec::new();
        out.extend_from_slice(&self.first.to_be_bytes());
        out.extend_from_slice(&(self.wanted.len() as u32).to_be_bytes());
        for bits in self.wanted.chunks(8) {
            let bit = |(index, &wanted): (usize, &bool)| u8::from(wanted) << (7 - index);
            out.push(bits.iter().enumerate().map(bit).sum());
        }
        out.extend_from_slice(&(self.have.len() as u16).to_be_bytes());
        for Have { file, pieces } in &self.have {
            assert!((1..=HAVE_PIECES_MAX).contains(&pieces.len()));
            out.extend_from_slice(&file.to_be_bytes());
            out.extend_from_slice(&(pieces.len() as u16).to_be_bytes());
            for HavePiece { offset, len, digest } in pieces {
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(digest);
            }
        }
        out
    }
}
