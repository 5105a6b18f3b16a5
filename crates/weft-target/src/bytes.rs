//! Numbers in headers, descriptor blocks and parameter lists, which are big-endian.

/// The number of two bytes at `at`. Like the others it panics if they are not there.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(part(bytes, at))
}

/// The number of three bytes.
pub(crate) fn be24(bytes: &[u8], at: usize) -> u32 {
    let [first, second, third] = part(bytes, at);
    u32::from_be_bytes([0, first, second, third])
}

/// The number of four bytes.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(part(bytes, at))
}

/// The number of eight bytes.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(part(bytes, at))
}

/// `N` bytes at `at`.
pub(crate) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}
