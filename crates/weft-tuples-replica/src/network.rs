//! How servers of a group call one another.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, Raft};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

use crate::channel::Channel;
use crate::group::{Group, ServerId};
use crate::limits::{
    ACCEPT_PAUSE, BACKOFF, CONNECTIONS_MAX, FRAME_LEN_MAX, HANDSHAKE_TIME_MAX, SERVERS_MAX,
};
use crate::proposal::Types;
use crate::tls::Tls;

/// A call of another server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<ServerId>),
    Snapshot(InstallSnapshotRequest<Types>),
}

/// Parses a call.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "not of this protocol");
    postcard::from_bytes(bytes).map_err(malformed)
}

fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(io::Error::other)
}

/// Connections to one server that nobody uses.
type Idle = Arc<Mutex<Vec<Channel<TlsStream<TcpStream>>>>>;

/// Makes clients that call other servers.
#[derive(Debug)]
pub(crate) struct Network {
    group: Arc<Group>,
    tls: Tls,
    idle: Vec<Idle>,
}

impl Network {
    pub(crate) fn new(group: Arc<Group>, tls: Tls) -> Self {
        let idle = group.ids().map(|_| Idle::default()).collect();
        Self { group, tls, idle }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: ServerId, _: &EmptyNode) -> Client {
        let at = usize::try_from(target).unwrap_or_default().saturating_sub(1);
        let idle = self.idle.get(at).cloned().unwrap_or_default();
        Client { group: Arc::clone(&self.group), tls: self.tls.clone(), target, idle }
    }
}

/// Calls one other server.
#[derive(Debug)]
pub(crate) struct Client {
    group: Arc<Group>,
    tls: Tls,
    target: ServerId,
    idle: Idle,
}

type SnapshotError = RaftError<ServerId, InstallSnapshotError>;
type Failure<E> = RPCError<ServerId, EmptyNode, E>;

impl Client {
    /// Calls the server. A connection whose answer was not awaited is closed.
    async fn call<T: DeserializeOwned, E: std::error::Error>(
        &self,
        call: &Call,
    ) -> Result<T, Failure<E>> {
        let network = |error: io::Error| RPCError::Network(NetworkError::new(&error));
        let request = encode(call).map_err(network)?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut channel = match idle {
            Some(channel) => channel,
            None => {
                let unreachable = |error| RPCError::Unreachable(Unreachable::new(&error));
                self.dial().await.map_err(unreachable)?
            }
        };
        channel.send(&request).await.map_err(network)?;
        let answer = channel.receive().await.map_err(network)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CONNECTIONS_MAX / SERVERS_MAX {
            idle.push(channel);
        }
        decode(&answer).map_err(network)
    }

    async fn dial(&self) -> io::Result<Channel<TlsStream<TcpStream>>> {
        let unknown = || io::Error::from(io::ErrorKind::NotFound);
        let server = self.group.server(self.target).ok_or_else(unknown)?;
        let stream = TcpStream::connect(&server.peers).await?;
        stream.set_nodelay(true)?;
        let (stream, binding) = self.tls.dial(stream).await?;
        Channel::dial(stream, &self.group, self.target, &binding).await
    }
}

impl RaftNetwork<Types> for Client {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<ServerId>, Failure<RaftError<ServerId>>> {
        self.call(&Call::Append(rpc)).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<ServerId>, Failure<SnapshotError>> {
        let answer: Result<_, InstallSnapshotError> = self.call(&Call::Snapshot(rpc)).await?;
        let remote = |error| {
            RPCError::RemoteError(RemoteError::new(self.target, RaftError::APIError(error)))
        };
        answer.map_err(remote)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<ServerId>,
        _: RPCOption,
    ) -> Result<VoteResponse<ServerId>, Failure<RaftError<ServerId>>> {
        self.call(&Call::Vote(rpc)).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat::<Duration>(BACKOFF))
    }
}

/// Accepts the connections of other servers.
pub(crate) async fn accept(listener: TcpListener, group: Arc<Group>, tls: Tls, raft: Raft<Types>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // One connection too many is closed at once.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (group, tls, raft) = (Arc::clone(&group), tls.clone(), raft.clone());
        tokio::spawn(async move {
            // A peer that breaks the protocol loses its connection, and that is all.
            let _ = serve(stream, &group, &tls, &raft).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, group: &Group, tls: &Tls, raft: &Raft<Types>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let handshakes = async {
        let (stream, binding) = tls.accept(stream).await?;
        Channel::accept(stream, group, &binding).await
    };
    let mut channel = timeout(HANDSHAKE_TIME_MAX, handshakes).await??;
    loop {
        let call = decode(&channel.receive().await?)?;
        let answer = answer(call, raft).await?;
        channel.send(&answer).await?;
    }
}

async fn answer(call: Call, raft: &Raft<Types>) -> io::Result<Vec<u8>> {
    match call {
        Call::Append(rpc) => encode(&raft.append_entries(rpc).await.map_err(io::Error::other)?),
        Call::Vote(rpc) => encode(&raft.vote(rpc).await.map_err(io::Error::other)?),
        Call::Snapshot(rpc) => match raft.install_snapshot(rpc).await {
            Ok(response) => encode(&Ok::<_, InstallSnapshotError>(response)),
            Err(RaftError::APIError(error)) => {
                encode(&Err::<InstallSnapshotResponse<ServerId>, _>(error))
            }
            Err(error) => Err(io::Error::other(error)),
        },
    }
}

const _: () = assert!(FRAME_LEN_MAX > 2 * crate::limits::PART_LEN_MAX);
