//! The source's end: threads that read and seal blocks, and one thread for each data channel.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::channels;
use super::closers::Closers;
use super::driver::{self, Driver, SessionEnd, State};
use super::loads::{Busy, Loads, Stages, Waits, Work};
use super::note::{Note, Reached};
use super::remover::Remover;
use super::shared::{
    Channels, CompressedCount, EndError, Finished, Observer, Opened, Progress, SourceChannel, Spare,
};
use super::sink::{HeldBlock, SinkEnd};
use crate::blocks::{Block, Pool};
use crate::compress::{Compression, Compressor, Packer};
use crate::limits::{CHANNEL_CHECK, PROGRESS_INTERVAL, REASON_WAIT, WRITES_IN_CHANNEL_MAX};
use crate::secure::{SEAL_LEN, Sealer};
use crate::session::{Arrivals, Source, SourceSetup, Write, WriteResult};
use crate::transport::{Head, Payload, Place, Written};
use crate::tree::direct::Refusals;
use crate::tree::extent::Extent;
use crate::tree::input::Input;
use crate::tree::job::Job;
use crate::tree::removal::Removals;
use crate::tree::source::{Content, Next, Source as Tree, SourceOptions};
use crate::wire::{BlockFlags, BlockHeader, Code, Credit};
use weft_sys::lock;

/// The parameters of a source whose session is open.
pub struct SourcePlan {
    /// The session.
    pub opened: Opened,
    /// Seals the blocks; `None` if they are not sealed.
    pub sealer: Option<Sealer>,
    /// When blocks are compressed. The sink must understand it.
    pub compression: Compression,
    /// What to send.
    pub content: Content,
    /// The options of the source. `run` sets the payload's length from the block size.
    pub options: SourceOptions,
    /// Receives problems. Without it, those of this end are sent to the sink.
    pub observer: Option<Arc<dyn Observer>>,
    /// Whether the sink lists changes: those that it predicts or makes.
    pub lists_changes: bool,
}

impl fmt::Debug for SourcePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcePlan").finish_non_exhaustive()
    }
}

/// Returns the payload's length in a block of this size.
fn payload_len(block_size: u32, is_sealed: bool) -> usize {
    block_size as usize - if is_sealed { SEAL_LEN } else { 0 }
}

/// Returns a payload of `len` bytes, the last of which may be an extent of a file. If the channel
/// cannot send it from the file, this reads it.
fn payload(mut block: Block, len: usize, extent: Option<&Extent>, is_taken: bool) -> Payload {
    let Some(extent) = extent else { return Payload::Block { block, len } };
    let prefix = len - extent.len();
    if is_taken {
        let (file, offset, len) = (extent.file(), extent.offset(), extent.len());
        return Payload::Extent { block, prefix, file, offset, len };
    }
    extent.read(&mut block.bytes_mut()[prefix..len]);
    Payload::Block { block, len }
}

/// Returns the place of a credit; `None` if it has no address, as the sink reads blocks itself.
fn place(credit: &Credit, len: u32) -> Option<Place> {
    let Credit { address, key, .. } = *credit;
    (address != 0).then_some(Place { address, key: key.into(), len })
}

struct Filled {
    block: Option<Block>,
    header: BlockHeader,
    /// The end of the payload, if it is not in the block.
    extent: Option<Extent>,
    /// The other session that the block belongs to.
    held: Option<HeldBlock>,
    submitted: Instant,
    /// Whether its write has begun, even if a lost channel makes it begin again.
    is_under_way: bool,
}

impl Drop for Filled {
    fn drop(&mut self) {
        if let Some(held) = &mut self.held {
            held.block = self.block.take();
        }
    }
}

/// Where the blocks of a source come from.
enum Feed {
    /// Threads fill them with the contents of files.
    Tree(Box<Filling>),
    /// They are those of another session, whose source gets the sink's answers.
    Relay(Arc<SinkEnd>),
}

/// The state of the threads that fill blocks.
struct Filling {
    pool: Pool,
    tree: Mutex<Tree>,
    input: Option<Arc<Input>>,
    answered: Condvar,
    fillers: AtomicUsize,
    payload_len: usize,
    /// The refusals of direct reading.
    refusals: Arc<Refusals>,
}

pub(super) struct SourceEnd {
    pub(super) driver: Driver<Source>,
    session: u32,
    block_size: u32,
    feed: Feed,
    compressor: Compressor,
    compressed: CompressedCount,
    sealer: Option<Sealer>,
    /// Filled blocks, by their numbers in the pool.
    slots: Vec<Mutex<Option<Filled>>>,
    writers: Mutex<BTreeMap<u16, Sender<Write>>>,
    spare: Mutex<Option<Spare>>,
    closers: Closers,
    finished: Mutex<Finished>,
    observer: Option<Arc<dyn Observer>>,
    lists_changes: bool,
    removals: Option<Remover>,
    progress: Arc<Progress>,
    /// When the client of a bridge has learned of the progress last.
    reported: Option<Mutex<Instant>>,
    start: Instant,
    threads: usize,
    reading: Busy,
    sealing: Busy,
    sending: Busy,
    /// The waits of threads for free blocks, and of full blocks for credits and channels.
    free: Waits,
    full: Waits,
}

impl SessionEnd for SourceEnd {
    type Machine = Source;

    fn driver(&self) -> &Driver<Source> {
        &self.driver
    }

    fn closers(&self) -> &Closers {
        &self.closers
    }

    fn close_channel(&self, channel: u16) {
        lock(&self.writers).remove(&channel);
        self.closers.close(channel);
    }

    fn pump(&self, state: &mut State<Source>) {
        while let Some(records) = state.machine.poll_records() {
            match Note::parse(&records) {
                Ok(note) => self.hear(state, note),
                Err(error) => state.fail(Code::Protocol, EndError::Protocol(error.to_string())),
            }
        }
        let writers = lock(&self.writers);
        while let Some(write) = state.machine.poll_write() {
            let sent = writers.get(&write.channel).map(|writer| writer.send(write));
            if !matches!(sent, Some(Ok(()))) {
                // The channel's thread has ended without this write, so the block was not sent.
                let _ = state.machine.handle_written(write.block, WriteResult::NotSent);
            }
        }
        drop(writers);
        while let Some(freed) = state.machine.poll_free() {
            let filled = lock(&self.slots[freed.block as usize]).take();
            let Some(filled) = filled else { continue };
            let arrived = if freed.has_arrived { filled.header.len } else { 0 };
            if freed.has_arrived
                && let Some(extent) = &filled.extent
                && extent.has_arrived()
            {
                self.file_has_arrived();
            }
            self.progress.bytes.fetch_add(arrived.into(), SeqCst);
            self.compressor.free(filled.is_under_way, arrived as usize, Instant::now());
        }
        if let Some(reported) = &self.reported {
            let mut reported = lock(reported);
            if reported.elapsed() >= PROGRESS_INTERVAL {
                *reported = Instant::now();
                state.tell(&self.progress_note());
            }
        }
    }

    fn stop(&self) {
        if !self.closers.stop() {
            return;
        }
        lock(&self.writers).clear();
        let Feed::Tree(filling) = &self.feed else { return };
        filling.pool.close();
        if let Some(input) = &filling.input {
            input.stop();
        }
        // Taking the lock ensures that no thread is between its check and its wait.
        drop(lock(&filling.tree));
        filling.answered.notify_all();
    }
}

impl SourceEnd {
    fn progress_note(&self) -> Note {
        let (progress, compressed) = (&self.progress, self.compressed.get());
        Note::Progress(Reached {
            bytes: progress.bytes.load(SeqCst),
            planned: progress.planned.load(SeqCst),
            entries: progress.entries.load(SeqCst),
            is_planned: progress.is_planned.load(SeqCst),
            plain: compressed.plain,
            sent: compressed.sent,
        })
    }

    fn hear(&self, state: &mut State<Source>, note: Note) {
        match note {
            Note::Wants(wants) => match &self.feed {
                Feed::Tree(filling) => {
                    let answered = lock(&filling.tree).answer(&wants);
                    if let Err(error) = answered {
                        state.fail(Code::Protocol, EndError::Protocol(error.to_string()));
                    }
                    filling.answered.notify_all();
                }
                // The queue of answers is bounded by the blocks that are passed on meanwhile.
                Feed::Relay(sink) => sink.change(|state| state.tell(&Note::Wants(wants))),
            },
            Note::Problem { path, text, is_warning } => {
                if let Some(observer) = &self.observer {
                    observer.problem(&path, &text, is_warning);
                }
            }
            Note::Again(path) => {
                if let Some(observer) = &self.observer {
                    observer.again(&path);
                }
            }
            Note::Outcome(outcome) => lock(&self.finished).outcome = outcome,
            Note::Loads(loads) => lock(&self.finished).sink = loads,
            Note::Plan(all) if self.lists_changes => {
                for planned in &all {
                    if let Some(observer) = &self.observer {
                        observer.planned(planned);
                    }
                }
            }
            Note::Confirmed { numbers, is_last } => {
                let most = self.progress.entries.load(SeqCst);
                let is_taken =
                    self.removals.as_ref().is_some_and(|it| it.take(numbers, is_last, most));
                if !is_taken {
                    let error = "entries that were not to be removed, or too many of them";
                    state.fail(Code::Protocol, EndError::Protocol(error.into()));
                }
            }
            Note::Version { file, block_len, blocks } => {
                // Two servers use no versions.
                let Feed::Tree(filling) = &self.feed else {
                    let error = "a version of a file where none was asked for";
                    return state.fail(Code::Protocol, EndError::Protocol(error.into()));
                };
                let described = lock(&filling.tree).described(file, block_len, &blocks);
                if let Err(error) = described {
                    state.fail(Code::Protocol, EndError::Protocol(error.to_string()));
                }
            }
            Note::Removed { .. } | Note::Progress(_) => {
                let error = EndError::Protocol("a note that only a source has".into());
                state.fail(Code::Protocol, error);
            }
            Note::Plan(_) => {
                let error = EndError::Protocol("a plan where none was asked for".into());
                state.fail(Code::Protocol, error);
            }
        }
    }

    /// Wakes the threads that wait to plan the end of a file.
    fn file_has_arrived(&self) {
        let Feed::Tree(filling) = &self.feed else { return };
        // Taking the lock ensures that no thread is between its check and its wait.
        drop(lock(&filling.tree));
        filling.answered.notify_all();
    }

    /// Reads, seals and submits blocks until there are no more.
    fn fill(&self, filling: &Filling) {
        let mut packer = self.compressor.packer();
        loop {
            let start = Instant::now();
            let Some(mut block) = filling.pool.take() else { break };
            self.free.add(start.elapsed());
            let Some(job) = self.next_job(filling) else { break };
            let seq = job.number;
            match self.fill_block(filling, &mut block, job, &mut packer) {
                Ok((header, extent)) => self.submit(seq, block, header, extent, None),
                Err(error) => self.fail(Code::Internal, error),
            }
            if filling.refusals.take() {
                self.report_refusal();
            }
        }
        if filling.fillers.fetch_sub(1, SeqCst) == 1 {
            let loads = self.loads();
            let mut finished = lock(&self.finished);
            (finished.source, finished.compressed) = (loads, self.compressed.get());
            drop(finished);
            self.change(|state| {
                if !state.is_over() {
                    if self.reported.is_some() {
                        state.tell(&self.progress_note());
                    }
                    state.tell(&Note::Loads(loads));
                }
            });
            // All blocks are submitted.
            driver::finish(self);
        }
    }

    /// Reports that a file system refuses direct reading.
    fn report_refusal(&self) {
        let text = "files are read through the page cache, as the file system refuses direct I/O";
        self.report(Vec::new(), text.to_owned(), true);
    }

    /// Reports a problem of this end.
    fn report(&self, path: Vec<u8>, text: String, is_warning: bool) {
        match &self.observer {
            Some(observer) => observer.problem(&path, &text, is_warning),
            None => {
                let note = Note::Problem { path, text, is_warning };
                self.change(|state| state.tell(&note));
            }
        }
    }

    /// Removes what the sink has, until the session ends.
    fn remove(&self, remover: &Remover) {
        let report = |path, text| self.report(path, text, false);
        if let Some(failed) = remover.run(&report) {
            self.change(|state| state.tell(&Note::Removed { failed }));
        }
    }

    /// Submits a full block.
    fn submit(
        &self,
        seq: u64,
        block: Block,
        header: BlockHeader,
        extent: Option<Extent>,
        held: Option<HeldBlock>,
    ) {
        let index = block.index();
        let submitted = Instant::now();
        let (block, is_under_way) = (Some(block), false);
        let filled = Filled { block, header, extent, held, submitted, is_under_way };
        *lock(&self.slots[index as usize]) = Some(filled);
        self.compressor.submit(submitted);
        // It fails only if the session is ending.
        let is_submitted =
            self.change(|state| state.machine.submit(seq, index, header.len).is_ok());
        if !is_submitted {
            drop(lock(&self.slots[index as usize]).take());
            self.compressor.free(false, 0, Instant::now());
        }
    }

    /// Submits a block of another session, with the same sequence number.
    ///
    /// # Errors
    /// If it cannot be sealed.
    pub(super) fn relay(
        &self,
        seq: u64,
        mut held: HeldBlock,
        table_len: usize,
        len: usize,
        is_compressed: bool,
    ) -> Result<(), EndError> {
        let Some(mut block) = held.block.take() else { return Ok(()) };
        let sealed = self.seal(&mut block, seq, (table_len, len), is_compressed);
        match sealed {
            Ok(header) => {
                self.submit(seq, block, header, None, Some(held));
                Ok(())
            }
            Err(error) => {
                held.block = Some(block);
                Err(error)
            }
        }
    }

    fn next_job(&self, filling: &Filling) -> Option<Job> {
        let mut tree = lock(&filling.tree);
        loop {
            if self.closers.is_stopped() {
                return None;
            }
            let next = tree.next_job();
            self.progress.plan(tree.planned());
            match next {
                Next::Job(job) => return Some(*job),
                Next::Done => {
                    // Wake the threads that wait for answers, which do not come any more.
                    filling.answered.notify_all();
                    return None;
                }
                Next::Wait => {
                    tree = filling.answered.wait(tree).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn fill_block(
        &self,
        filling: &Filling,
        block: &mut Block,
        job: Job,
        packer: &mut Packer<'_>,
    ) -> Result<(BlockHeader, Option<Extent>), EndError> {
        let seq = job.number;
        let bytes = block.bytes_mut();
        let start = Instant::now();
        let payload = &mut bytes[..filling.payload_len];
        let (passes, has_input, checks) = (packer.passes(), job.has_input(), job.checks());
        let (filled, extent) = self.reading.time(|| match passes {
            true => job.fill_before_extent(payload),
            false => (job.fill(payload), None),
        });
        if has_input || checks {
            // The next block of the input, or the rest of a file, can be planned.
            drop(lock(&filling.tree));
            filling.answered.notify_all();
        }
        if !self.compressor.is_on() || extent.is_some() {
            if self.compressor.is_on() {
                self.compressed.add(filled.len, filled.len);
            }
            let header = self.seal(block, seq, (filled.table_len, filled.len), false)?;
            return Ok((header, extent));
        }
        let read = start.elapsed();
        let smaller = match passes {
            true => None,
            false => self.sealing.time(|| packer.pack(&bytes[..filled.len])),
        };
        let (mut len, is_compressed) = (filled.len, smaller.is_some());
        if let Some(smaller) = smaller {
            len = smaller.len();
            bytes[..len].copy_from_slice(smaller);
        }
        self.compressed.add(filled.len, len);
        let start = Instant::now();
        let header = self.seal(block, seq, (filled.table_len, len), is_compressed);
        self.compressor.has_filled(filled.len, read + start.elapsed());
        Ok((header?, None))
    }

    /// Seals a block if the session's blocks are sealed, and returns its header. The lengths are
    /// those of the table and of the payload.
    fn seal(
        &self,
        block: &mut Block,
        seq: u64,
        (table_len, len): (usize, usize),
        is_compressed: bool,
    ) -> Result<BlockHeader, EndError> {
        let short = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut header = BlockHeader {
            session: self.session,
            flags: BlockFlags { sealed: self.sealer.is_some(), compressed: is_compressed },
            seq,
            nonce: 0,
            len: short(len),
            table_len: short(table_len),
            buffer: 0,
            generation: 0,
        };
        if let Some(sealer) = &self.sealer {
            let bytes = block.bytes_mut();
            let ticket = sealer.begin()?;
            header.nonce = ticket.counter();
            header.len = short(len + SEAL_LEN);
            let head = header.authenticated();
            self.sealing.time(|| ticket.seal_in_place(&head, bytes, len))?;
        }
        Ok(header)
    }

    /// Writes the blocks of one channel.
    fn write(&self, number: u16, mut channel: SourceChannel, writes: &Receiver<Write>) {
        loop {
            match writes.recv_timeout(CHANNEL_CHECK) {
                Ok(write) if self.write_one(&mut channel, write) => {}
                Err(RecvTimeoutError::Timeout) if channel.is_up() => {}
                _ => break,
            }
        }
        // The thread ends when the sender is dropped.
        lock(&self.writers).remove(&number);
        self.change(|state| {
            while let Ok(write) = writes.try_recv() {
                let _ = state.machine.handle_written(write.block, WriteResult::NotSent);
            }
            state.machine.channel_down(number);
        });
        channel.close();
        driver::replace(&self.driver, &self.spare);
        if self.driver.lock().machine.channels() > 0 {
            return;
        }
        // A sink that ends the session closes its channels, and says why on the control channel,
        // which may arrive later.
        driver::wait_for_end(&self.driver, REASON_WAIT);
        self.change(|state| {
            if state.machine.channels() == 0 {
                let error = EndError::Lost("no data channel is left".into());
                state.fail(Code::Channels, error);
            }
        });
    }

    fn write_one(&self, channel: &mut SourceChannel, write: Write) -> bool {
        let slot = &self.slots[write.block as usize];
        let taken = lock(slot).as_mut().and_then(|it| {
            let is_again = std::mem::replace(&mut it.is_under_way, true);
            let first = (!is_again).then_some(it.submitted);
            Some((it.block.take()?, it.header, it.extent.clone(), first))
        });
        let Some((block, header, extent, submitted)) = taken else { return false };
        if let Some(submitted) = submitted {
            let now = Instant::now();
            self.full.add(now - submitted);
            self.compressor.begin_write(now);
        }
        let header = BlockHeader {
            buffer: write.credit.buffer,
            generation: write.credit.generation,
            ..header
        };
        let len = header.len as usize;
        let post = crate::transport::Write {
            place: place(&write.credit, self.block_size),
            head: Head::new(&header.emit()),
            payload: payload(block, len, extent.as_ref(), channel.takes_extents()),
        };
        let Written { block, result } = self.sending.time(|| channel.write(post));
        if let (Some(extent), Ok(Some(had))) = (&extent, &result) {
            extent.is_short(*had);
        }
        let result = if result.is_ok() { WriteResult::Sent } else { WriteResult::Failed };
        if let Some(filled) = lock(slot).as_mut() {
            filled.block = Some(block);
        }
        self.change(|state| state.machine.handle_written(write.block, result).is_ok());
        result == WriteResult::Sent
    }

    /// What the threads did until now.
    fn stages(&self) -> Stages {
        let (threads, channels, time) = (self.threads, self.closers.count(), self.start.elapsed());
        [
            Some(self.reading.stage(Work::Read, threads, time, self.free.mean())),
            Some(self.sealing.stage(Work::Seal, threads, time, None)),
            Some(self.sending.stage(Work::Send, channels, time, self.full.mean())),
        ]
    }

    fn loads(&self) -> Loads {
        let time = self.start.elapsed();
        Loads {
            disk: self.reading.share(self.threads, time),
            cpu: self.sealing.share(self.threads, time),
            network: self.sending.share(self.closers.count(), time),
        }
    }
}

/// The parts of a source that do not depend on where its blocks come from.
struct SourceSettings {
    sealer: Option<Sealer>,
    compression: Compression,
    observer: Option<Arc<dyn Observer>>,
    lists_changes: bool,
    removals: Option<Arc<Removals>>,
}

impl SourceEnd {
    fn new(opened: Opened, feed: Feed, settings: SourceSettings) -> Self {
        let Opened { control, connection, epoch, session, block_size, .. } = opened;
        let Opened { blocks, threads, progress, spare, is_bridged, .. } = opened;
        let setup = SourceSetup {
            session,
            blocks,
            block_size,
            arrivals: Arrivals::Seen,
            writes_max: WRITES_IN_CHANNEL_MAX,
        };
        Self {
            driver: Driver::new(control, connection, Source::new(setup), epoch),
            session,
            block_size,
            feed,
            compressor: Compressor::new(settings.compression, threads),
            compressed: CompressedCount::default(),
            sealer: settings.sealer,
            slots: (0..blocks).map(|_| Mutex::default()).collect(),
            writers: Mutex::default(),
            spare: Mutex::new(spare),
            closers: Closers::default(),
            finished: Mutex::default(),
            observer: settings.observer,
            lists_changes: settings.lists_changes,
            removals: settings.removals.map(Remover::new),
            progress,
            reported: is_bridged.then(|| Mutex::new(Instant::now())),
            start: Instant::now(),
            threads,
            reading: Busy::default(),
            sealing: Busy::default(),
            sending: Busy::default(),
            free: Waits::default(),
            full: Waits::default(),
        }
    }

    /// Creates a source of the blocks of another session. They fit: the block size is not smaller.
    pub(super) fn relaying(
        opened: Opened,
        from: Arc<SinkEnd>,
        sealer: Option<Sealer>,
        observer: Arc<dyn Observer>,
        lists_changes: bool,
    ) -> Self {
        let (compression, observer, removals) = (Compression::Never, Some(observer), None);
        let settings = SourceSettings { sealer, compression, observer, lists_changes, removals };
        Self::new(opened, Feed::Relay(from), settings)
    }

    /// Starts the threads that receive messages and send blocks.
    pub(super) fn send<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        channels: Channels<SourceChannel>,
    ) {
        scope.spawn(move || driver::receive(self));
        scope.spawn(move || {
            channels::serve(
                scope,
                self,
                &channels,
                |line| line.closer(),
                |number, line| {
                    let (to, writes) = channel();
                    lock(&self.writers).insert(number, to);
                    move || self.write(number, line, &writes)
                },
            );
        });
    }

    /// Returns what is known of the result.
    pub(super) fn finished(&self) -> Finished {
        *lock(&self.finished)
    }
}

/// Runs the source's end until the session ends. Data channels come through `channels`; even the
/// first may come later.
///
/// # Errors
/// If the session fails.
pub fn run(plan: SourcePlan, channels: Channels<SourceChannel>) -> Result<Finished, EndError> {
    let SourcePlan { opened, sealer, compression, content, options, observer, lists_changes } =
        plan;
    let threads = opened.threads;
    let payload_len = payload_len(opened.block_size, sealer.is_some());
    let input = match &content {
        Content::Entries(_) => None,
        Content::Input(input, _) => Some(Arc::clone(input)),
    };
    let (refusals, removals) = (Arc::clone(&options.refusals), options.removals.clone());
    let filling = Filling {
        pool: opened.pool()?,
        tree: Mutex::new(Tree::new(content, SourceOptions { payload_len, ..options })),
        input,
        answered: Condvar::new(),
        fillers: AtomicUsize::new(threads),
        payload_len,
        refusals,
    };
    let settings = SourceSettings { sealer, compression, observer, lists_changes, removals };
    let end = &SourceEnd::new(opened, Feed::Tree(Box::new(filling)), settings);
    thread::scope(|scope| {
        end.send(scope, channels);
        if let Feed::Tree(filling) = &end.feed {
            for _ in 0..threads {
                scope.spawn(|| end.fill(filling));
            }
        }
        if let Some(remover) = &end.removals {
            scope.spawn(|| end.remove(remover));
        }
        driver::send(end);
        driver::close(&end.driver, false);
        if let Some(remover) = &end.removals {
            remover.end();
        }
    });
    driver::result(&end.driver)?;
    Ok(Finished { stages: end.stages(), ..end.finished() })
}
