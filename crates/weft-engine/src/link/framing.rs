//! The bytes of a connection that is a stream: FPDUs in buffers, with or without markers.

use weft_wire::ddp::Header;
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::marker::{Inserter, Remover};
use weft_wire::mpa::negotiate::Negotiated;

use crate::pool;

/// Both directions of a stream.
#[derive(Debug, Default)]
pub(super) struct Framing {
    /// FPDUs have CRCs.
    crc: bool,
    /// Longest ULPDU to send, in bytes.
    mulpdu: usize,

    /// What has come, without markers, and how much of it has been dealt with.
    rx: Vec<u8>,
    rx_at: usize,
    /// With markers, what has come goes here first.
    remover: Option<Box<Remover>>,
    raw: Vec<u8>,

    /// What is to be sent, and how much of it has been.
    tx: Vec<u8>,
    tx_at: usize,
    /// With markers, FPDUs are made aside first.
    inserter: Option<Box<Inserter>>,
    scratch: Vec<u8>,
}

impl Framing {
    /// A stream on which FPDUs flow from here on. `early` came behind the peer's MPA frame.
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

    /// A buffer with room for bytes from the peer, if there is room.
    pub(super) fn room(&mut self) -> Option<&mut Vec<u8>> {
        let buffer = self.incoming();
        (buffer.len() < buffer.capacity()).then_some(buffer)
    }

    /// Removes the markers from what has come; forgets it on a stream that is not `open` any more,
    /// which makes no sense behind an error.
    ///
    /// # Errors
    /// What is wrong with the markers or the CRC.
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

    /// Whether FPDUs that come have a CRC to check: with markers it has been checked.
    pub(super) fn checks_crc(&self) -> bool {
        self.crc && self.remover.is_none()
    }

    /// Takes the bytes that have come out, so that segments can be borrowed from them meanwhile,
    /// with the count of those that have been dealt with.
    pub(super) fn take_received(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.rx), self.rx_at)
    }

    /// Puts them back.
    pub(super) fn put_received(&mut self, (rx, at): (Vec<u8>, usize)) {
        (self.rx, self.rx_at) = (rx, at);
    }

    /// Gives room back: all of it where everything has been dealt with, which is the case on a
    /// stream that is not `open` any more.
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
            // Full, and the peer must wait: make room for when it goes on.
            self.rx.copy_within(self.rx_at.., 0);
            self.rx.truncate(self.rx.len() - self.rx_at);
            self.rx_at = 0;
        }
    }

    // ---- Sending ----

    /// Bytes that wait for the socket.
    #[inline]
    pub(super) fn unsent(&self) -> &[u8] {
        &self.tx[self.tx_at..]
    }

    /// Length of the buffer, with what of it has been sent.
    #[inline]
    pub(super) fn buffered(&self) -> usize {
        self.tx.len()
    }

    /// The socket took `count` bytes.
    pub(super) fn sent(&mut self, count: usize) {
        self.tx_at += count;
        if self.tx_at == self.tx.len() {
            self.discard();
        }
    }

    /// Forgets the bytes that wait.
    pub(super) fn discard(&mut self) {
        self.tx.clear();
        self.tx_at = 0;
        pool::give_back(&mut self.tx);
    }

    /// Takes the bytes that wait away.
    pub(super) fn take_unsent(&mut self) -> Vec<u8> {
        let at = std::mem::take(&mut self.tx_at);
        self.tx.split_off(at)
    }

    /// Bytes of payload that fit a segment with a header of this length.
    pub(super) fn payload_max(&self, header_len: usize) -> u32 {
        u32::try_from(self.mulpdu.saturating_sub(header_len)).unwrap_or(u32::MAX).max(1)
    }

    /// Where an FPDU is made.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.inserter.is_some() {
            return &mut self.scratch;
        }
        pool::borrow(&mut self.tx);
        &mut self.tx
    }

    /// Starts an FPDU: room for the length, and the header. Returns where it starts.
    pub(super) fn begin(&mut self, header: &Header) -> usize {
        let buffer = self.buffer();
        let start = buffer.len();
        let header_at = start + fpdu::HEADER_LEN;
        buffer.resize(header_at + header.len(), 0);
        header.emit(&mut buffer[header_at..]);
        start
    }

    /// Completes the FPDU that began at `start`. Returns the bytes that are to be sent for it.
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

    /// Drops the FPDU that began at `start`.
    pub(super) fn abandon(&mut self, start: usize) {
        self.buffer().truncate(start);
    }

    /// An FPDU with its payload.
    pub(super) fn push(&mut self, header: &Header, payload: &[u8]) -> u64 {
        let start = self.begin(header);
        self.buffer().extend_from_slice(payload);
        self.end(start)
    }
}
