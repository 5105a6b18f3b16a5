//! Deferred sends: messages named by a source, whose sender does not wait for them to be pulled
//! (AZ-SDP).
//!
//! Each deferred send has its room in the ring reserved: deferred bytes and bytes in the ring never
//! exceed the ring's length. So all of them can be put into the ring at any moment, in their order
//! and without the peer's help: when the process ends, the socket is closed or their memory is
//! released. To the program everything looks as if the bytes had been copied into a ring.

use std::sync::atomic::Ordering;

use weft_sys::Buffers;

use super::End;
use crate::kernel::Kernel;
use crate::limits::WRITABLE_LEN;
use crate::src_avail::{Owner, SrcAvailNumber};
use crate::words::NONE;

/// While messages are named, less room than this counts as none: messages would be cut into ever
/// smaller pieces.
const ROOM_MIN: usize = WRITABLE_LEN / 4;

impl<K: Kernel> End<K> {
    /// Number of bytes that can be put, named or deferred behind open sources. A source that is not
    /// deferred, or belongs to another process, must be pulled before anything can follow.
    #[cold]
    pub(super) fn room_behind_sources(&self) -> usize {
        let Ok(room) = self.tx.room() else { return usize::MAX };
        if !self.src_avails_out.are_open() {
            return room;
        }
        if self.src_avails_out.are_full() {
            return 0;
        }
        let deferred = self.src_avails_out.deferred_by(std::process::id());
        let left = deferred.map_or(0, |deferred| room.saturating_sub(deferred));
        if left < ROOM_MIN { 0 } else { left }
    }

    /// Whether the peer has yet to pull deferred sends of this process.
    #[inline]
    #[must_use]
    pub fn has_deferred_sends(&self) -> bool {
        self.src_avails_out.may_be_open()
            && self.src_avails_out.deferred_by(std::process::id()).is_some_and(|bytes| bytes > 0)
    }

    /// Defers the send of the buffers' bytes: the peer pulls them out of the owner's memory. The
    /// bytes must stay unchanged there until [`End::source_progress`] says that the source is over,
    /// or they have been moved or reclaimed. `None` if it is not possible now, or there is no room.
    pub fn defer_send(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        owner: &Owner,
    ) -> Option<SrcAvailNumber> {
        self.name_bytes(socket, || {
            let deferred = self.src_avails_out.deferred_by(owner.pid)?;
            if deferred.saturating_add(buffers.len()) > self.tx.reserve() {
                return None;
            }
            self.src_avails_out.post(buffers, owner, true)
        })
    }

    /// Whether a deferred send still needs its buffers: the peer exists, and has not pulled all of
    /// it.
    #[must_use]
    pub fn is_deferred(&self, number: SrcAvailNumber) -> bool {
        self.is_current()
            && !self.is_peer_gone()
            && !self.does_nobody_receive()
            && self.src_avails_out.progress(number).is_some()
    }

    /// Whether the peer has reported that it cannot pull.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.src_avails_out.are_refused()
    }

    /// Whether both are the same end of the same connection.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.registry, other.registry)
            && (self.slot, self.generation, self.role) == (other.slot, other.generation, other.role)
    }

    /// Tells the peer that the owner has copied all of a deferred send to the address `copy`.
    /// `false` if the source is over.
    #[must_use]
    pub fn move_deferred(&self, number: SrcAvailNumber, copy: u64) -> bool {
        self.is_current() && self.src_avails_out.relocate(number, copy)
    }

    /// Puts all deferred sends into the ring, in their order, after which none is deferred.
    /// `false`, and nothing changes, if the connection has fallen back to TCP, so that the
    /// following bytes are TCP's already.
    pub fn reclaim(
        &self,
        socket: K::Socket<'_>,
        deferred_sends: &[(SrcAvailNumber, Buffers<'_>)],
    ) -> bool {
        let words = self.tx.words();
        let Some(held) = Self::lock(&words.lock) else { return false };
        if !self.is_current() {
            return true; // No process is left to read it.
        }
        if words.tcp_resume_seq.load(Ordering::Relaxed) != NONE {
            return false;
        }
        // If the sender is killed before all bytes are in the ring, they are lost, and this mark
        // makes the receiver report it.
        words.reclaiming.store(1, Ordering::SeqCst);
        self.tx.begin_withdrawal();
        // Withdraw from the last to the first: the peer pulls from the first on, and must not skip
        // an earlier message and come to a later one.
        let (mut first_left, mut offset) = (deferred_sends.len(), 0);
        for (index, (number, buffers)) in deferred_sends.iter().enumerate().rev() {
            let pulled = self.src_avails_out.withdraw(*number);
            if pulled < buffers.len() {
                (first_left, offset) = (index, pulled);
            }
        }
        for (_, buffers) in &deferred_sends[first_left..] {
            let put = self.tx.put(buffers.after(offset));
            debug_assert_eq!(put, Ok(buffers.after(offset).len()), "there is room for all");
            offset = 0;
        }
        self.tx.end_withdrawal();
        words.reclaiming.store(0, Ordering::SeqCst);
        self.announce_bytes(socket, &held);
        true
    }
}
