//! Connection set-up: by `rdma_cm` for queue pairs, by `connect` for sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use weft_engine::cm::{Channel, ConnectParam, EventKind, Id, PortSpace, Via};
use weft_engine::cq::Cq;
use weft_engine::qp::QpType;

use super::{Span, Tally};
use crate::lane::{Host, QueuePair};
use crate::plan::{Address, LaneSpec, Over};

/// Requests for each direction that the queue pairs have room for; they stay idle.
const WINDOW: usize = 16;
const CQE: u32 = 64;

/// The accepting side.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, String),
    Cm(CmListener),
}

/// A listening identifier, and the device for accepted connections.
pub(crate) struct CmListener {
    host: Host,
    channel: Arc<Channel>,
    id: Arc<Id>,
}

impl Listener {
    pub(crate) fn open(spec: &LaneSpec) -> Result<Self> {
        let any = SocketAddr::new(spec.address, 0);
        Ok(match spec.over {
            Over::TcpSockets
            | Over::WeftPacked
            | Over::WeftCredit
            | Over::WeftRing
            | Over::WeftSync
            | Over::WeftAsync => Self::Tcp(TcpListener::bind(any)?),
            Over::UnixSockets => {
                let name = format!("weft-bench.setup.{}", std::process::id());
                let address = UnixAddress::from_abstract_name(&name)?;
                Self::Unix(UnixListener::bind_addr(&address)?, name)
            }
            Over::UdpSockets | Over::Ud | Over::Uc | Over::Rd => {
                bail!("this transport has no connections to accept")
            }
            Over::Fabric => bail!("connecting by it is measured as rc: it does the same"),
            Over::Rc | Over::RcTcp | Over::RcShm => {
                let (host, channel) = (Host::open(spec.address)?, Channel::new()?);
                let id = Id::new(&channel, PortSpace::Connected);
                id.bind(any).context("cannot bind an identifier")?;
                id.listen(0).context("cannot listen")?;
                Self::Cm(CmListener { host, channel, id })
            }
        })
    }

    pub(crate) fn address(&self) -> Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => Address::Inet { address: listener.local_addr()?, ticket: 0 },
            Self::Unix(_, name) => Address::Unix { name: name.clone(), ticket: 0 },
            Self::Cm(cm) => {
                let address = cm.id.local().context("the listener has no address")?;
                Address::Inet { address, ticket: 0 }
            }
        })
    }

    /// Accepts one connection at a time and serves it until its peer leaves. Returns only if it
    /// fails.
    ///
    /// # Errors
    /// The error of accepting.
    pub(crate) fn serve(&self) -> Result<()> {
        match self {
            Self::Tcp(listener) => loop {
                let (mut stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                serve_until_closed(&mut stream);
            },
            Self::Unix(listener, _) => loop {
                serve_until_closed(&mut listener.accept()?.0);
            },
            Self::Cm(cm) => cm.serve(),
        }
    }
}

/// Answers a byte, which tells the peer that its connection is served, and waits for its end.
fn serve_until_closed(mut stream: impl Read + Write) {
    // A peer that is gone already counts as one that leaves now.
    let greeted = stream.read_exact(&mut [0]).and_then(|()| stream.write_all(&[1]));
    let _ = greeted.and_then(|()| stream.read(&mut [0]));
}

impl CmListener {
    fn serve(&self) -> Result<()> {
        let mut served: Vec<(Arc<Id>, QueuePair)> = Vec::new();
        loop {
            let event = self.channel.next_event(|_| ()).context("no event")?;
            match event.kind {
                EventKind::ConnectRequest => {
                    let cq = Cq::new(&self.host.context, CQE, None)?;
                    let queue_pair = self.host.queue_pair(QpType::Rc, &cq, WINDOW, WINDOW)?;
                    let via = Via::Own(Arc::clone(&queue_pair.qp));
                    event.id.accept(&via, &ConnectParam::default()).context("cannot accept")?;
                    served.push((event.id, queue_pair));
                }
                EventKind::Established => {}
                _ => {
                    event.id.destroy();
                    served.retain(|(id, _)| !Arc::ptr_eq(id, &event.id));
                }
            }
        }
    }
}

/// Repeatedly connects, records the time until the connection is served, and disconnects.
///
/// # Errors
/// If a connection fails.
pub(crate) fn dial(spec: &LaneSpec, peer: &Address, duration: Duration) -> Result<Tally> {
    let verbs = if spec.over.is_verbs() {
        Some((Host::open(spec.address)?, Channel::new()?))
    } else {
        None
    };
    let mut tally = Tally::new();
    let span = Span::starting_now(duration);
    loop {
        let started = Instant::now();
        // On a busy machine the first connection may take longer than the duration.
        if span.is_over(started) && tally.measured != 0 {
            tally.measured_time = span.counted();
            return Ok(tally);
        }
        let took = match (peer, &verbs) {
            (Address::Inet { address, .. }, Some((host, channel))) => {
                dial_cm(host, channel, *address, started)?
            }
            (Address::Inet { address, .. }, None) => {
                served(TcpStream::connect(address).context("cannot connect")?, started)?
            }
            (Address::Unix { name, .. }, None) => {
                let address = UnixAddress::from_abstract_name(name)?;
                served(UnixStream::connect_addr(&address).context("cannot connect")?, started)?
            }
            _ => bail!("the peer does not listen"),
        };
        tally.started += 1;
        tally.ended += 1;
        if span.counts(started) {
            tally.latencies.record(took);
            tally.measured += 1;
        }
    }
}

fn served(mut stream: impl Read + Write, started: Instant) -> Result<Duration> {
    stream.write_all(&[1]).context("the connection broke")?;
    stream.read_exact(&mut [0]).context("the peer does not serve the connection")?;
    Ok(started.elapsed())
}

fn dial_cm(
    host: &Host,
    channel: &Arc<Channel>,
    peer: SocketAddr,
    started: Instant,
) -> Result<Duration> {
    let expect = |kind| {
        let event = channel.next_event(|_| ()).context("no event")?;
        ensure!(event.kind == kind, "{:?} instead of {kind:?}", event.kind);
        Ok(())
    };
    let id = Id::new(channel, PortSpace::Connected);
    id.resolve_address(None, peer).context("cannot resolve the peer's address")?;
    expect(EventKind::AddrResolved)?;
    id.resolve_route().context("cannot resolve the route")?;
    expect(EventKind::RouteResolved)?;
    let cq = Cq::new(&host.context, CQE, None)?;
    let queue_pair = host.queue_pair(QpType::Rc, &cq, WINDOW, WINDOW)?;
    let via = Via::Own(Arc::clone(&queue_pair.qp));
    id.connect(&via, &ConnectParam::default()).context("cannot connect")?;
    expect(EventKind::Established)?;
    let took = started.elapsed();
    id.disconnect().context("cannot disconnect")?;
    id.destroy();
    Ok(took)
}
