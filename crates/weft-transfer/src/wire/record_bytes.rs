//! Reads and appends big-endian numbers and bytes with a length prefix.

/// The bytes end within a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end within a field")]
pub struct Short;

/// Reads fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'bytes> {
    rest: &'bytes [u8],
}

impl<'bytes> Reader<'bytes> {
    /// Creates a reader of `bytes`.
    #[must_use]
    pub fn new(bytes: &'bytes [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The number of bytes left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'bytes [u8], Short> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// If there is none.
    pub fn u8(&mut self) -> Result<u8, Short> {
        self.array().map(u8::from_be_bytes)
    }

    /// Reads two bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads four bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads eight bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads bytes with a length prefix of one byte.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn counted_u8(&mut self) -> Result<&'bytes [u8], Short> {
        let len = self.u8()?;
        self.bytes(len.into())
    }

    /// Reads bytes with a length prefix of two bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn counted_u16(&mut self) -> Result<&'bytes [u8], Short> {
        let len = self.u16()?;
        self.bytes(len.into())
    }
}

/// Appends bytes with a length prefix of one byte.
///
/// # Panics
/// If there are more than 255.
pub fn push_counted_u8(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(u8::try_from(bytes.len()).expect("at most 255 bytes"));
    out.extend_from_slice(bytes);
}

/// Appends bytes with a length prefix of two bytes.
///
/// # Panics
/// If there are more than 65,535.
pub fn push_counted_u16(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}
