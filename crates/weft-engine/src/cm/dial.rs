//! The active side: from an RDMA address to an MPA reply.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::net::{RecvFlags, SendFlags, sockopt};
use weft_sys::Lock;
use weft_wire::mpa::frame;
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, NegotiateError, Params};

use super::handshake::{self, Greeted};
use super::limits::{
    ASK_AT, ASK_LOCAL_TIMEOUT, ASK_TIMEOUT, CONNECT_TIMEOUT, KNOCK_AGAIN_AFTER,
    PEER_PRIVATE_DATA_MAX, REPLY_TIMEOUT,
};
use super::option::Options;
use super::query;
use super::socket;
use crate::reactor::{Reactor, Source, TimerId};
use crate::watched::Watched;
use crate::{Errno, Result, random, tcp};

/// Room for a reply and for the first FPDUs behind it, in bytes. What does not fit stays in the
/// socket.
const REPLY_ROOM: usize = 4 * (frame::HEADER_LEN + PEER_PRIVATE_DATA_MAX);

/// Who wants a connection.
pub(super) trait Caller: Send + Sync {
    /// The end of a dial that was not cancelled; once.
    fn dialled(&self, outcome: std::result::Result<Greeted, Failure>);
}

/// Why there is no connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody listens on the port.
    NobodyListens,
    /// The host cannot be reached, or did not answer in time.
    Unreachable(Errno),
    /// The peer's program refused, with this private data.
    Rejected(Vec<u8>),
    /// The peer closed the connection instead of answering.
    Closed,
    /// The peer does not speak MPA as we need it.
    Protocol(NegotiateError),
    /// A system call of our own failed.
    System(Errno),
}

/// What to dial.
#[derive(Debug)]
pub(super) struct Plan {
    /// Our address; with `stream`, the port that it is bound to.
    pub(super) local: SocketAddr,
    /// The RDMA address of the listener.
    pub(super) peer: SocketAddr,
    /// A bound TCP socket, if there is one already.
    pub(super) stream: Option<OwnedFd>,
    pub(super) options: Options,
    pub(super) params: Params,
    /// The program's private data and our trailer.
    pub(super) private_data: Vec<u8>,
    /// How often nobody listened; 0 at first.
    pub(super) refused: usize,
}

/// A connection attempt under way.
pub(super) struct Dial {
    this: Weak<Self>,
    caller: Weak<dyn Caller>,
    peer: SocketAddr,
    crc: bool,
    phase: Lock<Phase>,
}

enum Phase {
    /// The peer is asked for the TCP port.
    Asking { asking: Asking, plan: Plan, timer: TimerId },
    /// TCP connects.
    Connecting {
        stream: Watched,
        initiator: Initiator,
        plan: Plan,
        timer: TimerId,
        deadline: Instant,
    },
    /// Nobody listened; the peer is asked again after a pause.
    Pausing { plan: Plan, timer: TimerId, due: Instant },
    /// The request is sent, the reply awaited.
    Greeting { stream: Watched, initiator: Initiator, timer: TimerId, deadline: Instant },
    /// Given to the caller, failed or cancelled.
    Done,
}

struct Asking {
    /// Connected, so that it hears of a closed port.
    connected: Watched,
    /// Takes the answer from whatever address a host with several answers from.
    any: Option<Watched>,
    nonce: u64,
    asked: usize,
    start: Instant,
    give_up: Instant,
}

impl Dial {
    /// Starts to dial.
    ///
    /// # Errors
    /// What the system says at once, such as `ENETUNREACH`.
    pub(super) fn start(plan: Plan, caller: Weak<dyn Caller>) -> Result<Arc<Self>> {
        let dial = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            caller,
            peer: plan.peer,
            crc: plan.params.crc,
            phase: Lock::new(Phase::Done),
        });
        let mut phase = dial.phase.lock();
        *phase = dial.ask(plan)?;
        drop(phase);
        Ok(dial)
    }

    /// Gives up; the caller hears nothing any more.
    pub(super) fn cancel(&self) {
        let abandoned = self.phase.lock().take();
        drop(abandoned);
    }

    fn owner(&self) -> Arc<dyn Source> {
        self.this.upgrade().expect("called through an `Arc` of it")
    }

    fn ask(&self, plan: Plan) -> Result<Phase> {
        let mut local = plan.local;
        local.set_port(0);
        let socket = socket::datagram(&plan.peer, &Options::default())?;
        rustix::net::bind(&socket, &local)?;
        rustix::net::connect(&socket, &plan.peer)?;
        let start = Instant::now();
        let here = tcp::is_local(plan.local.ip(), plan.peer.ip());
        let mut asking = Asking {
            connected: Watched::new(socket, self.owner())?,
            any: None,
            nonce: u64::from_ne_bytes(random::bytes()?),
            asked: 0,
            start,
            give_up: start + if here { ASK_LOCAL_TIMEOUT } else { ASK_TIMEOUT },
        };
        let timer = self.ask_again(&mut asking, &plan);
        Ok(Phase::Asking { asking, plan, timer })
    }

    /// Sends the query once more and starts the timer for what comes next.
    fn ask_again(&self, asking: &mut Asking, plan: &Plan) -> TimerId {
        let query = query::query(plan.peer.port(), asking.nonce);
        // A query that cannot be sent is like one that is lost.
        if asking.asked == 0 {
            let _ = rustix::net::send(&asking.connected, &query, SendFlags::DONTWAIT);
        } else {
            if asking.any.is_none() {
                asking.any = self.any_socket(plan);
            }
            if let Some(any) = &asking.any {
                let _ = rustix::net::sendto(any, &query, SendFlags::DONTWAIT, &plan.peer);
            }
        }
        asking.asked += 1;
        let next = ASK_AT.get(asking.asked).map(|&after| asking.start + after);
        let next = next.map_or(asking.give_up, |next| next.min(asking.give_up));
        Reactor::get().start_timer(next, self.owner())
    }

    fn any_socket(&self, plan: &Plan) -> Option<Watched> {
        let mut local = plan.local;
        local.set_port(0);
        let socket = socket::datagram(&plan.peer, &Options::default()).ok()?;
        rustix::net::bind(&socket, &local).ok()?;
        Watched::new(socket, self.owner()).ok()
    }

    fn connect(&self, mut plan: Plan, port: u16) -> Result<Phase> {
        let mut target = plan.peer;
        target.set_port(port);
        let stream = match plan.stream.take() {
            Some(stream) => stream,
            None => {
                let mut local = plan.local;
                local.set_port(0);
                let stream = socket::stream(&local, &plan.options)?;
                rustix::net::bind(&stream, &local)?;
                stream
            }
        };
        if let Some(tos) = plan.options.tos {
            socket::set_tos(&stream, &target, tos)?;
        }
        let mut connecting = rustix::net::connect(&stream, &target);
        if connecting == Err(Errno::CONNABORTED) {
            // What a socket says once whose last attempt was refused.
            connecting = rustix::net::connect(&stream, &target);
        }
        match connecting {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let initiator =
            Initiator::new(plan.params, &plan.private_data).map_err(|_| Errno::INVAL)?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let timer = Reactor::get().start_timer(deadline, self.owner());
        let stream = Watched::new(stream, self.owner())?;
        Ok(Phase::Connecting { stream, initiator, plan, timer, deadline })
    }

    /// Nobody listens: tries again, or gives up.
    fn pause(&self, mut plan: Plan, stream: Watched) -> std::result::Result<Phase, Failure> {
        let Some(&pause) = KNOCK_AGAIN_AFTER.get(plan.refused) else {
            return Err(Failure::NobodyListens);
        };
        plan.refused += 1;
        plan.stream = Some(stream.release());
        let due = Instant::now() + pause;
        let timer = Reactor::get().start_timer(due, self.owner());
        Ok(Phase::Pausing { plan, timer, due })
    }

    /// Does what can be done now. Returns the outcome at the end.
    fn advance(&self) -> Option<std::result::Result<Greeted, Failure>> {
        let mut phase = self.phase.lock();
        loop {
            let step = match &mut *phase {
                Phase::Asking { asking, .. } => asking.listen().map(Step::Port),
                Phase::Connecting { stream, initiator, .. } => greet(stream, initiator),
                Phase::Greeting { stream, initiator, .. } => self.read_reply(stream, initiator),
                Phase::Pausing { .. } | Phase::Done => None,
            };
            if let Some(outcome) = self.take_step(&mut phase, step?) {
                return Some(outcome);
            }
        }
    }

    fn take_step(
        &self,
        phase: &mut Phase,
        step: Step,
    ) -> Option<std::result::Result<Greeted, Failure>> {
        match (phase.take(), step) {
            (Phase::Asking { plan, .. }, Step::Port(port)) => {
                let port = port.unwrap_or_else(|| plan.peer.port());
                *phase = match self.connect(plan, port) {
                    Ok(next) => next,
                    Err(error) => return Some(Err(Failure::of_connect(error))),
                };
                None
            }
            (Phase::Connecting { stream, plan, .. }, Step::Failed(Failure::NobodyListens)) => {
                *phase = match self.pause(plan, stream) {
                    Ok(next) => next,
                    Err(failure) => return Some(Err(failure)),
                };
                None
            }
            (Phase::Pausing { plan, .. }, Step::Knock) => {
                *phase = match self.ask(plan) {
                    Ok(next) => next,
                    Err(error) => return Some(Err(Failure::of_connect(error))),
                };
                None
            }
            (Phase::Connecting { stream, initiator, .. }, Step::Sent) => {
                let deadline = Instant::now() + REPLY_TIMEOUT;
                let timer = Reactor::get().start_timer(deadline, self.owner());
                *phase = Phase::Greeting { stream, initiator, timer, deadline };
                None
            }
            (Phase::Greeting { stream, .. }, Step::Accepted(negotiated, early)) => {
                let stream = stream.release();
                Some(socket::local_address(&stream).map_err(Failure::System).map(|local| {
                    Greeted::new(stream, [local, self.peer], true, *negotiated, early)
                }))
            }
            (_, Step::Failed(failure)) => Some(Err(failure)),
            // A step comes from the phase that it is for.
            _ => Some(Err(Failure::System(Errno::INVAL))),
        }
    }

    fn read_reply(&self, stream: &Watched, initiator: &mut Initiator) -> Option<Step> {
        let mut bytes = Vec::with_capacity(REPLY_ROOM);
        match weft_sys::recv(stream.as_fd(), &mut bytes) {
            Ok(0) | Err(Errno::CONNRESET | Errno::PIPE) => Some(Step::Failed(Failure::Closed)),
            Ok(_) => match initiator.input(&bytes) {
                Ok((_, None)) => None,
                Ok((used, Some(InitiatorOutcome::Accepted(negotiated)))) => {
                    Some(Step::Accepted(Box::new(negotiated), bytes.split_off(used)))
                }
                Ok((_, Some(InitiatorOutcome::Rejected { private_data }))) => {
                    let (private_data, _) = handshake::split(&private_data);
                    Some(Step::Failed(Failure::Rejected(private_data)))
                }
                Err(error) => {
                    if let Some(frame) = handshake::terminate(error, self.crc) {
                        // The connection is closed in any case.
                        let _ = weft_sys::send(stream.as_fd(), &frame);
                    }
                    Some(Step::Failed(Failure::Protocol(error)))
                }
            },
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(Step::Failed(Failure::Unreachable(error))),
        }
    }

    fn deliver(&self, outcome: Option<std::result::Result<Greeted, Failure>>) {
        if let (Some(outcome), Some(caller)) = (outcome, self.caller.upgrade()) {
            caller.dialled(outcome);
        }
    }
}

impl Source for Dial {
    fn ready(&self) {
        let outcome = self.advance();
        self.deliver(outcome);
    }

    fn expired(&self) {
        let mut phase = self.phase.lock();
        let now = Instant::now();
        let outcome = match &mut *phase {
            Phase::Asking { asking, .. } if now >= asking.give_up => {
                self.take_step(&mut phase, Step::Port(None))
            }
            Phase::Asking { asking, plan, timer } => {
                *timer = self.ask_again(asking, plan);
                None
            }
            Phase::Connecting { deadline, .. } | Phase::Greeting { deadline, .. }
                if now >= *deadline =>
            {
                self.take_step(&mut phase, Step::Failed(Failure::Unreachable(Errno::TIMEDOUT)))
            }
            Phase::Pausing { due, .. } if now >= *due => self.take_step(&mut phase, Step::Knock),
            // The timer of a phase that is over.
            _ => None,
        };
        drop(phase);
        self.deliver(outcome);
    }
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dial").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// What has happened in a phase.
enum Step {
    /// Asking is over: the TCP port, or `None` for the RDMA port itself.
    Port(Option<u16>),
    /// The pause is over.
    Knock,
    /// TCP is connected and the request is sent.
    Sent,
    /// The peer accepted; the bytes are the first behind its reply.
    Accepted(Box<weft_wire::mpa::negotiate::Negotiated>, Vec<u8>),
    Failed(Failure),
}

impl Phase {
    /// Leaves `Done` behind and stops the timer.
    fn take(&mut self) -> Self {
        let phase = std::mem::replace(self, Self::Done);
        if let Self::Asking { timer, .. }
        | Self::Connecting { timer, .. }
        | Self::Pausing { timer, .. }
        | Self::Greeting { timer, .. } = &phase
        {
            Reactor::get().stop_timer(*timer);
        }
        phase
    }
}

impl Asking {
    /// Reads answers. `Some(None)` when the peer has nobody to ask.
    fn listen(&self) -> Option<Option<u16>> {
        let mut buffer = [0; query::LEN + 1];
        for socket in [Some(&self.connected), self.any.as_ref()].into_iter().flatten() {
            // Bounded: whoever floods this port is only a reason to fall back to the RDMA port.
            for _ in 0..ASK_AT.len() * 2 {
                match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                    Ok((length, _)) => {
                        if let Some(port) = query::answered(&buffer[..length], self.nonce) {
                            return Some(Some(port));
                        }
                    }
                    Err(Errno::AGAIN) => break,
                    // A closed port, or a filter that says so: a foreign peer, if any.
                    Err(_) => return Some(None),
                }
            }
        }
        None
    }
}

impl Failure {
    fn of_connect(error: Errno) -> Self {
        match error {
            Errno::CONNREFUSED => Self::NobodyListens,
            Errno::CONNRESET => Self::Closed,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN => {
                Self::Unreachable(error)
            }
            error => Self::System(error),
        }
    }
}

/// Sends the request as soon as TCP is connected.
fn greet(stream: &Watched, initiator: &Initiator) -> Option<Step> {
    if let Err(error) = sockopt::socket_error(stream).and_then(|error| error) {
        return Some(Step::Failed(Failure::of_connect(error)));
    }
    match rustix::net::getpeername(stream) {
        Err(Errno::NOTCONN) => return None,
        Err(error) => return Some(Step::Failed(Failure::of_connect(error))),
        Ok(_) => {}
    }
    let request = initiator.request();
    match weft_sys::send(stream.as_fd(), request) {
        Ok(sent) if sent == request.len() => Some(Step::Sent),
        // A fresh socket has room for some kilobytes.
        Ok(_) | Err(Errno::AGAIN) => Some(Step::Failed(Failure::System(Errno::NOBUFS))),
        Err(error) => Some(Step::Failed(Failure::of_connect(error))),
    }
}
