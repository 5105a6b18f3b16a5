//! Reads big-endian numbers and counted bytes off a slice, and appends them to a vector.

/// The bytes end before what they should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes end early")]
pub struct Short;

/// Takes fields off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'bytes> {
    rest: &'bytes [u8],
}

impl<'bytes> Reader<'bytes> {
    /// Begins at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'bytes [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'bytes [u8], Short> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next byte.
    ///
    /// # Errors
    /// If there is none.
    pub fn u8(&mut self) -> Result<u8, Short> {
        self.array().map(u8::from_be_bytes)
    }

    /// The next two bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes as a number.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes with their number in one byte before them.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn counted_u8(&mut self) -> Result<&'bytes [u8], Short> {
        let len = self.u8()?;
        self.bytes(len.into())
    }

    /// Bytes with their number in two bytes before them.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn counted_u16(&mut self) -> Result<&'bytes [u8], Short> {
        let len = self.u16()?;
        self.bytes(len.into())
    }
}

/// Appends bytes with their number in one byte before them.
///
/// # Panics
/// If there are more than 255.
pub fn push_counted_u8(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(u8::try_from(bytes.len()).expect("at most 255 bytes"));
    out.extend_from_slice(bytes);
}

/// Appends bytes with their number in two bytes before them.
///
/// # Panics
/// If there are more than 65,535.
pub fn push_counted_u16(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}
