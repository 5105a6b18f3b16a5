//! FPDUs: MPA's frames, each of which delimits and checks one ULPDU (a DDP segment) in the stream.
//!
//! ```text
//! | ULPDU length, 16 bits | ULPDU | 0 to 3 bytes of pad | CRC32C, 32 bits |
//! ```
//!
//! [`decode`] never panics. The other functions panic only on a buffer that is too short. For
//! streams with markers see [`super::marker`]: markers lie inside the bytes that the CRC covers, so
//! sealing and checking differ.

use thiserror::Error;

use crate::crc::crc32c;
pub use crate::limits::{TRAILER_MAX, ULPDU_MAX};

/// Minimum MULPDU in bytes, however small TCP's segments are.
const MULPDU_MIN: usize = 128;

/// Length of the length field, which precedes the ULPDU.
pub const HEADER_LEN: usize = 2;

/// Length of the CRC field, which ends the FPDU.
pub const CRC_LEN: usize = 4;

const _: () = assert!(TRAILER_MAX == 3 + CRC_LEN, "pad and CRC");

/// Result of [`decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// The FPDU is incomplete. Decode again when there are `needed` bytes from its start.
    Incomplete {
        /// Length of the FPDU, as far as known.
        needed: usize,
    },
    /// A complete FPDU.
    Fpdu {
        /// The ULPDU in the FPDU.
        ulpdu: &'a [u8],
        /// Length of the whole FPDU.
        consumed: usize,
    },
}

/// Why bytes are not an FPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FpduError {
    /// The CRC field is not the CRC of the FPDU.
    #[error("MPA CRC error: received {received:#010x}, computed {computed:#010x}")]
    Crc {
        /// Value of the CRC field.
        received: u32,
        /// CRC32C of length, ULPDU and pad.
        computed: u32,
    },
}

/// Number of pad bytes behind a ULPDU of `ulpdu_len` bytes.
//= rfc5044#section-4.1
//# The PAD field trails the ULPDU and contains between 0 and 3 octets of data.
//= rfc5044#section-4.1
//# The length of the pad is set so as to make the size of the FPDU an integral multiple of four.
#[inline]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (HEADER_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Length of an FPDU, without markers, for a ULPDU of `ulpdu_len` bytes.
#[inline]
pub const fn total_len(ulpdu_len: usize) -> usize {
    covered_len(ulpdu_len) + CRC_LEN
}

/// Length of the part that the CRC covers, without markers: length field, ULPDU and pad.
#[inline]
pub(super) const fn covered_len(ulpdu_len: usize) -> usize {
    (HEADER_LEN + ulpdu_len).next_multiple_of(4)
}

/// The largest ULPDU (MULPDU) whose FPDU fits a TCP segment of `emss` bytes, within the limits of
/// RFC 5044.
//= rfc5044#section-3
//# The range of MULPDU values MUST be between 128 octets and 64768 octets, inclusive.
//= rfc5044#section-3
//# MPA MUST provide information to DDP on the current maximum size of the record that is acceptable
//# to send (MULPDU).
//= rfc5044#section-4.5
//# The maximum ULPDU Length for a single ULPDU when Markers are present MUST be computed as: MULPDU
//# = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)
//= rfc5044#section-4.5
//# The maximum ULPDU Length for a single ULPDU when Markers are NOT present MUST be computed as:
//# MULPDU = EMSS - (6 + EMSS mod 4)
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers_len = if markers { 4 * emss.div_ceil(512) } else { 0 };
    let fits = emss.saturating_sub(HEADER_LEN + CRC_LEN + markers_len + emss % 4);
    match fits {
        0..MULPDU_MIN => MULPDU_MIN,
        MULPDU_MIN..=ULPDU_MAX => fits,
        _ => ULPDU_MAX,
    }
}

/// Decodes the FPDU at the start of `buf`. `crc` says whether its CRC is checked.
///
/// # Errors
/// [`FpduError::Crc`]. The stream is lost then, because the length field may be wrong.
//= rfc5044#section-6
//# In an ordered TCP stream, the ULPDU Length field in the current FPDU when FPDU has a valid CRC,
//# can be used to identify the beginning of the next FPDU.
//= rfc5044#section-6
//# The ULPDU Length field (see Section 4) MUST be used to determine if the entire FPDU is present
//# before forwarding the ULPDU to DDP.
//= rfc5044#section-5.2
//# MPA receivers will get TCP data in the usual ordered stream. The receivers MUST identify FPDU
//# boundaries by using the ULPDU_LENGTH field, as described in Section 6.
#[inline]
pub fn decode(buf: &[u8], crc: bool) -> Result<Decoded<'_>, FpduError> {
    let Some(&length) = buf.first_chunk::<HEADER_LEN>() else {
        return Ok(Decoded::Incomplete { needed: HEADER_LEN });
    };
    //= rfc5044#section-4.1
    //# This is the number of octets of the contained ULPDU. It does not include the length of the
    //# FPDU header itself, the pad, the CRC, or of any Markers that fall within the ULPDU.
    let ulpdu_len = usize::from(u16::from_be_bytes(length));
    let covered_len = covered_len(ulpdu_len);
    let consumed = covered_len + CRC_LEN;
    let Some(fpdu) = buf.get(..consumed) else {
        return Ok(Decoded::Incomplete { needed: consumed });
    };
    let (covered, field) = fpdu.split_at(covered_len);
    //= rfc5044#section-4.1
    //# When CRCs are not enabled, this field is still present, may contain any value, and MUST NOT
    //# be checked.
    if crc {
        check(crc32c(covered), field)?;
    }
    //= rfc5044#section-4.1
    //# The pad data MUST be set to zero by the sender and ignored by the receiver (except for CRC
    //# checking).
    Ok(Decoded::Fpdu { ulpdu: &covered[HEADER_LEN..HEADER_LEN + ulpdu_len], consumed })
}

/// Completes an FPDU around the ULPDU at `buf[2..2 + ulpdu_len]`: writes the length before it, and
/// the pad and the CRC behind it. Without `crc` the CRC field is zero.
///
/// # Panics
/// If `ulpdu_len` exceeds the length field, or `buf` is shorter than [`total_len`].
#[inline]
pub fn seal(buf: &mut [u8], ulpdu_len: usize, crc: bool) {
    let (covered, field) = buf[..total_len(ulpdu_len)].split_at_mut(covered_len(ulpdu_len));
    covered[..HEADER_LEN].copy_from_slice(&header(ulpdu_len));
    //= rfc5044#section-4.1
    //# The pad data MUST be set to zero by the sender and ignored by the receiver (except for CRC
    //# checking).
    covered[HEADER_LEN + ulpdu_len..].fill(0);
    let value = if crc { crc32c(covered) } else { 0 };
    field.copy_from_slice(&crc_field(value));
}

/// The length field of an FPDU, for a sender that gathers header and payload from different places.
///
/// # Panics
/// If `ulpdu_len` exceeds the field.
#[inline]
pub fn header(ulpdu_len: usize) -> [u8; HEADER_LEN] {
    assert!(ulpdu_len <= usize::from(u16::MAX), "a ULPDU of {ulpdu_len} bytes");
    (ulpdu_len as u16).to_be_bytes()
}

/// The bytes behind a ULPDU, for a sender that gathers: the pad and the CRC field, and their total
/// length. `crc` covers length, ULPDU and [`pad_len`] zero bytes; `None` without CRCs.
#[inline]
pub fn trailer(ulpdu_len: usize, crc: Option<u32>) -> ([u8; TRAILER_MAX], usize) {
    let pad_len = pad_len(ulpdu_len);
    let mut trailer = [0; TRAILER_MAX];
    trailer[pad_len..pad_len + CRC_LEN].copy_from_slice(&crc_field(crc.unwrap_or(0)));
    (trailer, pad_len + CRC_LEN)
}

/// Compares a received CRC field with the CRC `computed` over the covered bytes, for a receiver
/// that scatters the payload.
///
/// # Errors
/// [`FpduError::Crc`] if they differ.
#[inline]
pub fn check_crc(computed: u32, field: [u8; CRC_LEN]) -> Result<(), FpduError> {
    let received = u32::from_le_bytes(field);
    if computed == received { Ok(()) } else { Err(FpduError::Crc { received, computed }) }
}

/// Does the same as [`check_crc`] for a slice of the field's length.
#[inline]
fn check(computed: u32, field: &[u8]) -> Result<(), FpduError> {
    let mut bytes = [0; CRC_LEN];
    bytes.copy_from_slice(field);
    check_crc(computed, bytes)
}

//= rfc5044#section-4.4
//# After calculating the CRC-32c, the resultant value is placed into the CRC field at the end of
//# the FPDU.
#[inline]
pub(super) fn crc_field(value: u32) -> [u8; CRC_LEN] {
    value.to_le_bytes()
}
