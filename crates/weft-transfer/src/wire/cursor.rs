//! A reader of big-endian fields.

use super::WireError;

/// The bytes that have not been read.
pub(super) struct Cursor<'bytes>(&'bytes [u8]);

impl<'bytes> Cursor<'bytes> {
    pub(super) fn new(bytes: &'bytes [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated(field))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Reads two bytes that must be zero.
    pub(super) fn zero16(&mut self, field: &'static str) -> Result<(), WireError> {
        if self.u16(field)? == 0 { Ok(()) } else { Err(WireError::Reserved(field)) }
    }

    /// Reads a number that must not exceed `limit`.
    pub(super) fn at_most(&mut self, field: &'static str, limit: u32) -> Result<u32, WireError> {
        let value = self.u32(field)?;
        if value > limit {
            return Err(WireError::TooLarge { field, value: value.into(), limit: limit.into() });
        }
        Ok(value)
    }

    /// Returns all remaining bytes, possibly none.
    pub(super) fn rest(&mut self) -> &'bytes [u8] {
        std::mem::take(&mut self.0)
    }

    /// Returns all remaining bytes as text of at most `limit` bytes.
    pub(super) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let bytes = self.rest();
        if bytes.len() > limit {
            let (value, limit) = (bytes.len() as u64, limit as u64);
            return Err(WireError::TooLarge { field, value, limit });
        }
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Text(field))
    }

    /// Checks that no bytes remain.
    pub(super) fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::TrailingBytes(self.0.len())) }
    }
}
