//! The parts that both ends share: a session machine behind a lock, and the threads of the control
//! channel.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::note::Note;
use super::shared::EndError;
use crate::limits::{LINGER_TIME, SENDER_WAIT_MIN};
use crate::mutex::lock;
use crate::session::{Connection, Ending, Event, Fault, Sink, Source};
use crate::transport::{Control, ControlEvent};
use crate::wire::{Body, Cancel, Code, Message};

/// The session machine of one end: a source or a sink.
pub(super) trait Half: Send {
    fn handle(&mut self, body: Body) -> Result<(), Fault>;
    fn has_message(&self) -> bool;
    fn poll_message(&mut self) -> Option<Message>;
    /// Whether a thread that waits for the machine has something to do.
    fn has_work(&self) -> bool;
    fn has_ended(&self) -> Option<Ending>;
    fn cancel_session(&mut self, cancel: Cancel);
    fn room(&self) -> usize;
    fn send(&mut self, records: Vec<u8>) -> bool;
    fn finish_session(&mut self) -> bool;
}

macro_rules! half {
    ($machine:ty, $has_work:expr) => {
        impl Half for $machine {
            fn handle(&mut self, body: Body) -> Result<(), Fault> {
                self.handle_control(body)
            }
            fn has_message(&self) -> bool {
                self.has_control()
            }
            fn poll_message(&mut self) -> Option<Message> {
                self.poll_control()
            }
            fn has_work(&self) -> bool {
                $has_work(self)
            }
            fn has_ended(&self) -> Option<Ending> {
                self.ending().cloned()
            }
            fn cancel_session(&mut self, cancel: Cancel) {
                self.cancel(cancel);
            }
            fn room(&self) -> usize {
                self.records_room()
            }
            fn send(&mut self, records: Vec<u8>) -> bool {
                self.send_records(records).is_ok()
            }
            fn finish_session(&mut self) -> bool {
                self.finish().is_ok()
            }
        }
    };
}

// The source's other threads wait only for room for notes.
half!(Source, |_| false);
half!(Sink, Sink::has_ready);

/// The data behind a desk's lock.
#[derive(Debug)]
pub(super) struct State<H> {
    pub(super) connection: Connection,
    pub(super) half: H,
    /// Notes for the peer that do not fit into the window yet.
    pub(super) outbox: VecDeque<Vec<u8>>,
    failure: Option<EndError>,
    has_peer_ended: bool,
    /// Whether the sending thread waits, and how many others wait. Only waiting threads are woken.
    is_sender_waiting: bool,
    waiting: usize,
}

impl<H: Half> State<H> {
    /// Whether the session is over and all of its messages are sent.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || self.half.has_ended().is_some()
    }

    /// Cancels the session and tells the peer the reason. Later causes are ignored.
    pub(super) fn fail(&mut self, code: Code, error: EndError) {
        if !self.is_over() {
            let mut text = error.to_string();
            text.truncate(text.floor_char_boundary(crate::limits::TEXT_LEN_MAX));
            self.half.cancel_session(Cancel { code, text });
            self.failure = Some(error);
        }
    }

    pub(super) fn tell(&mut self, note: &Note) {
        self.outbox.push_back(note.emit());
    }

    /// Passes queued notes to the machine as far as the window allows. Returns whether there were
    /// any.
    fn push_notes(&mut self) -> bool {
        let before = self.outbox.len();
        while let Some(front) = self.outbox.front()
            && front.len() <= self.half.room()
            && let Some(front) = self.outbox.pop_front()
        {
            if !self.half.send(front) {
                break;
            }
        }
        self.outbox.len() < before
    }

    /// Handles a message of the peer.
    fn handle(&mut self, bytes: &[u8], now: Duration) {
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => return self.fail(Code::Protocol, EndError::Protocol(error.to_string())),
        };
        let result = match self.connection.handle_control(message, now) {
            Ok(Some(Event::Session(Message { body: Body::Cancel(cancel), .. }))) => {
                // The text is untrusted, so control characters are removed before it is shown.
                let result = self.half.handle(Body::Cancel(cancel.clone()));
                if !self.is_over() {
                    self.failure = Some(EndError::Peer(reason(&cancel)));
                }
                result
            }
            Ok(Some(Event::Session(message))) => self.half.handle(message.body),
            Ok(Some(Event::Cancelled(cancel))) => {
                return self.fail(Code::Stopped, EndError::Peer(reason(&cancel)));
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = result {
            self.fail(Code::Protocol, EndError::Protocol(fault.to_string()));
        }
    }
}

fn reason(cancel: &Cancel) -> String {
    if cancel.text.is_empty() { cancel.code.to_string() } else { cancel.text.clone() }
}

/// The machine of an end, and the condition variables of the threads that wait for it.
pub(super) struct Desk<H> {
    pub(super) control: Arc<dyn Control>,
    state: Mutex<State<H>>,
    /// Wakes the sending thread; the other one wakes all other threads.
    sendable: Condvar,
    changed: Condvar,
    /// The moment from which the connection measures time.
    epoch: Instant,
}

impl<H: Half> Desk<H> {
    pub(super) fn new(
        control: Arc<dyn Control>,
        connection: Connection,
        half: H,
        epoch: Instant,
    ) -> Self {
        let outbox = VecDeque::new();
        let state = State {
            connection,
            half,
            outbox,
            failure: None,
            has_peer_ended: false,
            is_sender_waiting: false,
            waiting: 0,
        };
        let (sendable, changed) = (Condvar::new(), Condvar::new());
        Self { control, state: Mutex::new(state), sendable, changed, epoch }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<H>> {
        lock(&self.state)
    }

    /// The current time as the connection measures it.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits until the machine may have changed.
    pub(super) fn wait<'a>(&self, mut state: MutexGuard<'a, State<H>>) -> MutexGuard<'a, State<H>> {
        state.waiting += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }
}

/// An end: its desk, and the reactions to changes of the machine.
pub(super) trait End: Send + Sync {
    type Half: Half;

    fn desk(&self) -> &Desk<Self::Half>;

    /// Performs the work that the machine's `poll_…` methods return.
    fn pump(&self, state: &mut State<Self::Half>);

    /// Wakes all threads of the end, because the session is over. It may be called repeatedly.
    fn stop(&self);

    /// Changes the machine, and performs the work that results.
    fn change<R>(&self, change: impl FnOnce(&mut State<Self::Half>) -> R) -> R {
        let desk = self.desk();
        let mut state = desk.lock();
        let result = change(&mut state);
        self.pump(&mut state);
        let has_pushed = state.push_notes();
        let is_over = state.is_over();
        let has_message = state.half.has_message() || state.connection.has_control();
        let is_sendable = state.is_sender_waiting && (is_over || has_message);
        let has_work = state.waiting > 0 && (has_pushed || state.half.has_work());
        drop(state);
        if is_sendable {
            desk.sendable.notify_one();
        }
        if is_over || has_work {
            desk.changed.notify_all();
        }
        if is_over {
            self.stop();
        }
        result
    }

    /// Cancels the session from this end.
    fn fail(&self, code: Code, error: EndError) {
        self.change(|state| state.fail(code, error));
    }
}

/// Receives control messages until the channel ends.
pub(super) fn receive(end: &impl End) {
    let desk = end.desk();
    let mut bytes = Vec::new();
    loop {
        let received = desk.control.receive(&mut bytes, None);
        let now = desk.epoch.elapsed();
        match received {
            Ok(ControlEvent::Message) => end.change(|state| state.handle(&bytes, now)),
            Ok(ControlEvent::TimedOut) => {}
            Ok(ControlEvent::Ended) => {
                return end.change(|state| {
                    state.has_peer_ended = true;
                    let error = "the connection ended before the copy was complete";
                    state.fail(Code::Stopped, EndError::Here(error.into()));
                });
            }
            Err(error) => {
                return end.change(|state| {
                    state.has_peer_ended = true;
                    state.fail(Code::Stopped, error.into());
                });
            }
        }
    }
}

/// Sends control messages until the session is over.
pub(super) fn send(end: &impl End) {
    let desk = end.desk();
    let mut state = desk.lock();
    loop {
        let now = desk.epoch.elapsed();
        if state.connection.is_silent(now) {
            state.fail(Code::Silent, EndError::Here("no sign of life of the peer".into()));
        }
        let message = state.connection.poll_control(now);
        if let Some(message) = message.or_else(|| state.half.poll_message()) {
            drop(state);
            let sent = desk.control.send(&message.emit());
            state = desk.lock();
            if let Err(error) = sent {
                state.fail(Code::Stopped, error.into());
                break;
            }
        } else if state.is_over() {
            break;
        } else {
            let wait = state.connection.timeout().saturating_sub(now).max(SENDER_WAIT_MIN);
            state.is_sender_waiting = true;
            let waited = desk.sendable.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.is_sender_waiting = false;
        }
    }
    drop(state);
    desk.changed.notify_all();
    end.stop();
}

/// Reports that this end has finished its work, after its last note.
pub(super) fn finish(end: &impl End) {
    let desk = end.desk();
    let mut state = desk.lock();
    while !state.outbox.is_empty() && !state.is_over() {
        state = desk.wait(state);
    }
    drop(state);
    // It fails only if the session is ending already.
    end.change(|state| state.half.finish_session());
}

/// Closes the control channel after the end of the session. With `lingers`, it first waits for the
/// peer to close the connection, which shows that the peer has received the last message.
pub(super) fn close<H: Half>(desk: &Desk<H>, lingers: bool) {
    let end = Instant::now() + LINGER_TIME;
    let mut state = desk.lock();
    while lingers && !state.has_peer_ended {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let waited = desk.changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(state);
    desk.control.close();
}

/// Returns how the session has ended. All threads must have ended before.
pub(super) fn result<H: Half>(desk: &Desk<H>) -> Result<(), EndError> {
    let mut state = desk.lock();
    match (state.half.has_ended(), state.failure.take()) {
        (Some(Ending::Complete), _) => Ok(()),
        (_, Some(failure)) => Err(failure),
        (Some(Ending::Cancelled(cancel)), None) => Err(EndError::Here(reason(&cancel))),
        (Some(Ending::CancelledByPeer(cancel)), None) => Err(EndError::Peer(reason(&cancel))),
        (None, None) => Err(EndError::Here("the session did not end".into())),
    }
}
