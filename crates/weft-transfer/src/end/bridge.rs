//! A bridge: it passes the control messages of one session between two servers, whose data channels
//! go from one to the other. So this process sees the progress, the problems and the result, and
//! ends the copy at both servers by its own end; it sees no data.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::note::{Note, Reached};
use super::shared::{Compressed, EndError, Finished, Observer, Progress};
use crate::limits::{BRIDGE_MESSAGES_MAX, LINGER_TIME, SENDER_WAIT_MIN, TEXT_LEN_MAX};
use crate::session::{Connection, Event};
use crate::transport::{Control, ControlEvent};
use crate::wire::{Body, Cancel, Code, Message};
use weft_sys::lock;

/// A session with one of the servers, which has accepted it.
pub struct BridgedSession {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The state machine of the connection.
    pub connection: Connection,
    /// The moment from which the connection measures time.
    pub epoch: Instant,
    /// The session's number.
    pub session: u32,
}

impl fmt::Debug for BridgedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgedSession").finish_non_exhaustive()
    }
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Source = 0,
    Sink = 1,
}

impl Server {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Sink,
            Self::Sink => Self::Source,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Source => "the source",
            Self::Sink => "the destination",
        }
    }
}

/// The connection to a server, and the messages for it.
struct Side {
    epoch: Instant,
    session: u32,
    connection: Connection,
    outgoing: VecDeque<Body>,
    /// Whether a thread sends a message now.
    is_sending: bool,
    /// Whether the server has ended the connection.
    has_ended: bool,
}

struct State {
    sides: [Side; 2],
    /// Whether the source has completed its part, and the sink its own after that.
    is_source_complete: bool,
    is_complete: bool,
    failure: Option<EndError>,
    finished: Finished,
}

impl State {
    fn side(&mut self, server: Server) -> &mut Side {
        &mut self.sides[server as usize]
    }

    fn is_over(&self) -> bool {
        self.is_complete || self.failure.is_some()
    }

    /// Ends the copy, and tells both servers why. Later causes are ignored.
    fn fail(&mut self, code: Code, error: EndError) {
        if self.failure.is_some() {
            return;
        }
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(TEXT_LEN_MAX));
        for side in &mut self.sides {
            side.outgoing.push_back(Body::Cancel(Cancel { code, text: text.clone() }));
        }
        self.failure = Some(error);
    }
}

/// A bridge between two sessions.
pub struct Bridge {
    state: Mutex<State>,
    changed: Condvar,
    controls: [Arc<dyn Control>; 2],
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    /// Whether the sink lists changes: those that it makes.
    lists_changes: bool,
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").finish_non_exhaustive()
    }
}

impl Bridge {
    /// Creates a bridge from the source's server to the sink's.
    #[must_use]
    pub fn new(
        [source, sink]: [BridgedSession; 2],
        observer: Arc<dyn Observer>,
        progress: Arc<Progress>,
        lists_changes: bool,
    ) -> Self {
        let controls = [&source, &sink].map(|it| Arc::clone(&it.control));
        let sides = [source, sink].map(|it| Side {
            epoch: it.epoch,
            session: it.session,
            connection: it.connection,
            outgoing: VecDeque::new(),
            is_sending: false,
            has_ended: false,
        });
        let state = State {
            sides,
            is_source_complete: false,
            is_complete: false,
            failure: None,
            finished: Finished::default(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { state, changed, controls, observer, progress, lists_changes }
    }

    /// Passes messages until the session ends.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(self) -> Result<Finished, EndError> {
        thread::scope(|scope| {
            for server in [Server::Source, Server::Sink] {
                let bridge = &self;
                scope.spawn(move || bridge.receive(server));
                scope.spawn(move || bridge.send(server));
            }
            self.wait_for_end();
            for control in &self.controls {
                control.close();
            }
        });
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(error) => Err(error),
            None => Ok(state.finished),
        }
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the session is over, and the servers have what they have to know of it.
    fn wait_for_end(&self) {
        let mut state = lock(&self.state);
        while !state.is_over() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let end = Instant::now() + LINGER_TIME;
        // A source whose session is complete ends its connection.
        let is_open = |state: &State| {
            let has_more = |it: &Side| !it.has_ended && (it.is_sending || !it.outgoing.is_empty());
            match state.failure {
                None => !state.sides[Server::Source as usize].has_ended,
                Some(_) => state.sides.iter().any(has_more),
            }
        };
        while is_open(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
    }

    /// Receives the messages of a server until its connection ends.
    fn receive(&self, server: Server) {
        let control = Arc::clone(&self.controls[server as usize]);
        let mut bytes = Vec::new();
        loop {
            let received = control.receive(&mut bytes, None);
            let mut state = lock(&self.state);
            match received {
                Ok(ControlEvent::Message) => self.handle(server, &mut state, &bytes),
                Ok(ControlEvent::TimedOut) => {}
                Ok(ControlEvent::Ended) | Err(_) => {
                    state.side(server).has_ended = true;
                    if !state.is_over() {
                        let error = match received {
                            Err(error) => error.into(),
                            Ok(_) => EndError::Lost(
                                "the connection ended before the copy was complete".into(),
                            ),
                        };
                        state.fail(Code::Stopped, error.of(server.name()));
                    }
                    self.changed.notify_all();
                    return;
                }
            }
            self.changed.notify_all();
            // The other server may take messages more slowly than this one sends them.
            let other = server.other();
            while state.side(other).outgoing.len() >= BRIDGE_MESSAGES_MAX && !state.is_over() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Handles a message of a server.
    fn handle(&self, server: Server, state: &mut State, bytes: &[u8]) {
        let wrong =
            |error: &dyn fmt::Display| EndError::Protocol(error.to_string()).of(server.name());
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => return state.fail(Code::Protocol, wrong(&error)),
        };
        let side = state.side(server);
        let now = side.epoch.elapsed();
        match side.connection.handle_control(message, now) {
            Ok(Some(Event::Session(Message { body, .. }))) => self.pass(server, state, body),
            Ok(Some(Event::Cancelled(cancel))) => state.fail(cancel.code, reason(server, &cancel)),
            Ok(_) => {}
            Err(fault) => state.fail(Code::Protocol, wrong(&fault)),
        }
    }

    /// Passes a message of the session on.
    fn pass(&self, server: Server, state: &mut State, body: Body) {
        match &body {
            Body::Cancel(cancel) => {
                return state.fail(cancel.code, reason(server, cancel));
            }
            Body::Records(records) => {
                let noted = Note::parse(records).map_err(|error| error.to_string());
                let noted = noted.and_then(|note| self.hear(server, state, note));
                if let Err(error) = noted {
                    let error = EndError::Protocol(error).of(server.name());
                    return state.fail(Code::Protocol, error);
                }
            }
            Body::Complete(_) if server == Server::Source => state.is_source_complete = true,
            // The source checks the totals, and would cancel the session.
            Body::Complete(_) if state.is_source_complete => state.is_complete = true,
            Body::Complete(_) => {
                let error = EndError::Protocol("an end before the source's".into());
                return state.fail(Code::Protocol, error.of(server.name()));
            }
            _ => {}
        }
        state.side(server.other()).outgoing.push_back(body);
    }

    /// Takes what is for this end, too.
    ///
    /// # Errors
    /// If the server may not send that.
    fn hear(&self, server: Server, state: &mut State, note: Note) -> Result<(), String> {
        let is_source = server == Server::Source;
        match note {
            Note::Problem { path, text, is_warning } => {
                self.observer.problem(&path, &text, is_warning);
            }
            Note::Loads(loads) if is_source => state.finished.source = loads,
            Note::Loads(loads) => state.finished.sink = loads,
            Note::Progress(reached) if is_source => {
                let Reached { bytes, planned, entries, is_planned, plain, sent } = reached;
                state.finished.compressed = Compressed { plain, sent };
                self.progress.bytes.store(bytes, SeqCst);
                self.progress.planned.store(planned, SeqCst);
                self.progress.entries.store(entries, SeqCst);
                self.progress.is_planned.store(is_planned, SeqCst);
            }
            Note::Wants(_) if !is_source => {}
            Note::Outcome(outcome) if !is_source => state.finished.outcome = outcome,
            Note::Again(path) if !is_source => self.observer.again(&path),
            Note::Plan(all) if !is_source && self.lists_changes => {
                all.iter().for_each(|planned| self.observer.planned(planned));
            }
            _ => return Err("a note that it may not send".into()),
        }
        Ok(())
    }

    /// Sends the messages for a server until the session is over and all are sent.
    fn send(&self, server: Server) {
        let control = Arc::clone(&self.controls[server as usize]);
        let mut state = lock(&self.state);
        loop {
            let is_over = state.is_over();
            let side = state.side(server);
            if side.has_ended {
                return;
            }
            let now = side.epoch.elapsed();
            if side.connection.is_silent(now) && !is_over {
                let error = EndError::Lost("no sign of life".into()).of(server.name());
                state.fail(Code::Silent, error);
                self.changed.notify_all();
                continue;
            }
            let session = side.session;
            let queued = |body| Message::of(session, body);
            let message = side.connection.poll_control(now);
            let message = message.or_else(|| side.outgoing.pop_front().map(queued));
            if let Some(message) = message {
                side.is_sending = true;
                drop(state);
                let sent = control.send(&message.emit());
                state = lock(&self.state);
                state.side(server).is_sending = false;
                if let Err(error) = sent {
                    state.side(server).has_ended = true;
                    if !state.is_over() {
                        let error = EndError::from(error).of(server.name());
                        state.fail(Code::Stopped, error);
                    }
                }
                self.changed.notify_all();
            } else if is_over {
                return;
            } else {
                let wait = side.connection.timeout().saturating_sub(now).max(SENDER_WAIT_MIN);
                state = self.wait(state, wait);
            }
        }
    }
}

/// Returns the reason for which a server has ended the copy.
fn reason(server: Server, cancel: &Cancel) -> EndError {
    let text = if cancel.text.is_empty() { cancel.code.to_string() } else { cancel.text.clone() };
    match cancel.code {
        // Its connections may work again, or those through this host.
        Code::Channels | Code::Silent => EndError::Lost(text),
        _ => EndError::Here(text),
    }
    .of(server.name())
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
