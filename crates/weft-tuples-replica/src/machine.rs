//! What Raft tells the event loop, which has the state: entries of the log in their order, and
//! snapshots.

use std::io::Cursor;

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, Entry, EntryPayload, LogId, RaftSnapshotBuilder, Snapshot, StorageError,
    StorageIOError, StoredMembership,
};
use tokio::sync::{mpsc, oneshot};
use weft_tuples::server::Standing;

use crate::group::ServerId;
use crate::proposal::{Part, ProposalId, Types};

pub(crate) type Membership = StoredMembership<ServerId, openraft::EmptyNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<ServerId, openraft::EmptyNode>;
/// The answer to a request for a snapshot, or the reason why there is none.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, String>>;

/// A message to the event loop.
#[derive(Debug)]
pub(crate) enum Message {
    /// An entry is committed.
    Entry { id: LogId<ServerId>, membership: Option<Membership>, part: Option<Part> },
    /// A snapshot of the state is wanted.
    Build(Reply<SnapshotMeta>),
    /// The last snapshot is wanted.
    Read(Reply<Option<(SnapshotMeta, Vec<u8>)>>),
    /// The leader's snapshot takes the place of the state.
    Install(SnapshotMeta, Vec<u8>, Reply<()>),
    /// The server was the leader when it was asked.
    Confirmed(u64),
    /// It is not known whether it is, or what becomes of the proposal.
    Lost(Question),
    /// Whether clients may use the server.
    Standing(Standing),
    /// Raft has ended.
    Failed(String),
}

/// What the event loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether a proposal takes effect.
    Proposal(ProposalId),
    /// Whether the server leads, asked with this number.
    Leadership(u64),
}

/// The way to the event loop.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub(crate) messages: mpsc::Sender<Message>,
    pub(crate) wake: std::sync::Arc<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    /// Sends a message. False if the event loop has ended.
    pub(crate) async fn send(&self, message: Message) -> bool {
        let is_sent = self.messages.send(message).await.is_ok();
        (self.wake)();
        is_sent
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, String> {
        let (reply, answer) = oneshot::channel();
        self.send(message(reply)).await;
        answer.await.unwrap_or_else(|_| Err("the server has ended".into()))
    }
}

/// The state machine of openraft, which passes everything on.
pub(crate) struct Machine {
    mailbox: Mailbox,
    applied: Option<LogId<ServerId>>,
    membership: Membership,
}

impl Machine {
    /// Begins after a snapshot.
    pub(crate) fn new(mailbox: Mailbox, snapshot: Option<&SnapshotMeta>) -> Self {
        let applied = snapshot.and_then(|meta| meta.last_log_id);
        let membership = snapshot.map(|meta| meta.last_membership.clone()).unwrap_or_default();
        Self { mailbox, applied, membership }
    }
}

fn error(text: String) -> StorageError<ServerId> {
    let text = AnyError::error(text);
    StorageIOError::write_snapshot(None, text).into()
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<ServerId>>, Membership), StorageError<ServerId>> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError<ServerId>>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let mut applied = Vec::new();
        for Entry { log_id: id, payload } in entries {
            let (membership, part) = match payload {
                EntryPayload::Blank => (None, None),
                EntryPayload::Normal(part) => (None, Some(part)),
                EntryPayload::Membership(it) => (Some(Membership::new(Some(id), it)), None),
            };
            if let Some(membership) = &membership {
                self.membership = membership.clone();
            }
            self.applied = Some(id);
            if !self.mailbox.send(Message::Entry { id, membership, part }).await {
                return Err(error("the server has ended".into()));
            }
            applied.push(());
        }
        Ok(applied)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(self.mailbox.clone())
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<Cursor<Vec<u8>>>, StorageError<ServerId>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<ServerId>> {
        let bytes = snapshot.into_inner();
        let asked = self.mailbox.ask(|reply| Message::Install(meta.clone(), bytes, reply)).await;
        asked.map_err(error)?;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<Types>>, StorageError<ServerId>> {
        let found = self.mailbox.ask(Message::Read).await.map_err(error)?;
        Ok(found.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

/// Has the event loop write a snapshot.
pub(crate) struct Builder(Mailbox);

impl RaftSnapshotBuilder<Types> for Builder {
    /// The snapshot that is returned has no bytes: openraft looks at its description alone, and
    /// asks for the current one when it sends it.
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<ServerId>> {
        let meta = self.0.ask(Message::Build).await.map_err(error)?;
        Ok(Snapshot { meta, snapshot: Box::default() })
    }
}
