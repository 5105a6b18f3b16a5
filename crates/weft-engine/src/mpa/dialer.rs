//! The active side of a connection: from an address to an MPA reply.
//!
//! A [`Dialer`] has no socket and no clock. Each method takes an input and the time. After each
//! call the caller drains [`Dialer::poll_effect`] and executes the effects in that order; it calls
//! [`Dialer::timed_out`] at [`Dialer::timeout`]:
//!
//! ```text
//! dial ──> asking ──> connecting ──> confirming ──> ready ──> greeting ──> done
//!   ^         (with a path)  │      (port closed)    (send_request)      │
//!   └── pausing <────────────┴───────────── as Retry says ────────┘
//! ```
//!
//! No method panics, whatever the peer sends and in whatever order the methods are called.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_wire::ddp;
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, NegotiateError, Negotiated, Params};
use weft_wire::rdmap::Terminate;

use super::limits::{ASK_AT, ASK_LOCAL_TIMEOUT, ASK_TIMEOUT};
use crate::{Errno, hello};

/// The timeouts and retries of a dial.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Time limit of a TCP connection attempt; `None`: TCP's own.
    pub connect_time: Option<Duration>,
    /// Time limit of the reply; `None`: as long as the connection lives.
    pub reply_time: Option<Duration>,
    /// Which failures are retried.
    pub retry: Retry,
    /// The queue pair that must answer; `None`: any.
    pub wanted: Option<Wanted>,
}

/// Which failures are retried, and when.
#[derive(Clone, Copy, Debug)]
pub enum Retry {
    /// Retry a refused connection after each of these pauses.
    Refused(&'static [Duration]),
    /// Retry after any failure.
    Always {
        /// Pause between a failure and the next attempt.
        pause: Duration,
        /// Time from the start of the first attempt after which a failure is final.
        time: Duration,
    },
}

/// Two queue pairs that want to be connected to each other.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Number of the peer's queue pair, which must answer.
    pub peer: u32,
    /// Our number, which the answer must name.
    pub own: u32,
}

/// What is known about a peer that has to be asked for its TCP port.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Whether the peer is on this host.
    pub is_local: bool,
    /// Whether the peer's UDP port was recently closed. Then no answer means that it still is,
    /// because hosts limit their ICMP errors.
    pub was_closed: bool,
}

/// The outcome of a query for the TCP port of an RDMA port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A Weft peer listens on this TCP port.
    Port(u16),
    /// The peer's host reports a closed UDP port. A Weft listener opens that before its TCP port.
    Closed,
    /// No usable answer in time: a firewall may drop it.
    Silence,
}

/// An action that the machine requests.
#[derive(Debug)]
pub enum Effect {
    /// Call [`Dialer::dial`] again, with the current path.
    Dial,
    /// Query the peer over UDP for its TCP port.
    Ask {
        /// Whether to repeat the last query, and not to start a new one.
        again: bool,
    },
    /// Connect to a TCP port.
    Connect {
        /// The port that the peer named; `None` for the one that was dialled.
        port: Option<u16>,
    },
    /// Call [`Dialer::send_request`].
    Greet {
        /// Whether the peer runs Weft, or may run it.
        weft: bool,
    },
    /// Send these bytes.
    Transmit(Vec<u8>),
    /// Close the connection of a failed attempt; another will follow. A socket that was only
    /// refused can be reused.
    HangUp(Failure),
    /// The dial has ended; no effect follows.
    Finished(Result<Agreed, Failure>),
}

/// The result of a successful dial.
#[derive(Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The result of the negotiation.
    pub negotiated: Negotiated,
    /// The first bytes behind the reply.
    pub early: Vec<u8>,
}

/// Why a connection attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No program listens on the port.
    NobodyListens,
    /// The host is unreachable, or did not answer in time.
    Unreachable(Errno),
    /// The peer's program rejected, with this private data.
    Rejected(Vec<u8>),
    /// The peer closed the connection without an answer.
    Closed,
    /// The peer does not speak MPA, or not as we need it.
    Protocol(NegotiateError),
    /// Another queue pair than the wanted one answered.
    WrongPeer,
    /// A local system call failed.
    System(Errno),
}

/// The input that the machine waits for, besides its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// [`Dialer::answered`].
    Answer,
    /// [`Dialer::connected`] or [`Dialer::failed`].
    Connection,
    /// [`Dialer::received`] or [`Dialer::failed`].
    Reply,
    /// No input, except what an effect requests.
    Nothing,
}

/// The state machine of a dial with its retries.
#[derive(Debug)]
pub struct Dialer {
    plan: Plan,
    phase: DialerPhase,
    /// When the first attempt started.
    start: Option<Instant>,
    /// Number of refused attempts.
    refused: usize,
    effects: VecDeque<Effect>,
}

#[derive(Debug)]
enum DialerPhase {
    /// Waits for [`Dialer::dial`].
    Idle,
    /// Waits for the answer to a port query.
    Asking { query: PendingQuery, was_closed: bool },
    /// Waits for the TCP connection.
    Connecting { answer: Option<Answer>, deadline: Option<Instant> },
    /// TCP is connected to a peer whose UDP port was closed a moment ago. The peer is asked again,
    /// because a Weft peer may have started to listen in between.
    Confirming { query: PendingQuery },
    /// Waits for [`Dialer::send_request`].
    Ready,
    /// The request is sent; waits for the reply.
    Greeting { initiator: Initiator, crc: bool, deadline: Option<Instant> },
    /// Waits until the next attempt is due.
    Pausing { due: Instant },
    /// Finished or cancelled.
    Done,
}

/// A query without an answer yet.
#[derive(Clone, Copy, Debug)]
struct PendingQuery {
    start: Instant,
    asked: usize,
    /// When the query ends without an answer.
    give_up: Instant,
}

impl PendingQuery {
    fn new(now: Instant, timeout: Duration) -> Self {
        Self { start: now, asked: 1, give_up: now + timeout }
    }

    fn timeout(&self) -> Instant {
        let next = ASK_AT.get(self.asked).map(|&after| self.start + after);
        next.map_or(self.give_up, |next| next.min(self.give_up))
    }
}

impl Dialer {
    /// Creates a machine; its first method must be [`Self::dial`].
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: DialerPhase::Idle, start: None, refused: 0, effects: VecDeque::new() }
    }

    /// Starts an attempt. With a `path` the peer is first asked for its TCP port.
    pub fn dial(&mut self, now: Instant, path: Option<Path>) {
        if !matches!(self.phase, DialerPhase::Idle) {
            return;
        }
        self.start.get_or_insert(now);
        match path {
            None => self.connect(now, None),
            Some(Path { is_local, was_closed }) => {
                let is_quick = is_local || was_closed;
                let timeout = if is_quick { ASK_LOCAL_TIMEOUT } else { ASK_TIMEOUT };
                self.phase =
                    DialerPhase::Asking { query: PendingQuery::new(now, timeout), was_closed };
                self.effects.push_back(Effect::Ask { again: false });
            }
        }
    }

    /// Handles the answer to a query.
    pub fn answered(&mut self, now: Instant, answer: Answer) {
        match self.phase {
            DialerPhase::Asking { was_closed, .. } => {
                let silence = if was_closed { Answer::Closed } else { Answer::Silence };
                let answer = if answer == Answer::Silence { silence } else { answer };
                self.connect(now, Some(answer));
            }
            DialerPhase::Confirming { .. } => self.be_ready(matches!(answer, Answer::Port(_))),
            _ => {}
        }
    }

    /// Handles an established TCP connection: asks again whether the peer runs Weft, if that is in
    /// doubt.
    pub fn connected(&mut self, now: Instant) {
        match self.phase {
            // The peer is foreign, unless it has just started to listen: then it answers at once.
            DialerPhase::Connecting { answer: Some(Answer::Closed), .. } => {
                let query = PendingQuery::new(now, ASK_LOCAL_TIMEOUT);
                self.phase = DialerPhase::Confirming { query };
                self.effects.push_back(Effect::Ask { again: false });
            }
            // A peer that may run Weft gets the trailer, too: a foreign program would see it, but
            // without it a Weft peer would be treated as foreign.
            DialerPhase::Connecting { .. } => self.be_ready(true),
            _ => {}
        }
    }

    /// Sends the request.
    pub fn send_request(&mut self, now: Instant, params: Params, private_data: &[u8]) {
        if !matches!(self.phase, DialerPhase::Ready) {
            return;
        }
        match Initiator::new(params, private_data) {
            Ok(initiator) => {
                self.effects.push_back(Effect::Transmit(initiator.request().to_vec()));
                let deadline = self.plan.reply_time.map(|time| now + time);
                self.phase = DialerPhase::Greeting { initiator, crc: params.crc, deadline };
            }
            Err(_) => self.failed(now, Failure::System(Errno::INVAL)),
        }
    }

    /// Handles received bytes.
    pub fn received(&mut self, now: Instant, bytes: &[u8]) {
        let DialerPhase::Greeting { initiator, crc, .. } = &mut self.phase else { return };
        let (crc, outcome) = (*crc, initiator.input(bytes));
        match outcome {
            Ok((_, None)) => {}
            Ok((used, Some(InitiatorOutcome::Accepted(negotiated)))) => {
                if !self.plan.wanted.is_none_or(|wanted| wanted.is_in(&negotiated)) {
                    return self.failed(now, Failure::WrongPeer);
                }
                let early = bytes.get(used..).unwrap_or_default().to_vec();
                self.finish(Ok(Agreed { negotiated, early }));
            }
            Ok((_, Some(InitiatorOutcome::Rejected { private_data }))) => {
                let (programs, _) = hello::split(&private_data);
                self.failed(now, Failure::Rejected(programs.to_vec()));
            }
            Err(error) => {
                // A dial that will be retried does not report the error to the peer.
                if self.pause_after(now, &Failure::Protocol(error)).is_none()
                    && let Some(frame) = terminate(error, crc)
                {
                    self.effects.push_back(Effect::Transmit(frame));
                }
                self.failed(now, Failure::Protocol(error));
            }
        }
    }

    /// Handles a failed attempt: schedules another one, or ends the dial.
    pub fn failed(&mut self, now: Instant, failure: Failure) {
        if matches!(self.phase, DialerPhase::Done | DialerPhase::Idle | DialerPhase::Pausing { .. })
        {
            return;
        }
        let Some(pause) = self.pause_after(now, &failure) else {
            return self.finish(Err(failure));
        };
        if failure == Failure::NobodyListens {
            self.refused += 1;
        }
        self.phase = DialerPhase::Pausing { due: now + pause };
        self.effects.push_back(Effect::HangUp(failure));
    }

    /// Handles a failed system call of an effect.
    pub fn system_failed(&mut self, now: Instant, error: Errno) {
        let failure = match self.phase {
            DialerPhase::Confirming { .. } => Failure::System(error),
            _ => Failure::of_connect(error),
        };
        self.failed(now, failure);
    }

    /// Handles the timeout of [`Self::timeout`]. May be called without a reason.
    pub fn timed_out(&mut self, now: Instant) {
        if self.timeout().is_none_or(|timeout| now < timeout) {
            return;
        }
        match &mut self.phase {
            DialerPhase::Asking { query, .. } | DialerPhase::Confirming { query } => {
                if now >= query.give_up {
                    return self.answered(now, Answer::Silence);
                }
                query.asked += 1;
                self.effects.push_back(Effect::Ask { again: true });
            }
            DialerPhase::Connecting { .. } | DialerPhase::Greeting { .. } => {
                self.failed(now, Failure::Unreachable(Errno::TIMEDOUT));
            }
            DialerPhase::Pausing { .. } => {
                self.phase = DialerPhase::Idle;
                self.effects.push_back(Effect::Dial);
            }
            DialerPhase::Idle | DialerPhase::Ready | DialerPhase::Done => {}
        }
    }

    /// When [`Self::timed_out`] must be called, if nothing else happens.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match &self.phase {
            DialerPhase::Asking { query, .. } | DialerPhase::Confirming { query } => {
                Some(query.timeout())
            }
            DialerPhase::Connecting { deadline, .. } | DialerPhase::Greeting { deadline, .. } => {
                *deadline
            }
            DialerPhase::Pausing { due } => Some(*due),
            DialerPhase::Idle | DialerPhase::Ready | DialerPhase::Done => None,
        }
    }

    /// The input to wait for.
    #[must_use]
    pub fn awaits(&self) -> Awaits {
        match self.phase {
            DialerPhase::Asking { .. } | DialerPhase::Confirming { .. } => Awaits::Answer,
            DialerPhase::Connecting { .. } => Awaits::Connection,
            DialerPhase::Greeting { .. } => Awaits::Reply,
            DialerPhase::Idle
            | DialerPhase::Ready
            | DialerPhase::Pausing { .. }
            | DialerPhase::Done => Awaits::Nothing,
        }
    }

    /// The next effect to execute.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Cancels the dial; no effect follows.
    pub fn cancel(&mut self) {
        self.phase = DialerPhase::Done;
        self.effects.clear();
    }

    fn connect(&mut self, now: Instant, answer: Option<Answer>) {
        let port = match answer {
            Some(Answer::Port(port)) => Some(port),
            _ => None,
        };
        let deadline = self.plan.connect_time.map(|time| now + time);
        self.phase = DialerPhase::Connecting { answer, deadline };
        self.effects.push_back(Effect::Connect { port });
    }

    fn be_ready(&mut self, weft: bool) {
        self.phase = DialerPhase::Ready;
        self.effects.push_back(Effect::Greet { weft });
    }

    /// The pause before the next attempt; `None` if there is none.
    fn pause_after(&self, now: Instant, failure: &Failure) -> Option<Duration> {
        match self.plan.retry {
            Retry::Refused(pauses) => {
                let is_refused = matches!(self.phase, DialerPhase::Connecting { .. })
                    && *failure == Failure::NobodyListens;
                pauses.get(self.refused).copied().filter(|_| is_refused)
            }
            Retry::Always { pause, time } => {
                let is_over = self.start.is_some_and(|start| now >= start + time);
                (!is_over).then_some(pause)
            }
        }
    }

    fn finish(&mut self, outcome: Result<Agreed, Failure>) {
        self.phase = DialerPhase::Done;
        self.effects.push_back(Effect::Finished(outcome));
    }
}

impl Wanted {
    /// Whether the reply comes from the wanted queue pair and names ours. Another process may have
    /// got the port since the program learned the number.
    fn is_in(self, negotiated: &Negotiated) -> bool {
        let (_, hello) = hello::split(&negotiated.peer_private_data);
        hello.is_some_and(|hello| hello.identity.qp_num == self.peer && hello.wanted_qp == self.own)
    }
}

impl Failure {
    /// Classifies an error of `connect(2)`, or of the first `send(2)`.
    #[must_use]
    pub fn of_connect(error: Errno) -> Self {
        match error {
            Errno::CONNREFUSED => Self::NobodyListens,
            Errno::CONNRESET => Self::Closed,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN => {
                Self::Unreachable(error)
            }
            error => Self::System(error),
        }
    }

    /// Classifies an error of `recv(2)`.
    #[must_use]
    pub fn of_receive(error: Errno) -> Self {
        match error {
            Errno::CONNRESET | Errno::PIPE => Self::Closed,
            error => Self::Unreachable(error),
        }
    }

    /// The error number that describes the failure best.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NobodyListens | Self::Rejected(_) => Errno::CONNREFUSED,
            Self::Closed => Errno::CONNRESET,
            Self::Protocol(_) | Self::WrongPeer => Errno::PROTO,
            Self::Unreachable(error) | Self::System(error) => *error,
        }
    }
}

/// The Terminate message, as an FPDU, that answers a bad reply; `None` if the RFCs require none.
fn terminate(error: NegotiateError, crc: bool) -> Option<Vec<u8>> {
    let terminate = ProtocolError::from_negotiate(&error)?.terminate(None, None);
    let mut frame = vec![0; fpdu::total_len(ddp::UNTAGGED_LEN + Terminate::LEN_MAX)];
    let body = &mut frame[fpdu::HEADER_LEN..];
    let header_len = Terminate::HEADER.emit(body);
    let ulpdu_len = header_len + terminate.emit(&mut body[header_len..]);
    frame.truncate(fpdu::total_len(ulpdu_len));
    fpdu::seal(&mut frame, ulpdu_len, crc);
    Some(frame)
}
