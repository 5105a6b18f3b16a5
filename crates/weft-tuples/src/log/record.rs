//! The headers of the file and of its records.

use crc_fast::crc32_iscsi as crc32c;

use crate::wire::{Malformed, Reader, Writer};

const MAGIC: [u8; 8] = *b"WEFTTUPL";
/// The version of files that are written. Version 1 had no answers of observes, and its servers
/// refuse what version 2 has.
pub(super) const VERSION: u32 = 2;
/// The oldest version that is read.
const VERSION_OLDEST: u32 = 1;

/// Bytes at random that only this file has. A record begins with them, so that records are found
/// behind a damaged one, and no tuple looks like a record.
pub(super) type Salt = [u8; 8];

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) version: u32,
    pub(super) salt: Salt,
    /// The number of the first record.
    pub(super) first: u64,
    /// Where the snapshot ends. Records up to here were on disk before the file had its name.
    pub(super) snapshot_end: u64,
}

impl FileHeader {
    pub(super) const LEN: usize = 40;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(MAGIC.to_vec());
        writer.u32(self.version);
        writer.0.extend_from_slice(&self.salt);
        writer.u64(self.first);
        writer.u64(self.snapshot_end);
        writer.u32(crc32c(&writer.0));
        writer.0
    }

    /// Parses the header of any version that ends with a checksum in the same place.
    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC {
            return Err(Malformed);
        }
        let header = Self {
            version: reader.u32()?,
            salt: reader.array()?,
            first: reader.u64()?,
            snapshot_end: reader.u64()?,
        };
        if reader.u32()? != crc32c(&bytes[..Self::LEN - 4]) {
            return Err(Malformed);
        }
        Ok(header)
    }

    /// Whether files of this version can be read.
    pub(super) fn is_known(&self) -> bool {
        (VERSION_OLDEST..=VERSION).contains(&self.version)
    }

    /// Whether servers of this version would refuse what is written now.
    pub(super) fn is_old(&self) -> bool {
        self.version < VERSION
    }
}

/// The header of a record. Its effects follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// The number of the record.
    pub(super) number: u64,
    /// The length of its effects in bytes.
    pub(super) len: u64,
    /// The checksum of its effects.
    crc: u32,
}

impl RecordHeader {
    pub(super) const LEN: usize = 32;

    pub(super) fn of(number: u64, effects: &[u8]) -> Self {
        Self { number, len: effects.len() as u64, crc: crc32c(effects) }
    }

    pub(super) fn encode(&self, salt: Salt) -> Vec<u8> {
        let mut writer = Writer(salt.to_vec());
        writer.u64(self.number);
        writer.u64(self.len);
        writer.u32(self.crc);
        writer.u32(crc32c(&writer.0));
        writer.0
    }

    pub(super) fn decode(bytes: &[u8], salt: Salt) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.array()? != salt {
            return Err(Malformed);
        }
        let header = Self { number: reader.u64()?, len: reader.u64()?, crc: reader.u32()? };
        let is_right = bytes.get(..Self::LEN - 4).map(crc32c) == Some(reader.u32()?);
        if is_right { Ok(header) } else { Err(Malformed) }
    }

    pub(super) fn is_of(&self, effects: &[u8]) -> bool {
        crc32c(effects) == self.crc
    }
}
