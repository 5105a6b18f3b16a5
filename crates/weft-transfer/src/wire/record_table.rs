//! The table of records at the start of a block's payload.

use std::ops::Range;

use crate::limits::TABLE_LEN_MAX;
use crate::wire::record::{Record, RecordError};
use crate::wire::record_bytes::Reader;

/// Why a block's payload is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table exceeds the payload or its limit.
    #[error("invalid table of {table_len} bytes in a payload of {payload_len}")]
    Length {
        /// Bytes of the table.
        table_len: usize,
        /// Bytes of the payload.
        payload_len: usize,
    },
    /// A record of the table is invalid.
    #[error("record {index}: {error}")]
    Record {
        /// The record's index in the table, from 0.
        index: usize,
        /// The record's error.
        error: RecordError,
    },
    /// The records' data has another length than the bytes after the table.
    #[error("the block has {found} bytes of data, its records {wanted}")]
    Data {
        /// Bytes after the table.
        found: usize,
        /// Bytes of data of all records.
        wanted: usize,
    },
}

/// A record of a block, and the position of its data in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The record.
    pub record: Record,
    /// The position of its data; empty if it has none.
    pub data: Range<usize>,
}

/// Parses the table of a payload. The result borrows nothing.
///
/// # Errors
/// If a record is invalid, or the records' data does not exactly fill the rest of the payload.
pub fn parse(payload: &[u8], table_len: usize) -> Result<Vec<Placed>, TableError> {
    let payload_len = payload.len();
    if table_len > payload_len.min(TABLE_LEN_MAX) {
        return Err(TableError::Length { table_len, payload_len });
    }
    let mut from = Reader::new(&payload[..table_len]);
    let (mut records, mut at) = (Vec::new(), table_len);
    while from.left() != 0 {
        let index = records.len();
        let record =
            Record::parse(&mut from).map_err(|error| TableError::Record { index, error })?;
        if record == Record::Nothing {
            continue;
        }
        // Each of at most a million records has less than 4 GiB of data, so the sum does not
        // overflow.
        let end = at + record.data_len();
        records.push(Placed { record, data: at..end });
        at = end;
    }
    if at != payload_len {
        let (found, wanted) = (payload_len - table_len, at - table_len);
        return Err(TableError::Data { found, wanted });
    }
    Ok(records)
}
