//! Cuts a stream of bytes into PDUs, and appends PDUs to one (RFC 7143, section 11.1).

use std::convert::Infallible;

use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;

use super::request::{additional_len, data_len};
use super::{HEADER_LEN, Response, SendBuffer, Sequence};
use crate::limits::INPUT_BUFFER_LEN;

const DIGEST_LEN: usize = 4;

/// Which digests a connection has agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC-32C over the header segments.
    pub header: bool,
    /// CRC-32C over the data segment and its padding.
    pub data: bool,
}

/// Why a stream cannot be cut into PDUs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A data segment is longer than the target accepts.
    #[error("a data segment of {len} bytes where {max} are accepted")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The accepted length in bytes.
        max: usize,
    },
    /// The digest of a header is wrong, so that the length in it cannot be believed.
    #[error("the digest of a header is wrong")]
    HeaderDigest,
}

/// A received PDU.
#[derive(Clone, Copy, Debug)]
pub struct Pdu<'a> {
    /// The basic header segment.
    pub header: &'a [u8; HEADER_LEN],
    /// The additional header segments.
    pub additional: &'a [u8],
    /// The data segment without its padding.
    pub data: &'a [u8],
    /// The digest of the data is wrong.
    pub is_damaged: bool,
}

/// The bytes that a connection has received and that are not yet cut into PDUs.
#[derive(Debug)]
pub struct Framer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the last PDU begins.
    last: usize,
    digests: Digests,
    data_len_max: usize,
}

impl Framer {
    /// Returns a framer without bytes, for a connection without digests.
    #[must_use]
    pub fn new(data_len_max: usize) -> Self {
        let digests = Digests::default();
        let buffer = vec![0; INPUT_BUFFER_LEN];
        Self { buffer, start: 0, end: 0, last: 0, digests, data_len_max }
    }

    /// Sets what has been agreed on, for all bytes that have not been cut yet.
    pub fn agree(&mut self, digests: Digests, data_len_max: usize) {
        (self.digests, self.data_len_max) = (digests, data_len_max);
    }

    /// Where received bytes go; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.end == self.buffer.len() {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else {
                // A PDU that is longer than the buffer: `next` has checked its length.
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// Notes that the first `len` bytes of `space` have been received.
    pub fn received(&mut self, len: usize) {
        self.end += len;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// The next whole PDU, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// If what follows cannot be cut. The connection is of no use then.
    pub fn next_pdu(&mut self) -> Result<Option<Pdu<'_>>, FrameError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let digest = |agreed: bool| if agreed { DIGEST_LEN } else { 0 };
        let (additional_len, data_len) = (additional_len(header), data_len(header));
        let head_len = HEADER_LEN + additional_len;
        let head_digest = digest(self.digests.header);
        if self.digests.header {
            let Some(sum) = bytes.get(head_len..head_len + DIGEST_LEN) else { return Ok(None) };
            if sum != crc32c(&bytes[..head_len]) {
                return Err(FrameError::HeaderDigest);
            }
        }
        if data_len > self.data_len_max {
            return Err(FrameError::TooLong { len: data_len, max: self.data_len_max });
        }
        let padded_len = data_len.next_multiple_of(4);
        let data_digest = if data_len == 0 { 0 } else { digest(self.digests.data) };
        let data_at = additional_len + head_digest;
        let len = HEADER_LEN + data_at + padded_len + data_digest;
        if bytes.len() < len {
            return Ok(None);
        }
        let padded = &rest[data_at..data_at + padded_len];
        let sum = &rest[data_at + padded_len..data_at + padded_len + data_digest];
        let is_damaged = data_digest > 0 && sum != crc32c(padded);
        self.last = self.start;
        self.start += len;
        let (additional, data) = (&rest[..additional_len], &padded[..data_len]);
        Ok(Some(Pdu { header, additional, data, is_damaged }))
    }

    /// Makes the PDU that was cut last the next one again. No bytes were received meanwhile.
    pub fn put_back(&mut self) {
        self.start = self.last;
    }
}

/// Appends a response with its data segment, its padding and its digests.
pub fn append(
    output: &mut SendBuffer,
    response: &Response,
    sequence: Sequence,
    digests: Digests,
    data: &[u8],
) {
    let copied: Result<(), Infallible> =
        append_with(output, response, sequence, digests, data.len(), |space| {
            space.copy_from_slice(data);
            Ok(())
        });
    let Ok(()) = copied;
}

/// Appends a response whose data segment of `data_len` bytes `fill` writes in place.
///
/// # Errors
///
/// The error of `fill`. Nothing is appended then.
pub fn append_with<E>(
    output: &mut SendBuffer,
    response: &Response,
    sequence: Sequence,
    digests: Digests,
    data_len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let start = output.len();
    let header = response.header(sequence, data_len);
    output.push(&header);
    if digests.header {
        output.push(&crc32c(&header));
    }
    if data_len == 0 {
        return Ok(());
    }
    let segment = output.space(data_len.next_multiple_of(4));
    let (data, padding) = segment.split_at_mut(data_len);
    let filled = fill(data);
    padding.fill(0);
    let sum = digests.data.then(|| crc32c(segment));
    match filled {
        Ok(()) => sum.iter().for_each(|sum| output.push(sum)),
        Err(_) => output.truncate(start),
    }
    filled
}

/// The digest of a segment in the order of bytes on the wire (RFC 7143, section 13.1).
fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}
