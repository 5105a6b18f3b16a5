//! Connects sockets: TCP and Unix sockets to a listener, UDP sockets to each other.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::rand::{GetRandomFlags, getrandom};

use super::Lane;
use super::sockets::Sockets;
use crate::limits::REPLY_TIMEOUT;
use crate::plan::{Address, LaneSpec, Over};

/// How long a client may take to send its ticket.
const TICKET_TIME: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Ends {
    Tcp(TcpListener),
    Unix(UnixListener, String),
    Udp(Vec<UdpSocket>),
    /// The peers listen, and this side dials.
    Dials,
}

/// Sockets that are not connected yet.
#[derive(Debug)]
pub(super) struct Opening {
    spec: LaneSpec,
    ends: Ends,
    /// Random numbers that the dialling side sends, so that strangers are refused and each
    /// connection is identified.
    tickets: Vec<u64>,
}

impl Opening {
    pub(super) fn new(spec: &LaneSpec) -> Result<Self> {
        let any = SocketAddr::new(spec.address, 0);
        let tickets = (0..spec.connections).map(|_| random()).collect::<Result<Vec<u64>>>()?;
        let ends = match spec.over {
            Over::UdpSockets => {
                let sockets = (0..spec.connections).map(|_| UdpSocket::bind(any));
                Ends::Udp(sockets.collect::<std::io::Result<_>>().context("no UDP socket")?)
            }
            _ if !spec.listens => Ends::Dials,
            Over::UnixSockets => {
                let name = format!("weft-bench.{:016x}", random()?);
                let address = UnixAddress::from_abstract_name(&name)?;
                Ends::Unix(UnixListener::bind_addr(&address).context("no Unix socket")?, name)
            }
            _ => {
                let listener = TcpListener::bind(any);
                Ends::Tcp(listener.with_context(|| format!("cannot listen on {}", spec.address))?)
            }
        };
        Ok(Self { spec: spec.clone(), ends, tickets })
    }

    /// Accepts connections until every ticket has arrived.
    fn accept_all(
        &self,
        accept: impl Fn() -> Result<OwnedFd>,
        on: impl AsFd,
    ) -> Result<Vec<OwnedFd>> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut found: Vec<Option<OwnedFd>> = self.tickets.iter().map(|_| None).collect();
        let mut missing = found.len();
        while missing != 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut listener = [PollFd::new(&on, PollFlags::IN)];
            ensure!(poll(&mut listener, Some(&timespec(left)))? != 0, "a peer did not connect");
            let socket = accept()?;
            // A peer without a valid ticket is disconnected.
            let Some(ticket) = read_ticket(&socket) else { continue };
            let place = self.tickets.iter().position(|&own| own == ticket);
            if let Some(place) = place.filter(|&place| found[place].is_none()) {
                found[place] = Some(socket);
                missing -= 1;
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn tune(&self, socket: &OwnedFd) -> Result<()> {
        if self.spec.over.is_tcp() {
            sockopt::set_tcp_nodelay(socket, true)?;
            if let Some(name) = &self.spec.congestion {
                sockopt::set_tcp_congestion(socket, name)
                    .with_context(|| format!("no congestion control {name:?}"))?;
            }
        }
        Ok(())
    }
}

impl super::Opening for Opening {
    fn addresses(&self) -> Vec<Address> {
        let tickets = self.tickets.iter().copied();
        match &self.ends {
            Ends::Tcp(listener) => {
                let address = listener.local_addr();
                let address = address.unwrap_or_else(|_| SocketAddr::new(self.spec.address, 0));
                tickets.map(|ticket| Address::Inet { address, ticket }).collect()
            }
            Ends::Unix(_, name) => {
                tickets.map(|ticket| Address::Unix { name: name.clone(), ticket }).collect()
            }
            Ends::Udp(sockets) => {
                let addresses = sockets.iter().filter_map(|socket| socket.local_addr().ok());
                addresses.map(|address| Address::Inet { address, ticket: 0 }).collect()
            }
            Ends::Dials => tickets.map(|_| Address::Dials).collect(),
        }
    }

    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>> {
        let sockets = match &self.ends {
            Ends::Tcp(listener) => self.accept_all(|| Ok(listener.accept()?.0.into()), listener)?,
            Ends::Unix(listener, _) => {
                self.accept_all(|| Ok(listener.accept()?.0.into()), listener)?
            }
            Ends::Udp(own) => {
                for (own, peer) in own.iter().zip(peers) {
                    let Address::Inet { address, .. } = peer else { bail!("no UDP peer") };
                    own.connect(address).with_context(|| format!("cannot reach {address}"))?;
                }
                let owned = own.iter().map(|own| own.try_clone().map(Into::into));
                owned.collect::<std::io::Result<_>>()?
            }
            Ends::Dials => peers.iter().map(dial).collect::<Result<_>>()?,
        };
        ensure!(sockets.len() == self.spec.connections, "connections are missing");
        for socket in &sockets {
            self.tune(socket)?;
        }
        Ok(Box::new(Sockets::new(&self.spec, sockets)?))
    }
}

fn dial(peer: &Address) -> Result<OwnedFd> {
    match peer {
        Address::Inet { address, ticket } => {
            let mut stream = TcpStream::connect_timeout(address, REPLY_TIMEOUT)
                .with_context(|| format!("cannot reach {address}"))?;
            stream.set_nodelay(true)?;
            stream.write_all(&ticket.to_be_bytes())?;
            Ok(stream.into())
        }
        Address::Unix { name, ticket } => {
            let address = UnixAddress::from_abstract_name(name)?;
            let mut stream = UnixStream::connect_addr(&address)
                .context("cannot reach the peer's Unix socket, which must be on this host")?;
            stream.write_all(&ticket.to_be_bytes())?;
            Ok(stream.into())
        }
        Address::Qp { .. } | Address::Endpoint { .. } | Address::Dials => {
            bail!("the peer does not listen")
        }
    }
}

fn read_ticket(socket: &OwnedFd) -> Option<u64> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(TICKET_TIME)).ok()?;
    let mut ticket = [0; 8];
    std::fs::File::from(socket.try_clone().ok()?).read_exact(&mut ticket).ok()?;
    Some(u64::from_be_bytes(ticket))
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // getrandom returns eight bytes at once (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
