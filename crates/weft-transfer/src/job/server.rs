//! The server: each connection is the control channel of a copy or one of its data channels.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;

use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use weft_rdma::{Device, Request as RdmaRequest};

use super::accept::{Accepting, Answer, OverRdma, Resolve, accept};
use super::admission::{Admission, Rights, Wish};
use super::fabric::FabricAcceptor;
use super::lines::{Lines, RdmaLine, TcpLine};
use super::networks::Network;
use super::path;
use super::rdma::RdmaListener;
use super::request::Request;
use super::settings::threads;
use super::strangers::{Stranger, Strangers};
use super::third::{ThirdParties, ThirdParty};
use crate::end::{EndError, Finished, Progress};
use crate::limits::{
    ACCEPT_PAUSE, BUSY_MAX, CHANNELS_EACH_MAX, CLOSE_PAUSE, CONNECTIONS_MAX, COPIES_OF_HOST_MAX,
    DESCRIPTORS_EACH,
};
use crate::placement::settle;
use crate::secure::{Identity, PublicKey, SecureError, TlsServer};
use crate::transport::rdma::Incoming;
use crate::transport::tcp::{self, Accepted, TcpSettings};
use crate::transport::{StreamControl, Token, TransportError};
use crate::wire::{Refusal, Role};
use weft_sys::{HostCounts, lock};

/// Receives the events of a server.
pub trait Log: Send + Sync {
    /// The copy of a client has ended.
    fn ended(&self, ended: &Ended<'_>);
    /// A connection failed, or something of a copy that goes on. `peer` is the client's address,
    /// and its key if it has proven to have it.
    fn failed(&self, peer: &str, why: &str);
    /// A client has proven to have a key that is not accepted.
    fn refused(&self, peer: &str, key: &PublicKey);
}

/// The end of a client's copy.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The client's address.
    pub from: SocketAddr,
    /// The client's key.
    pub key: Option<PublicKey>,
    /// The user's name, if users have names.
    pub user: Option<&'a str>,
    /// What the client has asked for, if it has.
    pub wish: Option<&'a Wish>,
    /// Bytes of blocks that were received, or sent and acknowledged.
    pub moved: u64,
    /// The result. Its counters are the client's where the client wrote.
    pub result: Result<&'a Finished, &'a EndError>,
}

/// The copies that wait for data channels, by token.
type Copies = HashMap<Token, Copy>;

/// A copy that waits for data channels.
struct Copy {
    to: Sender<(u16, Box<dyn Lines>)>,
    /// The device for data channels over RDMA.
    device: Option<Arc<Device>>,
    /// The channel numbers that have not connected. Each is accepted once, which bounds a client's
    /// connections.
    numbers: BTreeSet<u16>,
}

/// The server of `weft serve`.
pub struct Server {
    tls: TlsServer,
    rights: Arc<dyn Rights>,
    settings: TcpSettings,
    log: Arc<dyn Log>,
    /// The copies that wait for data channels.
    copies: Mutex<Copies>,
    /// The live connections.
    pub(super) live: AtomicUsize,
    /// The copies of each host.
    pub(super) hosts: Arc<HostCounts>,
    /// The live connections whose client has not proven who it is.
    pub(super) strangers: Arc<Strangers>,
    /// The most of them: they leave descriptors for clients.
    strangers_max: usize,
    /// Whether data channels may go over RDMA.
    offers_rdma: AtomicBool,
    /// What copies with other servers need.
    third: OnceLock<ThirdParties>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Refuses all requests.
struct Refused(Refusal, &'static str);

const BUSY: Refused = Refused(Refusal::Busy, "the server is busy: try again later");
const BUSY_FOR_HOST: Refused =
    Refused(Refusal::Busy, "too many copies from this address at a time: try again later");
/// For a client that was let in a moment ago.
const NOBODY: Refused = Refused(Refusal::NotAllowed, "the server does not let this user in");

impl Resolve for Refused {
    fn resolve(&self, _: Role, _: &Request) -> Result<Answer, (Refusal, String)> {
        Err((self.0, self.1.into()))
    }
}

/// Returns how many connections of strangers there may be: with half of the descriptors that this
/// process may have, the other half is left for clients.
fn strangers_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let half = usize::try_from(limit / 2).unwrap_or(usize::MAX);
    (half / DESCRIPTORS_EACH).clamp(1, CONNECTIONS_MAX)
}

/// A counted connection, which decrements the count when it is dropped.
struct Live(Arc<Server>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, SeqCst);
    }
}

impl Server {
    /// Creates a server. Those whom `tls` accepts have these rights.
    #[must_use]
    pub fn new(tls: TlsServer, rights: Arc<dyn Rights>, log: Arc<dyn Log>) -> Arc<Self> {
        Arc::new(Self {
            tls,
            rights,
            settings: TcpSettings::default(),
            log,
            copies: Mutex::default(),
            live: AtomicUsize::new(0),
            hosts: Arc::default(),
            strangers: Arc::default(),
            strangers_max: strangers_max(),
            offers_rdma: AtomicBool::new(false),
            third: OnceLock::new(),
        })
    }

    /// The live connections but those of strangers, which make room for clients.
    fn clients(&self) -> usize {
        self.live.load(SeqCst).saturating_sub(self.strangers.places())
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        lock(&self.copies)
    }

    /// Serves the clients of a listener forever.
    pub fn run(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                // The process is out of descriptors or memory, which other connections will free.
                let has_closed = self.strangers.close_one();
                thread::sleep(if has_closed { CLOSE_PAUSE } else { ACCEPT_PAUSE });
                continue;
            };
            // Strangers who say nothing must not keep clients out.
            let is_full = self.live.fetch_add(1, SeqCst) >= CONNECTIONS_MAX;
            let live = Live(Arc::clone(self));
            if is_full || self.strangers.count() >= self.strangers_max {
                let has_room = self.strangers.close_one() || !is_full;
                // Some more learn that the server is busy.
                if !has_room && self.clients() > CONNECTIONS_MAX + BUSY_MAX {
                    self.log.failed(&peer.to_string(), "too many connections");
                    continue;
                }
            }
            let stranger = self.strangers.add(&stream, peer.ip());
            let thread = thread::Builder::new().name("client".into());
            let _ = thread.spawn(move || live.0.serve(stream, stranger, peer));
        }
    }

    /// Offers data channels over RDMA from now on, which connect to this listener.
    pub fn offer_rdma(self: &Arc<Self>, listener: RdmaListener) {
        let server = Arc::clone(self);
        self.offers_rdma.store(true, SeqCst);
        let thread = thread::Builder::new().name("rdma".into());
        let _ = thread.spawn(move || {
            let RdmaListener(mut listener) = listener;
            loop {
                match listener.request() {
                    Ok(request) => server.join(request),
                    Err(error) => {
                        server.offers_rdma.store(false, SeqCst);
                        return server.log.failed("RDMA", &error.to_string());
                    }
                }
            }
        });
    }

    /// From now on, takes data channels of other servers for clients that copy from these, and
    /// connects data channels to servers in these networks for clients that copy to those. The
    /// identity is that of the server's TLS.
    pub fn copy_with_servers(&self, identity: Identity, networks: Vec<Network>) {
        // Only the first call matters.
        let _ = self.third.set(ThirdParties::new(identity, networks));
    }

    /// Passes a data channel to its copy. One with an unknown token or a used number is refused.
    fn join(self: &Arc<Self>, request: RdmaRequest) {
        let incoming = match Incoming::new(request) {
            Ok(incoming) => incoming,
            Err(error) => return self.log.failed("RDMA", &error.to_string()),
        };
        if let Some(copy) = self.copies().get_mut(&incoming.token)
            && let Some(device) = copy.device.clone()
            && copy.numbers.remove(&incoming.channel)
        {
            let server = Arc::clone(self);
            let failed = Box::new(move |why: &str| server.log.failed("RDMA", why));
            let channel = incoming.channel;
            let _ = copy.to.send((channel, Box::new(RdmaLine { incoming, device, failed })));
        }
    }

    /// Returns the device for a copy's data channels over RDMA, if the server offers that.
    fn device(&self, control: &StreamControl, peer: &str) -> Option<Arc<Device>> {
        let local = control.local_address().filter(|_| self.offers_rdma.load(SeqCst))?;
        let device = Device::at(local.ip());
        device.inspect_err(|error| self.log.failed(peer, &format!("RDMA: {error}"))).ok()
    }

    fn serve(&self, stream: TcpStream, stranger: Option<Stranger>, from: SocketAddr) {
        let peer = &from.to_string();
        let accepted = tcp::accept(stream, Some(&self.tls), &self.settings);
        drop(stranger);
        match accepted {
            Ok(Accepted::Control(control)) => self.copy(*control, from),
            Ok(Accepted::Data { token, channel, stream }) => {
                let stream = match self.admit((&token, channel), stream) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => return,
                    Err(error) => return self.log.failed(peer, &error.to_string()),
                };
                let line = Box::new(TcpLine(stream, self.settings.clone()));
                // A connection with an unknown token or a used number is closed.
                if let Some(copy) = self.copies().get_mut(&token)
                    && copy.numbers.remove(&channel)
                {
                    let _ = copy.to.send((channel, line));
                }
            }
            Err(TransportError::Security(SecureError::NotAccepted(key))) => {
                self.log.refused(peer, &key);
            }
            Err(error) => self.log.failed(peer, &error.to_string()),
        }
    }

    /// Passes a data channel of another server to its copy. Returns it if it is none.
    fn admit(
        &self,
        channel: (&Token, u16),
        stream: TcpStream,
    ) -> Result<Option<TcpStream>, TransportError> {
        match self.third.get() {
            Some(third) => third.admit(channel, stream),
            None => Ok(Some(stream)),
        }
    }

    fn copy(&self, control: StreamControl, from: SocketAddr) {
        let (of_host, peer) = (self.hosts.add(from.ip()), &from.to_string());
        let mut token = Token::default();
        if getrandom(&mut token.0[..], GetRandomFlags::empty()) != Ok(token.0.len()) {
            return self.log.failed(peer, "the system gives no random bytes");
        }
        let key = control.peer();
        let peer = key.map_or_else(|| peer.clone(), |key| format!("{peer} {key}"));
        let admission = key.and_then(|key| self.rights.caller(&key)).map(Admission::new);
        let (to, lines) = channel();
        let numbers = (0..CHANNELS_EACH_MAX).collect();
        let device = self.device(&control, &peer);
        self.copies().insert(token, Copy { to, device: device.clone(), numbers });
        // All threads of the copy are started by this one, which ends with it.
        let local = control.local_address().map(|local| local.ip());
        let _binding = settle(Path::new("/sys"), local, threads());
        let control = Arc::new(control);
        let failed = |why: &str| self.log.failed(&peer, why);
        let resolve: &dyn Resolve = match () {
            () if self.clients() > CONNECTIONS_MAX => &BUSY,
            // The other places are left to other hosts.
            () if of_host.count() > COPIES_OF_HOST_MAX => &BUSY_FOR_HOST,
            () => admission.as_ref().map_or(&NOBODY as _, |admission| admission as _),
        };
        let progress = Arc::<Progress>::default();
        let finished = accept(Accepting {
            keys: &|session, cipher| control.block_secrets(session, cipher),
            channels: path::channels_beside(self.live.load(SeqCst)),
            token,
            progress: Arc::clone(&progress),
            rdma: device.map(|device| OverRdma { device, failed: &failed }),
            fabric: FabricAcceptor::new(&control),
            third: self.third.get().and_then(|third| ThirdParty::new(third, &control)),
            ..Accepting::new(Arc::clone(&control) as _, lines, resolve)
        });
        self.copies().remove(&token);
        let wish = admission.as_ref().and_then(Admission::wish);
        self.log.ended(&Ended {
            from,
            key,
            user: admission.as_ref().and_then(Admission::name),
            wish: wish.as_ref(),
            moved: progress.bytes.load(SeqCst),
            result: finished.as_ref(),
        });
    }
}
