//! Deferred sends: messages that are named like any source, but whose sender does not wait
//! (AZ-SDP).
//!
//! Each has its room in the ring: what is deferred and what the ring holds are together never more
//! than the ring can hold. So they can be put there at any moment, without anybody's help, in their
//! order: when the process is about to end, or the socket, or the memory that they lie in. For the
//! program nothing is different from a ring into which its bytes have been copied.

use std::sync::atomic::Ordering;

use weft_sys::Buffers;

use super::End;
use crate::kernel::Kernel;
use crate::limits::WRITABLE_LEN;
use crate::source::{Owner, SourceNumber};
use crate::words::NONE;

/// Less room than this is none while messages are named: they would be cut into ever smaller
/// pieces.
const ROOM_MIN: usize = WRITABLE_LEN / 4;

impl<K: Kernel> End<K> {
    /// How many bytes can be put, named or deferred behind messages that are named. The peer has to
    /// pull what is not deferred, or is another process's, before anything can follow.
    #[cold]
    pub(super) fn room_behind_sources(&self) -> usize {
        let Ok(room) = self.tx.room() else { return usize::MAX };
        if !self.sources_out.are_open() {
            return room;
        }
        if self.sources_out.are_full() {
            return 0;
        }
        let deferred = self.sources_out.deferred_by(std::process::id());
        let left = deferred.map_or(0, |deferred| room.saturating_sub(deferred));
        if left < ROOM_MIN { 0 } else { left }
    }

    /// Whether deferred sends of this process have not been pulled yet.
    #[inline]
    #[must_use]
    pub fn has_deferred_sends(&self) -> bool {
        self.sources_out.may_be_open()
            && self.sources_out.deferred_by(std::process::id()).is_some_and(|bytes| bytes > 0)
    }

    /// Defers the send of the buffers' bytes: the peer pulls them out of the owner's memory. They
    /// must stay there, and as they are, until [`End::source_progress`] says that they are over, or
    /// they have been moved or reclaimed. `None`: not now, or there is no room.
    pub fn defer_send(
        &self,
        socket: K::Socket<'_>,
        buffers: Buffers<'_>,
        owner: &Owner,
    ) -> Option<SourceNumber> {
        self.name_bytes(socket, || {
            let deferred = self.sources_out.deferred_by(owner.pid)?;
            if deferred.saturating_add(buffers.len()) > self.tx.reserve() {
                return None;
            }
            self.sources_out.post(buffers, owner, true)
        })
    }

    /// Whether a deferred send still needs its buffers: the peer is there, and has not pulled all.
    #[must_use]
    pub fn is_deferred(&self, number: SourceNumber) -> bool {
        self.is_current()
            && !self.is_peer_gone()
            && !self.does_nobody_receive()
            && self.sources_out.progress(number).is_some()
    }

    /// Whether the peer has reported that it cannot pull.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.sources_out.are_refused()
    }

    /// Whether both are the same end of the same connection.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.registry, other.registry)
            && (self.slot, self.generation, self.role) == (other.slot, other.generation, other.role)
    }

    /// The owner has copied all of a deferred send to another address. `false`: it is over.
    #[must_use]
    pub fn move_deferred(&self, number: SourceNumber, copy: u64) -> bool {
        self.is_current() && self.sources_out.relocate(number, copy)
    }

    /// Puts what has been deferred, all of it and in its order, into the ring. Afterwards nothing
    /// of it is deferred any more. `false`: it cannot be, because the bytes behind it are TCP's
    /// already; nothing has changed then.
    pub fn reclaim(
        &self,
        socket: K::Socket<'_>,
        deferred_sends: &[(SourceNumber, Buffers<'_>)],
    ) -> bool {
        let words = self.tx.words();
        let Some(held) = Self::lock(&words.lock) else { return false };
        if !self.is_current() {
            return true; // Nobody is there to read it.
        }
        if words.back_at.load(Ordering::Relaxed) != NONE {
            return false;
        }
        // The bytes of a sender that is killed before they are all there are lost.
        words.reclaiming.store(1, Ordering::SeqCst);
        // From the last to the first: the peer, which pulls them in the other order, must not come
        // to a later one because an earlier one is not there any more.
        let (mut first_left, mut offset) = (deferred_sends.len(), 0);
        for (index, (number, buffers)) in deferred_sends.iter().enumerate().rev() {
            let pulled = self.sources_out.withdraw(*number);
            if pulled < buffers.len() {
                (first_left, offset) = (index, pulled);
            }
        }
        for (_, buffers) in &deferred_sends[first_left..] {
            let put = self.tx.put(buffers.after(offset));
            debug_assert_eq!(put, Ok(buffers.after(offset).len()), "there is room for all");
            offset = 0;
        }
        words.reclaiming.store(0, Ordering::SeqCst);
        self.announce_bytes(socket, &held);
        true
    }
}
