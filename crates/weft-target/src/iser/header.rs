//! The header in front of each PDU (RFC 7145, section 9.2).

use thiserror::Error;

use crate::bytes::{be32, be64};

/// The length of the header.
pub const HEADER_LEN: usize = 28;

/// The operation code of messages that carry iSCSI PDUs, in the upper half of the first byte.
const CONTROL: u8 = 0x10;
/// The header names memory that the target may read.
const HAS_WRITE_BUFFER: u8 = 0x08;
/// The header names memory that the target may write.
const HAS_READ_BUFFER: u8 = 0x04;

/// The header of a PDU of the target, which names no memory.
pub(super) const PLAIN: [u8; HEADER_LEN] = {
    let mut header = [0; HEADER_LEN];
    header[0] = CONTROL;
    header
};

/// Memory of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The key.
    pub key: u32,
    /// The address of the first byte.
    pub address: u64,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

impl Buffer {
    /// The memory from an offset on. The device checks addresses against the key.
    pub(super) fn behind(self, offset: u64) -> Self {
        Self { address: self.address.wrapping_add(offset), ..self }
    }
}

/// The initiator's memory that a header names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffers {
    /// Memory with the data of a command that writes.
    pub(super) write: Option<Buffer>,
    /// Memory for the data of a command that reads.
    pub(super) read: Option<Buffer>,
}

/// Parses a header.
///
/// # Errors
///
/// If it is not one of an iSCSI PDU.
pub(super) fn parse(header: &[u8; HEADER_LEN]) -> Result<Buffers, Broken> {
    if header[0] & 0xf0 != CONTROL {
        return Err(Broken("a message that is not an iSCSI PDU"));
    }
    let buffer = |at| Buffer { key: be32(header, at), address: be64(header, at + 4) };
    let named = |flag: u8, at| (header[0] & flag != 0).then(|| buffer(at));
    Ok(Buffers { write: named(HAS_WRITE_BUFFER, 4), read: named(HAS_READ_BUFFER, 16) })
}
