//! The source's end: threads that read and seal blocks, and one thread for each data channel.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::desk::{self, Desk, End, State};
use super::loads::{Busy, Loads};
use super::note::Note;
use super::shared::{Channels, EndError, Finished, Observer, Opened, Progress, SourceChannel};
use crate::limits::{POOL_BLOCKS, WRITES_IN_CHANNEL_MAX};
use crate::mutex::lock;
use crate::pipeline::{Block, Pool};
use crate::secure::{SEAL_LEN, Sealer};
use crate::session::{Arrivals, Source, SourceSetup, Write, WriteResult};
use crate::transport::{Head, Payload, Place};
use crate::tree::job::Job;
use crate::tree::source::{Next, Source as Tree, SourceOptions, Start};
use crate::wire::{BlockFlags, BlockHeader, Code};

/// The parameters of a source whose session is open.
pub struct SourcePlan {
    /// The session.
    pub opened: Opened,
    /// Seals the blocks; `None` if they are not sealed.
    pub sealer: Option<Sealer>,
    /// The files and directories to copy.
    pub starts: Vec<Start>,
    /// The options of the source. `run` sets the payload's length from the block size.
    pub options: SourceOptions,
    /// Receives problems.
    pub observer: Arc<dyn Observer>,
    /// Whether the sink only predicts changes.
    pub is_dry_run: bool,
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

struct Filled {
    block: Option<Block>,
    header: BlockHeader,
}

struct SourceEnd {
    desk: Desk<Source>,
    session: u32,
    payload_len: usize,
    sealer: Option<Sealer>,
    pool: Pool,
    /// Filled blocks, by their numbers in the pool.
    slots: Vec<Mutex<Option<Filled>>>,
    tree: Mutex<Tree>,
    answered: Condvar,
    is_stopped: AtomicBool,
    fillers: AtomicUsize,
    writers: Mutex<BTreeMap<u16, Sender<Write>>>,
    closers: Mutex<BTreeMap<u16, Arc<dyn Fn() + Send + Sync>>>,
    finished: Mutex<Finished>,
    observer: Arc<dyn Observer>,
    is_dry_run: bool,
    progress: Arc<Progress>,
    start: Instant,
    threads: usize,
    reading: Busy,
    sealing: Busy,
    sending: Busy,
}

impl End for SourceEnd {
    type Half = Source;

    fn desk(&self) -> &Desk<Source> {
        &self.desk
    }

    fn pump(&self, state: &mut State<Source>) {
        while let Some(records) = state.half.poll_records() {
            match Note::parse(&records) {
                Ok(note) => self.hear(state, note),
                Err(error) => state.fail(Code::Protocol, EndError::Protocol(error.to_string())),
            }
        }
        let writers = lock(&self.writers);
        while let Some(write) = state.half.poll_write() {
            let sent = writers.get(&write.channel).map(|writer| writer.send(write));
            if !matches!(sent, Some(Ok(()))) {
                // The channel's thread has ended without this write, so the block was not sent.
                let _ = state.half.handle_written(write.block, WriteResult::NotSent);
            }
        }
        drop(writers);
        while let Some(freed) = state.half.poll_free() {
            let filled = lock(&self.slots[freed.block as usize]).take();
            if let Some(filled) = filled.filter(|_| freed.has_arrived) {
                self.progress.bytes.fetch_add(filled.header.len.into(), SeqCst);
            }
        }
        while let Some(channel) = state.half.poll_close() {
            self.close_channel(channel);
        }
    }

    fn stop(&self) {
        if self.is_stopped.swap(true, SeqCst) {
            return;
        }
        self.pool.close();
        lock(&self.writers).clear();
        for closer in lock(&self.closers).values() {
            closer();
        }
        // Taking the lock ensures that no thread is between its check and its wait.
        drop(lock(&self.tree));
        self.answered.notify_all();
    }
}

impl SourceEnd {
    fn hear(&self, state: &mut State<Source>, note: Note) {
        match note {
            Note::Wants(wants) => {
                let answered = lock(&self.tree).answer(&wants);
                if let Err(error) = answered {
                    state.fail(Code::Protocol, EndError::Protocol(error.to_string()));
                }
                self.answered.notify_all();
            }
            Note::Problem { path, text, is_warning } => {
                self.observer.problem(&path, &text, is_warning);
            }
            Note::Outcome(outcome) => lock(&self.finished).outcome = outcome,
            Note::Loads(loads) => lock(&self.finished).sink = loads,
            Note::Plan(all) if self.is_dry_run => {
                for planned in &all {
                    self.observer.planned(planned);
                }
            }
            Note::Plan(_) => {
                let error = EndError::Protocol("a plan where none was asked for".into());
                state.fail(Code::Protocol, error);
            }
        }
    }

    fn close_channel(&self, channel: u16) {
        lock(&self.writers).remove(&channel);
        if let Some(closer) = lock(&self.closers).get(&channel) {
            closer();
        }
    }

    /// Reads, seals and submits blocks until there are no more.
    fn fill(&self) {
        while let Some(mut block) = self.pool.take() {
            let Some(job) = self.next_job() else { break };
            let (index, seq) = (block.index(), job.number);
            match self.fill_block(&mut block, job, seq) {
                Ok(header) => {
                    let filled = Filled { block: Some(block), header };
                    *lock(&self.slots[index as usize]) = Some(filled);
                    // It fails only if the session is ending.
                    self.change(|state| state.half.submit(seq, index, header.len).is_ok());
                }
                Err(error) => self.fail(Code::Internal, error),
            }
        }
        if self.fillers.fetch_sub(1, SeqCst) == 1 {
            let loads = self.loads();
            lock(&self.finished).source = loads;
            self.change(|state| {
                if !state.is_over() {
                    state.tell(&Note::Loads(loads));
                }
            });
            // All blocks are submitted.
            desk::finish(self);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut tree = lock(&self.tree);
        loop {
            if self.is_stopped.load(SeqCst) {
                return None;
            }
            let next = tree.next_job();
            self.progress.plan(tree.planned());
            match next {
                Next::Job(job) => return Some(*job),
                Next::Done => {
                    // Wake the threads that wait for answers, which do not come any more.
                    self.answered.notify_all();
                    return None;
                }
                Next::Wait => {
                    tree = self.answered.wait(tree).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn fill_block(&self, block: &mut Block, job: Job, seq: u64) -> Result<BlockHeader, EndError> {
        let bytes = block.bytes_mut().ok_or(EndError::Here("a block of a peer".into()))?;
        let filled = self.reading.time(|| job.fill(&mut bytes[..self.payload_len]));
        let short = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut header = BlockHeader {
            session: self.session,
            flags: BlockFlags { sealed: self.sealer.is_some(), compressed: false },
            seq,
            nonce: 0,
            len: short(filled.len),
            table_len: short(filled.table_len),
            buffer: 0,
            generation: 0,
        };
        if let Some(sealer) = &self.sealer {
            let ticket = sealer.begin()?;
            header.nonce = ticket.counter();
            header.len = short(filled.len + SEAL_LEN);
            let head = header.authenticated();
            self.sealing.time(|| ticket.seal_in_place(&head, bytes, filled.len))?;
        }
        Ok(header)
    }

    /// Writes the blocks of one channel.
    fn write(&self, number: u16, mut channel: SourceChannel, writes: &Receiver<Write>) {
        while let Ok(write) = writes.recv() {
            if !self.write_one(&mut channel, write) {
                break;
            }
        }
        // The thread ends when the sender is dropped.
        lock(&self.writers).remove(&number);
        self.change(|state| {
            while let Ok(write) = writes.try_recv() {
                let _ = state.half.handle_written(write.block, WriteResult::NotSent);
            }
            state.half.channel_down(number);
            if state.half.channels() == 0 {
                let error = EndError::Here("no data channel is left".into());
                state.fail(Code::Channels, error);
            }
        });
        for write in channel.abandon() {
            drop(write);
        }
    }

    fn write_one(&self, channel: &mut SourceChannel, write: Write) -> bool {
        let slot = &self.slots[write.block as usize];
        let taken = lock(slot).as_mut().and_then(|it| Some((it.block.take()?, it.header)));
        let Some((block, header)) = taken else { return false };
        let header = BlockHeader {
            buffer: write.credit.buffer,
            generation: write.credit.generation,
            ..header
        };
        let len = header.len as usize;
        let post = crate::transport::Write {
            id: write.seq,
            place: Place::default(),
            head: Head::new(&header.emit()),
            payload: Payload::Block { block, len },
        };
        let posted: Result<_, Box<crate::transport::Write>> = self.sending.time(|| {
            channel.post(post).map_err(|(post, _)| post)?;
            Ok(channel.completion(Duration::ZERO))
        });
        let (block, result) = match posted {
            Ok(Ok(Some(done))) => (Some(done.write), WriteResult::Sent),
            Ok(_) => (channel.abandon().pop(), WriteResult::Failed),
            Err(post) => (Some(*post), WriteResult::Failed),
        };
        if let (Some(write), Some(filled)) = (block, lock(slot).as_mut()) {
            filled.block = Some(write.payload.into_block());
        }
        self.change(|state| state.half.handle_written(write.block, result).is_ok());
        result == WriteResult::Sent
    }

    fn loads(&self) -> Loads {
        let time = self.start.elapsed();
        let channels = lock(&self.closers).len();
        Loads {
            disk: self.reading.share(self.threads, time),
            cpu: self.sealing.share(self.threads, time),
            network: self.sending.share(channels, time),
        }
    }
}

/// Runs the source's end until the session ends. Data channels come through `channels`; even the
/// first may come later.
///
/// # Errors
/// If the session fails.
pub fn run(plan: SourcePlan, channels: Channels<SourceChannel>) -> Result<Finished, EndError> {
    let pool = plan.opened.pool()?;
    let Opened { control, connection, epoch, session, block_size, threads, progress } = plan.opened;
    let payload_len = payload_len(block_size, plan.sealer.is_some());
    let setup = SourceSetup {
        session,
        blocks: POOL_BLOCKS,
        block_size,
        arrivals: Arrivals::Seen,
        writes_max: WRITES_IN_CHANNEL_MAX,
    };
    let end = SourceEnd {
        desk: Desk::new(control, connection, Source::new(setup), epoch),
        session,
        payload_len,
        sealer: plan.sealer,
        pool,
        slots: (0..POOL_BLOCKS).map(|_| Mutex::default()).collect(),
        tree: Mutex::new(Tree::new(plan.starts, SourceOptions { payload_len, ..plan.options })),
        answered: Condvar::new(),
        is_stopped: AtomicBool::new(false),
        fillers: AtomicUsize::new(threads),
        writers: Mutex::default(),
        closers: Mutex::default(),
        finished: Mutex::default(),
        observer: plan.observer,
        is_dry_run: plan.is_dry_run,
        progress,
        start: Instant::now(),
        threads,
        reading: Busy::default(),
        sealing: Busy::default(),
        sending: Busy::default(),
    };
    let end = &end;
    thread::scope(|scope| {
        scope.spawn(|| desk::receive(end));
        for _ in 0..threads {
            scope.spawn(|| end.fill());
        }
        scope.spawn(move || {
            while let Some((number, line)) = super::shared::next_channel(&channels, &end.is_stopped)
            {
                let (to, writes) = channel();
                lock(&end.closers).insert(number, line.closer());
                lock(&end.writers).insert(number, to);
                scope.spawn(move || end.write(number, line, &writes));
                let is_up = end.change(|state| !state.is_over() && state.half.channel_up(number));
                if !is_up || end.is_stopped.load(SeqCst) {
                    end.close_channel(number);
                }
            }
        });
        desk::send(end);
        desk::close(&end.desk, false);
    });
    desk::result(&end.desk)?;
    Ok(*lock(&end.finished))
}
