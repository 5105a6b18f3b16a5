//! Big-endian fields of a fixed-size header. With a constant offset the compiler removes the
//! checks.

#[inline(always)]
pub(crate) fn be16<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

#[inline(always)]
pub(crate) fn be32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[inline(always)]
pub(crate) fn be64<const N: usize>(header: &[u8; N], at: usize) -> u64 {
    (u64::from(be32(header, at)) << 32) | u64::from(be32(header, at + 4))
}

#[inline(always)]
pub(crate) fn put16<const N: usize>(header: &mut [u8; N], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put32<const N: usize>(header: &mut [u8; N], at: usize, value: u32) {
    header[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put64<const N: usize>(header: &mut [u8; N], at: usize, value: u64) {
    header[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// The first `N` bytes of `buf`, as an array to fill.
///
/// # Panics
/// If `buf` is shorter than `N`.
#[inline(always)]
pub(crate) fn head<const N: usize>(buf: &mut [u8]) -> &mut [u8; N] {
    let Some(head) = buf.first_chunk_mut::<N>() else { too_short(N) };
    head
}

#[cold]
#[inline(never)]
#[track_caller]
fn too_short(needed: usize) -> ! {
    panic!("the buffer to emit into is shorter than {needed} bytes")
}
