//! The sink's end: one thread for each data channel, one that processes blocks in order, and
//! threads that write files.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;

use weft_sys::{BoundedQueue, Popped};

use super::desk::{self, Desk, End, State};
use super::loads::{Busy, Loads};
use super::note::{Note, Planned};
use super::shared::{Channels, EndError, Finished, Observer, Opened, Progress, SinkChannel};
use crate::limits::{
    ANSWERS_WAITING_MAX, PLAN_NOTE_LEN, POOL_BLOCKS, PROBLEMS_SENT_MAX, TASKS_MAX,
};
use crate::mutex::lock;
use crate::pipeline::Block;
use crate::secure::Opener;
use crate::session::{Arrivals, BlockRefused, RemoteBuffer, Sink, SinkSetup};
use crate::transport::{Arrival, Claim, Grants, Received, Refused};
use crate::tree::apply::{Applier, ApplyOptions, Event, Report, Subject, Task};
use crate::tree::rules::Rules;
use crate::wire::record_name::Name;
use crate::wire::{BlockHeader, Code};

/// The parameters of a sink whose session is open.
pub struct SinkPlan {
    /// The session.
    pub opened: Opened,
    /// Opens the blocks; `None` if they are not sealed.
    pub opener: Option<Opener>,
    /// The root directory of the destination.
    pub root: OwnedFd,
    /// The options of the applier.
    pub options: ApplyOptions,
    /// The only names that the source may create in the root; `None` allows all.
    pub only: Option<HashSet<Name>>,
    /// Rules that protect entries: the sink does not delete what they exclude.
    pub rules: Rules,
    /// Receives the problems at this end. Without it, they are sent to the source.
    pub observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for SinkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkPlan").finish_non_exhaustive()
    }
}

/// A block that has arrived and been opened.
struct Arrived {
    block: Block,
    len: usize,
    table_len: usize,
}

struct SinkEnd {
    desk: Desk<Sink>,
    reporter: Arc<Reporter>,
    opener: Option<Opener>,
    /// The blocks that are granted or free, by their numbers.
    buffers: Vec<Mutex<Option<Block>>>,
    arrived: Vec<Mutex<Option<Arrived>>>,
    tasks: BoundedQueue<(Arc<Held>, Task)>,
    is_stopped: AtomicBool,
    closers: Mutex<BTreeMap<u16, Arc<dyn Fn() + Send + Sync>>>,
    finished: Mutex<Finished>,
    progress: Arc<Progress>,
    start: Instant,
    threads: usize,
    opening: Busy,
    writing: Busy,
}

/// A block that tasks use. When the last one drops it, the session gets the block back.
struct Held {
    end: Arc<SinkEnd>,
    buffer: u32,
    len: usize,
    block: Option<Block>,
}

impl Drop for Held {
    fn drop(&mut self) {
        *lock(&self.end.buffers[self.buffer as usize]) = self.block.take();
        self.end.progress.bytes.fetch_add(self.len as u64, SeqCst);
        // It fails only if the session is over.
        self.end.change(|state| state.half.release(self.buffer).is_ok());
    }
}

/// Passes problems from the writing threads to the observer or the source.
struct Reporter {
    observer: Option<Arc<dyn Observer>>,
    end: Mutex<Weak<SinkEnd>>,
    sent: AtomicU32,
    /// Predicted changes that have not been sent to the source yet.
    plan: Mutex<Vec<Planned>>,
}

impl Reporter {
    /// Queues a predicted change. One note carries many of them.
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

    fn tell_plan(&self, end: &SinkEnd) {
        let plan = std::mem::take(&mut *lock(&self.plan));
        if !plan.is_empty() {
            end.answer(&Note::Plan(plan));
        }
    }
}

impl Report for Reporter {
    fn event(&self, subject: Subject<'_>, event: Event) {
        if let Event::Planned { change, kind, size } = event {
            return self.plan(Planned { change, kind, size, path: subject.path() });
        }
        let Event::Problem(problem) = event else { return };
        let (path, text) = (subject.path(), problem.to_string());
        let is_warning = problem.step.is_warning();
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

impl End for SinkEnd {
    type Half = Sink;

    fn desk(&self) -> &Desk<Sink> {
        &self.desk
    }

    fn pump(&self, state: &mut State<Sink>) {
        while let Some(records) = state.half.poll_records() {
            match Note::parse(&records) {
                Ok(Note::Loads(loads)) => lock(&self.finished).source = loads,
                Ok(_) => {
                    let error = EndError::Protocol("a note that only a sink has".into());
                    state.fail(Code::Protocol, error);
                }
                Err(error) => state.fail(Code::Protocol, EndError::Protocol(error.to_string())),
            }
        }
        while let Some(channel) = state.half.poll_close() {
            if let Some(closer) = lock(&self.closers).get(&channel) {
                closer();
            }
        }
    }

    fn stop(&self) {
        if self.is_stopped.swap(true, SeqCst) {
            return;
        }
        for closer in lock(&self.closers).values() {
            closer();
        }
        self.tasks.close();
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
        if header.flags.sealed != self.end.opener.is_some() || header.flags.compressed {
            return Err(Refused("not sealed as agreed"));
        }
        let len = header.len as usize;
        let begun = self.end.change(|state| state.half.begin_arrival(self.channel, &header));
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
        self.end.change(|state| state.half.abort_arrival(self.channel, header.buffer).is_ok());
    }
}

impl SinkEnd {
    /// Receives the blocks of one channel.
    fn read(&self, number: u16, mut line: SinkChannel) {
        let grants = ChannelGrants { end: self, channel: number };
        loop {
            match line.receive(&grants, None) {
                Ok(Received::Block(arrival)) => {
                    if let Err(error) = self.arrive(number, arrival) {
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
        self.change(|state| state.half.channel_down(number));
    }

    fn arrive(&self, number: u16, arrival: Arrival) -> Result<(), EndError> {
        let Arrival { head, mut block, len } = arrival;
        let header = header_of(head.bytes()).ok_or(EndError::Here("a header changed".into()))?;
        let mut payload_len = len;
        if let Some(opener) = &self.opener {
            let head = header.authenticated();
            let bytes = block.bytes_mut().ok_or(EndError::Here("a block of a peer".into()))?;
            payload_len =
                self.opening.time(|| opener.open_in_place(header.nonce, &head, bytes, len))?;
        }
        let table_len = header.table_len as usize;
        let arrived = Arrived { block, len: payload_len, table_len };
        *lock(&self.arrived[header.buffer as usize]) = Some(arrived);
        let now = self.desk.now();
        // It fails only if the session is ending.
        self.change(|state| {
            state.connection.seen(now);
            state.half.finish_arrival(number, header.buffer).is_ok()
        });
        Ok(())
    }

    /// Waits for the next block in order. Returns `None` at the end of the session.
    fn next(&self) -> Option<(u32, Arrived)> {
        let mut state = self.desk.lock();
        loop {
            if state.is_over() {
                return None;
            }
            if let Some(ready) = state.half.poll_ready() {
                drop(state);
                let arrived = lock(&self.arrived[ready.buffer as usize]).take()?;
                return Some((ready.buffer, arrived));
            }
            if state.half.is_delivered() {
                return None;
            }
            state = self.desk.wait(state);
        }
    }

    /// Processes blocks in order, and finishes the session after the last one.
    fn apply(self: &Arc<Self>, mut applier: Applier) {
        while let Some((buffer, Arrived { block, len, table_len })) = self.next() {
            let held = Held { end: Arc::clone(self), buffer, len, block: Some(block) };
            let held = Arc::new(held);
            let bytes = held.block.as_ref().and_then(Block::bytes).unwrap_or_default();
            match applier.apply(&bytes[..len.min(bytes.len())], table_len) {
                Ok(tasks) => {
                    for task in tasks {
                        if self.tasks.push((Arc::clone(&held), task)).is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    return self.fail(Code::Protocol, EndError::Protocol(error.to_string()));
                }
            }
        }
        if self.desk.lock().is_over() {
            return;
        }
        match applier.finish() {
            Ok(outcome) => self.finish(outcome),
            Err(error) => self.fail(Code::Sink, EndError::Here(error.to_string())),
        }
    }

    fn finish(&self, outcome: super::note::Outcome) {
        let time = self.start.elapsed();
        let loads = Loads {
            disk: self.writing.share(self.threads, time),
            cpu: self.opening.share(lock(&self.closers).len(), time),
            network: 0,
        };
        self.reporter.tell_plan(self);
        let mut finished = lock(&self.finished);
        (finished.outcome, finished.sink) = (outcome, loads);
        drop(finished);
        self.change(|state| {
            state.tell(&Note::Loads(loads));
            state.tell(&Note::Outcome(outcome));
        });
        desk::finish(self);
    }

    /// Runs writing tasks until the session ends.
    fn work(&self) {
        while let Popped::Item(_, (held, task)) = self.tasks.pop() {
            let bytes = held.block.as_ref().and_then(Block::bytes).unwrap_or_default();
            let wants = self.writing.time(|| task.run(bytes));
            if let Some(wants) = wants {
                self.answer(&Note::Wants(wants));
            }
        }
    }

    /// Sends the source an answer to its offers, or a predicted change. If the source does not take
    /// answers, this blocks and keeps blocks in use, so the source gets no more credits.
    fn answer(&self, note: &Note) {
        let mut state = self.desk.lock();
        while state.outbox.len() >= ANSWERS_WAITING_MAX && !state.is_over() {
            state = self.desk.wait(state);
        }
        drop(state);
        self.change(|state| state.tell(note));
    }
}

/// Runs the sink's end until the session ends. Each data channel must be passed through `channels`
/// before the source learns of it.
///
/// # Errors
/// If the session fails.
pub fn run(plan: SinkPlan, channels: Channels<SinkChannel>) -> Result<Finished, EndError> {
    let pool = plan.opened.pool()?;
    let Opened { control, connection, epoch, session, block_size, threads, progress } = plan.opened;
    let setup = SinkSetup {
        session,
        buffers: vec![RemoteBuffer::default(); POOL_BLOCKS as usize],
        block_size,
        arrivals: Arrivals::Seen,
        first_grant: POOL_BLOCKS / 2,
    };
    let reporter = Arc::new(Reporter {
        observer: plan.observer,
        end: Mutex::default(),
        sent: AtomicU32::new(0),
        plan: Mutex::default(),
    });
    let applier = Applier::begin(plan.root, plan.options, Arc::clone(&reporter) as _);
    let applier = applier.map_err(|error| EndError::Here(error.to_string()))?;
    let applier = applier.protecting(plan.rules);
    let applier = match plan.only {
        Some(names) => applier.only(names),
        None => applier,
    };
    let blocks: Vec<Block> = std::iter::from_fn(|| pool.try_take()).collect();
    let end = Arc::new(SinkEnd {
        desk: Desk::new(control, connection, Sink::new(setup), epoch),
        reporter: Arc::clone(&reporter),
        opener: plan.opener,
        buffers: blocks.into_iter().map(|block| Mutex::new(Some(block))).collect(),
        arrived: (0..POOL_BLOCKS).map(|_| Mutex::default()).collect(),
        tasks: BoundedQueue::new(TASKS_MAX),
        is_stopped: AtomicBool::new(false),
        closers: Mutex::default(),
        finished: Mutex::default(),
        progress,
        start: Instant::now(),
        threads,
        opening: Busy::default(),
        writing: Busy::default(),
    });
    *lock(&reporter.end) = Arc::downgrade(&end);
    let end = &end;
    thread::scope(|scope| {
        scope.spawn(|| desk::receive(&**end));
        scope.spawn(move || end.apply(applier));
        for _ in 0..threads {
            scope.spawn(|| end.work());
        }
        scope.spawn(move || {
            while let Some((number, line)) = super::shared::next_channel(&channels, &end.is_stopped)
            {
                lock(&end.closers).insert(number, line.closer());
                let is_up = end.change(|state| !state.is_over() && state.half.channel_up(number));
                let closer = line.closer();
                if is_up {
                    scope.spawn(move || end.read(number, line));
                }
                if !is_up || end.is_stopped.load(SeqCst) {
                    closer();
                }
            }
        });
        desk::send(&**end);
        desk::close(&end.desk, true);
    });
    // Queued tasks hold references to the end.
    drop(end.tasks.abort());
    desk::result(&end.desk)?;
    Ok(*lock(&end.finished))
}
