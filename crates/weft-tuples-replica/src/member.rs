//! The event loop's side of a server: the state that the log has led to. It neither waits nor reads
//! a clock.

use openraft::{EntryPayload, LogId};
use serde::{Deserialize, Serialize};
use weft_tuples::log::{Files, Journal, LogError, Unfit, encode, replay};
use weft_tuples::model::{Effect, Service, Space};
use weft_tuples::server::Standing;

use crate::group::ServerId;
use crate::limits::PART_LEN_MAX;
use crate::machine::{Membership, Message, Question, Reply, SnapshotMeta};
use crate::proposal::{Chain, Part, ProposalId, Step, parts};
use crate::store::LogStore;

/// The head of a snapshot. The effects that lead to the state follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    meta: SnapshotMeta,
    chain: Chain,
}

/// What the event loop asks Raft.
#[derive(Debug)]
pub(crate) enum Request {
    /// Whether this proposal takes effect.
    Propose(Vec<Part>, ProposalId),
    /// Whether the server leads, asked with this number.
    Confirm(u64),
    /// A snapshot, so that the log becomes shorter.
    Shorten,
}

/// A server as its event loop sees it.
#[derive(Debug)]
pub(crate) struct Member {
    log: LogStore,
    snapshots: Journal,
    snapshot: Option<SnapshotMeta>,
    /// The bytes of effects since the last snapshot.
    len: u64,
    /// The most memory of the space.
    memory: usize,
    chain: Chain,
    applied: Option<LogId<ServerId>>,
    membership: Membership,
    /// What the leader waits for. The service is ahead of the log meanwhile.
    asked: Option<Question>,
    /// Requests for a snapshot, which wait for the answer.
    wanted: Vec<Reply<SnapshotMeta>>,
    /// Clients have used the service. It may be ahead of the log, and operations may wait in it.
    is_used: bool,
    /// The service is no longer the one that clients have used.
    is_replaced: bool,
    standing: Standing,
    /// Snapshots that were written.
    written: u64,
    /// The first half of the numbers of this process's proposals.
    process: u64,
    /// The number of its last proposal or question.
    last: u64,
}

impl Member {
    /// Opens the last snapshot, and brings a service to its state. `process` is a number that no
    /// other process of the group has ever had.
    pub(crate) fn open(
        files: Box<dyn Files>,
        log: LogStore,
        (process, memory): (u64, usize),
        service: &mut Service,
    ) -> Result<Self, LogError> {
        let snapshots = Journal::open(files, |_| Ok(()))?;
        let mut this = Self {
            log,
            snapshots,
            snapshot: None,
            len: 0,
            memory,
            chain: Chain::default(),
            applied: None,
            membership: Membership::default(),
            asked: None,
            wanted: Vec::new(),
            is_used: false,
            is_replaced: false,
            standing: Standing::Follows(None),
            written: 0,
            process,
            last: 0,
        };
        this.restore(service)?;
        Ok(this)
    }

    /// The last snapshot.
    pub(crate) fn snapshot(&self) -> Option<&SnapshotMeta> {
        self.snapshot.as_ref()
    }

    /// The bytes of effects since the last snapshot.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Ends a turn of the loop. Returns what has to be asked before anybody learns of it;
    /// [`Self::receive`] will return the answer.
    pub(crate) fn commit(&mut self, service: &mut Service, is_answering: bool) -> Option<Request> {
        let effects = service.take_effects();
        if effects.is_empty() && !is_answering {
            return None;
        }
        self.last += 1;
        if effects.is_empty() {
            self.asked = Some(Question::Leadership(self.last));
            return Some(Request::Confirm(self.last));
        }
        let mut bytes = Vec::new();
        effects.iter().for_each(|effect| encode(&mut bytes, effect));
        let id = ProposalId::from(self.process) << 64 | ProposalId::from(self.last);
        self.asked = Some(Question::Proposal(id));
        Some(Request::Propose(parts(id, self.chain.last, bytes), id))
    }

    /// Says whether clients may use the service now.
    pub(crate) fn stand(&mut self, service: &mut Service) -> Result<Standing, LogError> {
        if self.is_used && self.standing != Standing::Leads {
            self.replace(service)?;
        }
        if std::mem::take(&mut self.is_replaced) {
            return Ok(match &self.standing {
                Standing::Leads => Standing::Follows(None),
                follows => follows.clone(),
            });
        }
        if self.standing == Standing::Leads && !self.is_used {
            self.is_used = true;
            service.record();
        }
        Ok(self.standing.clone())
    }

    /// Takes a message. Returns the answer if the loop waits for one and this is it: true if the
    /// proposal has taken effect, or the server leads.
    pub(crate) fn receive(
        &mut self,
        message: Message,
        service: &mut Service,
    ) -> Result<Option<bool>, LogError> {
        let answer = match message {
            Message::Entry { id, membership, part } => {
                self.applied = Some(id);
                self.membership = membership.unwrap_or_else(|| self.membership.clone());
                match part {
                    Some(part) => self.take(part, service)?,
                    None => None,
                }
            }
            Message::Build(reply) => {
                self.wanted.push(reply);
                None
            }
            Message::Read(reply) => {
                // Who has asked may have ended.
                let _ = reply.send(self.read().map_err(|error| error.to_string()));
                None
            }
            Message::Install(meta, bytes, reply) => {
                let installed = self.install(meta, &bytes, service);
                let result = installed.as_ref().map_err(ToString::to_string).copied();
                let _ = reply.send(result);
                installed?;
                self.asked.take().map(|_| false)
            }
            Message::Confirmed(number) => {
                self.asked.take_if(|it| *it == Question::Leadership(number)).map(|_| true)
            }
            Message::Lost(question) => match self.asked.take_if(|it| *it == question) {
                Some(_) => {
                    self.replace(service)?;
                    Some(false)
                }
                None => None,
            },
            Message::Standing(standing) => {
                self.standing = standing;
                None
            }
            Message::Failed(reason) => return Err(LogError::Failed(reason)),
        };
        // What connections that have ended leave is not proposed before the next turn.
        let is_agreed = self.asked.is_none() && service.effects_len() == 0;
        if is_agreed && !self.wanted.is_empty() {
            self.build(service)?;
        }
        Ok(answer)
    }

    /// Takes a part of a proposal.
    fn take(&mut self, part: Part, service: &mut Service) -> Result<Option<bool>, LogError> {
        self.len += part.effects.len() as u64;
        let is_own = |id, asked: &mut Option<Question>| {
            asked.take_if(|it| *it == Question::Proposal(id)).is_some()
        };
        match self.chain.take(part) {
            Step::Goes => Ok(None),
            // The effects of an own proposal are in the service.
            Step::Holds(id, _) if is_own(id, &mut self.asked) => Ok(Some(true)),
            Step::Holds(..) if self.is_used => {
                // Another leader has gone on from the state in which this service was.
                self.replace(service)?;
                Ok(self.asked.take().map(|_| false))
            }
            Step::Holds(_, effects) => {
                self.apply(&effects, service)?;
                Ok(None)
            }
            Step::Void(id) if is_own(id, &mut self.asked) => {
                self.replace(service)?;
                Ok(Some(false))
            }
            Step::Void(_) => Ok(None),
        }
    }

    fn apply(&self, effects: &[u8], service: &mut Service) -> Result<(), LogError> {
        replay(effects, service).map_err(|Unfit| {
            let at = self.applied.map_or(0, |id| id.index);
            LogError::Failed(format!("entry {at} of the log does not follow from those before"))
        })
    }

    /// Gives up a service that clients have used, and makes another one from the snapshot and the
    /// log up to where it has been applied.
    fn replace(&mut self, service: &mut Service) -> Result<(), LogError> {
        let applied = self.applied;
        self.restore(service)?;
        let (Some(end), start) = (applied, self.applied.map_or(0, |id| id.index + 1)) else {
            return Ok(());
        };
        for entry in self.log.entries(start..=end.index) {
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(it) => {
                    self.membership = Membership::new(Some(entry.log_id), it);
                }
                EntryPayload::Normal(part) => {
                    self.len += part.effects.len() as u64;
                    if let Step::Holds(_, effects) = self.chain.take(part) {
                        self.apply(&effects, service)?;
                    }
                }
            }
        }
        if self.applied == applied {
            Ok(())
        } else {
            Err(LogError::Failed("entries of the log are missing".into()))
        }
    }

    /// Makes the state that of the snapshot, in a service that no client has used.
    fn restore(&mut self, service: &mut Service) -> Result<(), LogError> {
        *service = Service::new(Space::new(self.memory));
        self.is_replaced |= self.is_used;
        self.is_used = false;
        let mut head: Option<Head> = None;
        self.snapshots.read(|record| match head {
            Some(_) => replay(record, service),
            None => {
                head = Some(postcard::from_bytes(record).map_err(|_| Unfit)?);
                Ok(())
            }
        })?;
        self.len = 0;
        self.snapshot = head.as_ref().map(|head| head.meta.clone());
        let state = head.map(|head| (head.chain, head.meta.last_log_id, head.meta.last_membership));
        (self.chain, self.applied, self.membership) = state.unwrap_or_default();
        self.log.cover(self.applied.map_or(0, |id| id.index));
        Ok(())
    }

    /// Writes a snapshot for all who want one.
    fn build(&mut self, service: &Service) -> Result<(), LogError> {
        self.written += 1;
        let index = self.applied.map_or(0, |id| id.index);
        let meta = SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            // Another process may write one with the same number, which is as good.
            snapshot_id: format!("{index}-{}", self.written),
        };
        let head = Head { meta: meta.clone(), chain: self.chain.clone() };
        // A vector takes any head.
        let mut records = vec![postcard::to_stdvec(&head).unwrap_or_default()];
        let mut effects = Vec::new();
        let mut add = |effect: Effect| -> Result<(), std::convert::Infallible> {
            encode(&mut effects, &effect);
            if effects.len() >= PART_LEN_MAX {
                records.push(std::mem::take(&mut effects));
            }
            Ok(())
        };
        let Ok(()) = service.snapshot(&mut add);
        records.push(effects);
        self.snapshots.replace(&records)?;
        self.snapshot = Some(meta.clone());
        self.log.cover(index);
        self.len = 0;
        for reply in self.wanted.drain(..) {
            // Who has asked may have ended.
            let _ = reply.send(Ok(meta.clone()));
        }
        Ok(())
    }

    /// The last snapshot and its bytes: its records, each with its length in front.
    fn read(&mut self) -> Result<Option<(SnapshotMeta, Vec<u8>)>, LogError> {
        let Some(meta) = self.snapshot.clone() else { return Ok(None) };
        let mut bytes = Vec::new();
        self.snapshots.read(|record| {
            bytes.extend((record.len() as u64).to_be_bytes());
            bytes.extend_from_slice(record);
            Ok(())
        })?;
        Ok(Some((meta, bytes)))
    }

    fn install(
        &mut self,
        meta: SnapshotMeta,
        bytes: &[u8],
        service: &mut Service,
    ) -> Result<(), LogError> {
        let refused = || LogError::Failed("the leader's snapshot is malformed".into());
        let records = split(bytes).ok_or_else(refused)?;
        let head = records.first().and_then(|head| postcard::from_bytes::<Head>(head).ok());
        if head.is_none_or(|head| head.meta.last_log_id != meta.last_log_id) {
            return Err(refused());
        }
        // It must lead to a state before it takes the place of the one on disk.
        let mut tried = Service::new(Space::new(self.memory));
        let are_fit = records[1..].iter().all(|record| replay(record, &mut tried).is_ok());
        drop(tried);
        if !are_fit {
            return Err(refused());
        }
        self.snapshots.replace(&records)?;
        self.restore(service)
    }
}

/// Splits the bytes of a snapshot into its records.
pub(crate) fn split(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let (record, rest) =
            rest.split_at_checked(usize::try_from(u64::from_be_bytes(*len)).ok()?)?;
        records.push(record.to_vec());
        bytes = rest;
    }
    Some(records)
}
