//! Splits a message into segments.

/// One piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the piece in the message, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Whether this is the last piece.
    pub last: bool,
}

/// The segments of a message, in order. An empty message is one empty segment.
//= rfc5041#section-5.2
//# At the Data Source, the DDP layer MUST segment the data contained in a ULP message into a series
//# of DDP Segments, where each DDP Segment contains a DDP Header and ULP Payload, and MUST be no
//# larger than the MULPDU value Advertised by the LLP.
//= rfc5041#section-5.2
//# A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment.
//= rfc5041#section-4.1
//# It MUST be set to one on the last DDP Segment of every DDP Message. It MUST NOT be set to one on
//# any other DDP Segment.
#[derive(Debug, Clone)]
pub struct Segments {
    /// Offset of the next segment; `None` after the last one.
    next: Option<usize>,
    message_len: usize,
    payload_max: usize,
}

impl Segments {
    /// Splits a message of `message_len` bytes into ULPDUs of at most `mulpdu` bytes, each with a
    /// header of `header_len` bytes.
    ///
    /// # Panics
    /// If a ULPDU has no room for payload.
    #[inline]
    pub fn new(message_len: usize, mulpdu: usize, header_len: usize) -> Self {
        assert!(mulpdu > header_len, "MULPDU {mulpdu} has no room behind {header_len} bytes");
        Self { next: Some(0), message_len, payload_max: mulpdu - header_len }
    }
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let offset = self.next?;
        let rest = self.message_len - offset;
        let len = rest.min(self.payload_max);
        let last = len == rest;
        self.next = if last { None } else { Some(offset + len) };
        Some(Segment { offset, len, last })
    }
}
