//! Markers: four bytes at every 512th byte of the stream that point back to the start of their
//! FPDU.
//!
//! A receiver asks for markers by the M bit of its MPA frame, so each direction decides separately.
//! Positions count from the first byte after the MPA frames, including markers, and the first
//! marker is the first four bytes. A marker at an FPDU's boundary belongs to the following FPDU.
//!
//! **The CRC covers the markers.** RFC 5044, section 4.2, makes the receiver ignore a marker's
//! reserved bits "except for CRC calculation", and tshark accepts only such CRCs. The CRC covers a
//! marker before the length field, inside the FPDU, and between the pad and the CRC field. So
//! [`Inserter`] computes the CRC, and [`Remover`] checks it: the FPDUs behind a [`Remover`] have to
//! be decoded without CRC.
//!
//! [`Remover::push`] never panics.

use thiserror::Error;

use super::fpdu::{self, CRC_LEN, FpduError, HEADER_LEN, ULPDU_MAX};
use crate::crc::{Crc32c, crc32c};

/// Distance between the starts of two markers, in bytes of the stream.
//= rfc5044#section-4.3
//# When Markers are enabled, MPA senders MUST insert a Marker into the data stream at a 512-octet
//# periodic interval in the TCP Sequence Number Space.
pub const INTERVAL: usize = 512;

/// Length of a marker: 16 reserved bits, then FPDUPTR.
pub const LEN: usize = 4;

const _: () = assert!(
    // The last marker may precede the CRC field directly.
    fpdu::covered_len(ULPDU_MAX) + LEN * (ULPDU_MAX.div_ceil(INTERVAL - LEN) + 1) <= 0xffff
);

/// Why a stream with markers is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MarkerError {
    /// The CRC is wrong.
    #[error(transparent)]
    Fpdu(#[from] FpduError),
    /// The CRC is right, or not in use, but a marker does not point to the start of its FPDU.
    #[error("marker points {pointer} bytes back, its FPDU started {distance} bytes back")]
    Pointer {
        /// FPDUPTR in the marker, with its two low bits cleared.
        pointer: u16,
        /// Number of bytes from the FPDU's length field to the marker.
        distance: u32,
    },
}

/// The sending side: copies FPDUs and inserts markers.
#[derive(Debug, Clone)]
pub struct Inserter {
    crc: bool,
    /// Stream position modulo [`INTERVAL`]; a multiple of four.
    phase: usize,
}

impl Inserter {
    /// The state at the start of the stream. `crc` says whether CRCs were negotiated.
    pub fn new(crc: bool) -> Self {
        Self { crc, phase: 0 }
    }

    /// Appends an FPDU made by [`fpdu::seal`], with markers and, if CRCs are in use, with the CRC
    /// that covers them.
    ///
    /// # Panics
    /// If `fpdu` is not exactly one FPDU, or its ULPDU exceeds [`ULPDU_MAX`].
    pub fn insert(&mut self, fpdu: &[u8], out: &mut Vec<u8>) {
        let length = fpdu.first_chunk().map(|&length| usize::from(u16::from_be_bytes(length)));
        assert!(length.is_some_and(|len| len <= ULPDU_MAX && fpdu::total_len(len) == fpdu.len()));
        let start = out.len();
        let (covered, _) = fpdu.split_at(fpdu.len() - CRC_LEN);
        let mut rest = covered;
        let mut header_at = None;
        loop {
            if self.phase == 0 {
                //= rfc5044#section-4.2
                //# The FPDU Pointer is a relative pointer, 16 bits long, interpreted as an unsigned
                //# integer that indicates the number of octets in the TCP stream from the beginning
                //# of the ULPDU Length field to the first octet of the entire Marker.
                //= rfc5044#section-4.3
                //# An FPDUPTR value of 0x0000 is a special case -- it is used when the Marker falls
                //# exactly between FPDUs (between the preceding FPDU CRC field and the next FPDU's
                //# ULPDU Length field).
                let distance = header_at.map_or(0, |at| out.len() - at);
                self.push_marker(distance, out);
            }
            header_at.get_or_insert(out.len());
            let (now, later) = rest.split_at(rest.len().min(INTERVAL - self.phase));
            self.push(now, out);
            rest = later;
            if rest.is_empty() && self.phase != 0 {
                break;
            }
        }
        let crc = if self.crc { crc32c(&out[start..]) } else { 0 };
        self.push(&fpdu::crc_field(crc), out);
    }

    fn push_marker(&mut self, distance: usize, out: &mut Vec<u8>) {
        // FPDUs and markers are multiples of four bytes, so the low bits are zero.
        let [high, low] = (distance as u16).to_be_bytes();
        self.push(&[0, 0, high, low], out);
    }

    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
        self.phase = (self.phase + bytes.len()) % INTERVAL;
    }
}

/// The receiving side: checks markers and removes them.
#[derive(Debug, Clone)]
pub struct Remover {
    crc: Option<Crc32c>,
    /// Stream position modulo [`INTERVAL`].
    phase: usize,
    /// The bytes received so far of a marker or a CRC field.
    field: [u8; 4],
    fpdu: Progress,
}

/// The received part of the current FPDU.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Number of bytes received, without markers.
    len: usize,
    /// Number of bytes received from the length field on, including markers.
    distance: u32,
    ulpdu_len: [u8; HEADER_LEN],
    /// The first wrong marker. It is reported only after the CRC has been checked, which shows
    /// where the fault lies.
    mismatch: Option<MarkerError>,
}

impl Remover {
    /// The state at the start of the stream. `crc` says whether CRCs were negotiated.
    pub fn new(crc: bool) -> Self {
        let crc = crc.then(Crc32c::new);
        Self { crc, phase: 0, field: [0; 4], fpdu: Progress::default() }
    }

    /// Takes the next bytes of the stream, split anywhere, and appends them without markers to
    /// `out`, for [`fpdu::decode`] without CRC. The CRC field of an FPDU is appended only after the
    /// FPDU has been checked, so an invalid FPDU never decodes.
    ///
    /// # Errors
    /// [`MarkerError`]. The stream is lost then, and no more bytes may be pushed.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), MarkerError> {
        while !bytes.is_empty() {
            let taken = if self.phase < LEN {
                self.push_marker(bytes)
            } else if self.fpdu.remaining() > 0 {
                self.push_covered(bytes, out)
            } else {
                self.push_crc(bytes, out)?
            };
            self.phase = (self.phase + taken) % INTERVAL;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn push_marker(&mut self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(LEN - self.phase)];
        self.field[self.phase..self.phase + bytes.len()].copy_from_slice(bytes);
        self.cover(bytes);
        if self.phase + bytes.len() == LEN {
            let distance = self.fpdu.distance;
            //= rfc5044#section-4.2
            //# The Reserved field MUST be set to zero on transmit and ignored on receive (except
            //# for CRC calculation).
            //= rfc5044#section-4.2
            //# The least significant two bits MUST always be set to zero at the transmitter, and
            //# the receivers MUST always treat these as zero for calculations.
            let pointer = u16::from_be_bytes([self.field[2], self.field[3]]) & !3;
            if u32::from(pointer) != distance {
                let mismatch = MarkerError::Pointer { pointer, distance };
                self.fpdu.mismatch.get_or_insert(mismatch);
            }
            if self.fpdu.len > 0 {
                self.fpdu.distance += LEN as u32;
            }
        }
        bytes.len()
    }

    /// Takes bytes of the length field, the ULPDU or the pad.
    fn push_covered(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let limit = self.fpdu.remaining().min(INTERVAL - self.phase);
        let bytes = &bytes[..bytes.len().min(limit)];
        self.cover(bytes);
        self.fpdu.advance(bytes);
        out.extend_from_slice(bytes);
        bytes.len()
    }

    fn push_crc(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, MarkerError> {
        // FPDUs and markers are multiples of four bytes, so no marker splits a CRC field.
        let have = self.phase % CRC_LEN;
        let bytes = &bytes[..bytes.len().min(CRC_LEN - have)];
        self.field[have..have + bytes.len()].copy_from_slice(bytes);
        if have + bytes.len() == CRC_LEN {
            self.finish()?;
            out.extend_from_slice(&self.field);
        }
        Ok(bytes.len())
    }

    //= rfc5044#section-8
    //# In the event that the CRC is valid, received MPA Marker (if enabled) and ULPDU Length fields
    //# do not agree on the start of an FPDU.
    fn finish(&mut self) -> Result<(), MarkerError> {
        if let Some(crc) = &mut self.crc {
            fpdu::check_crc(crc.value(), self.field)?;
            *crc = Crc32c::new();
        }
        let fpdu = std::mem::take(&mut self.fpdu);
        fpdu.mismatch.map_or(Ok(()), Err)
    }

    //= rfc5044#section-4.3
    //# All MPA Markers are included in the containing FPDU CRC calculation (when both CRCs and
    //# Markers are in use).
    fn cover(&mut self, bytes: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
    }
}

impl Progress {
    /// Number of bytes still missing before the CRC field, as far as known.
    fn remaining(&self) -> usize {
        if self.len < HEADER_LEN {
            return HEADER_LEN - self.len;
        }
        fpdu::covered_len(usize::from(u16::from_be_bytes(self.ulpdu_len))) - self.len
    }

    fn advance(&mut self, bytes: &[u8]) {
        // `remaining` separates the length field from the bytes behind it.
        if self.len < HEADER_LEN {
            self.ulpdu_len[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        }
        self.len += bytes.len();
        self.distance += bytes.len() as u32;
    }
}
