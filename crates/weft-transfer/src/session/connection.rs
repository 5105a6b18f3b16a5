//! One end of a control channel: the hello, the sessions, and the pings.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::fault::{Fault, Misuse};
use crate::limits::{PING_INTERVAL, SESSIONS_MAX, SILENCE_MAX, VERSION};
use crate::wire::{
    Body, Cancel, Hello, HelloReply, ListenReply, Message, Open, OpenReply, Refusal, Terms,
};

/// The initiator's request in its hello.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The number of data channels.
    pub channels: u16,
    /// Bytes of payload of a block.
    pub block_size: u32,
    /// The optional features that the initiator supports.
    pub features: u64,
    /// The name of the initiator's program.
    pub agent: String,
}

/// The acceptor's limits.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The largest terms that the acceptor grants. The version is this program's.
    pub most: Terms,
    /// The smallest block size that it accepts.
    pub block_size_min: u32,
    /// The most sessions at a time, `SESSIONS_MAX` or fewer.
    pub sessions: usize,
}

/// An event that a message of the peer causes in the layers above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The ends have agreed on these terms.
    Established(Terms),
    /// The acceptor has refused the connection, which is over.
    Refused {
        /// The reason as a code.
        refusal: Refusal,
        /// The reason as text.
        text: String,
    },
    /// The initiator asks for a listener. The caller answers it by [`Connection::answer_listen`].
    Listen,
    /// The initiator asks the acceptor to take the data channels of the server with this key. The
    /// caller answers it by [`Connection::answer_listen`].
    Grant([u8; 32]),
    /// The answer to [`Connection::ask_to_listen`] or [`Connection::ask_for_grant`].
    ListenReply(ListenReply),
    /// The initiator opens a session. The caller answers it by [`Connection::answer`].
    Open {
        /// The session.
        session: u32,
        /// The opening: the initiator's role and the job.
        open: Open,
    },
    /// The answer to [`Connection::open`].
    OpenReply {
        /// The session.
        session: u32,
        /// The answer.
        reply: OpenReply,
    },
    /// A message for the source or the sink of a session.
    Session(Message),
    /// The peer has ended the connection with all of its sessions.
    Cancelled(Cancel),
}

#[derive(Clone, Debug)]
enum State {
    /// The initiator waits for the reply to its hello.
    Asked(Offer),
    /// The acceptor waits for the hello.
    Accepting(Policy),
    /// The terms are agreed, and the initiator can open sessions.
    Up(Terms),
    Over,
}

/// Whether the initiator has asked for a listener or a grant, which it may do once before its first
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    NotAsked,
    Asked,
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    /// The acceptor has not answered yet.
    Opening,
    Open,
}

/// One end of a control channel. The caller measures all times from one fixed moment.
#[derive(Debug)]
pub struct Connection {
    state: State,
    is_initiator: bool,
    listener: Listener,
    sessions: BTreeMap<u32, Session>,
    sessions_max: usize,
    /// The highest session number that has been used.
    last_session: u32,
    outgoing: VecDeque<Message>,
    pong: Option<u64>,
    pings: u64,
    /// When the last message or block of the peer came, and when the last ping after it was sent.
    seen: Duration,
    asked: Option<Duration>,
    /// The silence of the peer after which it counts as gone.
    silence: Duration,
}

impl Connection {
    /// Creates the initiator's end, which sends a hello.
    #[must_use]
    pub fn initiate(offer: Offer, now: Duration) -> Self {
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            channels: offer.channels,
            block_size: offer.block_size,
            features: offer.features,
            agent: offer.agent.clone(),
        };
        let mut connection = Self::new(State::Asked(offer), SESSIONS_MAX, now);
        connection.is_initiator = true;
        connection.outgoing.push_back(Message::of(0, Body::Hello(hello)));
        connection
    }

    /// Creates the acceptor's end.
    #[must_use]
    pub fn accept(policy: Policy, now: Duration) -> Self {
        let sessions = policy.sessions.min(SESSIONS_MAX);
        Self::new(State::Accepting(policy), sessions, now)
    }

    fn new(state: State, sessions_max: usize, now: Duration) -> Self {
        Self {
            state,
            is_initiator: false,
            listener: Listener::NotAsked,
            sessions: BTreeMap::new(),
            sessions_max,
            last_session: 0,
            outgoing: VecDeque::new(),
            pong: None,
            pings: 0,
            seen: now,
            asked: None,
            silence: SILENCE_MAX,
        }
    }

    /// Sets the silence after which the peer counts as gone, instead of `SILENCE_MAX`.
    pub fn allow_silence(&mut self, silence: Duration) {
        self.silence = silence;
    }

    /// The agreed terms; `None` before the agreement.
    #[must_use]
    pub fn terms(&self) -> Option<&Terms> {
        match &self.state {
            State::Up(terms) => Some(terms),
            _ => None,
        }
    }

    /// The number of sessions that are open or being opened.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Asks the acceptor to listen for data channels. The answer is [`Event::ListenReply`].
    ///
    /// # Errors
    /// If this end is the acceptor, is not connected, has asked before, or has opened a session.
    pub fn ask_to_listen(&mut self) -> Result<(), Misuse> {
        self.ask(Body::Listen)
    }

    /// Asks the acceptor to take the data channels of the server with this key. The answer is
    /// [`Event::ListenReply`].
    ///
    /// # Errors
    /// The same.
    pub fn ask_for_grant(&mut self, key: [u8; 32]) -> Result<(), Misuse> {
        self.ask(Body::Grant(key))
    }

    fn ask(&mut self, body: Body) -> Result<(), Misuse> {
        if !self.is_initiator || !self.may_ask() {
            return Err(Misuse::Over);
        }
        self.listener = Listener::Asked;
        self.outgoing.push_back(Message::of(0, body));
        Ok(())
    }

    /// Answers [`Event::Listen`] and [`Event::Grant`].
    ///
    /// # Errors
    /// If the initiator does not wait for an answer.
    pub fn answer_listen(&mut self, reply: ListenReply) -> Result<(), Misuse> {
        if self.is_initiator || self.listener != Listener::Asked {
            return Err(Misuse::Over);
        }
        self.listener = Listener::Answered;
        self.outgoing.push_back(Message::of(0, Body::ListenReply(reply)));
        Ok(())
    }

    /// Whether the initiator may ask for a listener or a grant now.
    fn may_ask(&self) -> bool {
        let is_up = matches!(self.state, State::Up(_));
        is_up && self.listener == Listener::NotAsked && self.last_session == 0
    }

    /// Opens a session, and returns its number. The answer is [`Event::OpenReply`].
    ///
    /// # Errors
    /// If this end is the acceptor, is not connected, or has too many sessions.
    pub fn open(&mut self, open: Open) -> Result<u32, Misuse> {
        let is_up = matches!(self.state, State::Up(_));
        if !is_up || !self.is_initiator || self.sessions.len() >= self.sessions_max {
            return Err(Misuse::Over);
        }
        let session = self.last_session.checked_add(1).ok_or(Misuse::Over)?;
        self.last_session = session;
        self.sessions.insert(session, Session::Opening);
        self.outgoing.push_back(Message::of(session, Body::Open(open)));
        Ok(session)
    }

    /// Answers [`Event::Open`].
    ///
    /// # Errors
    /// If the session does not wait for an answer.
    pub fn answer(&mut self, session: u32, reply: OpenReply) -> Result<(), Misuse> {
        if self.is_initiator || self.sessions.get(&session) != Some(&Session::Opening) {
            return Err(Misuse::Number(session));
        }
        self.settle(session, &reply);
        self.outgoing.push_back(Message::of(session, Body::OpenReply(reply)));
        Ok(())
    }

    /// Ends a session here. Later messages for it are dropped.
    pub fn session_ended(&mut self, session: u32) {
        self.sessions.remove(&session);
    }

    /// Handles a message of the peer.
    ///
    /// # Errors
    /// If the message breaks the protocol. The connection is then over as soon as the caller has
    /// sent what `poll_control` returns.
    pub fn handle_control(
        &mut self,
        message: Message,
        now: Duration,
    ) -> Result<Option<Event>, Fault> {
        (self.seen, self.asked) = (now, None);
        let result = self.handle(message);
        if let Err(fault) = result {
            self.cancel(fault.cancel());
        }
        result
    }

    /// Records that a block has arrived, which proves like a message that the peer is alive.
    pub fn seen(&mut self, now: Duration) {
        (self.seen, self.asked) = (now.max(self.seen), None);
    }

    /// Ends the connection and all of its sessions at once.
    pub fn cancel(&mut self, cancel: Cancel) {
        if !matches!(self.state, State::Over) {
            self.outgoing.push_back(Message::of(0, Body::Cancel(cancel)));
            self.end();
        }
    }

    /// Returns the next message for the peer. Send these messages before those of the sessions'
    /// [`Source`](super::Source) and [`Sink`](super::Sink).
    pub fn poll_control(&mut self, now: Duration) -> Option<Message> {
        if let Some(message) = self.outgoing.pop_front() {
            return Some(message);
        }
        if let Some(number) = self.pong.take() {
            return Some(Message::of(0, Body::Pong(number)));
        }
        if matches!(self.state, State::Up(_)) && now >= self.ping_at() {
            self.asked = Some(now);
            self.pings += 1;
            return Some(Message::of(0, Body::Ping(self.pings)));
        }
        None
    }

    /// Whether a message other than a ping waits to be sent.
    #[must_use]
    pub fn has_control(&self) -> bool {
        !self.outgoing.is_empty() || self.pong.is_some()
    }

    /// When to call [`Connection::poll_control`] or [`Connection::is_silent`] next if no message
    /// comes before.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.ping_at().min(self.seen + self.silence)
    }

    /// Whether the peer has been silent for so long that it counts as gone.
    #[must_use]
    pub fn is_silent(&self, now: Duration) -> bool {
        now >= self.seen + self.silence
    }

    /// Whether the connection ends after the messages that `poll_control` returns.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn ping_at(&self) -> Duration {
        self.asked.unwrap_or(self.seen) + PING_INTERVAL.min(self.silence / 4)
    }

    fn end(&mut self) {
        self.state = State::Over;
        self.sessions.clear();
        self.pong = None;
    }

    fn handle(&mut self, message: Message) -> Result<Option<Event>, Fault> {
        let Message { session, body } = message;
        match (&self.state, body) {
            (State::Over, _) => Ok(None),
            (_, Body::Cancel(cancel)) if session == 0 => {
                self.end();
                Ok(Some(Event::Cancelled(cancel)))
            }
            (State::Accepting(_), Body::Hello(hello)) => Ok(Some(self.greet(&hello))),
            (State::Asked(_), Body::HelloReply(reply)) => self.handle_reply(reply).map(Some),
            (State::Up(_), body) => self.handle_up(session, body),
            (_, body) => Err(Fault::Message(body.kind())),
        }
    }

    fn handle_up(&mut self, session: u32, body: Body) -> Result<Option<Event>, Fault> {
        match body {
            Body::Ping(number) => self.pong = Some(number),
            Body::Pong(number) if number <= self.pings => {}
            Body::Pong(_) => return Err(Fault::Answer("a pong")),
            Body::Hello(_) | Body::HelloReply(_) => return Err(Fault::Message(body.kind())),
            Body::Listen if !self.is_initiator && self.may_ask() => {
                self.listener = Listener::Asked;
                return Ok(Some(Event::Listen));
            }
            Body::Grant(key) if !self.is_initiator && self.may_ask() => {
                self.listener = Listener::Asked;
                return Ok(Some(Event::Grant(key)));
            }
            Body::ListenReply(reply) if self.is_initiator && self.listener == Listener::Asked => {
                self.listener = Listener::Answered;
                return Ok(Some(Event::ListenReply(reply)));
            }
            Body::Listen | Body::ListenReply(_) | Body::Grant(_) => {
                return Err(Fault::Message(body.kind()));
            }
            Body::Open(open) => return self.handle_open(session, open),
            Body::OpenReply(reply) => {
                let is_opening = self.sessions.get(&session) == Some(&Session::Opening);
                if !self.is_initiator || !is_opening {
                    return Err(Fault::Answer("a reply to an opening"));
                }
                self.settle(session, &reply);
                return Ok(Some(Event::OpenReply { session, reply }));
            }
            body => {
                return match self.sessions.get(&session) {
                    Some(Session::Open) => Ok(Some(Event::Session(Message { session, body }))),
                    Some(Session::Opening) => Err(Fault::Message(body.kind())),
                    // The session has ended here, and the peer did not know that when it sent the
                    // message.
                    None if session <= self.last_session => Ok(None),
                    None => Err(Fault::NoSession(session)),
                };
            }
        }
        Ok(None)
    }

    fn handle_open(&mut self, session: u32, open: Open) -> Result<Option<Event>, Fault> {
        if self.is_initiator || session <= self.last_session {
            return Err(Fault::NoSession(session));
        }
        self.last_session = session;
        if self.sessions.len() >= self.sessions_max {
            // At most one answer for each possible session waits to be sent.
            if self.outgoing.len() >= SESSIONS_MAX {
                return Err(Fault::Sessions);
            }
            let text = "too many sessions".to_owned();
            let reply = OpenReply::Refused { refusal: Refusal::Busy, text };
            self.outgoing.push_back(Message::of(session, Body::OpenReply(reply)));
            return Ok(None);
        }
        self.sessions.insert(session, Session::Opening);
        Ok(Some(Event::Open { session, open }))
    }

    fn settle(&mut self, session: u32, reply: &OpenReply) {
        match reply {
            OpenReply::Accepted { .. } => self.sessions.insert(session, Session::Open),
            OpenReply::Refused { .. } => self.sessions.remove(&session),
        };
    }

    /// Returns the acceptor's answer to a hello.
    fn greet(&mut self, hello: &Hello) -> Event {
        let State::Accepting(policy) = &self.state else { unreachable!("only an acceptor greets") };
        let most = &policy.most;
        let block_size = hello.block_size.min(most.block_size);
        let refusal = if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            Some((Refusal::Version, format!("this end speaks version {VERSION}")))
        } else if block_size < policy.block_size_min {
            let text = format!("blocks have {} bytes at least", policy.block_size_min);
            Some((Refusal::BlockSize, text))
        } else {
            None
        };
        if let Some((refusal, text)) = refusal {
            let reply = HelloReply::Refused { refusal, text: text.clone() };
            self.outgoing.push_back(Message::of(0, Body::HelloReply(reply)));
            self.end();
            return Event::Refused { refusal, text };
        }
        let terms = Terms {
            version: VERSION,
            channels: hello.channels.min(most.channels),
            block_size,
            features: hello.features & most.features,
            token: most.token,
            agent: most.agent.clone(),
        };
        let reply = HelloReply::Accepted(terms.clone());
        self.outgoing.push_back(Message::of(0, Body::HelloReply(reply)));
        // The layer above wants the name of the peer's program, not of its own.
        let seen = Terms { agent: hello.agent.clone(), ..terms };
        self.state = State::Up(seen.clone());
        Event::Established(seen)
    }

    fn handle_reply(&mut self, reply: HelloReply) -> Result<Event, Fault> {
        let terms = match reply {
            HelloReply::Accepted(terms) => terms,
            HelloReply::Refused { refusal, text } => {
                self.end();
                return Ok(Event::Refused { refusal, text });
            }
        };
        let State::Asked(offer) = &self.state else {
            return Err(Fault::Answer("a reply to a hello"));
        };
        if terms.version != VERSION {
            return Err(Fault::Answer("the version"));
        }
        if terms.channels > offer.channels || terms.block_size > offer.block_size {
            return Err(Fault::Answer("more than was asked for"));
        }
        if terms.features & !offer.features != 0 {
            return Err(Fault::Answer("features that were not offered"));
        }
        self.state = State::Up(terms.clone());
        Ok(Event::Established(terms))
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
