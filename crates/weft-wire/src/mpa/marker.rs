//! Markers: four bytes at every 512th of the stream, which point back to the start of their FPDU.
//!
//! A receiver asks for them with M in its MPA frame, so each direction has its own answer.
//! Positions count from the first byte after the MPA frames, markers included, and the first marker
//! is the very first four bytes. A marker at an FPDU's boundary belongs to the FPDU behind it.
//!
//! **The CRC covers the markers.** RFC 5044, section 4.2, has the receiver ignore a marker's
//! reserved bits "except for CRC calculation"; tshark, too, calls only such a CRC good. A marker
//! before the length field, inside the FPDU, and between the pad and the CRC field is covered by
//! the CRC. So [`Inserter`] computes the CRC itself, and [`Remover`] checks it itself: behind a
//! [`Remover`] the FPDUs are to be decoded without CRC.
//!
//! [`Remover::push`] never panics.

use thiserror::Error;

use super::fpdu::{self, CRC_LEN, FpduError, HEADER_LEN, ULPDU_MAX};
use crate::crc::{Crc32c, crc32c};

/// Distance from one marker's first byte to the next one's, in bytes of the stream.
//= rfc5044#section-4.3
//# When Markers are enabled, MPA senders MUST insert a Marker into the data stream at a 512-octet
//# periodic interval in the TCP Sequence Number Space.
pub const INTERVAL: usize = 512;

/// Bytes of a marker: 16 reserved bits, then FPDUPTR.
pub const LEN: usize = 4;

const _: () = assert!(
    // The last marker can stand right before the CRC field.
    fpdu::covered_len(ULPDU_MAX) + LEN * (ULPDU_MAX.div_ceil(INTERVAL - LEN) + 1) <= 0xffff
);

/// Why a stream with markers is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MarkerError {
    /// The CRC is wrong.
    #[error(transparent)]
    Fpdu(#[from] FpduError),
    /// The CRC is right, or not in use, and a marker does not point to the start of its FPDU.
    #[error("marker points {pointer} bytes back, its FPDU started {distance} bytes back")]
    Pointer {
        /// FPDUPTR as received, its two low bits cleared.
        pointer: u16,
        /// Octets from the FPDU's length field to the marker.
        distance: u32,
    },
}

/// Sends markers: copies FPDUs and puts the markers in.
#[derive(Debug, Clone)]
pub struct Inserter {
    crc: bool,
    /// Stream position modulo [`INTERVAL`]; a multiple of four.
    phase: usize,
}

impl Inserter {
    /// At the start of the stream; `crc` as negotiated.
    pub fn new(crc: bool) -> Self {
        Self { crc, phase: 0 }
    }

    /// Appends the FPDU that [`fpdu::seal`] made, with markers and, when CRCs are in use, with the
    /// CRC that covers them.
    ///
    /// # Panics
    /// When `fpdu` is not one whole FPDU, or its ULPDU exceeds [`ULPDU_MAX`].
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
        // Both the FPDU and the markers are multiples of four bytes, so the low bits are zero.
        let [high, low] = (distance as u16).to_be_bytes();
        self.push(&[0, 0, high, low], out);
    }

    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
        self.phase = (self.phase + bytes.len()) % INTERVAL;
    }
}

/// Receives markers: checks them and takes them out.
#[derive(Debug, Clone)]
pub struct Remover {
    crc: Option<Crc32c>,
    /// Stream position modulo [`INTERVAL`].
    phase: usize,
    /// The bytes so far of a marker or a CRC field.
    field: [u8; 4],
    fpdu: Progress,
}

/// How far the current FPDU has come.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Bytes so far, without markers.
    len: usize,
    /// Bytes so far from the length field on, markers included.
    distance: u32,
    ulpdu_len: [u8; HEADER_LEN],
    /// The first wrong marker. Reported only after the CRC, which tells where the fault lies.
    mismatch: Option<MarkerError>,
}

impl Remover {
    /// At the start of the stream; `crc` as negotiated.
    pub fn new(crc: bool) -> Self {
        let crc = crc.then(Crc32c::new);
        Self { crc, phase: 0, field: [0; 4], fpdu: Progress::default() }
    }

    /// Takes the next bytes of the stream, cut anywhere, and appends them without markers to `out`,
    /// to be decoded by [`fpdu::decode`] without CRC. The CRC field of an FPDU is appended only
    /// after the FPDU has been found right, so that an FPDU that is not right never decodes.
    ///
    /// # Errors
    /// [`MarkerError`]; the stream is lost, and no more is to be pushed.
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

    /// Length field, ULPDU and pad.
    fn push_covered(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let limit = self.fpdu.remaining().min(INTERVAL - self.phase);
        let bytes = &bytes[..bytes.len().min(limit)];
        self.cover(bytes);
        self.fpdu.advance(bytes);
        out.extend_from_slice(bytes);
        bytes.len()
    }

    fn push_crc(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, MarkerError> {
        // FPDUs and markers are multiples of four bytes, so that no marker cuts a CRC field.
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
    /// Bytes still to come before the CRC field, as far as it is known.
    fn remaining(&self) -> usize {
        if self.len < HEADER_LEN {
            return HEADER_LEN - self.len;
        }
        fpdu::covered_len(usize::from(u16::from_be_bytes(self.ulpdu_len))) - self.len
    }

    fn advance(&mut self, bytes: &[u8]) {
        // `remaining` keeps the length field apart from what follows it.
        if self.len < HEADER_LEN {
            self.ulpdu_len[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        }
        self.len += bytes.len();
        self.distance += bytes.len() as u32;
    }
}
