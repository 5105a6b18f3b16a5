//! The active side: from an RDMA address to an MPA reply.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::net::sockopt;
use weft_sys::Lock;
use weft_wire::mpa::frame;
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, NegotiateError, Params};

use super::ask::{self, Answer, Asking};
use super::handshake::{self, Greeted};
use super::limits::{
    ASK_LOCAL_TIMEOUT, ASK_TIMEOUT, CONNECT_TIMEOUT, KNOCK_AGAIN_AFTER, PEER_PRIVATE_DATA_MAX,
    REPLY_TIMEOUT,
};
use super::option::Options;
use super::socket;
use crate::hello::{self, Identity};
use crate::reactor::{Reactor, Source, TimerId};
use crate::watched::Watched;
use crate::{Errno, Result, tcp};

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
    /// The program's private data.
    pub(super) private_data: Vec<u8>,
    /// Who we are, for a Weft peer to know.
    pub(super) identity: Identity,
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
    Connecting { stream: Watched, plan: Plan, answer: Answer, timer: TimerId, deadline: Instant },
    /// TCP is connected to a peer whose UDP port was closed a moment ago. It is asked once more,
    /// because a Weft peer may have begun to listen in between.
    Confirming { stream: Watched, asking: Asking, plan: Plan, timer: TimerId },
    /// Nobody listened; the peer is asked again after a pause.
    Pausing { plan: Plan, timer: TimerId, due: Instant },
    /// The request is sent, the reply awaited.
    Greeting { stream: Watched, initiator: Initiator, timer: TimerId, deadline: Instant },
    /// Given to the caller, failed or cancelled.
    Done,
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
        let is_quick = tcp::is_local(plan.local.ip(), plan.peer.ip()) || ask::was_closed(plan.peer);
        let patience = if is_quick { ASK_LOCAL_TIMEOUT } else { ASK_TIMEOUT };
        let (asking, timer) = Asking::start([plan.local, plan.peer], patience, &self.owner())?;
        Ok(Phase::Asking { asking, plan, timer })
    }

    fn connect(&self, mut plan: Plan, answer: Answer) -> Result<Phase> {
        let mut target = plan.peer;
        if let Answer::Port(port) = answer {
            target.set_port(port);
        }
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
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let timer = Reactor::get().start_timer(deadline, self.owner());
        let stream = Watched::new(stream, self.owner())?;
        Ok(Phase::Connecting { stream, plan, answer, timer, deadline })
    }

    /// TCP is connected: asks who the peer is, unless that is known.
    fn connected(
        &self,
        stream: Watched,
        plan: Plan,
        answer: Answer,
    ) -> std::result::Result<Phase, Failure> {
        if answer != Answer::Closed {
            return self.greet(stream, &plan, true);
        }
        // It is a foreign peer, unless it has just begun to listen: then it answers at once.
        let addresses = [plan.local, plan.peer];
        let asked = Asking::start(addresses, ASK_LOCAL_TIMEOUT, &self.owner());
        let (asking, timer) = asked.map_err(Failure::System)?;
        Ok(Phase::Confirming { stream, asking, plan, timer })
    }

    /// Sends the request, for a Weft peer with our trailer. To a peer that may be one or not the
    /// trailer goes, too: a foreign program would see it, but without it a Weft peer would be a
    /// foreign one.
    fn greet(
        &self,
        stream: Watched,
        plan: &Plan,
        weft: bool,
    ) -> std::result::Result<Phase, Failure> {
        let private_data = match weft {
            true => hello::append(&plan.private_data, &plan.identity, 0),
            false => plan.private_data.clone(),
        };
        let initiator = Initiator::new(plan.params, &private_data)
            .map_err(|_| Failure::System(Errno::INVAL))?;
        let request = initiator.request();
        match weft_sys::send(stream.as_fd(), request) {
            Ok(sent) if sent == request.len() => {}
            // A fresh socket has room for some kilobytes.
            Ok(_) | Err(Errno::AGAIN) => return Err(Failure::System(Errno::NOBUFS)),
            Err(error) => return Err(Failure::of_connect(error)),
        }
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let timer = Reactor::get().start_timer(deadline, self.owner());
        Ok(Phase::Greeting { stream, initiator, timer, deadline })
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
                Phase::Asking { asking, .. } | Phase::Confirming { asking, .. } => {
                    asking.listen().map(Step::Answer)
                }
                Phase::Connecting { stream, .. } => connected(stream),
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
            (Phase::Asking { plan, .. }, Step::Answer(answer)) => {
                let answer = ask::weigh(plan.peer, answer);
                *phase = match self.connect(plan, answer) {
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
            (Phase::Connecting { stream, plan, answer, .. }, Step::Connected) => {
                *phase = match self.connected(stream, plan, answer) {
                    Ok(next) => next,
                    Err(failure) => return Some(Err(failure)),
                };
                None
            }
            (Phase::Confirming { stream, plan, .. }, Step::Answer(answer)) => {
                let is_weft = matches!(answer, Answer::Port(_));
                *phase = match self.greet(stream, &plan, is_weft) {
                    Ok(next) => next,
                    Err(failure) => return Some(Err(failure)),
                };
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
            Phase::Asking { asking, .. } | Phase::Confirming { asking, .. }
                if now >= asking.give_up =>
            {
                self.take_step(&mut phase, Step::Answer(Answer::Silence))
            }
            Phase::Asking { asking, timer, .. } | Phase::Confirming { asking, timer, .. } => {
                *timer = asking.again(&self.owner());
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
    /// Asking is over.
    Answer(Answer),
    /// The pause is over.
    Knock,
    /// TCP is connected.
    Connected,
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
        | Self::Confirming { timer, .. }
        | Self::Pausing { timer, .. }
        | Self::Greeting { timer, .. } = &phase
        {
            Reactor::get().stop_timer(*timer);
        }
        phase
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

/// Whether TCP is connected.
fn connected(stream: &Watched) -> Option<Step> {
    if let Err(error) = sockopt::socket_error(stream).and_then(|error| error) {
        return Some(Step::Failed(Failure::of_connect(error)));
    }
    match rustix::net::getpeername(stream) {
        Err(Errno::NOTCONN) => None,
        Err(error) => Some(Step::Failed(Failure::of_connect(error))),
        Ok(_) => Some(Step::Connected),
    }
}
