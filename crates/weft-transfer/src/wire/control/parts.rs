//! Bodies of the messages within a session.

use super::super::cursor::Cursor;
use super::super::{Code, WireError};
use crate::limits::{ACK_RANGES_MAX, BLOCK_SIZE_MAX, GRANTS_MAX, TEXT_LEN_MAX};

/// The permission for one write into an unused buffer of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The sink's number of the buffer.
    pub buffer: u32,
    /// How often the buffer has been granted. It distinguishes this grant from earlier ones.
    pub generation: u32,
    /// The buffer's address or offset, for transports that write into memory.
    pub address: u64,
    /// The key that permits the write.
    pub key: u32,
}

/// A range of sequence numbers, `from` inclusive, `until` exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first number of the range.
    pub from: u64,
    /// The first number after the range.
    pub until: u64,
}

/// New credits, and the arrivals since the previous message of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credits {
    /// All blocks below this number have arrived. Zero if the sink does not see arrivals.
    pub cumulative: u64,
    /// The other arrivals that were not acknowledged before: ascending ranges that do not touch,
    /// all above `cumulative`.
    pub ranges: Vec<Range>,
    /// The granted buffers.
    pub credits: Vec<Credit>,
}

impl Credits {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        // A count that does not fit belongs to a body above its limit, which `emit` of the message
        // refuses.
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        out.extend_from_slice(&self.cumulative.to_be_bytes());
        out.extend_from_slice(&count(self.ranges.len()));
        out.extend_from_slice(&count(self.credits.len()));
        out.extend_from_slice(&[0; 4]);
        for range in &self.ranges {
            out.extend_from_slice(&range.from.to_be_bytes());
            out.extend_from_slice(&range.until.to_be_bytes());
        }
        for credit in &self.credits {
            out.extend_from_slice(&credit.buffer.to_be_bytes());
            out.extend_from_slice(&credit.generation.to_be_bytes());
            out.extend_from_slice(&credit.address.to_be_bytes());
            out.extend_from_slice(&credit.key.to_be_bytes());
        }
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        let cumulative = cursor.u64("the cumulative acknowledgement")?;
        let range_count = count(cursor, "the number of ranges", ACK_RANGES_MAX)?;
        let credit_count = count(cursor, "the number of credits", GRANTS_MAX)?;
        cursor.zero16("the reserved field of credits")?;
        cursor.zero16("the reserved field of credits")?;
        let mut ranges = Vec::with_capacity(range_count);
        let mut last = cumulative;
        for _ in 0..range_count {
            let range = Range { from: cursor.u64("a range")?, until: cursor.u64("a range")? };
            if range.from <= last || range.until <= range.from {
                return Err(WireError::Range(range.from, range.until));
            }
            last = range.until;
            ranges.push(range);
        }
        let mut credits = Vec::with_capacity(credit_count);
        for _ in 0..credit_count {
            credits.push(Credit {
                buffer: cursor.u32("a credit")?,
                generation: cursor.u32("a credit")?,
                address: cursor.u64("a credit")?,
                key: cursor.u32("a credit")?,
            });
        }
        Ok(Self { cumulative, ranges, credits })
    }
}

fn count(cursor: &mut Cursor<'_>, field: &'static str, limit: usize) -> Result<usize, WireError> {
    let value = usize::from(cursor.u16(field)?);
    if value > limit {
        return Err(WireError::TooLarge { field, value: value as u64, limit: limit as u64 });
    }
    Ok(value)
}

/// A report that the source has written a block into the sink's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its sequence number.
    pub seq: u64,
    /// The buffer that holds it.
    pub buffer: u32,
    /// The generation of the grant that it used.
    pub generation: u32,
    /// Bytes of payload.
    pub len: u32,
}

impl Notice {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.buffer.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(Self {
            seq: cursor.u64("the sequence number")?,
            buffer: cursor.u32("the buffer")?,
            generation: cursor.u32("the generation")?,
            len: cursor.at_most("the length of a block", BLOCK_SIZE_MAX)?,
        })
    }
}

/// The totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Complete {
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of payload of all blocks.
    pub bytes: u64,
}

impl Complete {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.blocks.to_be_bytes());
        out.extend_from_slice(&self.bytes.to_be_bytes());
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        let blocks = cursor.u64("the number of blocks")?;
        Ok(Self { blocks, bytes: cursor.u64("the number of bytes")? })
    }
}

/// Why an end cancels a session or connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The reason as a code.
    pub code: Code,
    /// The reason as text.
    pub text: String,
}

impl Cancel {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.code.number().to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(self.text.as_bytes());
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        let code = cursor.u16("the code")?;
        if code == 0 {
            return Err(WireError::Value { field: "the code of an end", value: 0 });
        }
        cursor.zero16("the reserved field of an end")?;
        Ok(Self { code: Code::of(code), text: cursor.text("the text of an end", TEXT_LEN_MAX)? })
    }
}
