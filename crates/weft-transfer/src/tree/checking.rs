//! A file of which the sink has pieces, which the source compares with its own.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use rustix::io::Errno;

use crate::tree::digest::digest_of;
use crate::tree::ranges::Ranges;
use crate::wire::record::{GRAIN, Record};
use crate::wire::record_wants::HavePiece;
use weft_sys::lock;

/// The comparison of a file's pieces. Each piece is read when the block in which it was planned is
/// filled.
#[derive(Debug)]
pub(crate) struct Checking {
    /// The number of the file.
    number: u64,
    fd: OwnedFd,
    pieces: Vec<HavePiece>,
    /// The number of pieces that have not been compared.
    unread: AtomicUsize,
    differs: Mutex<Vec<HavePiece>>,
}

/// The result of a comparison.
#[derive(Debug)]
pub(crate) struct Checked {
    /// The pieces that are the same.
    pub(crate) same: Ranges,
    /// The records that tell the sink which ones are not.
    pub(crate) differs: Vec<Record>,
}

impl Checking {
    pub(crate) fn new(number: u64, fd: OwnedFd, pieces: Vec<HavePiece>) -> Self {
        let unread = AtomicUsize::new(pieces.len());
        Self { number, fd, pieces, unread, differs: Mutex::default() }
    }

    /// The number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Compares a piece. One that cannot be read differs: reading it again reports the error.
    pub(crate) fn compare(&self, index: usize) {
        let piece = self.pieces[index];
        let digest = digest_of(&self.fd, piece.offset, piece.len);
        if digest != Ok(piece.digest) {
            lock(&self.differs).push(piece);
        }
        self.unread.fetch_sub(1, AcqRel);
    }

    /// Whether all pieces have been compared.
    pub(crate) fn is_done(&self) -> bool {
        self.unread.load(Acquire) == 0
    }

    /// Returns the file, and the result of a comparison that is done.
    pub(crate) fn result(&self) -> Result<(OwnedFd, Checked), Errno> {
        let different = lock(&self.differs);
        let (mut same, mut differs) = (Ranges::default(), Vec::new());
        for piece in &self.pieces {
            let HavePiece { offset, len, .. } = *piece;
            if different.contains(piece) {
                differs.push(Record::Differs { file: self.number, offset, len });
            } else {
                same.add(offset, len);
            }
        }
        Ok((rustix::io::dup(&self.fd)?, Checked { same, differs }))
    }
}

/// Whether the pieces that a sink has of a file can be kept while others are sent.
pub(crate) fn are_usable(pieces: &[HavePiece], size: u64) -> bool {
    pieces.iter().all(|piece| {
        let end = piece.offset.saturating_add(piece.len);
        let ends_well = end.is_multiple_of(GRAIN) || end == size;
        piece.offset.is_multiple_of(GRAIN) && ends_well && end <= size
    })
}
