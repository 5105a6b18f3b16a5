//! SrcAvails: long messages that the sender names instead of putting them into the ring. The
//! receiver pulls them out of the sender's memory (SDP's Source Avail, Balaji 2006, chapters 4 and
//! 5).
//!
//! One word, the state, decides everything about a source: the receiver adds the bytes that it has
//! pulled by a compare-and-swap, and the sender withdraws the source (or moves it to a copy) by
//! another. So neither waits for the other, and bytes that were read while the sender withdrew the
//! source do not count. While a source is open the sender puts nothing into the ring, so the stream
//! is what the ring holds, followed by the sources in their order.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use weft_sys::calls::io::Errno;
use weft_sys::calls::process::Pid;
use weft_sys::{Buffers, Piece, Proof, Region, peek_process, read_proven};

use crate::layout::SrcAvailEntry;
use crate::limits::{PIECES_MAX, SOURCE_LEN_MAX, SRC_AVAILS_MAX};
use crate::registry::Registry;
use crate::words::{Direction, Role};

/// Bytes pulled by one call. A sender that sees no progress withdraws the source.
const PULL_LEN: usize = 256 << 10;

/// State bit: the receiver may pull the source.
const OPEN: u64 = 1 << 63;
/// State bit: the bytes lie in the copy.
const MOVED: u64 = 1 << 62;
/// State bit: the sender's call has returned. If this source is lost the stream has a hole.
const DEFERRED: u64 = 1 << 61;
const NUMBER_SHIFT: u32 = 48;
const NUMBER_MASK: u64 = (1 << 13) - 1;
const COUNT_MASK: u64 = (1 << NUMBER_SHIFT) - 1;

/// The process that owns the memory of sources.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// A random word in its memory that tells it from other processes.
    pub proof: Proof,
}

/// Number of a source, counted from the direction's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrcAvailNumber(u64);

/// The sources of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrcAvails {
    entries: &'static [SrcAvailEntry; SRC_AVAILS_MAX],
    words: &'static Direction,
}

/// Result of a call that pulls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulled {
    /// Number of bytes pulled.
    pub(crate) bytes: usize,
    /// The sender waits for a wakeup: a source is over, or the sender has to withdraw it.
    pub(crate) over: bool,
    /// The next source was deferred, and its process is dead: the stream ends here.
    pub(crate) lost: bool,
}

/// What the sender has written about a source.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    owner: Owner,
    pieces: [Piece; PIECES_MAX],
    count: usize,
    copy: u64,
    len: u64,
}

impl SrcAvails {
    /// The sources of the direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> Self {
        let entries = &registry.page(slot).sources[from as usize];
        Self { entries, words: Direction::of(registry, slot, from) }
    }

    fn entry(&self, number: u64) -> &'static SrcAvailEntry {
        &self.entries[usize::try_from(number % SRC_AVAILS_MAX as u64).unwrap_or(0)]
    }

    fn state(&self, number: u64) -> &'static AtomicU64 {
        &self.entry(number).state
    }

    /// Whether a source may be open. It costs two loads.
    #[inline]
    pub(crate) fn may_be_open(&self) -> bool {
        self.words.posted.load(Ordering::Acquire)
            != self.words.sources_taken.load(Ordering::Relaxed)
    }

    /// Whether a source is open.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.may_be_open() && self.open().next().is_some()
    }

    /// The open sources in their order: number and state.
    fn open(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (self.first()..self.words.posted.load(Ordering::Acquire)).filter_map(|number| {
            let state = self.state(number).load(Ordering::Acquire);
            is_open(state, number).then_some((number, state))
        })
    }

    /// The first source that may be open, whatever the peer has written.
    fn first(&self) -> u64 {
        let posted = self.words.posted.load(Ordering::Acquire);
        let taken = self.words.sources_taken.load(Ordering::Relaxed);
        taken.max(posted.saturating_sub(SRC_AVAILS_MAX as u64))
    }

    /// Bytes in open sources that may be pulled.
    pub(crate) fn unread(&self) -> usize {
        if !self.may_be_open() || self.words.refused.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        self.open().map(|(number, state)| self.rest(number, state)).sum()
    }

    fn rest(&self, number: u64, state: u64) -> usize {
        let len = self.descriptor(number).map_or(0, |descriptor| descriptor.len);
        usize::try_from(len.saturating_sub(state & COUNT_MASK)).unwrap_or(0)
    }

    /// Number of deferred bytes of a process that may still be pulled. `None` if an open source is
    /// not deferred, or belongs to another process.
    pub(crate) fn deferred_by(&self, pid: u32) -> Option<usize> {
        self.open().try_fold(0, |sum: usize, (number, state)| {
            let is_its = self.entry(number).pid.load(Ordering::Relaxed) == pid;
            (is_its && state & DEFERRED != 0).then(|| sum.saturating_add(self.rest(number, state)))
        })
    }

    /// Whether the table is full, until the peer has looked at the oldest source.
    pub(crate) fn are_full(&self) -> bool {
        let posted = self.words.posted.load(Ordering::Relaxed);
        posted.wrapping_sub(self.words.sources_taken.load(Ordering::Acquire))
            >= SRC_AVAILS_MAX as u64
    }

    /// Whether deferred sources have not been pulled.
    pub(crate) fn are_owed(&self) -> bool {
        self.may_be_open() && self.open().any(|(_, state)| state & DEFERRED != 0)
    }

    /// Posts a source for a message of the sender. The sender waits until it is over, unless it is
    /// `deferred`. `None` if the message cannot be a source. The caller holds the writer's lock.
    pub(crate) fn post(
        &self,
        buffers: Buffers<'_>,
        owner: &Owner,
        deferred: bool,
    ) -> Option<SrcAvailNumber> {
        let number = self.words.posted.load(Ordering::Relaxed);
        let open = number.wrapping_sub(self.words.sources_taken.load(Ordering::Acquire));
        let refused = self.words.refused.load(Ordering::Relaxed) != 0;
        if refused || open >= SRC_AVAILS_MAX as u64 || buffers.len() as u64 > SOURCE_LEN_MAX {
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
        Some(SrcAvailNumber(number))
    }

    /// Number of bytes of a source that have been pulled so far. `None` if it is over.
    pub(crate) fn progress(&self, SrcAvailNumber(number): SrcAvailNumber) -> Option<u64> {
        let state = self.state(number).load(Ordering::Acquire);
        is_open(state, number).then_some(state & COUNT_MASK)
    }

    /// Whether the receiver has reported that it cannot pull.
    pub(crate) fn are_refused(&self) -> bool {
        self.words.refused.load(Ordering::Relaxed) != 0
    }

    /// Withdraws a source, and returns how many bytes of it have been pulled; no more will be. If
    /// all have been, the result may exceed its length. Only the thread that posted it calls this.
    pub(crate) fn withdraw(&self, SrcAvailNumber(number): SrcAvailNumber) -> usize {
        let closed = |state| is_open(state, number).then_some(state & !OPEN);
        let before = self.state(number).fetch_update(Ordering::AcqRel, Ordering::Acquire, closed);
        match before {
            Ok(state) => usize::try_from(state & COUNT_MASK).unwrap_or(usize::MAX),
            Err(state) if is_numbered(state, number) => {
                usize::try_from(state & COUNT_MASK).unwrap_or(usize::MAX)
            }
            Err(_) => usize::MAX, // The source was over long ago, and a later one uses its entry.
        }
    }

    /// Withdraws the source that is not deferred, if there is one. Its sender, which waits for it,
    /// then sends the rest in another way. The caller holds the writer's lock.
    pub(crate) fn turn_away(&self) {
        for (number, state) in self.open() {
            if state & DEFERRED == 0 {
                let _ = self.withdraw(SrcAvailNumber(number));
            }
        }
    }

    /// Publishes that the sender has copied all bytes of a source to the address `copy` in its
    /// process, where the receiver pulls them from now on (AZ-SDP's Updated Source Avail). `false`
    /// if the source is over. Called at most once, by the thread that posted it.
    pub(crate) fn relocate(&self, SrcAvailNumber(number): SrcAvailNumber, copy: u64) -> bool {
        self.entry(number).copy.store(copy, Ordering::Relaxed);
        let moved = |state| is_open(state, number).then_some(state | MOVED);
        let state = self.state(number);
        state.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved).is_ok()
    }

    /// Fills the buffers from the open sources. With `keep` the sources stay as they are, with
    /// `discard` the bytes are only counted. Before each source it checks that the ring has no
    /// bytes that come first (`is_next`) and that the named process is the peer (`is_peer`), so
    /// that no other process's memory is read. The caller holds the reader's lock.
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
            // A thread that has seen the source also sees what was put before it.
            if !is_next() {
                break;
            }
            let unread = |descriptor: &Descriptor| {
                state & COUNT_MASK < descriptor.len && is_peer(descriptor.owner.pid)
            };
            let Some(descriptor) = self.descriptor(next).filter(unread) else {
                self.refuse();
                return Pulled { over: true, ..pulled };
            };
            let mut state = state;
            let mut offset = state & COUNT_MASK;
            while wanted > 0 && offset < descriptor.len {
                let rest = usize::try_from(descriptor.len - offset).unwrap_or(usize::MAX);
                let len = rest.min(wanted).min(PULL_LEN);
                let into = buffers.after(pulled.bytes);
                let copied =
                    if discard { Ok(len) } else { descriptor.copy(state, offset, len, into) };
                let len = match copied {
                    Ok(len) => len,
                    Err(Errno::SRCH) if state & DEFERRED != 0 => {
                        // It stays open, so that a reader never takes what is behind it.
                        return Pulled { lost: true, ..pulled };
                    }
                    Err(Errno::SRCH) => {
                        // Its process is dead, so the reader closes it.
                        self.state(next).fetch_and(!OPEN, Ordering::AcqRel);
                        pulled.over = true;
                        break;
                    }
                    // The sender has withdrawn or moved it, and its memory is gone.
                    Err(_) if self.state(next).load(Ordering::Acquire) != state => 0,
                    Err(_) => {
                        self.refuse();
                        return Pulled { over: true, ..pulled };
                    }
                };
                let Some(now) = self.advance(next, state, offset + len as u64, &descriptor, keep)
                else {
                    // The sender has withdrawn or moved the source, so the copied bytes do not
                    // count. When peeking, `state` does not count the bytes read so far: reading on
                    // would deliver them twice.
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
                    pulled.over |= offset == descriptor.len;
                }
            }
            if keep && offset == descriptor.len {
                next += 1;
            }
        }
        pulled
    }

    /// Counts what has been pulled up to `offset`, if the state is still `state`. Returns the new
    /// state.
    fn advance(
        &self,
        number: u64,
        state: u64,
        offset: u64,
        descriptor: &Descriptor,
        keep: bool,
    ) -> Option<u64> {
        if keep {
            fence(Ordering::SeqCst);
            return (self.state(number).load(Ordering::Acquire) == state).then_some(state);
        }
        let open = if offset == descriptor.len { 0 } else { OPEN };
        let now = state & !(OPEN | COUNT_MASK) | open | offset;
        let swapped =
            self.state(number).compare_exchange(state, now, Ordering::AcqRel, Ordering::Acquire);
        swapped.is_ok().then_some(now)
    }

    /// Tells the sender to post no more sources to this end.
    fn refuse(&self) {
        self.words.refused.store(1, Ordering::SeqCst);
    }

    /// What the sender has written about a source. `None` if that is impossible.
    fn descriptor(&self, number: u64) -> Option<Descriptor> {
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
        Some(Descriptor { owner, pieces, count, copy: word(&entry.copy), len })
    }
}

impl Descriptor {
    /// Copies up to `len` bytes from an offset of the source into the first of the buffers, and
    /// returns how many.
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
            // Tell unreadable memory from a process that is gone.
            Err(Errno::FAULT) => {
                let mut found = [0; 8];
                let asked = peek_process(pid, self.owner.proof.0, &mut found);
                let same = asked.is_ok() && u64::from_ne_bytes(found) == self.owner.proof.1;
                Err(if same { Errno::FAULT } else { Errno::SRCH })
            }
            other => other,
        }
    }

    /// Fills `out` with the pieces of `len` bytes from an offset on, and returns how many.
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
        sources: SrcAvails,
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
            let sources = SrcAvails::of(registry, slot, Role::Connector);
            sources.words.reset();
            Self { sources, proof: Box::new(AtomicU64::new(PROOF)) }
        }

        fn post(&self, parts: &[&[u8]]) -> Option<SrcAvailNumber> {
            // It must live until it is pulled.
            let bytes = parts.iter().map(|part| part.to_vec().leak());
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
    fn sources_are_pulled_in_order() {
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
    fn withdrawn_bytes_are_not_pulled() {
        let pair = Pair::new();
        let number = pair.post(&[b"abcd"]).expect("room");
        assert_eq!(pair.pull(1, false).0, b"a");
        assert_eq!(pair.sources.withdraw(number), 1);
        assert_eq!((pair.sources.unread(), pair.pull(4, false).0), (0, vec![]));
        // Withdraw between the check of the state and the end of the copy.
        let number = pair.post(&[b"abcd"]).expect("room");
        let withdraw = || pair.sources.withdraw(number) == 0;
        assert_eq!(pair.pull_if(4, false, withdraw), (vec![], false));
    }

    #[test]
    fn source_that_moves_before_the_copy_is_pulled_from_its_new_place() {
        let pair = Pair::new();
        let number = pair.post(&[b"abcd"]).expect("room");
        let copy = *b"efgh";
        let moves = || {
            // The original is unmapped: nothing is ever mapped at this address.
            pair.sources.entry(0).pieces[0][0].store(8, Ordering::Relaxed);
            pair.sources.relocate(number, copy.as_ptr() as u64)
        };
        assert_eq!(pair.pull_if(4, false, moves), (copy.to_vec(), true));
        assert!(!pair.sources.are_refused());
    }

    #[test]
    fn source_is_not_pulled_before_the_ring_is_empty() {
        let pair = Pair::new();
        pair.post(&[b"abcd"]).expect("room");
        assert_eq!(pair.pull_if(4, false, || false), (vec![], false));
        assert!(pair.sources.are_open());
    }

    #[test]
    fn sources_beyond_the_table_are_not_posted() {
        let pair = Pair::new();
        let posted = (0..=SRC_AVAILS_MAX).map_while(|_| pair.post(&[b"ab"])).count();
        assert_eq!(posted, SRC_AVAILS_MAX);
        assert_eq!(pair.pull(2, false), (b"ab".to_vec(), true));
        assert_eq!(pair.pull(1, false).0, b"a");
        assert!(pair.post(&[b"ab"]).is_some());
        assert_eq!(pair.sources.unread(), 2 * SRC_AVAILS_MAX - 1);
        assert_eq!(pair.pull(64, false).0.len(), 2 * SRC_AVAILS_MAX - 1);
        assert!(pair.post(&[&b"a"[..]; PIECES_MAX + 1]).is_none(), "too many pieces");
    }

    #[test]
    fn process_without_the_proof_is_not_read() {
        let pair = Pair::new();
        pair.post(&[b"abcd"]).expect("room");
        pair.proof.store(1, Ordering::Relaxed);
        assert_eq!(pair.pull(4, false), (vec![], true));
        assert!(!pair.sources.are_open() && !pair.sources.are_refused());
    }

    #[test]
    fn hostile_sources_are_refused() {
        let lies: [fn(&SrcAvails); 4] = [
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
