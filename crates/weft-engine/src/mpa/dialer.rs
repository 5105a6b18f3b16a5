//! The active side of a connection: from an address to an MPA reply.
//!
//! A [`Dialer`] has no socket and no clock. Each method takes what has happened and the time. Drain
//! [`Dialer::poll_effect`] after each of them, do what it says in that order, and call
//! [`Dialer::timed_out`] at [`Dialer::timeout`]:
//!
//! ```text
//! dial ──> asking ──> connecting ──> confirming ──> ready ──> greeting ──> done
//!   ^         (with a path)  │      (port closed)    (greet)      │
//!   └── pausing <────────────┴───────────── as Retry says ────────┘
//! ```
//!
//! Nothing here panics, whatever the peer sends and whenever the methods are called.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_wire::ddp;
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, NegotiateError, Negotiated, Params};
use weft_wire::rdmap::Terminate;

use super::limits::{ASK_AT, ASK_LOCAL_TIMEOUT, ASK_TIMEOUT};
use crate::{Errno, hello};

/// How to dial.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long a TCP connection may take; `None`: as long as TCP tries.
    pub connect_time: Option<Duration>,
    /// How long the reply may take; `None`: as long as the connection lives.
    pub reply_time: Option<Duration>,
    /// What is tried again.
    pub retry: Retry,
    /// The queue pair that must answer; `None`: any peer may.
    pub wanted: Option<Wanted>,
}

/// What is tried again, and when.
#[derive(Clone, Copy, Debug)]
pub enum Retry {
    /// A port on which nobody listens, after each of these pauses.
    Refused(&'static [Duration]),
    /// Everything, after this pause.
    Always {
        /// Between a failure and the next attempt.
        pause: Duration,
        /// How long after the first attempt began a failure is final.
        time: Duration,
    },
}

/// Two queue pairs that want each other.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Number of the one that must answer.
    pub peer: u32,
    /// Our number, which its answer must name.
    pub own: u32,
}

/// What is known of the way to a peer that is to be asked for its TCP port.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The peer is on this host.
    pub is_local: bool,
    /// The peer's UDP port was closed lately. Then silence means that it still is: a host answers
    /// only some questions a second.
    pub was_closed: bool,
}

/// What became of a question for the TCP port of an RDMA port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A Weft peer listens at this TCP port.
    Port(u16),
    /// The peer's host says that nobody has the UDP port, which a Weft listener takes before its
    /// TCP port.
    Closed,
    /// None in time, or none that says anything: a filter may be between us.
    Silence,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Call [`Dialer::dial`] once more, with the path as it is now.
    Dial,
    /// Ask the peer over UDP for its TCP port: with the question that was asked before, or with a
    /// new one.
    Ask {
        /// The same question as before.
        again: bool,
    },
    /// Connect to this TCP port, or to the one that was dialled.
    Connect {
        /// The port that the peer named.
        port: Option<u16>,
    },
    /// Call [`Dialer::greet`].
    Greet {
        /// The peer is a Weft peer, or may be one.
        weft: bool,
    },
    /// Send these bytes.
    Transmit(Vec<u8>),
    /// The attempt has failed and there will be another: close the connection. A socket that was
    /// only refused can be used again.
    HangUp(Failure),
    /// It is over; nothing follows.
    Finished(Result<Agreed, Failure>),
}

/// The end of a dial that succeeded.
#[derive(Debug, PartialEq, Eq)]
pub struct Agreed {
    /// What both sides agreed on.
    pub negotiated: Negotiated,
    /// The first bytes behind the reply.
    pub early: Vec<u8>,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
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
    /// Another queue pair than the wanted one has answered.
    WrongPeer,
    /// A system call of our own failed.
    System(Errno),
}

/// What the machine waits for, besides its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// [`Dialer::answered`].
    Answer,
    /// [`Dialer::connected`] or [`Dialer::failed`].
    Connection,
    /// [`Dialer::received`] or [`Dialer::failed`].
    Reply,
    /// What an effect asks for, or nothing.
    Nothing,
}

/// One connection attempt, with its retries.
#[derive(Debug)]
pub struct Dialer {
    plan: Plan,
    phase: Phase,
    /// When the first attempt began.
    start: Option<Instant>,
    /// How often nobody listened.
    refused: usize,
    effects: VecDeque<Effect>,
}

#[derive(Debug)]
enum Phase {
    /// [`Dialer::dial`] is due.
    Idle,
    /// The peer is asked for its TCP port.
    Asking { question: Question, was_closed: bool },
    /// TCP connects.
    Connecting { answer: Option<Answer>, deadline: Option<Instant> },
    /// TCP is connected to a peer whose UDP port was closed a moment ago. It is asked once more,
    /// because a Weft peer may have begun to listen in between.
    Confirming { question: Question },
    /// [`Dialer::greet`] is due.
    Ready,
    /// The request is sent, the reply awaited.
    Greeting { initiator: Initiator, crc: bool, deadline: Option<Instant> },
    /// The next attempt is due then.
    Pausing { due: Instant },
    /// Finished or cancelled.
    Done,
}

/// A question under way.
#[derive(Clone, Copy, Debug)]
struct Question {
    start: Instant,
    asked: usize,
    /// When an answer is not waited for any longer.
    give_up: Instant,
}

impl Question {
    fn new(now: Instant, timeout: Duration) -> Self {
        Self { start: now, asked: 1, give_up: now + timeout }
    }

    fn timeout(&self) -> Instant {
        let next = ASK_AT.get(self.asked).map(|&after| self.start + after);
        next.map_or(self.give_up, |next| next.min(self.give_up))
    }
}

impl Dialer {
    /// A machine whose first method is [`Self::dial`].
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: Phase::Idle, start: None, refused: 0, effects: VecDeque::new() }
    }

    /// Starts an attempt. With a `path` the peer is asked for its TCP port first.
    pub fn dial(&mut self, now: Instant, path: Option<Path>) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        self.start.get_or_insert(now);
        match path {
            None => self.connect(now, None),
            Some(Path { is_local, was_closed }) => {
                let is_quick = is_local || was_closed;
                let timeout = if is_quick { ASK_LOCAL_TIMEOUT } else { ASK_TIMEOUT };
                self.phase = Phase::Asking { question: Question::new(now, timeout), was_closed };
                self.effects.push_back(Effect::Ask { again: false });
            }
        }
    }

    /// What became of the question.
    pub fn answered(&mut self, now: Instant, answer: Answer) {
        match self.phase {
            Phase::Asking { was_closed, .. } => {
                let silence = if was_closed { Answer::Closed } else { Answer::Silence };
                let answer = if answer == Answer::Silence { silence } else { answer };
                self.connect(now, Some(answer));
            }
            Phase::Confirming { .. } => self.be_ready(matches!(answer, Answer::Port(_))),
            _ => {}
        }
    }

    /// TCP is connected: asks who the peer is, unless that is known.
    pub fn connected(&mut self, now: Instant) {
        match self.phase {
            // It is a foreign peer, unless it has just begun to listen: then it answers at once.
            Phase::Connecting { answer: Some(Answer::Closed), .. } => {
                let question = Question::new(now, ASK_LOCAL_TIMEOUT);
                self.phase = Phase::Confirming { question };
                self.effects.push_back(Effect::Ask { again: false });
            }
            // To a peer that may be a Weft peer or not the trailer goes, too: a foreign program
            // would see it, but without it a Weft peer would be a foreign one.
            Phase::Connecting { .. } => self.be_ready(true),
            _ => {}
        }
    }

    /// Sends the request.
    pub fn greet(&mut self, now: Instant, params: Params, private_data: &[u8]) {
        if !matches!(self.phase, Phase::Ready) {
            return;
        }
        match Initiator::new(params, private_data) {
            Ok(initiator) => {
                self.effects.push_back(Effect::Transmit(initiator.request().to_vec()));
                let deadline = self.plan.reply_time.map(|time| now + time);
                self.phase = Phase::Greeting { initiator, crc: params.crc, deadline };
            }
            Err(_) => self.failed(now, Failure::System(Errno::INVAL)),
        }
    }

    /// Bytes have come.
    pub fn received(&mut self, now: Instant, bytes: &[u8]) {
        let Phase::Greeting { initiator, crc, .. } = &mut self.phase else { return };
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
                // Who tries again says nothing of what was wrong.
                if self.pause_after(now, &Failure::Protocol(error)).is_none()
                    && let Some(frame) = terminate(error, crc)
                {
                    self.effects.push_back(Effect::Transmit(frame));
                }
                self.failed(now, Failure::Protocol(error));
            }
        }
    }

    /// The attempt has failed: there is another one, or this is the end.
    pub fn failed(&mut self, now: Instant, failure: Failure) {
        if matches!(self.phase, Phase::Done | Phase::Idle | Phase::Pausing { .. }) {
            return;
        }
        let Some(pause) = self.pause_after(now, &failure) else {
            return self.finish(Err(failure));
        };
        if failure == Failure::NobodyListens {
            self.refused += 1;
        }
        self.phase = Phase::Pausing { due: now + pause };
        self.effects.push_back(Effect::HangUp(failure));
    }

    /// A system call that an effect asked for has failed.
    pub fn system_failed(&mut self, now: Instant, error: Errno) {
        let failure = match self.phase {
            Phase::Confirming { .. } => Failure::System(error),
            _ => Failure::of_connect(error),
        };
        self.failed(now, failure);
    }

    /// The time of [`Self::timeout`] has come. May be called without a reason.
    pub fn timed_out(&mut self, now: Instant) {
        if self.timeout().is_none_or(|timeout| now < timeout) {
            return;
        }
        match &mut self.phase {
            Phase::Asking { question, .. } | Phase::Confirming { question } => {
                if now >= question.give_up {
                    return self.answered(now, Answer::Silence);
                }
                question.asked += 1;
                self.effects.push_back(Effect::Ask { again: true });
            }
            Phase::Connecting { .. } | Phase::Greeting { .. } => {
                self.failed(now, Failure::Unreachable(Errno::TIMEDOUT));
            }
            Phase::Pausing { .. } => {
                self.phase = Phase::Idle;
                self.effects.push_back(Effect::Dial);
            }
            Phase::Idle | Phase::Ready | Phase::Done => {}
        }
    }

    /// When [`Self::timed_out`] is to be called, if nothing else happens.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Asking { question, .. } | Phase::Confirming { question } => {
                Some(question.timeout())
            }
            Phase::Connecting { deadline, .. } | Phase::Greeting { deadline, .. } => *deadline,
            Phase::Pausing { due } => Some(*due),
            Phase::Idle | Phase::Ready | Phase::Done => None,
        }
    }

    /// What to listen to.
    #[must_use]
    pub fn awaits(&self) -> Awaits {
        match self.phase {
            Phase::Asking { .. } | Phase::Confirming { .. } => Awaits::Answer,
            Phase::Connecting { .. } => Awaits::Connection,
            Phase::Greeting { .. } => Awaits::Reply,
            Phase::Idle | Phase::Ready | Phase::Pausing { .. } | Phase::Done => Awaits::Nothing,
        }
    }

    /// What is to be done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Gives up: there is no effect any more.
    pub fn cancel(&mut self) {
        self.phase = Phase::Done;
        self.effects.clear();
    }

    fn connect(&mut self, now: Instant, answer: Option<Answer>) {
        let port = match answer {
            Some(Answer::Port(port)) => Some(port),
            _ => None,
        };
        let deadline = self.plan.connect_time.map(|time| now + time);
        self.phase = Phase::Connecting { answer, deadline };
        self.effects.push_back(Effect::Connect { port });
    }

    fn be_ready(&mut self, weft: bool) {
        self.phase = Phase::Ready;
        self.effects.push_back(Effect::Greet { weft });
    }

    /// How long to wait before the next attempt; `None` when there is none.
    fn pause_after(&self, now: Instant, failure: &Failure) -> Option<Duration> {
        match self.plan.retry {
            Retry::Refused(pauses) => {
                let is_refused = matches!(self.phase, Phase::Connecting { .. })
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
        self.phase = Phase::Done;
        self.effects.push_back(Effect::Finished(outcome));
    }
}

impl Wanted {
    /// Whether the answer is of the wanted queue pair to ours. The port may have gone to somebody
    /// else since the program got the number.
    fn is_in(self, negotiated: &Negotiated) -> bool {
        let (_, hello) = hello::split(&negotiated.peer_private_data);
        hello.is_some_and(|hello| hello.identity.qp_num == self.peer && hello.wanted_qp == self.own)
    }
}

impl Failure {
    /// What an error of `connect(2)`, or of the first `send(2)`, means.
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

    /// What an error of `recv(2)` means.
    #[must_use]
    pub fn of_receive(error: Errno) -> Self {
        match error {
            Errno::CONNRESET | Errno::PIPE => Self::Closed,
            error => Self::Unreachable(error),
        }
    }

    /// The error number that tells it best.
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

/// The Terminate that answers a bad reply, if the RFCs want one, as it goes to the stream.
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
