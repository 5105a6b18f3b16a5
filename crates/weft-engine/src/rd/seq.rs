//! Serial numbers that wrap (RFC 1982).

/// How far `to` is ahead of `from`; negative if it is behind.
pub(super) fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}
