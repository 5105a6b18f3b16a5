//! One end of a control channel: agreement, sessions, signs of life.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::fault::{Fault, Misuse};
use crate::limits::{PING_INTERVAL, SESSIONS_MAX, SILENCE_MAX, VERSION};
use crate::wire::{Body, Cancel, Hello, HelloReply, Message, Open, OpenReply, Refusal, Terms};

/// What the initiator wants.
#[derive(Clone, Debug)]
pub struct Offer {
    /// How many data channels.
    pub channels: u16,
    /// Bytes of payload of a block.
    pub block_size: u32,
    /// What else it can do.
    pub features: u64,
    /// Which program it is.
    pub agent: String,
}

/// What the acceptor allows.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The most of everything. The version is this program's.
    pub most: Terms,
    /// The least block size.
    pub block_size_min: u32,
    /// Sessions at a time, no more than `SESSIONS_MAX`.
    pub sessions: usize,
}

/// What a message means for the layers above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The ends have agreed on this.
    Established(Terms),
    /// They have not. The connection is over.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The same for people.
        text: String,
    },
    /// The initiator opens a session. It has to be answered by [`Connection::answer`].
    Open {
        /// The session.
        session: u32,
        /// What it is to be.
        open: Open,
    },
    /// The answer to [`Connection::open`].
    OpenReply {
        /// The session.
        session: u32,
        /// The answer.
        reply: OpenReply,
    },
    /// A message for the source or sink of a session.
    Session(Message),
    /// The peer ends the connection, with all sessions.
    Cancelled(Cancel),
}

#[derive(Clone, Debug)]
enum State {
    /// The initiator waits for the reply to its hello.
    Asked(Offer),
    /// The acceptor waits for the hello.
    Accepting(Policy),
    /// Sessions can be opened.
    Up(Terms),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    /// Not answered yet.
    Opening,
    Open,
}

/// One end of a control channel. Times are since any moment that stays the same.
#[derive(Debug)]
pub struct Connection {
    state: State,
    is_initiator: bool,
    sessions: BTreeMap<u32, Session>,
    sessions_max: usize,
    /// The highest number of a session so far.
    last_session: u32,
    outgoing: VecDeque<Message>,
    pong: Option<u64>,
    pings: u64,
    /// When the peer was last seen, and when it was last asked for a sign of life since.
    seen: Duration,
    asked: Option<Duration>,
}

impl Connection {
    /// The initiator's end. It sends a hello.
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

    /// The acceptor's end.
    #[must_use]
    pub fn accept(policy: Policy, now: Duration) -> Self {
        let sessions = policy.sessions.min(SESSIONS_MAX);
        Self::new(State::Accepting(policy), sessions, now)
    }

    fn new(state: State, sessions_max: usize, now: Duration) -> Self {
        Self {
            state,
            is_initiator: false,
            sessions: BTreeMap::new(),
            sessions_max,
            last_session: 0,
            outgoing: VecDeque::new(),
            pong: None,
            pings: 0,
            seen: now,
            asked: None,
        }
    }

    /// What the ends have agreed on, once they have.
    #[must_use]
    pub fn terms(&self) -> Option<&Terms> {
        match &self.state {
            State::Up(terms) => Some(terms),
            _ => None,
        }
    }

    /// Sessions that are open or being opened.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Opens a session, and returns its number. The answer is [`Event::OpenReply`].
    ///
    /// # Errors
    /// If this end may not open one, or no more.
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
    /// If there is nothing to answer.
    pub fn answer(&mut self, session: u32, reply: OpenReply) -> Result<(), Misuse> {
        if self.is_initiator || self.sessions.get(&session) != Some(&Session::Opening) {
            return Err(Misuse::Number(session));
        }
        self.settle(session, &reply);
        self.outgoing.push_back(Message::of(session, Body::OpenReply(reply)));
        Ok(())
    }

    /// A session has ended: messages that still come for it are dropped.
    pub fn session_ended(&mut self, session: u32) {
        self.sessions.remove(&session);
    }

    /// A message of the peer.
    ///
    /// # Errors
    /// If the peer must not say that. The connection is over then, when `poll_control` has
    /// given what the peer is to know.
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

    /// A block has come, which is as good a sign of life as a message.
    pub fn seen(&mut self, now: Duration) {
        (self.seen, self.asked) = (now.max(self.seen), None);
    }

    /// Ends the connection, with all sessions, without waiting for anything.
    pub fn cancel(&mut self, cancel: Cancel) {
        if !matches!(self.state, State::Over) {
            self.outgoing.push_back(Message::of(0, Body::Cancel(cancel)));
            self.end();
        }
    }

    /// The next message for the peer. Those of the sessions come from their machines, after
    /// [`Event::OpenReply`] or [`Connection::answer`]; send these first.
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

    /// Whether there is a message for the peer, whatever the time is.
    #[must_use]
    pub fn has_control(&self) -> bool {
        !self.outgoing.is_empty() || self.pong.is_some()
    }

    /// When to call [`Connection::poll_control`] or [`Connection::is_silent`] next, if nothing
    /// comes until then.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.ping_at().min(self.seen + SILENCE_MAX)
    }

    /// Whether the peer has been silent for so long that it must be gone.
    #[must_use]
    pub fn is_silent(&self, now: Duration) -> bool {
        now >= self.seen + SILENCE_MAX
    }

    /// Whether the connection is over, when all that `poll_control` gives has been sent.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn ping_at(&self) -> Duration {
        self.asked.unwrap_or(self.seen) + PING_INTERVAL
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
                    // It has ended here, and the peer did not know that yet.
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
            // Not more answers than there may be sessions wait to be sent.
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

    /// The acceptor's answer to a hello.
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
        // What is of use above is which program the peer is.
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
