//! FPDUs of a stream connection in buffers, with or without markers.

use weft_wire::ddp::Header;
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::marker::{Inserter, Remover};
use weft_wire::mpa::negotiate::Negotiated;

use crate::pool;

/// The buffers of both directions.
#[derive(Debug, Default)]
pub(super) struct Framing {
    /// Whether FPDUs have CRCs.
    crc: bool,
    /// Longest ULPDU to send, in bytes.
    mulpdu: usize,

    /// Received bytes without markers, and how many of them have been processed.
    rx: Vec<u8>,
    rx_at: usize,
    /// Removes markers from `raw`, where received bytes go first if there are markers.
    remover: Option<Box<Remover>>,
    raw: Vec<u8>,

    /// Bytes to send, and how many of them have been sent.
    tx: Vec<u8>,
    tx_at: usize,
    /// Inserts markers into FPDUs, which are built in `scratch` if there are markers.
    inserter: Option<Box<Inserter>>,
    scratch: Vec<u8>,
}

impl Framing {
    /// Creates the buffers of a stream on which only FPDUs follow. `early` are bytes that came
    /// behind the peer's MPA frame.
    pub(super) fn new(negotiated: &Negotiated, mulpdu: usize, early: &[u8]) -> Self {
        let mut framing = Self {
            crc: negotiated.crc,
            mulpdu,
            remover: negotiated.rx_markers.then(|| Box::new(Remover::new(negotiated.crc))),
            inserter: negotiated.tx_markers.then(|| Box::new(Inserter::new(negotiated.crc))),
            ..Self::default()
        };
        if !early.is_empty() {
            framing.incoming().extend_from_slice(early);
        }
        framing
    }

    // ---- Receiving ----

    fn incoming(&mut self) -> &mut Vec<u8> {
        let buffer = if self.remover.is_some() { &mut self.raw } else { &mut self.rx };
        pool::borrow(buffer);
        buffer
    }

    /// The buffer for further bytes from the peer, if it has room.
    pub(super) fn room(&mut self) -> Option<&mut Vec<u8>> {
        let buffer = self.incoming();
        (buffer.len() < buffer.capacity()).then_some(buffer)
    }

    /// Removes the markers from received bytes. If the stream is not `open` any more, discards the
    /// bytes, because nothing is valid after an error.
    ///
    /// # Errors
    /// A wrong marker or CRC.
    pub(super) fn strip_markers(&mut self, open: bool) -> Result<(), ProtocolError> {
        let Some(remover) = &mut self.remover else { return Ok(()) };
        let stripped = if open {
            self.rx.drain(..self.rx_at);
            self.rx_at = 0;
            remover.push(&self.raw, &mut self.rx)
        } else {
            Ok(())
        };
        self.raw.clear();
        Ok(stripped?)
    }

    /// Whether received FPDUs still have a CRC to check. Removing markers has checked it already.
    pub(super) fn checks_crc(&self) -> bool {
        self.crc && self.remover.is_none()
    }

    /// Takes the received bytes out, so that segments can borrow from them, and the number of those
    /// that have been processed.
    pub(super) fn take_received(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.rx), self.rx_at)
    }

    /// Puts the received bytes back.
    pub(super) fn put_received(&mut self, (rx, at): (Vec<u8>, usize)) {
        (self.rx, self.rx_at) = (rx, at);
    }

    /// Returns buffers to the pool if all bytes have been processed, as is assumed if the stream is
    /// not `open` any more; otherwise makes room in a full buffer.
    pub(super) fn tidy(&mut self, open: bool) {
        if !open {
            self.rx_at = self.rx.len();
        }
        if self.rx_at == self.rx.len() {
            self.rx.clear();
            self.rx_at = 0;
            if self.rx.capacity() != 0 {
                pool::give_back(&mut self.rx);
            }
            if self.raw.capacity() != 0 {
                pool::give_back(&mut self.raw);
            }
        } else if self.rx.len() == self.rx.capacity() {
            // The buffer is full, and the peer waits: move the rest to its start.
            self.rx.copy_within(self.rx_at.., 0);
            self.rx.truncate(self.rx.len() - self.rx_at);
            self.rx_at = 0;
        }
    }

    // ---- Sending ----

    /// Bytes that have not been sent.
    #[inline]
    pub(super) fn unsent(&self) -> &[u8] {
        &self.tx[self.tx_at..]
    }

    /// Number of bytes in the send buffer, including those that have been sent.
    #[inline]
    pub(super) fn buffered(&self) -> usize {
        self.tx.len()
    }

    /// Notes that the socket took `count` bytes.
    pub(super) fn sent(&mut self, count: usize) {
        self.tx_at += count;
        if self.tx_at == self.tx.len() {
            self.discard();
        }
    }

    /// Drops the bytes that have not been sent.
    pub(super) fn discard(&mut self) {
        self.tx.clear();
        self.tx_at = 0;
        pool::give_back(&mut self.tx);
    }

    /// Takes the bytes that have not been sent out of the buffer.
    pub(super) fn take_unsent(&mut self) -> Vec<u8> {
        let at = std::mem::take(&mut self.tx_at);
        self.tx.split_off(at)
    }

    /// Largest payload of a segment with a header of this length.
    pub(super) fn payload_max(&self, header_len: usize) -> u32 {
        u32::try_from(self.mulpdu.saturating_sub(header_len)).unwrap_or(u32::MAX).max(1)
    }

    /// The buffer in which FPDUs are built.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.inserter.is_some() {
            return &mut self.scratch;
        }
        pool::borrow(&mut self.tx);
        &mut self.tx
    }

    /// Starts an FPDU: reserves its length field and writes the header. Returns its start.
    pub(super) fn begin(&mut self, header: &Header) -> usize {
        let buffer = self.buffer();
        let start = buffer.len();
        let header_at = start + fpdu::HEADER_LEN;
        buffer.resize(header_at + header.len(), 0);
        header.emit(&mut buffer[header_at..]);
        start
    }

    /// Completes the FPDU that starts at `start`. Returns the number of bytes that it adds to the
    /// stream.
    pub(super) fn end(&mut self, start: usize) -> u64 {
        let crc = self.crc;
        let buffer = self.buffer();
        let ulpdu_len = buffer.len() - start - fpdu::HEADER_LEN;
        let total = fpdu::total_len(ulpdu_len);
        buffer.resize(start + total, 0);
        fpdu::seal(&mut buffer[start..], ulpdu_len, crc);
        let Some(inserter) = &mut self.inserter else { return total as u64 };
        pool::borrow(&mut self.tx);
        let before = self.tx.len();
        inserter.insert(&self.scratch, &mut self.tx);
        self.scratch.clear();
        (self.tx.len() - before) as u64
    }

    /// Drops the FPDU that starts at `start`.
    pub(super) fn abandon(&mut self, start: usize) {
        self.buffer().truncate(start);
    }

    /// Appends an FPDU with this payload. Returns the number of bytes that it adds to the stream.
    pub(super) fn push(&mut self, header: &Header, payload: &[u8]) -> u64 {
        let start = self.begin(header);
        self.buffer().extend_from_slice(payload);
        self.end(start)
    }
}
