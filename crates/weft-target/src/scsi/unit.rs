//! A logical unit: a store with what SCSI adds to it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::failure::Failure;
use super::keep::{Keeper, Kept};
use super::meter::{Ended, KindStats, Meter};
use super::nexus::{Nexus, NexusId};
use super::sense::Sense;
use super::state::State;
use crate::cache::Topology;
use crate::limits::STEP_LEN;
use crate::locks::at_once;
use crate::store::{CacheStats, Store};
use crate::workers::Workers;
use weft_sys::lock;

/// How a unit behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a logical block: a power of two from 512 to 4,096.
    pub block_len: u32,
    /// Writes are refused.
    pub is_read_only: bool,
    /// The medium can be ejected.
    pub is_removable: bool,
    /// Writes are complete before they are safe.
    pub write_back: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { block_len: 512, is_read_only: false, is_removable: false, write_back: false }
    }
}

/// The use of data from the initiator as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// It is written.
    Write {
        /// It is safe before the command is complete.
        through: bool,
    },
    /// It is compared with what is stored.
    Verify,
}

/// A command that has begun: whose it is, and how often tasks of its unit had been aborted then.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    nexus: NexusId,
    aborts: u64,
}

/// A serial number for a unit of a target: the same whenever the target is started.
#[must_use]
pub fn serial(target: &str, number: u8) -> String {
    format!("{:016x}", hash(format!("{target} {number}").as_bytes()))
}

/// Why the store could not write (SBC-4, section 4.7.3.6: a thin store without space).
pub(super) fn write_error(error: &io::Error) -> Sense {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Sense::NO_SPACE,
        _ => Sense::WRITE_ERROR,
    }
}

/// FNV-1a, whose values stay the same in all versions.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A logical unit.
#[derive(Debug)]
pub struct Unit {
    /// A name that no other unit has, and that stays: it is the serial number.
    serial: String,
    options: Options,
    store: Box<dyn Store>,
    state: Mutex<State>,
    /// Commands that read and write as one step hold it alone, others share it.
    steps: RwLock<()>,
    /// Counts what aborts tasks.
    aborts: AtomicU64,
    meter: Meter,
    /// Threads that wait for the store, for each node.
    workers: Vec<Workers>,
    /// Counts work that is best done at no node in particular.
    next_node: AtomicUsize,
}

impl Unit {
    /// Returns a unit on a store. Bytes after the last whole block are not used.
    #[must_use]
    pub fn new(serial: String, options: Options, store: Box<dyn Store>) -> Self {
        let mut state = State::default();
        state.modes.write_back = options.write_back;
        let state = Mutex::new(state);
        let (steps, aborts, meter) = (RwLock::new(()), AtomicU64::new(0), Meter::default());
        let nodes = store.topology().map_or_else(|| vec![Vec::new()], Topology::all);
        let workers = nodes.into_iter().map(Workers::bound).collect();
        let next_node = AtomicUsize::new(0);
        Self { serial, options, store, state, steps, aborts, meter, workers, next_node }
    }

    /// Lets persistent reservations outlive the target, and takes those that were kept. `None` if
    /// no unit can have had them.
    #[must_use]
    pub fn with_keeper(self, keeper: Box<dyn Keeper>, kept: Kept) -> Option<Self> {
        let mut state = self.state();
        (state.persistent, state.keeper) = (kept.restored()?, Some(keeper));
        drop(state);
        Some(self)
    }

    /// Keeps no persistent reservations any more, since the unit is removed.
    ///
    /// # Errors
    ///
    /// If the keeper reports one.
    pub fn forget_kept(&self) -> io::Result<()> {
        let keeper = self.state().keeper.take();
        keeper.map_or(Ok(()), |keeper| keeper.keep(&Kept::default()))
    }

    /// The serial number.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// How it behaves.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Its counters, by kinds of commands.
    #[must_use]
    pub fn stats(&self) -> Vec<KindStats> {
        self.meter.stats()
    }

    /// Counters of the cache that its store is behind.
    #[must_use]
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.store.cache_stats()
    }

    /// Counts a command that has ended.
    pub fn count(&self, ended: Ended) {
        self.meter.count(ended);
    }

    /// The threads that wait for its store, so that others need not: those of the node that is best
    /// for a range, its offset and its length. What has none goes to all nodes in turn.
    #[must_use]
    pub fn workers(&self, range: Option<(u64, u64)>) -> &Workers {
        let node = match range {
            Some((offset, len)) => self.store.closest_node(offset, len),
            None if self.workers.len() == 1 => 0,
            None => self.next_node.fetch_add(1, Ordering::Relaxed) % self.workers.len(),
        };
        &self.workers[node]
    }

    /// Waits until its threads have nothing left to do.
    pub fn wait_for_workers(&self) {
        self.workers.iter().for_each(Workers::wait);
    }

    /// Whether its store does not use the kernel's page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.store.is_direct()
    }

    /// Whether its store is as fast as memory.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        self.store.is_instant()
    }

    /// Whether persistent reservations may outlive the target.
    pub(super) fn has_keeper(&self) -> bool {
        self.state().keeper.is_some()
    }

    /// Its length in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.store.len() / u64::from(self.options.block_len)
    }

    /// Sets its length in bytes; `None` takes the length that the medium has now. If its length in
    /// blocks changes, all sessions get a unit attention (SBC-4, section 4.10).
    ///
    /// # Errors
    ///
    /// If it would be shorter than a block, or the store reports an error.
    pub fn resize(&self, len: Option<u64>) -> io::Result<()> {
        let len = len.map_or_else(|| self.store.medium_len(), Ok)?;
        if len < u64::from(self.options.block_len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "that is shorter than a block",
            ));
        }
        let step = self.own_step();
        let before = self.blocks();
        self.store.resize(len)?;
        drop(step);
        if self.blocks() != before {
            self.state().notify_all(Sense::CAPACITY_CHANGED);
        }
        Ok(())
    }

    /// A number of 64 bits that no other unit has, of the kind "locally assigned" (SPC-5, section
    /// 7.7.6.6.5).
    pub(super) fn designator(&self) -> [u8; 8] {
        (hash(self.serial.as_bytes()) >> 4 | 3 << 60).to_be_bytes()
    }

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    ///
    /// If the store reports one.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Sense> {
        let _step = self.share_steps();
        self.read_in_step(offset, buffer)
    }

    /// As `read`, if that does not wait. `None` if it would; the buffer may have changed then.
    pub fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<Result<(), Sense>> {
        let _step = self.try_share_steps()?;
        let read = self.store.try_read(offset, buffer)?;
        Some(read.map_err(|_| Sense::READ_ERROR))
    }

    /// As `read`, for a command that owns the step.
    pub(super) fn read_in_step(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Sense> {
        self.store.read(offset, buffer).map_err(|_| Sense::READ_ERROR)
    }

    /// The most bytes that WRITE ATOMIC writes.
    pub(super) fn atomic_len(&self) -> u64 {
        self.store.atomic_len()
    }

    /// Handles bytes of a command's stream that belong at `offset`; `start` is the offset of its
    /// first byte.
    ///
    /// # Errors
    ///
    /// If the store reports one, if the bytes differ, or if the command is aborted.
    pub fn stream(
        &self,
        begun: Begun,
        stream: Stream,
        start: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let _step = self.share_steps_of(begun)?;
        self.stream_in_step(stream, start, offset, bytes)
    }

    /// As `stream`, if that does not wait. `None` if it would; nothing is written then.
    pub fn try_stream(
        &self,
        begun: Begun,
        stream: Stream,
        start: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Result<(), Failure>> {
        if !self.is_instant() && stream != (Stream::Write { through: false }) {
            return None;
        }
        let _step = self.try_share_steps()?;
        if self.is_aborted(begun) {
            return Some(Err(Failure::Aborted));
        }
        if self.is_instant() {
            return Some(self.stream_in_step(stream, start, offset, bytes));
        }
        let written = self.store.try_write(offset, bytes)?;
        Some(written.map_err(|error| write_error(&error).into()))
    }

    fn stream_in_step(
        &self,
        stream: Stream,
        start: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        match stream {
            Stream::Write { .. } => Ok(self.write_in_step(offset, bytes)?),
            Stream::Verify => match self.compare(offset, bytes)? {
                Some(at) => Err(Sense::MISCOMPARE.with_information(at - start).into()),
                None => Ok(()),
            },
        }
    }

    /// Writes bytes at `offset`, for a command that owns or shares the step.
    pub(super) fn write_in_step(&self, offset: u64, bytes: &[u8]) -> Result<(), Sense> {
        self.store.write(offset, bytes).map_err(|error| write_error(&error))
    }

    /// Completes a stream.
    ///
    /// # Errors
    ///
    /// If what was written cannot be made safe.
    pub fn end_stream(&self, stream: Stream) -> Result<(), Sense> {
        match stream {
            Stream::Write { through: true } => self.flush(),
            Stream::Write { through: false } | Stream::Verify => Ok(()),
        }
    }

    /// A command of a session begins. This comes before anything else of it.
    #[must_use]
    pub fn begin(&self, nexus: NexusId) -> Begun {
        Begun { nexus, aborts: self.aborts.load(Ordering::Acquire) }
    }

    /// Whether a command has been aborted by another one, or by a request, since it began.
    #[must_use]
    pub fn is_aborted(&self, begun: Begun) -> bool {
        // Most often no command at all is aborted meanwhile.
        self.aborts.load(Ordering::Acquire) != begun.aborts
            && self.state().last_abort(begun.nexus).is_none_or(|last| last > begun.aborts)
    }

    /// Aborts the tasks of all sessions that `wanted` selects. None of them changes a block after
    /// this call. The caller neither owns nor shares a step, and does not hold the state.
    pub(super) fn abort_tasks(&self, wanted: impl Fn(NexusId) -> bool) {
        self.mark_aborted(wanted);
        self.wait_for_steps();
    }

    /// The first half of `abort_tasks`, which does not wait for the store.
    pub(super) fn mark_aborted(&self, wanted: impl Fn(NexusId) -> bool) {
        let mut state = self.state();
        let count = self.aborts.load(Ordering::Acquire) + 1;
        state.abort(wanted, count);
        self.aborts.store(count, Ordering::Release);
    }

    /// Whether no step has begun, as far as can be said without a wait.
    #[must_use]
    pub fn has_no_steps(&self) -> bool {
        at_once(self.steps.try_write()).is_some()
    }

    /// Waits for the steps that have begun. Later ones see what was aborted before this call.
    pub fn wait_for_steps(&self) {
        drop(self.own_step());
    }

    /// Its state, locked.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Its store.
    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Adds a session.
    pub(super) fn attach(&self, nexus: &Nexus) {
        self.state().attach(nexus);
    }

    /// Removes a session.
    pub(super) fn detach(&self, nexus: NexusId) {
        self.state().detach(nexus);
    }

    /// While the guard lives, no command owns a step.
    pub(super) fn share_steps(&self) -> RwLockReadGuard<'_, ()> {
        self.steps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `share_steps`. `None` if that would wait.
    fn try_share_steps(&self) -> Option<RwLockReadGuard<'_, ()>> {
        at_once(self.steps.try_read())
    }

    /// While the guard lives, no other command reads or writes.
    pub(super) fn own_step(&self) -> RwLockWriteGuard<'_, ()> {
        self.steps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `share_steps`, for a command. Fails if the command is aborted.
    pub(super) fn share_steps_of(&self, begun: Begun) -> Result<RwLockReadGuard<'_, ()>, Failure> {
        let step = self.share_steps();
        if self.is_aborted(begun) { Err(Failure::Aborted) } else { Ok(step) }
    }

    /// As `own_step`, for a command. Fails if the command is aborted.
    pub(super) fn own_step_of(&self, begun: Begun) -> Result<RwLockWriteGuard<'_, ()>, Failure> {
        let step = self.own_step();
        if self.is_aborted(begun) { Err(Failure::Aborted) } else { Ok(step) }
    }

    /// Makes everything safe that was written.
    ///
    /// # Errors
    ///
    /// If the store reports one.
    pub fn flush(&self) -> Result<(), Sense> {
        self.store.flush().map_err(|error| write_error(&error))
    }

    /// Whether a write has to be safe before it is complete.
    pub(super) fn writes_through(&self, force_unit_access: bool) -> bool {
        force_unit_access || !self.state().modes.write_back
    }

    /// Makes what a command has changed safe if it has to be.
    pub(super) fn settle(&self, force_unit_access: bool) -> Result<(), Sense> {
        if self.writes_through(force_unit_access) { self.flush() } else { Ok(()) }
    }

    /// The offset of the first byte that differs from what is stored at `offset`, in a step that
    /// the caller owns or shares.
    pub(super) fn compare(&self, offset: u64, bytes: &[u8]) -> Result<Option<u64>, Sense> {
        let mut stored = vec![0; bytes.len().min(STEP_LEN)];
        let mut at = offset;
        for part in bytes.chunks(STEP_LEN) {
            let stored = &mut stored[..part.len()];
            self.read_in_step(at, stored)?;
            if stored != part {
                let same = stored.iter().zip(part).take_while(|(one, other)| one == other).count();
                return Ok(Some(at + same as u64));
            }
            at += part.len() as u64;
        }
        Ok(None)
    }

    /// Reads a range without a use for the bytes, as VERIFY does.
    pub(super) fn check(&self, range: Range<u64>) -> Result<(), Sense> {
        let mut buffer = vec![0; STEP_LEN.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let len = buffer.len().min((range.end - at) as usize);
            self.read(at, &mut buffer[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// Writes the same block throughout a range.
    pub(super) fn fill(&self, range: Range<u64>, block: &[u8]) -> io::Result<()> {
        let copies = (STEP_LEN / block.len()).max(1);
        let blocks = block.repeat(copies);
        let mut at = range.start;
        while at < range.end {
            let len = blocks.len().min((range.end - at) as usize);
            self.store.write(at, &blocks[..len])?;
            at += len as u64;
        }
        Ok(())
    }
}
