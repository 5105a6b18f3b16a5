//! The header at the start of every block.
//!
//! ```text
//!      0       2       4       6       8
//!   0  | session       | flags | zero  |   ─┐
//!   8  | sequence number               |    │ authenticated with the payload
//!  16  | nonce counter                 |    │ where the block is sealed
//!  24  | payload       | table         |   ─┘
//!  32  | buffer        | generation    |
//! ```

use super::WireError;
use super::cursor::Cursor;
use crate::limits::BLOCK_SIZE_MAX;

/// How the payload of a block is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFlags {
    /// The payload is sealed: encrypted, with an authentication tag as its last bytes.
    pub sealed: bool,
    /// The payload has been compressed, before it was sealed.
    pub compressed: bool,
}

const SEALED: u16 = 1;
const COMPRESSED: u16 = 2;

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The session that the block belongs to.
    pub session: u32,
    /// How the payload is encoded.
    pub flags: BlockFlags,
    /// Its position in the sequence of the session's blocks, from 0 on.
    pub seq: u64,
    /// The counter of the nonce; zero in a block that is not sealed.
    pub nonce: u64,
    /// Bytes of payload after the header.
    pub len: u32,
    /// Bytes of the record table, with which the plain payload begins.
    pub table_len: u32,
    /// The sink's buffer for the block.
    pub buffer: u32,
    /// The generation of the grant that the block uses.
    pub generation: u32,
}

impl BlockHeader {
    /// Length in bytes.
    pub const LEN: usize = 40;
    /// Length of the part that a seal authenticates. It excludes buffer and generation, because a
    /// block is sealed before it gets a credit.
    pub const AUTHENTICATED_LEN: usize = 32;

    /// Returns the header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let BlockFlags { sealed, compressed } = self.flags;
        let flags = (u16::from(sealed) * SEALED) | (u16::from(compressed) * COMPRESSED);
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.session.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.nonce.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.table_len.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.buffer.to_be_bytes());
        bytes[36..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }

    /// Returns the bytes that a seal authenticates besides the payload. They do not depend on the
    /// block's credit.
    #[must_use]
    pub fn authenticated(&self) -> [u8; Self::AUTHENTICATED_LEN] {
        let bytes = self.emit();
        let mut head = [0; Self::AUTHENTICATED_LEN];
        head.copy_from_slice(&bytes[..Self::AUTHENTICATED_LEN]);
        head
    }

    /// Parses a header.
    ///
    /// # Errors
    /// If the bytes are no valid header. The rest of the stream cannot be parsed then.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        let session = cursor.u32("the session")?;
        if session == 0 {
            return Err(WireError::Value { field: "the session of a block", value: 0 });
        }
        let flags = cursor.u16("the flags")?;
        if flags & !(SEALED | COMPRESSED) != 0 {
            let value = u64::from(flags);
            return Err(WireError::Value { field: "the flags of a block", value });
        }
        cursor.zero16("the reserved field of a block")?;
        let header = Self {
            session,
            flags: BlockFlags { sealed: flags & SEALED != 0, compressed: flags & COMPRESSED != 0 },
            seq: cursor.u64("the sequence number")?,
            nonce: cursor.u64("the nonce")?,
            len: cursor.at_most("the length of a block", BLOCK_SIZE_MAX)?,
            table_len: cursor.u32("the length of the table")?,
            buffer: cursor.u32("the buffer")?,
            generation: cursor.u32("the generation")?,
        };
        cursor.end()?;
        // The table of a compressed block is a part of the expanded payload.
        if !header.flags.compressed && header.table_len > header.len {
            return Err(WireError::Table { table: header.table_len, payload: header.len });
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BlockFlags, BlockHeader, WireError};

    const HEADER: BlockHeader = BlockHeader {
        session: 0x0102_0304,
        flags: BlockFlags { sealed: true, compressed: false },
        seq: 0x1112_1314_1516_1718,
        nonce: 0x2122_2324_2526_2728,
        len: 0x0031_3233,
        table_len: 0x41,
        buffer: 0x5152_5354,
        generation: 0x6162_6364,
    };

    #[test]
    fn a_header_has_the_specified_bytes() {
        let expected = [
            0x01, 0x02, 0x03, 0x04, 0x00, 0x01, 0x00, 0x00, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
            0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x00, 0x31, 0x32, 0x33,
            0x00, 0x00, 0x00, 0x41, 0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64,
        ];
        assert_eq!(HEADER.emit(), expected);
        assert_eq!(BlockHeader::parse(&expected), Ok(HEADER));
    }

    #[test]
    fn all_fields_but_the_credit_are_authenticated() {
        let other = BlockHeader { buffer: 1, generation: 2, ..HEADER };
        assert_eq!(other.authenticated(), HEADER.authenticated());
        let others = [
            BlockHeader { session: 1, ..HEADER },
            BlockHeader { flags: BlockFlags::default(), ..HEADER },
            BlockHeader { seq: 1, ..HEADER },
            BlockHeader { nonce: 1, ..HEADER },
            BlockHeader { len: 1, ..HEADER },
            BlockHeader { table_len: 1, ..HEADER },
        ];
        for other in others {
            assert_ne!(other.authenticated(), HEADER.authenticated(), "{other:?}");
        }
    }

    #[test]
    fn each_invalid_field_is_named() {
        let with = |at: usize, value: u8| {
            let mut bytes = HEADER.emit();
            bytes[at] = value;
            BlockHeader::parse(&bytes)
        };
        assert!(matches!(with(4, 1), Err(WireError::Value { field: "the flags of a block", .. })));
        assert_eq!(with(7, 1), Err(WireError::Reserved("the reserved field of a block")));
        assert!(matches!(with(24, 0xff), Err(WireError::TooLarge { .. })));
        assert!(matches!(with(28, 1), Err(WireError::Table { .. })));
        let flags = BlockFlags { sealed: false, compressed: true };
        let small = BlockHeader { flags, len: 1, table_len: 2, ..HEADER };
        assert_eq!(BlockHeader::parse(&small.emit()), Ok(small));
        let mut bytes = HEADER.emit();
        bytes[..4].fill(0);
        assert!(matches!(BlockHeader::parse(&bytes), Err(WireError::Value { value: 0, .. })));
    }

    proptest! {
        #[test]
        fn parsed_headers_are_emitted_unchanged(bytes: [u8; 40], is_plausible: bool) {
            let mut bytes = bytes;
            if is_plausible {
                bytes[4] = 0;
                bytes[5] &= 3;
                bytes[6..8].fill(0);
                bytes[24] = 0;
                bytes[28] = 0;
            }
            if let Ok(header) = BlockHeader::parse(&bytes) {
                prop_assert_eq!(header.emit(), bytes);
            }
        }
    }
}
