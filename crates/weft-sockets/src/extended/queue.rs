//! Posted operations and their completions.
//!
//! # Safety
//! By posting a list of buffers the program guarantees that they stay valid until it takes the
//! completion.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use libc::iovec;
use weft_extended::abi::{Completion, Operation, WEFT_PIECES_MAX, WEFT_POSTED_MAX};
use weft_sys::Buffers;
use weft_sys::calls::io::Errno;

/// Operations that are posted on a socket and whose completions have not been taken.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The process that has posted them. In a forked child the copy has no meaning.
    owner: u32,
    sends: VecDeque<Transfer>,
    receives: VecDeque<Transfer>,
    done: VecDeque<Completion>,
}

/// A list of buffers that is being sent or filled.
#[derive(Debug)]
pub(crate) struct Transfer {
    pieces: [iovec; WEFT_PIECES_MAX],
    count: usize,
    moved: usize,
    id: u64,
}

// SAFETY: the program lends the buffers to the thread that makes progress, until it takes the
// completion.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Copies the program's list. Returns `None` if it is empty, or too long.
    ///
    /// # Safety
    /// The list is readable, and its buffers stay valid until the program takes the completion.
    pub(crate) unsafe fn new(list: *const iovec, count: libc::c_int, id: u64) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| *count <= WEFT_PIECES_MAX)?;
        let nothing = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [nothing; WEFT_PIECES_MAX];
        if list.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees a readable list, and `pieces` has room for `count` entries.
        unsafe { std::ptr::copy_nonoverlapping(list, pieces.as_mut_ptr(), count) };
        let transfer = Self { pieces, count, moved: 0, id };
        transfer.buffers().filter(|buffers| !buffers.is_empty())?;
        Some(transfer)
    }

    /// Returns all of its buffers.
    pub(crate) fn buffers(&self) -> Option<Buffers<'_>> {
        // SAFETY: `pieces` has `count` valid entries, and by `new`'s contract their buffers are
        // valid.
        unsafe { Buffers::new(self.pieces.as_ptr(), self.count) }
    }
}

impl Work {
    /// Returns this process's work. What its parent had posted belongs to the parent.
    pub(crate) fn own(&mut self) -> &mut Self {
        let me = std::process::id();
        if self.owner != me {
            *self = Self { owner: me, ..Self::default() };
        }
        self
    }

    /// Returns whether one more operation can be posted.
    pub(crate) fn has_room(&self) -> bool {
        self.sends.len() + self.receives.len() + self.done.len() < WEFT_POSTED_MAX
    }

    /// Returns whether sends, and whether receives, are posted that have not completed.
    pub(crate) fn is_pending(&self) -> (bool, bool) {
        (!self.sends.is_empty(), !self.receives.is_empty())
    }

    /// Queues a send.
    pub(crate) fn send(&mut self, transfer: Transfer) {
        self.sends.push_back(transfer);
    }

    /// Queues a receive.
    pub(crate) fn receive(&mut self, transfer: Transfer) {
        self.receives.push_back(transfer);
    }

    /// Queues a completion: with a byte count and a value, or with an error.
    pub(crate) fn complete(
        &mut self,
        operation: Operation,
        id: u64,
        result: Result<(usize, u64), Errno>,
    ) {
        let (result, value) = match result {
            Ok((bytes, value)) => (i64::try_from(bytes).unwrap_or(i64::MAX), value),
            Err(errno) => (-i64::from(errno.raw_os_error()), 0),
        };
        let operation = operation as u32;
        self.done.push_back(Completion { id, result, value, operation, reserved: 0 });
    }

    /// Takes the oldest completion.
    pub(crate) fn take(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// Moves as many bytes as possible now, by sending and receiving without blocking.
    pub(crate) fn progress(
        &mut self,
        mut send: impl FnMut(Buffers<'_>) -> Result<usize, Errno>,
        mut recv: impl FnMut(Buffers<'_>) -> Result<usize, Errno>,
    ) {
        while let Some(transfer) = self.sends.front_mut() {
            let Some(ended) = transfer.advance(&mut send) else { break };
            let id = transfer.id;
            self.sends.pop_front();
            self.complete(Operation::Send, id, ended.map(|bytes| (bytes, 0)));
        }
        while let Some(transfer) = self.receives.front_mut() {
            let Some(ended) = transfer.advance(&mut recv) else { break };
            let id = transfer.id;
            self.receives.pop_front();
            self.complete(Operation::Recv, id, ended.map(|bytes| (bytes, 0)));
        }
    }
}

impl Transfer {
    /// Moves bytes until all have been moved, the stream has ended, or an error has occurred.
    /// `None`: it would block.
    fn advance(
        &mut self,
        mut step: impl FnMut(Buffers<'_>) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        loop {
            let moved = match self.buffers() {
                Some(all) if self.moved == all.len() => return Some(Ok(self.moved)),
                Some(all) => step(all.after(self.moved)),
                None => Err(Errno::INVAL),
            };
            match moved {
                Ok(0) => return Some(Ok(self.moved)),
                Ok(moved) => self.moved += moved,
                Err(Errno::AGAIN) => return None,
                Err(errno) => return Some(Err(errno)),
            }
        }
    }
}
