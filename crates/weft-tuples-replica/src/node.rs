//! A server of a group: the thread with Raft, and the event loop's way to it.

use std::io;
use std::net::TcpListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use openraft::{Config, Raft, ServerState, SnapshotPolicy};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use weft_tuples::log::{Directory, LogError};
use weft_tuples::model::Service;
use weft_tuples::server::{Replica, Standing};

use crate::group::{Group, ServerId};
use crate::limits::{
    ELECTION, FOLLOWED_MAX, HEARTBEAT, KEPT_ENTRIES, MESSAGES_MAX, PART_TIME, PROPOSAL_TIME_MAX,
    QUORUM_TIME_MAX, ROLE_INTERVAL, SENT_ENTRIES_MAX, SNAPSHOT_CHUNK_LEN, SNAPSHOT_TIME_MAX,
};
use crate::machine::{Machine, Mailbox, Message, Question};
use crate::member::{Member, Request};
use crate::network::{Network, accept};
use crate::proposal::{Part, ProposalId, Types};
use crate::store::{LogStore, OpenError, OtherGroup};
use crate::tls::Tls;

/// Why a server of a group cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files in its directory cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The directory belongs to another server.
    #[error(transparent)]
    Other(#[from] OtherGroup),
    /// Other servers cannot be listened for.
    #[error("{0}")]
    Listen(String, #[source] io::Error),
    /// The kernel refuses a thread or a runtime.
    #[error("thread")]
    Thread(#[from] io::Error),
    /// openraft does not accept its parameters.
    #[error("parameters of Raft")]
    Config(#[from] Box<openraft::ConfigError>),
}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Log(error) => Self::Log(error),
            OpenError::Other(error) => Self::Other(error),
            OpenError::Thread(error) => Self::Thread(error),
        }
    }
}

/// A server of a group, as its event loop uses it.
pub struct Node {
    member: Member,
    wake: Arc<dyn Fn() + Send + Sync>,
    messages: mpsc::Receiver<Message>,
    requests: mpsc::UnboundedSender<Request>,
    log_size: u64,
    is_shortened: bool,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("member", &self.member).finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a server with a directory of its own, and brings a service to the state of its last
    /// snapshot. `wake` is called when the event loop has something to follow.
    ///
    /// # Errors
    ///
    /// If the directory cannot be used, or the kernel refuses.
    pub fn start(
        group: Group,
        directory: &Path,
        (memory, log_size): (usize, u64),
        service: &mut Service,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, StartError> {
        let address = group.own().peers.clone();
        let listen = |error| StartError::Listen(address.clone(), error);
        let listener = StdListener::bind(&address).map_err(listen)?;
        listener.set_nonblocking(true)?;
        // It is made if it is not there.
        drop(Directory::open(directory)?);
        let log = LogStore::open(Directory::open(&directory.join("raft"))?, group.identity())?;
        let snapshots = Directory::open(&directory.join("snapshot"))?;
        let process = (process()?, memory);
        let member = Member::open(Box::new(snapshots), log.clone(), process, service)?;
        let config = Arc::new(config().validate().map_err(Box::new)?);
        let (to_loop, messages) = mpsc::channel(MESSAGES_MAX);
        let (requests, from_loop) = mpsc::unbounded_channel();
        let mailbox = Mailbox { messages: to_loop, wake: Arc::clone(&wake) };
        let machine = Machine::new(mailbox.clone(), member.snapshot());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let group = Arc::new(group);
        let run = move || {
            let raft = Thread { group, config, mailbox: mailbox.clone(), log, machine };
            if let Err(reason) = runtime.block_on(raft.run(listener, from_loop)) {
                runtime.block_on(mailbox.send(Message::Failed(reason)));
            }
        };
        thread::Builder::new().name("tuples-raft".into()).spawn(run)?;
        Ok(Self { member, wake, messages, requests, log_size, is_shortened: false })
    }

    fn receive(
        &mut self,
        message: Message,
        service: &mut Service,
    ) -> Result<Option<bool>, LogError> {
        let answer = self.member.receive(message, service)?;
        if self.member.len() < self.log_size {
            self.is_shortened = false;
        } else if !std::mem::replace(&mut self.is_shortened, true) {
            self.request(Request::Shorten)?;
        }
        Ok(answer)
    }

    fn request(&self, request: Request) -> Result<(), LogError> {
        self.requests.send(request).map_err(|_| ended())
    }
}

/// A number that no other process has, but for a chance of 1 in 2^63.
fn process() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    // 0 is that of no process.
    Ok(u64::from_ne_bytes(bytes) | 1)
}

fn ended() -> LogError {
    LogError::Failed("replication".into())
}

impl Replica for Node {
    fn follow(&mut self, service: &mut Service) -> Result<Standing, LogError> {
        for _ in 0..FOLLOWED_MAX {
            let Ok(message) = self.messages.try_recv() else { break };
            self.receive(message, service)?;
        }
        if !self.messages.is_empty() {
            // Clients wait until all has been followed.
            (self.wake)();
        }
        self.member.stand(service)
    }

    fn commit(&mut self, service: &mut Service, is_answering: bool) -> Result<bool, LogError> {
        let Some(request) = self.member.commit(service, is_answering) else { return Ok(true) };
        self.request(request)?;
        loop {
            let message = self.messages.blocking_recv().ok_or_else(ended)?;
            if let Some(answer) = self.receive(message, service)? {
                return Ok(answer);
            }
        }
    }
}

fn config() -> Config {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "weft tuples".into(),
        heartbeat_interval: ms(HEARTBEAT),
        election_timeout_min: ms(ELECTION[0]),
        election_timeout_max: ms(ELECTION[1]),
        install_snapshot_timeout: ms(SNAPSHOT_TIME_MAX),
        max_payload_entries: SENT_ENTRIES_MAX,
        // A follower gets a snapshot only if entries are missing.
        replication_lag_threshold: u64::MAX,
        snapshot_policy: SnapshotPolicy::Never,
        snapshot_max_chunk_size: SNAPSHOT_CHUNK_LEN,
        max_in_snapshot_log_to_keep: KEPT_ENTRIES,
        ..Config::default()
    }
}

/// What runs in Raft's thread.
struct Thread {
    group: Arc<Group>,
    config: Arc<Config>,
    mailbox: Mailbox,
    log: LogStore,
    machine: Machine,
}

impl Thread {
    async fn run(
        self,
        listener: StdListener,
        mut requests: mpsc::UnboundedReceiver<Request>,
    ) -> Result<(), String> {
        let Self { group, config, mailbox, log, machine } = self;
        let listener = TcpListener::from_std(listener).map_err(text)?;
        let tls = Tls::new().map_err(text)?;
        let (own, network) = (group.own_id(), Network::new(Arc::clone(&group), tls.clone()));
        let raft = Raft::new(own, config, network, log, machine).await.map_err(text)?;
        tokio::spawn(accept(listener, Arc::clone(&group), tls, raft.clone()));
        if !raft.is_initialized().await.map_err(text)? {
            let ids: std::collections::BTreeSet<ServerId> = group.ids().collect();
            // Another server may have been faster.
            let _ = raft.initialize(ids).await;
        }
        tokio::spawn(watch(raft.clone(), group, mailbox.clone()));
        while let Some(request) = requests.recv().await {
            match request {
                Request::Propose(parts, id) => {
                    tokio::spawn(propose(raft.clone(), parts, id, mailbox.clone()));
                }
                Request::Confirm(number) => {
                    tokio::spawn(confirm(raft.clone(), number, mailbox.clone()));
                }
                Request::Shorten => raft.trigger().snapshot().await.map_err(text)?,
            }
        }
        raft.shutdown().await.map_err(text)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Proposes, and says so if the outcome is not known in time. Else the machine tells it.
async fn propose(raft: Raft<Types>, parts: Vec<Part>, id: ProposalId, mailbox: Mailbox) {
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let time = PROPOSAL_TIME_MAX.saturating_add(PART_TIME.saturating_mul(count));
    let all = async {
        let mut answers = Vec::new();
        for part in parts {
            answers.push(raft.client_write_ff(part).await.ok()?);
        }
        for answer in answers {
            answer.await.ok()?.ok()?;
        }
        Some(())
    };
    if !matches!(timeout(time, all).await, Ok(Some(()))) {
        mailbox.send(Message::Lost(Question::Proposal(id))).await;
    }
}

/// Makes sure that this server is the leader, and that the event loop has got all entries.
async fn confirm(raft: Raft<Types>, number: u64, mailbox: Mailbox) {
    let message = match timeout(PROPOSAL_TIME_MAX, raft.ensure_linearizable()).await {
        Ok(Ok(_)) => Message::Confirmed(number),
        _ => Message::Lost(Question::Leadership(number)),
    };
    mailbox.send(message).await;
}

/// Tells the event loop whether clients may use the server.
async fn watch(raft: Raft<Types>, group: Arc<Group>, mailbox: Mailbox) {
    let mut last = Standing::Follows(None);
    loop {
        let standing = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow();
            if let Err(reason) = &metrics.running_state {
                Err(reason.to_string())
            } else if metrics.state == ServerState::Leader {
                let since = metrics.millis_since_quorum_ack.map(u128::from);
                let is_followed = since.is_some_and(|since| since < QUORUM_TIME_MAX.as_millis());
                Ok(if is_followed { Standing::Leads } else { Standing::Follows(None) })
            } else {
                let leader = metrics.current_leader.filter(|id| *id != group.own_id());
                let server = leader.and_then(|id| group.server(id));
                Ok(Standing::Follows(server.map(|server| server.clients.clone())))
            }
        };
        match standing {
            Err(reason) => {
                mailbox.send(Message::Failed(reason)).await;
                return;
            }
            Ok(standing) if standing != last => {
                last = standing.clone();
                if !mailbox.send(Message::Standing(standing)).await {
                    return;
                }
            }
            Ok(_) => {}
        }
        sleep(ROLE_INTERVAL).await;
    }
}
