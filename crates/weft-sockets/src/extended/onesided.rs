//! Gets, puts and atomics on a peer's memory.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use weft_extended::abi::{Key, WEFT_ATOMIC, WEFT_READ, WEFT_WRITE};
use weft_stream::limits::GRANTS_MAX;
use weft_stream::{GrantId, InUse};
use weft_sys::calls::io::Errno;
use weft_sys::{Region, SectionLock, SharedMemory};

use super::memory;
use crate::descriptor::is_hung_up;
use crate::kernel::End;
use crate::wait;

const WORD: usize = size_of::<u64>();
/// How long a peer is assumed alive after it was last checked.
const LIVENESS_RECHECK_NS: u64 = 1_000_000;

/// This process's mappings of the peer's memory.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    parts: SectionLock<[Option<Part>; GRANTS_MAX]>,
    /// When the kernel was last asked whether the peer lives.
    asked_at: AtomicU64,
}

/// A part of the peer's memory, as checked when it was mapped.
#[derive(Clone, Debug)]
struct Part {
    secret: u64,
    segment: Arc<SharedMemory>,
    start: usize,
    len: u64,
    rights: u32,
}

/// A location in the peer's memory. While it exists the peer cannot revoke the right to it.
struct Place {
    segment: Arc<SharedMemory>,
    at: usize,
    _in_use: InUse,
}

/// The target of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) fd: RawFd,
    pub(crate) end: &'a End,
    pub(crate) key: Key,
    /// Offset in bytes from the beginning of the granted part.
    pub(crate) offset: u64,
}

impl PeerMemory {
    /// Returns the state with nothing mapped.
    pub(crate) fn new() -> Self {
        Self { parts: SectionLock::new([const { None }; GRANTS_MAX]), asked_at: AtomicU64::new(0) }
    }

    /// Copies buffers to the target, one after another.
    pub(crate) fn put(
        &self,
        target: Target<'_>,
        from: impl Iterator<Item = Region> + Clone,
    ) -> Result<usize, Errno> {
        let len = from.clone().map(|region| region.len()).sum();
        let place = self.reach(target, len, WEFT_WRITE)?;
        let mut at = place.at;
        for region in from {
            if region.len() == WORD && at.is_multiple_of(WORD) {
                let mut word = [0; WORD];
                region.fill(&mut word);
                let word = u64::from_ne_bytes(word);
                place.segment.word64(at).store(word, Ordering::Release);
            } else {
                place.segment.place(at, &region);
            }
            at += region.len();
        }
        Ok(len)
    }

    /// Fills buffers from the target, one after another.
    pub(crate) fn get(
        &self,
        target: Target<'_>,
        to: impl Iterator<Item = Region> + Clone,
    ) -> Result<usize, Errno> {
        let len = to.clone().map(|region| region.len()).sum();
        let place = self.reach(target, len, WEFT_READ)?;
        let mut at = place.at;
        for region in to {
            if region.len() == WORD && at.is_multiple_of(WORD) {
                let word = place.segment.word64(at).load(Ordering::Acquire);
                region.copy_in(&word.to_ne_bytes());
            } else {
                place.segment.copy_to(at, &region);
            }
            at += region.len();
        }
        fence(Ordering::Acquire);
        Ok(len)
    }

    /// Adds to a word, and returns its old value.
    pub(crate) fn fetch_add(&self, target: Target<'_>, add: u64) -> Result<u64, Errno> {
        let place = self.word(target)?;
        Ok(place.segment.word64(place.at).fetch_add(add, Ordering::SeqCst))
    }

    /// Replaces a word if it is as expected, and returns its old value.
    pub(crate) fn compare_swap(
        &self,
        target: Target<'_>,
        expected: u64,
        value: u64,
    ) -> Result<u64, Errno> {
        let place = self.word(target)?;
        let word = place.segment.word64(place.at);
        let swapped = word.compare_exchange(expected, value, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.unwrap_or_else(|found| found))
    }

    fn word(&self, target: Target<'_>) -> Result<Place, Errno> {
        let place = self.reach(target, WORD, WEFT_ATOMIC)?;
        if place.at.is_multiple_of(WORD) { Ok(place) } else { Err(Errno::INVAL) }
    }

    /// Checks everything that must hold before an operation, and returns the location.
    fn reach(&self, target: Target<'_>, len: usize, right: u32) -> Result<Place, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        self.look_for_peer(target)?;
        let key = target.key;
        let id = GrantId { index: key.index, secret: key.secret };
        let in_use = target.end.peer_grants().begin(id).ok_or(Errno::NOKEY)?;
        let part = self.part(id, &in_use)?;
        if part.rights & right == 0 {
            return Err(Errno::ACCESS);
        }
        let end = target.offset.checked_add(len as u64).ok_or(Errno::RANGE)?;
        let offset = usize::try_from(target.offset).map_err(|_| Errno::RANGE)?;
        if end > part.len {
            return Err(Errno::RANGE);
        }
        Ok(Place { segment: part.segment, at: part.start + offset, _in_use: in_use })
    }

    /// Returns the part that a key names, which is mapped at its first use.
    fn part(&self, id: GrantId, in_use: &InUse) -> Result<Part, Errno> {
        let index = id.index as usize;
        if let Some(Some(part)) = self.parts.lock().get(index)
            && part.secret == id.secret
        {
            return Ok(part.clone());
        }
        let grant = in_use.grant();
        let writable = grant.rights & (WEFT_WRITE | WEFT_ATOMIC) != 0;
        let segment = Arc::new(memory::map(&grant, writable)?);
        let start = usize::try_from(grant.offset).map_err(|_| Errno::STALE)?;
        let (len, rights) = (grant.len, grant.rights);
        let part = Part { secret: id.secret, segment, start, len, rights };
        if let Some(place) = self.parts.lock().get_mut(index) {
            *place = Some(part.clone());
        }
        Ok(part)
    }

    /// Fails if the peer has died: changing its memory would have no effect.
    fn look_for_peer(&self, target: Target<'_>) -> Result<(), Errno> {
        let now = wait::now();
        if now.saturating_sub(self.asked_at.load(Ordering::Relaxed)) >= LIVENESS_RECHECK_NS {
            self.asked_at.store(now, Ordering::Relaxed);
            is_gone(target.fd, target.end);
        }
        if target.end.is_peer_gone() { Err(Errno::CONNRESET) } else { Ok(()) }
    }
}

/// Returns whether the peer is gone. Publishes it if the kernel reports a hang-up that the peer
/// itself has not announced.
pub(crate) fn is_gone(fd: RawFd, end: &End) -> bool {
    if is_hung_up(fd) {
        end.hang_up();
    }
    end.is_peer_gone()
}
