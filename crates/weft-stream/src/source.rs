//! Sources: long messages that are not put into the ring, but named, so that the receiver pulls
//! them out of the sender's memory itself (SDP's Source Avail, Balaji 2006, chapters 4 and 5).
//!
//! Everything about a source is decided in one word, its state: the receiver adds what it has
//! pulled by a compare-and-swap, and the sender takes the source back (or moves it to a copy) by
//! another. So neither waits for the other: bytes that were read while the sender changed its mind
//! do not count. While a source is open the sender puts nothing into the ring, so the stream is
//! what the ring holds, then the sources in their order.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::process::Pid;
use weft_sys::{Buffers, Piece, Proof, Region, peek_process, read_proven};

use crate::layout::SourceEntry;
use crate::limits::{PIECES_MAX, SOURCE_LEN_MAX, SOURCES_MAX};
use crate::registry::Registry;
use crate::words::{Direction, Role};

/// Bytes that are pulled at once. A sender that sees no progress takes the source back.
const PULL_LEN: usize = 256 << 10;

/// Somebody may pull it.
const OPEN: u64 = 1 << 63;
/// Its bytes lie in the copy.
const MOVED: u64 = 1 << 62;
/// The sender's call has returned: without it the stream has a hole.
const DEFERRED: u64 = 1 << 61;
const NUMBER_SHIFT: u32 = 48;
const NUMBER_MASK: u64 = (1 << 13) - 1;
const COUNT_MASK: u64 = (1 << NUMBER_SHIFT) - 1;

/// Who has the memory of sources.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// What tells it from others.
    pub proof: Proof,
}

/// The number of a source, which counts all of its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceNumber(u64);

/// The sources of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources {
    entries: &'static [SourceEntry; SOURCES_MAX],
    words: &'static Direction,
}

/// What has come of pulling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulled {
    /// Bytes that were.
    pub(crate) bytes: usize,
    /// A source is over, or the sender has to take it back: it wants to know.
    pub(crate) over: bool,
    /// The next one was deferred, and its process is dead: the stream ends here.
    pub(crate) lost: bool,
}

/// What the sender has written of a source.
#[derive(Clone, Copy, Debug)]
struct Place {
    owner: Owner,
    pieces: [Piece; PIECES_MAX],
    count: usize,
    copy: u64,
    len: u64,
}

impl Sources {
    /// Of the direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> Self {
        let entries = &registry.page(slot).sources[from as usize];
        Self { entries, words: Direction::of(registry, slot, from) }
    }

    fn entry(&self, number: u64) -> &'static SourceEntry {
        &self.entries[usize::try_from(number % SOURCES_MAX as u64).unwrap_or(0)]
    }

    fn state(&self, number: u64) -> &'static AtomicU64 {
        &self.entry(number).state
    }

    /// Whether some may be open. It costs two loads.
    #[inline]
    pub(crate) fn may_be_open(&self) -> bool {
        self.words.posted.load(Ordering::Acquire)
            != self.words.sources_taken.load(Ordering::Relaxed)
    }

    /// Whether some are.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.may_be_open() && self.open().next().is_some()
    }

    /// The open ones, in their order, with their states.
    fn open(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (self.first()..self.words.posted.load(Ordering::Acquire)).filter_map(|number| {
            let state = self.state(number).load(Ordering::Acquire);
            is_open(state, number).then_some((number, state))
        })
    }

    /// The first that may be open, whatever the other side has written.
    fn first(&self) -> u64 {
        let posted = self.words.posted.load(Ordering::Acquire);
        let taken = self.words.sources_taken.load(Ordering::Relaxed);
        taken.max(posted.saturating_sub(SOURCES_MAX as u64))
    }

    /// Bytes in open sources that may be pulled.
    pub(crate) fn unread(&self) -> usize {
        if !self.may_be_open() || self.words.refused.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        self.open().map(|(number, state)| self.rest(number, state)).sum()
    }

    fn rest(&self, number: u64, state: u64) -> usize {
        let len = self.place(number).map_or(0, |place| place.len);
        usize::try_from(len.saturating_sub(state & COUNT_MASK)).unwrap_or(0)
    }

    /// How many deferred bytes of a process may still be pulled. `None` if some that are open
    /// are not deferred, or are another process's.
    pub(crate) fn deferred_by(&self, pid: u32) -> Option<usize> {
        self.open().try_fold(0, |sum: usize, (number, state)| {
            let is_its = self.entry(number).pid.load(Ordering::Relaxed) == pid;
            (is_its && state & DEFERRED != 0).then(|| sum.saturating_add(self.rest(number, state)))
        })
    }

    /// Whether no more can be named before the peer has looked at the oldest.
    pub(crate) fn are_full(&self) -> bool {
        let posted = self.words.posted.load(Ordering::Relaxed);
        posted.wrapping_sub(self.words.sources_taken.load(Ordering::Acquire)) >= SOURCES_MAX as u64
    }

    /// Whether any deferred ones have not been pulled.
    pub(crate) fn are_owed(&self) -> bool {
        self.may_be_open() && self.open().any(|(_, state)| state & DEFERRED != 0)
    }

    /// Names a message of the sender's, which waits until it is over, or has deferred it and does
    /// not need that. `None` if it cannot be a source. The writer's lock is held.
    pub(crate) fn post(
        &self,
        buffers: Buffers<'_>,
        owner: &Owner,
        deferred: bool,
    ) -> Option<SourceNumber> {
        let number = self.words.posted.load(Ordering::Relaxed);
        let open = number.wrapping_sub(self.words.sources_taken.load(Ordering::Acquire));
        let refused = self.words.refused.load(Ordering::Relaxed) != 0;
        if refused || open >= SOURCES_MAX as u64 || buffers.len() as u64 > SOURCE_LEN_MAX {
            return None;
        }
        let (entry, mut count) = (self.entry(number), 0);
        for region in buffers.regions().filter(|region| !region.is_empty()) {
            let [addr, len] = entry.pieces.get(count)?;
            addr.store(region.addr() as u64, Ordering::Relaxed);
            len.store(region.len() as u64, Ordering::Relaxed);
            count += 1;
        }
        entry.pid.store(owner.pid, Ordering::Relaxed);
        entry.pieces_count.store(u32::try_from(count).ok()?, Ordering::Relaxed);
        entry.proof_at.store(owner.proof.0, Ordering::Relaxed);
        entry.proof.store(owner.proof.1, Ordering::Relaxed);
        let deferred = if deferred { DEFERRED } else { 0 };
        self.state(number).store(OPEN | deferred | numbered(number), Ordering::Release);
        self.words.posted.store(number.wrapping_add(1), Ordering::Release);
        Some(SourceNumber(number))
    }

    /// How many bytes of a source have been pulled so far. `None` if it is over.
    pub(crate) fn progress(&self, SourceNumber(number): SourceNumber) -> Option<u64> {
        let state = self.state(number).load(Ordering::Acquire);
        is_open(state, number).then_some(state & COUNT_MASK)
    }

    /// Whether the receiver cannot pull.
    pub(crate) fn are_refused(&self) -> bool {
        self.words.refused.load(Ordering::Relaxed) != 0
    }

    /// The sender takes the source back. Returns how many bytes of it have been pulled, at least as
    /// many as it has if all have; the others never will be. By the one who has posted it.
    pub(crate) fn withdraw(&self, SourceNumber(number): SourceNumber) -> usize {
        let closed = |state| is_open(state, number).then_some(state & !OPEN);
        let before = self.state(number).fetch_update(Ordering::AcqRel, Ordering::Acquire, closed);
        match before {
            Ok(state) => usize::try_from(state & COUNT_MASK).unwrap_or(usize::MAX),
            Err(state) if is_numbered(state, number) => {
                usize::try_from(state & COUNT_MASK).unwrap_or(usize::MAX)
            }
            Err(_) => usize::MAX, // It was over long ago, and its place is a later one's.
        }
    }

    /// Takes the source that is not deferred, if there is one, from its sender, which waits for
    /// it and then sends what has not been pulled in another way. The writer's lock is held.
    pub(crate) fn turn_away(&self) {
        for (number, state) in self.open() {
            if state & DEFERRED == 0 {
                let _ = self.withdraw(SourceNumber(number));
            }
        }
    }

    /// The sender has copied all bytes of a source to an address of its process, where they are
    /// pulled from now on (AZ-SDP's Updated Source Avail). `false` if it is over. Once only, and by
    /// the one who has posted it.
    pub(crate) fn relocate(&self, SourceNumber(number): SourceNumber, copy: u64) -> bool {
        self.entry(number).copy.store(copy, Ordering::Relaxed);
        let moved = |state| is_open(state, number).then_some(state | MOVED);
        let state = self.state(number);
        state.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved).is_ok()
    }

    /// Fills the buffers from the open sources; with `keep` they stay what they are, with `discard`
    /// the bytes are only counted. Looks before each whether the ring has nothing that comes
    /// first, and whether the process that is named (`is_peer`) is the peer's: no other one's
    /// memory is read. The reader's lock is held.
    pub(crate) fn pull(
        &self,
        buffers: Buffers<'_>,
        keep: bool,
        discard: bool,
        is_next: impl Fn() -> bool,
        is_peer: impl Fn(u32) -> bool,
    ) -> Pulled {
        let mut pulled = Pulled::default();
        let mut wanted = buffers.len();
        let mut next = self.first();
        while wanted > 0 && next < self.words.posted.load(Ordering::Acquire) {
            let state = self.state(next).load(Ordering::Acquire);
            if !is_open(state, next) {
                next += 1;
                if !keep {
                    self.words.sources_taken.store(next, Ordering::Release);
                }
                continue;
            }
            // What was put before a source is seen by who has seen the source.
            if !is_next() {
                break;
            }
            let unread = |place: &Place| state & COUNT_MASK < place.len && is_peer(place.owner.pid);
            let Some(place) = self.place(next).filter(unread) else {
                self.refuse();
                return Pulled { over: true, ..pulled };
            };
            let mut state = state;
            let mut offset = state & COUNT_MASK;
            while wanted > 0 && offset < place.len {
                let rest = usize::try_from(place.len - offset).unwrap_or(usize::MAX);
                let len = rest.min(wanted).min(PULL_LEN);
                let into = buffers.after(pulled.bytes);
                let copied = if discard { Ok(len) } else { place.copy(state, offset, len, into) };
                let len = match copied {
                    Ok(len) => len,
                    Err(Errno::SRCH) if state & DEFERRED != 0 => {
                        // It stays open, so that nothing behind it is ever taken.
                        return Pulled { lost: true, ..pulled };
                    }
                    Err(Errno::SRCH) => {
                        // Its process is dead: nobody else closes it.
                        self.state(next).fetch_and(!OPEN, Ordering::AcqRel);
                        pulled.over = true;
                        break;
                    }
                    Err(_) => {
                        self.refuse();
                        return Pulled { over: true, ..pulled };
                    }
                };
                let Some(now) = self.advance(next, state, offset + len as u64, &place, keep) else {
                    // The sender has changed its mind: what was copied does not count. What stays
                    // is not counted in the state: it must not be taken twice.
                    if keep && offset > state & COUNT_MASK {
                        return pulled;
                    }
                    break;
                };
                state = now;
                offset += len as u64;
                pulled.bytes += len;
                wanted -= len;
                if !keep {
                    self.words.pulled.fetch_add(len as u64, Ordering::Relaxed);
                    pulled.over |= offset == place.len;
                }
            }
            if keep && offset == place.len {
                next += 1;
            }
        }
        pulled
    }

    /// Counts what has been pulled up to `offset`, if the source is still what it was. Returns its
    /// new state.
    fn advance(
        &self,
        number: u64,
        state: u64,
        offset: u64,
        place: &Place,
        keep: bool,
    ) -> Option<u64> {
        if keep {
            fence(Ordering::SeqCst);
            return (self.state(number).load(Ordering::Acquire) == state).then_some(state);
        }
        let open = if offset == place.len { 0 } else { OPEN };
        let now = state & !(OPEN | COUNT_MASK) | open | offset;
        let swapped =
            self.state(number).compare_exchange(state, now, Ordering::AcqRel, Ordering::Acquire);
        swapped.is_ok().then_some(now)
    }

    /// From here on the sender names nothing more to this end.
    fn refuse(&self) {
        self.words.refused.store(1, Ordering::SeqCst);
    }

    /// What the sender has written of a source. `None` if it cannot be.
    fn place(&self, number: u64) -> Option<Place> {
        let entry = self.entry(number);
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let count = entry.pieces_count.load(Ordering::Relaxed) as usize;
        if count > PIECES_MAX {
            return None;
        }
        let mut pieces = [(0, 0); PIECES_MAX];
        let mut len = 0;
        for (piece, [addr, piece_len]) in pieces.iter_mut().zip(&entry.pieces).take(count) {
            let piece_len = word(piece_len);
            if piece_len > SOURCE_LEN_MAX {
                return None;
            }
            *piece = (word(addr), usize::try_from(piece_len).ok()?);
            len += piece_len;
        }
        let owner = Owner {
            pid: entry.pid.load(Ordering::Relaxed),
            proof: (word(&entry.proof_at), word(&entry.proof)),
        };
        Some(Place { owner, pieces, count, copy: word(&entry.copy), len })
    }
}

impl Place {
    /// Copies up to `len` bytes from an offset of the source into the buffers, and returns how
    /// many: as many as the first of them takes.
    fn copy(&self, state: u64, offset: u64, len: usize, into: Buffers<'_>) -> Result<usize, Errno> {
        let mut regions = into.regions().filter(|region| !region.is_empty());
        let region = regions.next().ok_or(Errno::INVAL)?;
        let len = len.min(region.len());
        let target = region.part(0, len).ok_or(Errno::INVAL)?;
        let mut pieces = [(0, 0); PIECES_MAX];
        let count = if state & MOVED != 0 {
            pieces[0] = (self.copy.wrapping_add(offset), len);
            1
        } else {
            self.cut(offset, len, &mut pieces)
        };
        self.read(&pieces[..count], &target)?;
        Ok(len)
    }

    fn read(&self, pieces: &[Piece], target: &Region) -> Result<(), Errno> {
        let pid = i32::try_from(self.owner.pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        match read_proven(pid, pieces, target, self.owner.proof) {
            // Is its memory not readable, or is it gone?
            Err(Errno::FAULT) => {
                let mut found = [0; 8];
                let asked = peek_process(pid, self.owner.proof.0, &mut found);
                let same = asked.is_ok() && u64::from_ne_bytes(found) == self.owner.proof.1;
                Err(if same { Errno::FAULT } else { Errno::SRCH })
            }
            other => other,
        }
    }

    /// The pieces of `len` bytes from an offset on.
    fn cut(&self, offset: u64, len: usize, out: &mut [Piece; PIECES_MAX]) -> usize {
        let mut skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut left = len;
        let mut count = 0;
        for &(addr, piece) in &self.pieces[..self.count] {
            let skipped = skip.min(piece);
            skip -= skipped;
            let part = (piece - skipped).min(left);
            if part > 0 {
                out[count] = (addr.wrapping_add(skipped as u64), part);
                count += 1;
                left -= part;
            }
        }
        count
    }
}

fn numbered(number: u64) -> u64 {
    (number & NUMBER_MASK) << NUMBER_SHIFT
}

/// Whether a state says that this source is open.
fn is_open(state: u64, number: u64) -> bool {
    state & OPEN != 0 && is_numbered(state, number)
}

fn is_numbered(state: u64, number: u64) -> bool {
    state & (NUMBER_MASK << NUMBER_SHIFT) == numbered(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Linux;
    use crate::sweep::take_slot;
    use crate::tuple::Tuple;
    use std::io::IoSliceMut;
    use std::net::SocketAddr;

    const PROOF: u64 = 0x5eed;

    struct Pair {
        sources: Sources,
        proof: Box<AtomicU64>,
    }

    impl Pair {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let registry = Registry::open(dir.path()).expect("a registry");
            let registry: &'static Registry = Box::leak(Box::new(registry));
            let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
            let (slot, _) =
                take_slot::<Linux>(registry, &Tuple::new(address(1), address(2))).expect("room");
            let sources = Sources::of(registry, slot, Role::Connector);
            sources.words.reset();
            Self { sources, proof: Box::new(AtomicU64::new(PROOF)) }
        }

        fn post(&self, parts: &[&[u8]]) -> Option<SourceNumber> {
            let bytes = parts.iter().map(|part| part.to_vec().leak()); // Pulled when it may be.
            let mut slices: Vec<_> = bytes.map(IoSliceMut::new).collect();
            let proof = (self.proof.as_ptr() as u64, PROOF);
            let owner = Owner { pid: std::process::id(), proof };
            self.sources.post(Buffers::of(&mut slices), &owner, false)
        }

        fn pull(&self, len: usize, keep: bool) -> (Vec<u8>, bool) {
            self.pull_if(len, keep, || true)
        }

        fn pull_if(&self, len: usize, keep: bool, is_next: impl Fn() -> bool) -> (Vec<u8>, bool) {
            let mut bytes = vec![0_u8; len];
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            let pulled = self.sources.pull(Buffers::of(slices), keep, false, is_next, |_| true);
            bytes.truncate(pulled.bytes);
            (bytes, pulled.over)
        }
    }

    #[test]
    fn sources_are_pulled_in_their_order() {
        let pair = Pair::new();
        let first = pair.post(&[b"ab", b"", b"cde"]).expect("room");
        let second = pair.post(&[b"fgh"]).expect("room");
        assert_eq!(pair.sources.unread(), 8);
        assert_eq!(pair.pull(7, true), (b"abcdefg".to_vec(), false), "they stay");
        assert_eq!(pair.pull(3, false), (b"abc".to_vec(), false));
        assert_eq!(pair.sources.progress(first), Some(3));
        assert_eq!(pair.pull(3, false), (b"def".to_vec(), true));
        assert_eq!((pair.sources.progress(first), pair.sources.progress(second)), (None, Some(1)));
        assert_eq!(pair.pull(10, false), (b"gh".to_vec(), true));
        assert!(!pair.sources.are_open());
        assert_eq!((pair.sources.withdraw(first), pair.sources.withdraw(second)), (5, 3));
    }

    #[test]
    fn what_is_taken_back_is_not_pulled() {
        let pair = Pair::new();
        let number = pair.post(&[b"abcd"]).expect("room");
        assert_eq!(pair.pull(1, false).0, b"a");
        assert_eq!(pair.sources.withdraw(number), 1);
        assert_eq!((pair.sources.unread(), pair.pull(4, false).0), (0, vec![]));
        // Between a look at the state and the end of the copy.
        let number = pair.post(&[b"abcd"]).expect("room");
        let withdraw = || pair.sources.withdraw(number) == 0;
        assert_eq!(pair.pull_if(4, false, withdraw), (vec![], false));
    }

    #[test]
    fn what_the_ring_holds_comes_first() {
        let pair = Pair::new();
        pair.post(&[b"abcd"]).expect("room");
        assert_eq!(pair.pull_if(4, false, || false), (vec![], false));
        assert!(pair.sources.are_open());
    }

    #[test]
    fn sources_beyond_the_table_are_refused() {
        let pair = Pair::new();
        let posted = (0..=SOURCES_MAX).map_while(|_| pair.post(&[b"ab"])).count();
        assert_eq!(posted, SOURCES_MAX);
        assert_eq!(pair.pull(2, false), (b"ab".to_vec(), true));
        assert_eq!(pair.pull(1, false).0, b"a");
        assert!(pair.post(&[b"ab"]).is_some());
        assert_eq!(pair.sources.unread(), 2 * SOURCES_MAX - 1);
        assert_eq!(pair.pull(64, false).0.len(), 2 * SOURCES_MAX - 1);
        assert!(pair.post(&[&b"a"[..]; PIECES_MAX + 1]).is_none(), "too many pieces");
    }

    #[test]
    fn another_process_with_the_number_is_not_read() {
        let pair = Pair::new();
        pair.post(&[b"abcd"]).expect("room");
        pair.proof.store(1, Ordering::Relaxed);
        assert_eq!(pair.pull(4, false), (vec![], true));
        assert!(!pair.sources.are_open() && !pair.sources.are_refused());
    }

    #[test]
    fn hostile_sources_are_refused() {
        let lies: [fn(&Sources); 4] = [
            |sources| sources.entry(0).pieces_count.store(9, Ordering::Relaxed),
            |sources| sources.entry(0).pieces[0][0].store(8, Ordering::Relaxed),
            |sources| sources.entry(0).pieces[0][1].store(u64::MAX, Ordering::Relaxed),
            |sources| sources.entry(0).pid.store(u32::MAX, Ordering::Relaxed),
        ];
        for lie in lies {
            let pair = Pair::new();
            pair.post(&[b"abcd"]).expect("room");
            lie(&pair.sources);
            assert_eq!(pair.pull(4, false), (vec![], true));
            assert!(pair.sources.are_refused() && pair.sources.unread() == 0);
            assert!(pair.post(&[b"abcd"]).is_none(), "never again");
        }
        let pair = Pair::new();
        pair.sources.words.posted.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(pair.pull(4, false).0, b"", "and it returns");
    }
}
