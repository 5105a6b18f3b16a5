//! The initiator's side of direct one-sided operations: the known keys of the peer.
//!
//! The first operation on a key goes through the ring, where the target checks it, and also
//! requests the key. A grant says where the memory is. It is valid as long as a word in the shared
//! segment says so; each operation checks that word.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use weft_sys::{RemappedPages, SharedMemory};

use super::segment::{GrantWords, Rings};
use crate::access::Access;
use crate::limits::PEER_KEYS_MAX;

/// Number of uses of a key after which an unanswered request is repeated.
const ASK_AGAIN_USES: u32 = 1_024;

/// The peer's memory behind a key.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    /// Index of the word that says whether the grant is valid.
    pub(super) slot: usize,
    /// Serial number of the grant, so that a late one is not taken for that of the key's next
    /// registration.
    pub(super) serial: u32,
    /// The granted rights.
    pub(super) rights: Access,
    /// The address of the first byte in work requests.
    pub(super) iova: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// The first byte's address in the peer's process.
    pub(super) addr: u64,
    /// The part of the region that is reached by other addresses.
    pub(super) pages: Option<Pages>,
}

/// The part of a region that consists of pages of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// The offset of its start in the region.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The address of these pages in the peer's process.
    pub(super) addr: u64,
    /// The segment, which has exactly these pages, if we may map it.
    pub(super) memory: Option<Memory>,
}

/// A segment's memory.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// Our own segment, for a peer to map.
    Own(Arc<RemappedPages>),
    /// A peer's segment, mapped here.
    Mapped(Arc<SharedMemory>),
}

impl Granted {
    /// The offset in the region of `len` bytes at address `at`; `None` if they are outside, or the
    /// rights `needs` are not granted. Then the operation is left to the target, which reports the
    /// error.
    #[inline]
    fn offset_of(&self, at: u64, len: u64, needs: Access) -> Option<u64> {
        let offset = at.checked_sub(self.iova)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        (inside && self.rights.contains(needs)).then_some(offset)
    }

    /// Our mapping of `len` bytes of the region; `None` unless all of them are mapped.
    #[inline]
    fn mapped(&self, offset: u64, len: u64) -> Option<Mapped<'_>> {
        let pages = self.pages.as_ref()?;
        let Some(Memory::Mapped(memory)) = &pages.memory else { return None };
        let offset = offset.checked_sub(pages.start)?;
        let inside = offset.checked_add(len)? <= pages.len;
        inside.then_some(Mapped { memory, offset: usize::try_from(offset).ok()? })
    }

    /// The addresses of `len` bytes of the region.
    fn targets(&self, offset: u64, len: u64) -> Targets<'_> {
        let end = offset + len;
        let (first, last) = match &self.pages {
            Some(pages) => (pages.start, pages.start + pages.len),
            None => (u64::MAX, u64::MAX),
        };
        // The parts before the pages, in them, and behind them.
        let parts = [(0, first), (first, last), (last, u64::MAX)];
        let parts = parts.into_iter().map(|(from, to)| (from.max(offset), to.min(end)));
        let targets = parts.filter(|(from, to)| from < to).map(|(from, to)| {
            let pages = self.pages.as_ref().filter(|_| (first..last).contains(&from));
            Target {
                address: match pages {
                    Some(pages) => pages.addr.wrapping_add(from - pages.start),
                    None => self.addr.wrapping_add(from),
                },
                len: to - from,
                mapped: self.mapped(from, to - from),
            }
        });
        targets.collect()
    }
}

#[derive(Debug)]
enum Known {
    Asked { uses: u32, is_sent: bool },
    Denied,
    Granted(Granted),
}

/// How the peer's memory can be reached.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// Directly at these addresses, in order, while the value lives.
    Direct(Targets<'a>, InUse<'a>),
    /// Only by the target, through the ring.
    Ring,
}

/// The addresses of a range: up to three, for its pages and the parts before and behind them.
#[derive(Debug, Default)]
pub(crate) struct Targets<'a>(SmallVec<[Target<'a>; 1]>);

/// A contiguous part of a range in the peer's memory.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// Its address in the peer's process.
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The range in this process's mapping of the peer's memory, if there is one.
    pub(crate) mapped: Option<Mapped<'a>>,
}

impl<'a> Targets<'a> {
    pub(crate) fn are_mapped(&self) -> bool {
        self.0.iter().all(|target| target.mapped.is_some())
    }

    /// The only part; `None` if there are several.
    pub(crate) fn single(&self) -> Option<&Target<'a>> {
        match &self.0[..] {
            [target] => Some(target),
            _ => None,
        }
    }

    /// Takes up to `max` bytes from the front.
    pub(crate) fn take(&mut self, max: u64) -> Option<Target<'a>> {
        let front = self.0.first_mut()?;
        if front.len <= max {
            return Some(self.0.remove(0));
        }
        let Target { address, mapped, .. } = *front;
        let step = usize::try_from(max).ok()?;
        front.address = address.wrapping_add(max);
        front.len -= max;
        if let Some(mapped) = &mut front.mapped {
            mapped.offset += step;
        }
        Some(Target { address, len: max, mapped })
    }
}

impl<'a> FromIterator<Target<'a>> for Targets<'a> {
    fn from_iter<I: IntoIterator<Item = Target<'a>>>(targets: I) -> Self {
        Self(targets.into_iter().collect())
    }
}

/// A range in a mapping of the peer's memory. The range lies within the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped<'a> {
    pub(crate) memory: &'a SharedMemory,
    pub(crate) offset: usize,
}

/// Marks a key as in use until it is dropped. The target's deregistration waits for that.
#[derive(Debug)]
pub(crate) struct InUse<'a>(&'a GrantWords);

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_use();
    }
}

/// A key that is marked as in use for several operations, while the value lives.
#[derive(Debug)]
pub(crate) struct HeldKey<'a> {
    granted: &'a Granted,
    in_use: InUse<'a>,
}

impl HeldKey<'_> {
    /// Our mapping of `len` bytes at address `at`; `None` if they are not mapped, or the rights
    /// `needs` are not granted.
    #[inline]
    pub(crate) fn mapped(&self, at: u64, len: u64, needs: Access) -> Option<Mapped<'_>> {
        let offset = self.granted.offset_of(at, len, needs)?;
        self.granted.mapped(offset, len)
    }
}

/// The peer that grants keys.
pub(crate) trait KeyOwner {
    /// Requests a key. Returns whether there will be a reply.
    fn ask_for_key(&self, key: u32) -> bool;
}

/// The known keys of a peer.
#[derive(Debug)]
pub(crate) struct PeerKeys {
    words: GrantWords,
    known: HashMap<u32, Known>,
    last: Option<(u32, Granted)>,
}

impl PeerKeys {
    pub(crate) fn new(rings: &Rings) -> Self {
        Self { words: rings.peer_grants(), known: HashMap::new(), last: None }
    }

    /// How to reach `len` bytes at address `at` of a key. Requests the key if it is not known.
    pub(crate) fn find(
        &mut self,
        peer: &impl KeyOwner,
        key: u32,
        at: u64,
        len: u64,
        needs: Access,
    ) -> Found<'_> {
        let Some(HeldKey { granted, in_use }) = self.hold(peer, key) else { return Found::Ring };
        let Some(offset) = granted.offset_of(at, len, needs) else { return Found::Ring };
        Found::Direct(granted.targets(offset, len), in_use)
    }

    /// Marks a key as in use. Requests the key if it is not known.
    pub(crate) fn hold(&mut self, peer: &impl KeyOwner, key: u32) -> Option<HeldKey<'_>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.last = self.look_up(peer, key).map(|granted| (key, granted));
        }
        let (_, granted) = self.last.as_ref()?;
        // Set the mark first, then check the grant; the target first withdraws the grant, then
        // checks the mark.
        self.words.set_in_use(key);
        if !self.words.grants(granted.slot, key, granted.serial) {
            self.words.end_use();
            self.known.remove(&key);
            self.last = None;
            return None;
        }
        let (_, granted) = self.last.as_ref()?;
        Some(HeldKey { granted, in_use: InUse(&self.words) })
    }

    /// Whether the key has been requested and not been answered.
    pub(crate) fn is_awaited(&self, key: u32) -> bool {
        matches!(self.known.get(&key), Some(Known::Asked { is_sent: true, .. }))
    }

    /// Stores the peer's reply to a key request.
    pub(crate) fn learn(&mut self, key: u32, granted: Option<Granted>) {
        if let Some(known) = self.known.get_mut(&key) {
            *known = granted.map_or(Known::Denied, Known::Granted);
        }
    }

    #[cold]
    fn look_up(&mut self, peer: &impl KeyOwner, key: u32) -> Option<Granted> {
        match self.known.get_mut(&key) {
            Some(Known::Granted(granted)) => return Some(granted.clone()),
            Some(Known::Denied) => return None,
            Some(Known::Asked { uses, .. }) => {
                *uses += 1;
                if *uses < ASK_AGAIN_USES {
                    return None;
                }
            }
            None => {
                if self.known.len() >= PEER_KEYS_MAX {
                    self.known.clear();
                }
            }
        }
        let is_sent = peer.ask_for_key(key);
        self.known.insert(key, Known::Asked { uses: 0, is_sent });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Granted {
        let pages = Pages { start: 100, len: 4_096, addr: 0x7000, memory: None };
        let (rights, iova) = (Access::REMOTE_WRITE, 0);
        let (len, addr) = (5_000, 0x10_0000);
        Granted { slot: 0, serial: 1, rights, iova, len, addr, pages: Some(pages) }
    }

    fn places(mut targets: Targets<'_>, max: u64) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| targets.take(max).map(|target| (target.address, target.len)))
            .collect()
    }

    #[test]
    fn range_is_split_at_the_ends_of_its_pages() {
        let granted = granted();
        let all = places(granted.targets(0, 5_000), u64::MAX);
        assert_eq!(all, [(0x10_0000, 100), (0x7000, 4_096), (0x10_0000 + 4_196, 804)]);
        assert_eq!(places(granted.targets(50, 10), u64::MAX), [(0x10_0000 + 50, 10)]);
        assert_eq!(places(granted.targets(99, 2), u64::MAX), [(0x10_0000 + 99, 1), (0x7000, 1)]);
        assert_eq!(places(granted.targets(4_196, 4), u64::MAX), [(0x10_0000 + 4_196, 4)]);
        let steps = places(granted.targets(90, 20), 7);
        let head = [(0x10_0000 + 90, 7), (0x10_0000 + 97, 3)];
        assert_eq!(steps, [&head[..], &[(0x7000, 7), (0x7007, 3)]].concat());
    }

    #[test]
    fn range_without_pages_is_one_part() {
        let granted = Granted { pages: None, ..granted() };
        let targets = granted.targets(10, 4_990);
        assert!(!targets.are_mapped() && targets.single().is_some());
        assert_eq!(places(targets, u64::MAX), [(0x10_000a, 4_990)]);
    }
}
