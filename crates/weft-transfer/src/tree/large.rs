//! Splits a large file into parts: data and holes.

use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::tree::ranges::Ranges;
use crate::tree::reading::Reading;

/// The boundaries of data in a sparse file are rounded outwards to multiples of this.
const HOLE_GRAIN: u64 = 4096;

/// The next piece of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data {
        offset: u64,
        len: u64,
    },
    Hole {
        offset: u64,
        len: u64,
    },
    /// There is more data, but the block has no room for it.
    Full,
    End,
}

/// A file that is being split.
#[derive(Debug)]
pub(crate) struct Large {
    reading: Arc<Reading>,
    /// The ranges that the sink has.
    have: Ranges,
    may_have_holes: bool,
    at: u64,
    /// The end of the data that contains `at`.
    data_end: u64,
}

impl Large {
    pub(crate) fn new(reading: Arc<Reading>, have: Ranges, may_have_holes: bool) -> Self {
        let data_end = if may_have_holes { 0 } else { reading.size };
        Self { reading, have, may_have_holes, at: 0, data_end }
    }

    pub(crate) fn reading(&self) -> &Arc<Reading> {
        &self.reading
    }

    /// Returns the next piece, with at most `data_max` bytes of data. `data_max` must not be zero
    /// even for a hole.
    pub(crate) fn next(&mut self, data_max: u64) -> Piece {
        let size = self.reading.size;
        while let Some(end) = self.have.end_at(self.at) {
            self.at = end;
        }
        if self.at >= size {
            return Piece::End;
        }
        if data_max == 0 {
            return Piece::Full;
        }
        let offset = self.at;
        let limit = self.have.start_after(offset).unwrap_or(size).min(size);
        if self.may_have_holes && offset >= self.data_end {
            let (start, end) = self.data_from(offset);
            self.data_end = end;
            if start > offset {
                self.at = start.min(limit);
                // After a part that the sink has, the data is looked up again.
                self.data_end = if start < limit { end } else { self.at };
                return Piece::Hole { offset, len: self.at - offset };
            }
        }
        let len = data_max.min(limit.min(self.data_end) - offset);
        self.at += len;
        Piece::Data { offset, len }
    }

    /// Returns the start and end of the next data, rounded outwards; both are the size if there is
    /// none.
    fn data_from(&self, offset: u64) -> (u64, u64) {
        let size = self.reading.size;
        let start = match seek(&*self.reading.fd, SeekFrom::Data(offset)) {
            Ok(start) => (start & !(HOLE_GRAIN - 1)).max(offset),
            Err(Errno::NXIO) => return (size, size),
            // File systems without support for holes report an error, so everything counts as data.
            Err(_) => return (offset, size),
        };
        if start >= size {
            return (size, size);
        }
        let end = match seek(&*self.reading.fd, SeekFrom::Hole(start)) {
            Ok(end) => end.next_multiple_of(HOLE_GRAIN).clamp(start + 1, size),
            Err(_) => size,
        };
        (start, end)
    }
}
