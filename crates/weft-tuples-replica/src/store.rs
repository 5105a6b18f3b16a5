//! The Raft log of a server: in memory, and in a journal on disk.
//!
//! A thread writes the journal. All that waits for the disk at one time is one record, and one
//! `fdatasync`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, Entry, EntryPayload, LogId, LogState, RaftLogReader, StorageError, StorageIOError,
    Vote,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use weft_tuples::log::{Directory, Journal, LogError, Unfit};

use crate::group::ServerId;
use crate::limits::SENT_LEN_MAX;
use crate::proposal::Types;

/// What a record of the journal says. Later items take precedence.
#[derive(Debug, Serialize, Deserialize)]
enum Item {
    /// Whose journal this is. It is the first item.
    Of([u8; 32]),
    /// The server has voted.
    Vote(Vote<ServerId>),
    /// An entry, in place of those from its number on.
    Entry(Entry<Types>),
    /// There are no entries from this number on.
    Cut(u64),
    /// There are no entries up to this one.
    Purged(LogId<ServerId>),
}

/// The log in memory.
#[derive(Debug, Default)]
struct Kept {
    vote: Option<Vote<ServerId>>,
    purged: Option<LogId<ServerId>>,
    entries: BTreeMap<u64, Entry<Types>>,
}

impl Kept {
    fn take(&mut self, item: Item) {
        match item {
            Item::Of(_) => {}
            Item::Vote(vote) => self.vote = Some(vote),
            Item::Entry(entry) => {
                self.entries.split_off(&entry.log_id.index);
                self.entries.insert(entry.log_id.index, entry);
            }
            Item::Cut(from) => drop(self.entries.split_off(&from)),
            Item::Purged(id) => {
                self.entries = self.entries.split_off(&(id.index + 1));
                self.purged = Some(id);
            }
        }
    }

    fn last(&self) -> Option<LogId<ServerId>> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }
}

/// Who waits for the disk.
#[derive(Default)]
enum Waiter {
    #[default]
    Nobody,
    Append(LogFlushed<Types>),
    Vote(oneshot::Sender<io::Result<()>>),
}

enum Job {
    Write(Vec<Item>, Waiter),
    Replace(Vec<Vec<u8>>),
}

/// The Raft log. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    kept: Arc<Mutex<Kept>>,
    jobs: Sender<Job>,
    identity: [u8; 32],
    /// Up to which entry a snapshot is on disk.
    covered: Arc<watch::Sender<u64>>,
}

impl Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").finish_non_exhaustive()
    }
}

/// A journal is that of another server or group.
#[derive(Debug, thiserror::Error)]
#[error("the directory is of another server, or of another group of servers")]
pub struct OtherGroup;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Other(#[from] OtherGroup),
    #[error("thread")]
    Thread(#[from] io::Error),
}

impl LogStore {
    /// Opens the log in a directory, or begins one.
    pub(crate) fn open(directory: Directory, identity: [u8; 32]) -> Result<Self, OpenError> {
        let (jobs, queue) = channel();
        let (opened, result) = channel();
        let run = move || match open(directory, identity) {
            Ok((journal, kept)) => {
                if opened.send(Ok(kept)).is_ok() {
                    write(journal, &queue);
                }
            }
            // Nobody waits for the result any more if it cannot be sent.
            Err(error) => drop(opened.send(Err(error))),
        };
        thread::Builder::new().name("tuples-raft-log".into()).spawn(run)?;
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let kept = result.recv().map_err(|_| gone())??;
        let covered = Arc::new(watch::Sender::new(0));
        Ok(Self { kept: Arc::new(Mutex::new(kept)), jobs, identity, covered })
    }

    /// A log in memory alone, for simulations.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        let covered = Arc::new(watch::Sender::new(0));
        Self { kept: Arc::default(), jobs: channel().0, identity: [0; 32], covered }
    }

    /// Adds an entry to a log in memory.
    #[cfg(test)]
    pub(crate) fn add(&self, entry: Entry<Types>) {
        self.lock().take(Item::Entry(entry));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries of a range that are there. It may be empty, and end before it begins.
    pub(crate) fn entries(&self, range: impl RangeBounds<u64>) -> Vec<Entry<Types>> {
        let kept = self.lock();
        let behind = kept.entries.range((range.start_bound().cloned(), Bound::Unbounded));
        let inside = behind.take_while(|(index, _)| range.contains::<u64>(index));
        inside.map(|(_, entry)| entry.clone()).collect()
    }

    /// Notes that a snapshot up to this entry is on disk.
    pub(crate) fn cover(&self, index: u64) {
        self.covered.send_replace(index);
    }

    fn write(&self, items: Vec<Item>, waiter: Waiter) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.jobs.send(Job::Write(items, waiter)).map_err(gone)
    }
}

fn open(directory: Directory, identity: [u8; 32]) -> Result<(Journal, Kept), OpenError> {
    let (mut kept, mut owner) = (Kept::default(), None);
    let mut journal = Journal::open(Box::new(directory), |record| {
        for item in decode(record)? {
            if let Item::Of(found) = item {
                owner = Some(found);
            }
            kept.take(item);
        }
        Ok(())
    })?;
    match owner {
        None => journal.append(&encode(&[Item::Of(identity)]))?,
        Some(found) if found != identity => return Err(OtherGroup.into()),
        Some(_) => {}
    }
    Ok((journal, kept))
}

/// Writes what is to be written, until nobody can ask for it.
fn write(mut journal: Journal, queue: &Receiver<Job>) {
    let mut next = queue.recv().ok();
    while let Some(job) = next.take() {
        match job {
            Job::Replace(records) => {
                // A journal that has failed refuses the next record, whose writer learns of it.
                let _ = journal.replace(&records);
            }
            Job::Write(mut items, waiter) => {
                let mut waiters = vec![waiter];
                while let Ok(job) = queue.try_recv() {
                    match job {
                        Job::Write(more, waiter) => {
                            items.extend(more);
                            waiters.push(waiter);
                        }
                        Job::Replace(_) => {
                            next = Some(job);
                            break;
                        }
                    }
                }
                finish(waiters, &journal.append(&encode(&items)));
            }
        }
        next = next.or_else(|| queue.recv().ok());
    }
}

fn finish(waiters: Vec<Waiter>, written: &Result<(), LogError>) {
    let result = || match written {
        Ok(()) => Ok(()),
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    for waiter in waiters {
        match waiter {
            Waiter::Nobody => {}
            Waiter::Append(callback) => callback.log_io_completed(result()),
            // Who has asked may have ended.
            Waiter::Vote(reply) => drop(reply.send(result())),
        }
    }
}

/// The bytes of a record.
fn encode(items: &[Item]) -> Vec<u8> {
    // A vector takes any item.
    postcard::to_stdvec(items).unwrap_or_default()
}

fn decode(record: &[u8]) -> Result<Vec<Item>, Unfit> {
    postcard::from_bytes(record).map_err(|_| Unfit)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, StorageError<ServerId>> {
        Ok(self.entries(range))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<Types>>, StorageError<ServerId>> {
        let mut len = 0;
        let kept = self.lock();
        let mut is_short = |entry: &&Entry<Types>| {
            let is_first = len == 0;
            // An entry without effects counts, too.
            len += 1 + match &entry.payload {
                EntryPayload::Normal(part) => part.effects.len(),
                _ => 0,
            };
            is_first || len <= SENT_LEN_MAX
        };
        let entries = kept.entries.range(start..end).map(|(_, entry)| entry);
        Ok(entries.take_while(|entry| is_short(entry)).cloned().collect())
    }
}

fn log_error(error: &io::Error) -> StorageError<ServerId> {
    StorageIOError::write_logs(AnyError::new(error)).into()
}

fn vote_error(error: &io::Error) -> StorageError<ServerId> {
    StorageIOError::write_vote(AnyError::new(error)).into()
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<ServerId>> {
        let kept = self.lock();
        Ok(LogState { last_purged_log_id: kept.purged, last_log_id: kept.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<ServerId>) -> Result<(), StorageError<ServerId>> {
        let (reply, written) = oneshot::channel();
        self.lock().vote = Some(*vote);
        self.write(vec![Item::Vote(*vote)], Waiter::Vote(reply)).map_err(|e| vote_error(&e))?;
        let gone = |_| vote_error(&io::ErrorKind::BrokenPipe.into());
        written.await.map_err(gone)?.map_err(|e| vote_error(&e))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<ServerId>>, StorageError<ServerId>> {
        Ok(self.lock().vote)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError<ServerId>>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let mut items = Vec::new();
        {
            let mut kept = self.lock();
            for entry in entries {
                items.push(Item::Entry(entry.clone()));
                kept.take(Item::Entry(entry));
            }
        }
        self.write(items, Waiter::Append(callback)).map_err(|e| log_error(&e))
    }

    async fn truncate(&mut self, id: LogId<ServerId>) -> Result<(), StorageError<ServerId>> {
        self.lock().take(Item::Cut(id.index));
        self.write(vec![Item::Cut(id.index)], Waiter::Nobody).map_err(|e| log_error(&e))
    }

    /// Waits until a snapshot of what is purged is on disk. openraft purges what the leader's
    /// snapshot has while that is being installed.
    async fn purge(&mut self, id: LogId<ServerId>) -> Result<(), StorageError<ServerId>> {
        let mut covered = self.covered.subscribe();
        let gone = |_| log_error(&io::ErrorKind::BrokenPipe.into());
        covered.wait_for(|index| *index >= id.index).await.map_err(gone)?;
        let mut kept = self.lock();
        kept.take(Item::Purged(id));
        let mut first = vec![Item::Of(self.identity), Item::Purged(id)];
        first.extend(kept.vote.map(Item::Vote));
        let entries = kept.entries.values().map(|entry| encode(&[Item::Entry(entry.clone())]));
        let records = std::iter::once(encode(&first)).chain(entries).collect();
        drop(kept);
        let gone = |_| log_error(&io::ErrorKind::BrokenPipe.into());
        self.jobs.send(Job::Replace(records)).map_err(gone)
    }
}
