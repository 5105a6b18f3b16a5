//! The table of records at the start of a block's payload.

use std::ops::Range;

use crate::limits::TABLE_LEN_MAX;
use crate::wire::record::{Record, RecordError};
use crate::wire::record_bytes::Reader;

/// Why a block's payload is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table is longer than the payload, or than any may be.
    #[error("a table of {table_len} bytes in a payload of {payload_len}")]
    Length {
        /// Bytes of the table.
        table_len: usize,
        /// Bytes of the payload.
        payload_len: usize,
    },
    /// A record in it is none.
    #[error("record {index}: {error}")]
    Record {
        /// Which record, from 0.
        index: usize,
        /// What is wrong.
        error: RecordError,
    },
    /// The data of the records is not as long as what lies behind the table.
    #[error("{found} bytes of data, {wanted} according to the records")]
    Data {
        /// Bytes behind the table.
        found: usize,
        /// Bytes of all records.
        wanted: usize,
    },
}

/// A record of a block, and where its data is in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The record.
    pub record: Record,
    /// Its data in the payload; empty if it has none.
    pub data: Range<usize>,
}

/// Parses the table of a payload. What it returns borrows nothing.
///
/// # Errors
/// If a record is none, or the data of all of them is not exactly what lies behind the table.
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
        // Below 4 GiB for each of at most a million records, so it does not overflow.
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
