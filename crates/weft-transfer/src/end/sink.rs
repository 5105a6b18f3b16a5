//! The sink's end: one thread for each data channel, one that processes blocks in order, and
//! threads that write files.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;

use weft_sys::{BoundedQueue, Popped};

use super::channels;
use super::closers::Closers;
use super::driver::{self, Driver, SessionEnd, State};
use super::loads::{Busy, Loads, Stages, Waits, Work};
use super::note::{Found, Note, Outcome, Planned};
use super::shared::{
    Channels, Compressed, CompressedCount, EndError, Finished, Observer, Opened, Progress,
    SinkChannel, Spare,
};
use crate::blocks::Block;
use crate::compress::{Decoder, declared_len};
use crate::limits::{
    ANSWERS_WAITING_MAX, CONFIRMED_WAITING_MAX, DELTA_BLOCKS_IN_NOTE, NUMBERS_IN_NOTE_MAX,
    PLAN_NOTE_LEN, PROBLEMS_SENT_MAX, TASKS_MAX,
};
use crate::secure::Opener;
use crate::session::{Arrivals, BlockRefused, Ready, RemoteBuffer, Sink, SinkSetup};
use crate::transport::{Arrival, Claim, Grants, Received, Refused};
use crate::tree::apply::{
    Applier, ApplyOptions, Backup, DryRun, EntryKind, Event, NotKept, Problem, QuotaSession,
    Report, Step, Subject, Task,
};
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::output::{Output, OutputError};
use crate::tree::rules::Rules;
use crate::wire::record::{Entry, Kind};
use crate::wire::record_name::Name;
use crate::wire::{BlockHeader, Code};
use weft_sys::lock;

/// The parameters of a sink whose session is open.
pub struct SinkPlan {
    /// The session.
    pub opened: Opened,
    /// Opens the blocks; `None` if they are not sealed.
    pub opener: Option<Opener>,
    /// Whether the source may compress blocks.
    pub may_be_compressed: bool,
    /// Where the entries go.
    pub target: SinkTarget,
    /// What credits say of the blocks, if the source writes into memory of this end.
    pub buffers: Option<Vec<RemoteBuffer>>,
    /// Receives the problems at this end. Without it, they are sent to the source.
    pub observer: Option<Arc<dyn Observer>>,
}

/// The place that a sink writes to.
#[derive(Debug)]
pub enum SinkTarget {
    /// A directory.
    Directory {
        /// The root directory of the destination.
        root: OwnedFd,
        /// The quota of the tree that contains it.
        quota: Option<QuotaSession>,
        /// How what is replaced is kept.
        backup: Option<Box<Backup>>,
        /// Other directories to whose files the sink may link; `None` for one that does not exist.
        thirds: Vec<Option<OwnedFd>>,
        /// The options of the applier.
        options: ApplyOptions,
        /// The only names that the source may create in the root; `None` allows all.
        only: Option<HashSet<Name>>,
        /// Rules that protect entries: the sink does not delete what they exclude.
        rules: Rules,
        /// The open files of a source in this process.
        copies: Option<Arc<KernelCopies>>,
    },
    /// A descriptor that gets the bytes of a single file, which has this name in reports.
    Output(OwnedFd, Vec<u8>),
}

impl SinkTarget {
    /// A target that only reports to the observer what the source has. Nothing in this directory is
    /// used.
    #[must_use]
    pub fn listing(root: OwnedFd) -> Self {
        let dry_run = Some(DryRun { has_root: false, skips: false });
        let options = ApplyOptions { names_entries: true, dry_run, ..ApplyOptions::default() };
        let (quota, backup, only, rules) = (None, None, None, Rules::default());
        let (thirds, copies) = (Vec::new(), None);
        Self::Directory { root, quota, backup, thirds, options, only, rules, copies }
    }
}

/// The part of a sink that processes blocks in order.
enum Writer {
    Directory(Box<Applier>),
    Output(Output, Vec<u8>),
}

impl fmt::Debug for SinkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkPlan").finish_non_exhaustive()
    }
}

/// A block that has arrived and been opened.
pub(super) struct Arrived {
    pub(super) block: Block,
    pub(super) len: usize,
    pub(super) table_len: usize,
    /// The payload is still compressed.
    pub(super) is_compressed: bool,
    /// When it was opened.
    pub(super) at: Instant,
}

pub(super) struct SinkEnd {
    pub(super) driver: Driver<Sink>,
    reporter: Arc<Reporter>,
    opener: Option<Opener>,
    may_be_compressed: bool,
    expands: bool,
    compressed: CompressedCount,
    /// The blocks that are granted or free, by their numbers.
    buffers: Vec<Mutex<Option<Block>>>,
    arrived: Vec<Mutex<Option<Arrived>>>,
    /// Parts of blocks for the threads that write, with the moment at which the block was there.
    tasks: BoundedQueue<(Arc<HeldBlock>, Instant, Task)>,
    closers: Closers,
    spare: Mutex<Option<Spare>>,
    is_bridged: bool,
    finished: Mutex<Finished>,
    /// How many entries the source could not remove.
    kept_at_source: Mutex<Option<u64>>,
    progress: Arc<Progress>,
    start: Instant,
    threads: usize,
    opening: Busy,
    writing: Busy,
    /// The waits of opened blocks for earlier ones and for a thread that writes.
    opened: Waits,
}

/// A block that is in use. When it is dropped, the session gets the block back.
pub(super) struct HeldBlock {
    end: Arc<SinkEnd>,
    buffer: u32,
    len: usize,
    pub(super) block: Option<Block>,
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        *lock(&self.end.buffers[self.buffer as usize]) = self.block.take();
        self.end.progress.bytes.fetch_add(self.len as u64, SeqCst);
        // It fails only if the session is over.
        self.end.change(|state| state.machine.release(self.buffer).is_ok());
    }
}

/// Passes problems from the writing threads to the observer or the source.
struct Reporter {
    observer: Option<Arc<dyn Observer>>,
    end: Mutex<Weak<SinkEnd>>,
    sent: AtomicU32,
    /// The sizes of files with several names, by their numbers, while the source is listed.
    linked: Mutex<HashMap<u64, u64>>,
    /// Changes, predicted or made, that have not been sent to the source yet.
    plan: Mutex<Vec<Planned>>,
    /// Entries that are whole, of which the source does not know yet.
    confirmed: Mutex<Vec<u64>>,
    /// Whether it learns of them at the end, when everything has been synced.
    confirms_at_end: AtomicBool,
    /// A directory could not be synced, so it is not known which entries will outlive a crash.
    is_unsynced: AtomicBool,
}

impl Reporter {
    /// Queues a change. One note carries many of them.
    fn plan(&self, planned: Planned) {
        if let Some(observer) = &self.observer {
            return observer.planned(&planned);
        }
        let mut plan = lock(&self.plan);
        plan.push(planned);
        let is_much = plan.iter().map(Planned::len).sum::<usize>() >= PLAN_NOTE_LEN;
        drop(plan);
        if is_much && let Some(end) = lock(&self.end).upgrade() {
            self.tell_plan(&end);
        }
    }

    /// Tells the source all the entries that it may remove.
    fn confirm_all(&self, end: &SinkEnd) {
        let mut all = std::mem::take(&mut *lock(&self.confirmed));
        if self.is_unsynced.load(SeqCst) {
            all.clear();
        }
        for numbers in all.chunks(NUMBERS_IN_NOTE_MAX) {
            end.answer(&Note::Confirmed { numbers: numbers.to_vec(), is_last: false });
        }
        end.answer(&Note::Confirmed { numbers: Vec::new(), is_last: true });
    }

    fn tell_plan(&self, end: &SinkEnd) {
        let plan = std::mem::take(&mut *lock(&self.plan));
        if !plan.is_empty() {
            end.answer(&Note::Plan(plan));
        }
    }

    /// Passes a problem of the source to the observer. Their number is limited like that of this
    /// end's.
    fn hear(&self, path: &[u8], text: &str, is_warning: bool) {
        if let Some(observer) = &self.observer
            && self.sent.fetch_add(1, SeqCst) < PROBLEMS_SENT_MAX
        {
            observer.problem(path, text, is_warning);
        }
    }

    /// Reports an entry that is to be copied once more; an empty path means all.
    fn again(&self, path: Vec<u8>) {
        if let Some(observer) = &self.observer {
            return observer.again(&path);
        }
        // The summary counts all of them.
        if self.sent.fetch_add(1, SeqCst) < PROBLEMS_SENT_MAX
            && let Some(end) = lock(&self.end).upgrade()
        {
            end.change(|state| state.tell(&Note::Again(path)));
        }
    }

    fn problem(&self, path: Vec<u8>, problem: Problem) {
        self.say(path, problem.to_string(), problem.step.is_warning());
    }

    fn say(&self, path: Vec<u8>, text: String, is_warning: bool) {
        if let Some(observer) = &self.observer {
            return observer.problem(&path, &text, is_warning);
        }
        // Limit the notes that the source must hold. The summary counts all problems.
        if self.sent.fetch_add(1, SeqCst) < PROBLEMS_SENT_MAX
            && let Some(end) = lock(&self.end).upgrade()
        {
            let note = Note::Problem { path, text, is_warning };
            end.change(|state| state.tell(&note));
        }
    }
}

impl Report for Reporter {
    fn found(&self, subject: Subject<'_>, entry: &Entry) {
        let Some(observer) = &self.observer else { return };
        let target = match &entry.kind {
            Kind::Symlink { target } => Some(target.to_vec()),
            _ => None,
        };
        let Entry { number, mut size, mode, mtime, .. } = *entry;
        let (mut kind, path) = (EntryKind::from(&entry.kind), subject.path());
        if entry.is_linked {
            lock(&self.linked).insert(number, size);
        }
        if let Kind::HardLink { target } = entry.kind {
            // It is no less the file than the first name of it.
            size = lock(&self.linked).get(&target).copied().unwrap_or_default();
            kind = EntryKind::File;
        }
        observer.found(&Found { kind, size, mode, mtime, target, path });
    }

    fn confirmed(&self, number: u64) {
        let is_at_end = self.confirms_at_end.load(SeqCst);
        let mut confirmed = lock(&self.confirmed);
        // A source waits for fewer, and counts the others.
        if confirmed.len() < CONFIRMED_WAITING_MAX {
            confirmed.push(number);
        }
        if is_at_end || confirmed.len() < NUMBERS_IN_NOTE_MAX {
            return;
        }
        let numbers = std::mem::take(&mut *confirmed);
        drop(confirmed);
        if let Some(end) = lock(&self.end).upgrade() {
            end.answer(&Note::Confirmed { numbers, is_last: false });
        }
    }

    fn described(&self, number: u64, block_len: u32, blocks: &[(u64, u64)]) {
        if let Some(end) = lock(&self.end).upgrade() {
            for blocks in blocks.chunks(DELTA_BLOCKS_IN_NOTE) {
                end.answer(&Note::Version { file: number, block_len, blocks: blocks.to_vec() });
            }
        }
    }

    fn not_kept(&self, path: &[u8], not_kept: NotKept) {
        self.say(path.to_vec(), not_kept.to_string(), true);
    }

    fn event(&self, subject: Subject<'_>, event: Event) {
        if let Event::Planned { change, kind, size } | Event::Done { change, kind, size } = event {
            return self.plan(Planned { change, kind, size, path: subject.path() });
        }
        if event == Event::OtherVersion {
            let text = "its version here has changed since it was compared: copied as a whole";
            return self.say(subject.path(), text.to_owned(), true);
        }
        if let Event::Again { is_alone } = event {
            return self.again(if is_alone { subject.path() } else { Vec::new() });
        }
        if let Event::Problem(problem) = event {
            if problem.step == Step::Sync && subject.name.is_none() {
                self.is_unsynced.store(true, SeqCst);
            }
            self.problem(subject.path(), problem);
        }
    }
}

impl SessionEnd for SinkEnd {
    type Machine = Sink;

    fn driver(&self) -> &Driver<Sink> {
        &self.driver
    }

    fn closers(&self) -> &Closers {
        &self.closers
    }

    fn pump(&self, state: &mut State<Sink>) {
        while let Some(records) = state.machine.poll_records() {
            match Note::parse(&records) {
                Ok(Note::Loads(loads)) => lock(&self.finished).source = loads,
                Ok(Note::Removed { failed }) => {
                    *lock(&self.kept_at_source) = Some(failed);
                    self.driver.wake();
                }
                Ok(Note::Problem { path, text, is_warning })
                    if self.reporter.observer.is_some() =>
                {
                    self.reporter.hear(&path, &text, is_warning);
                }
                // They are for the client.
                Ok(Note::Problem { .. } | Note::Progress(_)) if self.is_bridged => {}
                Ok(_) => {
                    let error = EndError::Protocol("a note that only a sink has".into());
                    state.fail(Code::Protocol, error);
                }
                Err(error) => state.fail(Code::Protocol, EndError::Protocol(error.to_string())),
            }
        }
    }

    fn stop(&self) {
        if self.closers.stop() {
            self.tasks.close();
        }
    }
}

/// The grants of a session, as one of its channels uses them.
struct ChannelGrants<'end> {
    end: &'end SinkEnd,
    channel: u16,
}

fn header_of(head: &[u8]) -> Option<BlockHeader> {
    BlockHeader::parse(head.first_chunk()?).ok()
}

impl Grants for ChannelGrants<'_> {
    fn head_len(&self) -> usize {
        BlockHeader::LEN
    }

    fn claim(&self, head: &[u8]) -> Result<Claim, Refused> {
        let header = header_of(head).ok_or(Refused("no header"))?;
        if header.flags.sealed != self.end.opener.is_some() {
            return Err(Refused("not sealed as agreed"));
        }
        if header.flags.compressed && !self.end.may_be_compressed {
            return Err(Refused("compressed, which was not agreed"));
        }
        let len = header.len as usize;
        let begun = self.end.change(|state| state.machine.begin_arrival(self.channel, &header));
        match begun {
            Ok(()) => {
                let block = lock(&self.end.buffers[header.buffer as usize]).take();
                Ok(Claim::Into { block: block.ok_or(Refused("a buffer in use"))?, len })
            }
            Err(BlockRefused::Fault(_)) => Err(Refused("against the rules of the session")),
            Err(_) => Ok(Claim::Drop(len)),
        }
    }

    fn give_back(&self, head: &[u8], block: Block) {
        let Some(header) = header_of(head) else { return };
        *lock(&self.end.buffers[header.buffer as usize]) = Some(block);
        self.end.change(|state| state.machine.abort_arrival(self.channel, header.buffer).is_ok());
    }
}

impl SinkEnd {
    /// Receives the blocks of one channel.
    fn read(&self, number: u16, mut line: SinkChannel) {
        let grants = ChannelGrants { end: self, channel: number };
        let mut expander = Expander::default();
        loop {
            match line.receive(&grants, None) {
                Ok(Received::Block(arrival)) => {
                    if let Err(error) = self.arrive(number, arrival, &mut expander) {
                        self.fail(Code::Integrity, error);
                        break;
                    }
                }
                Ok(Received::Dropped | Received::TimedOut) => {}
                Ok(Received::Ended) => break,
                // The session's state machine records what the failure means; the source uses other
                // channels.
                Err(_) => break,
            }
        }
        line.closer()();
        self.change(|state| state.machine.channel_down(number));
        drop(line);
        driver::replace(&self.driver, &self.spare);
    }

    fn arrive(
        &self,
        number: u16,
        arrival: Arrival,
        expander: &mut Expander,
    ) -> Result<(), EndError> {
        let Arrival { head, mut block, len } = arrival;
        let header = header_of(head.bytes()).ok_or(EndError::Here("a header changed".into()))?;
        let mut payload_len = len;
        if let Some(opener) = &self.opener {
            let head = header.authenticated();
            let bytes = block.bytes_mut();
            payload_len =
                self.opening.time(|| opener.open_in_place(header.nonce, &head, bytes, len))?;
        }
        if self.may_be_compressed {
            let (sent, mut plain) = (payload_len, payload_len);
            if header.flags.compressed {
                let bytes = block.bytes_mut();
                if self.expands {
                    payload_len = self.opening.time(|| expander.expand(bytes, sent))?;
                    plain = payload_len;
                } else {
                    plain = declared_len(&bytes[..sent]).unwrap_or(sent);
                }
            }
            self.compressed.add(plain, sent);
        }
        let table_len = header.table_len as usize;
        let is_compressed = header.flags.compressed && !self.expands;
        let at = Instant::now();
        let arrived = Arrived { block, len: payload_len, table_len, is_compressed, at };
        *lock(&self.arrived[header.buffer as usize]) = Some(arrived);
        let now = self.driver.now();
        // It fails only if the session is ending.
        self.change(|state| {
            state.connection.seen(now);
            state.machine.finish_arrival(number, header.buffer).is_ok()
        });
        Ok(())
    }

    /// Holds a block until it is processed.
    pub(super) fn hold(self: &Arc<Self>, buffer: u32, block: Block, len: usize) -> HeldBlock {
        HeldBlock { end: Arc::clone(self), buffer, len, block: Some(block) }
    }

    /// Waits for the next block in order. Returns `None` at the end of the session.
    pub(super) fn next(&self) -> Option<(Ready, Arrived)> {
        let mut state = self.driver.lock();
        loop {
            if state.is_over() {
                return None;
            }
            if let Some(ready) = state.machine.poll_ready() {
                drop(state);
                let arrived = lock(&self.arrived[ready.buffer as usize]).take()?;
                return Some((ready, arrived));
            }
            if state.machine.is_delivered() {
                return None;
            }
            state = self.driver.wait(state);
        }
    }

    /// Processes blocks in order, and finishes the session after the last one.
    fn process(self: &Arc<Self>, mut writer: Writer, confirms: bool) {
        while let Some((ready, Arrived { block, len, table_len, at, .. })) = self.next() {
            let held = Arc::new(self.hold(ready.buffer, block, len));
            let bytes = held.block.as_ref().map(Block::bytes).unwrap_or_default();
            let payload = &bytes[..len.min(bytes.len())];
            let processed = match &mut writer {
                Writer::Directory(applier) => applier.apply(payload, table_len).map_err(Into::into),
                Writer::Output(output, _) => {
                    self.opened.add(at.elapsed());
                    let written = self.writing.time(|| output.apply(payload, table_len));
                    written.map(|()| Vec::new())
                }
            };
            match processed {
                Ok(tasks) => {
                    for task in tasks {
                        if self.tasks.push((Arc::clone(&held), at, task)).is_err() {
                            return;
                        }
                    }
                }
                Err(OutputError::Block(error)) => {
                    return self.fail(Code::Protocol, EndError::Protocol(error.to_string()));
                }
                Err(error) => return self.fail(Code::Sink, EndError::Here(error.to_string())),
            }
        }
        if self.driver.lock().is_over() {
            return;
        }
        let finished = match writer {
            Writer::Directory(applier) => applier.finish().map_err(Into::into),
            Writer::Output(output, name) => output.finish().map(|(outcome, problem)| {
                if let Some(problem) = problem {
                    self.reporter.problem(name, problem);
                }
                outcome
            }),
        };
        match finished {
            Ok(mut outcome) => {
                if confirms {
                    self.reporter.confirm_all(self);
                    // The source says how many.
                    outcome.failed = outcome.failed.saturating_add(self.wait_for_removals());
                }
                self.finish(outcome, self.loads());
            }
            Err(error) => self.fail(Code::Sink, EndError::Here(error.to_string())),
        }
    }

    /// What the threads did until now.
    fn stages(&self) -> Stages {
        let (threads, channels, time) = (self.threads, self.closers.count(), self.start.elapsed());
        let opening = self.opening.stage(Work::Open, channels, time, None);
        let writing = self.writing.stage(Work::Write, threads, time, self.opened.mean());
        [Some(opening), Some(writing), None]
    }

    fn loads(&self) -> Loads {
        let time = self.start.elapsed();
        Loads {
            disk: self.writing.share(self.threads, time),
            cpu: self.opening.share(self.closers.count(), time),
            network: 0,
        }
    }

    /// Waits until the source has removed what this end has. Returns how many entries it could not
    /// remove.
    fn wait_for_removals(&self) -> u64 {
        let mut state = self.driver.lock();
        loop {
            if let Some(failed) = *lock(&self.kept_at_source) {
                return failed;
            }
            if state.is_over() {
                return 0;
            }
            state = self.driver.wait(state);
        }
    }

    /// Reports the result to the source, and finishes the session.
    pub(super) fn finish(&self, outcome: Outcome, loads: Loads) {
        self.reporter.tell_plan(self);
        let mut finished = lock(&self.finished);
        (finished.outcome, finished.sink) = (outcome, loads);
        finished.compressed = self.compressed.get();
        drop(finished);
        self.change(|state| {
            state.tell(&Note::Loads(loads));
            state.tell(&Note::Outcome(outcome));
        });
        driver::finish(self);
    }

    /// Runs writing tasks until the session ends.
    fn work(&self) {
        while let Popped::Item(_, (held, at, task)) = self.tasks.pop() {
            self.opened.add(at.elapsed());
            let bytes = held.block.as_ref().map(Block::bytes).unwrap_or_default();
            let wants = self.writing.time(|| task.run(bytes));
            if let Some(wants) = wants {
                self.answer(&Note::Wants(wants));
            }
        }
    }

    /// Waits until the source has taken earlier answers.
    pub(super) fn wait_for_room(&self) {
        let mut state = self.driver.lock();
        while state.outbox.len() >= ANSWERS_WAITING_MAX && !state.is_over() {
            state = self.driver.wait(state);
        }
    }

    /// Sends the source an answer to its offers, or a predicted change. If the source does not take
    /// answers, this blocks and keeps blocks in use, so the source gets no more credits.
    fn answer(&self, note: &Note) {
        self.wait_for_room();
        self.change(|state| state.tell(note));
    }
}

/// Expands blocks in place.
#[derive(Default)]
struct Expander {
    decoder: Decoder,
    payload: Vec<u8>,
}

impl Expander {
    /// Expands the first `len` bytes of a block, and returns the length of the plain payload.
    fn expand(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, EndError> {
        let payload = bytes.get(..len).ok_or(EndError::Here("a block that is too long".into()))?;
        self.payload.clear();
        self.payload.extend_from_slice(payload);
        let expanded = self.decoder.decompress(&self.payload, bytes);
        expanded.map_err(|error| EndError::Protocol(error.to_string()))
    }
}

/// The parts of a sink that do not depend on what it does with the blocks.
pub(super) struct SinkSettings {
    pub(super) opener: Option<Opener>,
    pub(super) may_be_compressed: bool,
    /// Whether compressed blocks are expanded.
    pub(super) expands: bool,
    /// Receives the problems of both ends. Without it, those of this end are sent to the source,
    /// and the source may report none.
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// What credits say of the blocks, if the source writes into memory of this end.
    pub(super) buffers: Option<Vec<RemoteBuffer>>,
}

impl SinkEnd {
    pub(super) fn new(opened: Opened, settings: SinkSettings) -> Result<Arc<Self>, EndError> {
        let pool = opened.pool()?;
        let Opened { control, connection, epoch, session, block_size, .. } = opened;
        let Opened { blocks: pool_blocks, threads, progress, spare, is_bridged, .. } = opened;
        let setup = SinkSetup {
            session,
            buffers: settings
                .buffers
                .unwrap_or_else(|| vec![RemoteBuffer::default(); pool_blocks as usize]),
            block_size,
            arrivals: Arrivals::Seen,
            first_grant: pool_blocks / 2,
        };
        let reporter = Arc::new(Reporter {
            observer: settings.observer,
            end: Mutex::default(),
            sent: AtomicU32::new(0),
            linked: Mutex::default(),
            plan: Mutex::default(),
            confirmed: Mutex::default(),
            confirms_at_end: AtomicBool::new(false),
            is_unsynced: AtomicBool::new(false),
        });
        let blocks: Vec<Block> = std::iter::from_fn(|| pool.try_take()).collect();
        let end = Arc::new(Self {
            driver: Driver::new(control, connection, Sink::new(setup), epoch),
            reporter: Arc::clone(&reporter),
            opener: settings.opener,
            may_be_compressed: settings.may_be_compressed,
            expands: settings.expands,
            compressed: CompressedCount::default(),
            buffers: blocks.into_iter().map(|block| Mutex::new(Some(block))).collect(),
            arrived: (0..pool_blocks).map(|_| Mutex::default()).collect(),
            tasks: BoundedQueue::new(TASKS_MAX),
            closers: Closers::default(),
            spare: Mutex::new(spare),
            is_bridged,
            finished: Mutex::default(),
            kept_at_source: Mutex::default(),
            progress,
            start: Instant::now(),
            threads,
            opening: Busy::default(),
            writing: Busy::default(),
            opened: Waits::default(),
        });
        *lock(&reporter.end) = Arc::downgrade(&end);
        Ok(end)
    }

    /// Starts the threads that receive messages and blocks.
    pub(super) fn receive<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        channels: Channels<SinkChannel>,
    ) {
        scope.spawn(move || driver::receive(self));
        scope.spawn(move || {
            channels::serve(
                scope,
                self,
                &channels,
                |line| line.closer(),
                |number, line| move || self.read(number, line),
            );
        });
    }

    /// Returns the result of the session, after its threads have ended.
    pub(super) fn result(&self) -> Result<Finished, EndError> {
        // Queued tasks hold references to the end.
        drop(self.tasks.abort());
        driver::result(&self.driver)?;
        Ok(*lock(&self.finished))
    }

    /// Returns the effect of compression.
    pub(super) fn compressed(&self) -> Compressed {
        self.compressed.get()
    }

    /// Returns the source's load, which it reports at its end.
    pub(super) fn source_loads(&self) -> Loads {
        lock(&self.finished).source
    }
}

/// Runs the sink's end until the session ends. Each data channel must be passed through `channels`
/// before the source learns of it.
///
/// # Errors
/// If the session fails.
pub fn run(plan: SinkPlan, channels: Channels<SinkChannel>) -> Result<Finished, EndError> {
    let SinkPlan { opened, opener, may_be_compressed, target, buffers, observer } = plan;
    let threads = opened.threads;
    let settings = SinkSettings { opener, may_be_compressed, expands: true, observer, buffers };
    let end = &SinkEnd::new(opened, settings)?;
    let mut confirms = false;
    let writer = match target {
        SinkTarget::Directory { root, quota, backup, thirds, options, only, rules, copies } => {
            confirms = options.confirms;
            end.reporter.confirms_at_end.store(options.syncs, SeqCst);
            let applier = Applier::begin(root, options, Arc::clone(&end.reporter) as _);
            applier.map(|applier| {
                let applier = applier.within(quota).protecting(rules).copying(copies);
                let applier = applier.keeping(backup.map(|it| *it)).linking_to(thirds);
                Writer::Directory(Box::new(match only {
                    Some(names) => applier.only(names),
                    None => applier,
                }))
            })
        }
        SinkTarget::Output(fd, name) => Ok(Writer::Output(Output::new(fd), name)),
    };
    thread::scope(|scope| {
        end.receive(scope, channels);
        match writer {
            Ok(writer) => {
                scope.spawn(move || end.process(writer, confirms));
            }
            // The source learns why before the connection ends.
            Err(error) => end.fail(Code::Sink, EndError::Here(error.to_string())),
        }
        for _ in 0..threads {
            scope.spawn(|| end.work());
        }
        driver::send(&**end);
        driver::close(&end.driver, true);
    });
    Ok(Finished { stages: end.stages(), ..end.result()? })
}
