//! The parts that both ends share: a session machine behind a lock, and the threads of the control
//! channel.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::closers::Closers;
use super::note::Note;
use super::shared::{EndError, Spare};
use crate::limits::{LINGER_TIME, SENDER_WAIT_MIN, SPARE_WAIT};
use crate::session::{Connection, Ending, Event, Fault, Sink, Source};
use crate::transport::{Control, ControlEvent};
use crate::wire::{Body, Cancel, Code, Message};
use weft_sys::lock;

/// The session machine of one end: a source or a sink.
pub(super) trait Machine: Send {
    fn handle(&mut self, body: Body) -> Result<(), Fault>;
    fn has_message(&self) -> bool;
    fn poll_message(&mut self) -> Option<Message>;
    /// Whether a thread that waits for the machine has something to do.
    fn has_work(&self) -> bool;
    fn has_ended(&self) -> Option<Ending>;
    fn channel_up(&mut self, channel: u16) -> bool;
    /// The number of channels that can be used.
    fn open_channels(&self) -> usize;
    fn poll_close(&mut self) -> Option<u16>;
    fn cancel_session(&mut self, cancel: Cancel);
    fn room(&self) -> usize;
    fn send(&mut self, records: Vec<u8>) -> bool;
    fn finish_session(&mut self) -> bool;
}

macro_rules! impl_machine {
    ($machine:ty, $has_work:expr) => {
        impl Machine for $machine {
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
            fn open_channels(&self) -> usize {
                self.channels()
            }
            fn channel_up(&mut self, channel: u16) -> bool {
                self.channel_up(channel)
            }
            fn poll_close(&mut self) -> Option<u16> {
                self.poll_close()
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
impl_machine!(Source, |_| false);
impl_machine!(Sink, Sink::has_ready);

/// The data behind a driver's lock.
#[derive(Debug)]
pub(super) struct State<M> {
    pub(super) connection: Connection,
    pub(super) machine: M,
    /// Notes for the peer that do not fit into the window yet.
    pub(super) outbox: VecDeque<Vec<u8>>,
    failure: Option<EndError>,
    has_peer_ended: bool,
    /// Whether the sending thread waits, and how many others wait. Only waiting threads are woken.
    is_sender_waiting: bool,
    waiting: usize,
}

impl<M: Machine> State<M> {
    /// Whether the session is over and all of its messages are sent.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || self.machine.has_ended().is_some()
    }

    /// Cancels the session and tells the peer the reason. Later causes are ignored.
    pub(super) fn fail(&mut self, code: Code, error: EndError) {
        if !self.is_over() {
            let mut text = error.to_string();
            text.truncate(text.floor_char_boundary(crate::limits::TEXT_LEN_MAX));
            self.machine.cancel_session(Cancel { code, text });
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
            && front.len() <= self.machine.room()
            && let Some(front) = self.outbox.pop_front()
        {
            if !self.machine.send(front) {
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
                let result = self.machine.handle(Body::Cancel(cancel.clone()));
                if !self.is_over() {
                    self.failure = Some(EndError::Peer(reason(&cancel)));
                }
                result
            }
            Ok(Some(Event::Session(message))) => self.machine.handle(message.body),
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
pub(super) struct Driver<M> {
    pub(super) control: Arc<dyn Control>,
    state: Mutex<State<M>>,
    /// Wakes the sending thread; the other one wakes all other threads.
    sendable: Condvar,
    changed: Condvar,
    /// The moment from which the connection measures time.
    epoch: Instant,
}

impl<M: Machine> Driver<M> {
    pub(super) fn new(
        control: Arc<dyn Control>,
        connection: Connection,
        machine: M,
        epoch: Instant,
    ) -> Self {
        let outbox = VecDeque::new();
        let state = State {
            connection,
            machine,
            outbox,
            failure: None,
            has_peer_ended: false,
            is_sender_waiting: false,
            waiting: 0,
        };
        let (sendable, changed) = (Condvar::new(), Condvar::new());
        Self { control, state: Mutex::new(state), sendable, changed, epoch }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.state)
    }

    /// Wakes the threads that wait for a change.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The current time as the connection measures it.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits until the machine may have changed.
    pub(super) fn wait<'a>(&self, mut state: MutexGuard<'a, State<M>>) -> MutexGuard<'a, State<M>> {
        state.waiting += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }
}

/// An end: its driver, and the reactions to changes of the machine.
pub(super) trait SessionEnd: Send + Sync {
    type Machine: Machine;

    fn driver(&self) -> &Driver<Self::Machine>;

    fn closers(&self) -> &Closers;

    /// Closes a data channel at this end.
    fn close_channel(&self, channel: u16) {
        self.closers().close(channel);
    }

    /// Performs the work that the machine's other `poll_…` methods return.
    fn pump(&self, state: &mut State<Self::Machine>);

    /// Wakes all threads of the end, because the session is over. It may be called repeatedly.
    fn stop(&self);

    /// Changes the machine, and performs the work that results.
    fn change<R>(&self, change: impl FnOnce(&mut State<Self::Machine>) -> R) -> R {
        let driver = self.driver();
        let mut state = driver.lock();
        let result = change(&mut state);
        self.pump(&mut state);
        while let Some(channel) = state.machine.poll_close() {
            self.close_channel(channel);
        }
        let has_pushed = state.push_notes();
        let is_over = state.is_over();
        let has_message = state.machine.has_message() || state.connection.has_control();
        let is_sendable = state.is_sender_waiting && (is_over || has_message);
        let has_work = state.waiting > 0 && (has_pushed || state.machine.has_work());
        drop(state);
        if is_sendable {
            driver.sendable.notify_one();
        }
        if is_over || has_work {
            driver.changed.notify_all();
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
pub(super) fn receive(end: &impl SessionEnd) {
    let driver = end.driver();
    let mut bytes = Vec::new();
    loop {
        let received = driver.control.receive(&mut bytes, None);
        let now = driver.epoch.elapsed();
        match received {
            Ok(ControlEvent::Message) => end.change(|state| state.handle(&bytes, now)),
            Ok(ControlEvent::TimedOut) => {}
            Ok(ControlEvent::Ended) => {
                return end.change(|state| {
                    state.has_peer_ended = true;
                    let error = "the connection ended before the copy was complete";
                    state.fail(Code::Stopped, EndError::Lost(error.into()));
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
pub(super) fn send(end: &impl SessionEnd) {
    let driver = end.driver();
    let mut state = driver.lock();
    loop {
        let now = driver.epoch.elapsed();
        if state.connection.is_silent(now) {
            state.fail(Code::Silent, EndError::Lost("no sign of life of the peer".into()));
        }
        let message = state.connection.poll_control(now);
        if let Some(message) = message.or_else(|| state.machine.poll_message()) {
            drop(state);
            let sent = driver.control.send(&message.emit());
            state = driver.lock();
            if let Err(error) = sent {
                state.fail(Code::Stopped, error.into());
                break;
            }
        } else if state.is_over() {
            break;
        } else {
            let wait = state.connection.timeout().saturating_sub(now).max(SENDER_WAIT_MIN);
            state.is_sender_waiting = true;
            let waited = driver.sendable.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.is_sender_waiting = false;
        }
    }
    drop(state);
    driver.changed.notify_all();
    end.stop();
}

/// Waits until the session is over, and returns why it has failed; `None` if it is complete.
pub(super) fn wait_for_failure<M: Machine>(driver: &Driver<M>) -> Option<EndError> {
    let mut state = driver.lock();
    while !state.is_over() {
        state = driver.wait(state);
    }
    match (state.machine.has_ended(), &state.failure) {
        (Some(Ending::Complete), _) => None,
        (_, Some(failure)) if failure.is_lost() => Some(EndError::Lost(failure.to_string())),
        (_, Some(failure)) => Some(EndError::Here(failure.to_string())),
        (Some(Ending::Cancelled(cancel) | Ending::CancelledByPeer(cancel)), None) => {
            Some(EndError::Here(reason(&cancel)))
        }
        (None, None) => None,
    }
}

/// Waits until the session is over, for at most `time`.
pub(super) fn wait_for_end<M: Machine>(driver: &Driver<M>, time: Duration) {
    let end = Instant::now() + time;
    let mut state = driver.lock();
    while !state.is_over() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = driver.changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Connects other data channels if all have failed, and the peer does not end the session.
pub(super) fn replace<M: Machine>(driver: &Driver<M>, spare: &Mutex<Option<Spare>>) {
    let is_alone = || {
        let state = driver.lock();
        !state.is_over() && state.machine.open_channels() == 0
    };
    if lock(spare).is_none() || !is_alone() {
        return;
    }
    wait_for_end(driver, SPARE_WAIT);
    if is_alone() {
        let spare = lock(spare).take();
        if let Some(spare) = spare {
            spare();
        }
    }
}

/// Reports that this end has finished its work, after its last note.
pub(super) fn finish(end: &impl SessionEnd) {
    let driver = end.driver();
    let mut state = driver.lock();
    while !state.outbox.is_empty() && !state.is_over() {
        state = driver.wait(state);
    }
    drop(state);
    // It fails only if the session is ending already.
    end.change(|state| state.machine.finish_session());
}

/// Closes the control channel after the end of the session. With `lingers`, it first waits for the
/// peer to close the connection, which shows that the peer has received the last message.
pub(super) fn close<M: Machine>(driver: &Driver<M>, lingers: bool) {
    let end = Instant::now() + LINGER_TIME;
    let mut state = driver.lock();
    while lingers && !state.has_peer_ended {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let waited = driver.changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(state);
    driver.control.close();
}

/// Returns how the session has ended. All threads must have ended before.
pub(super) fn result<M: Machine>(driver: &Driver<M>) -> Result<(), EndError> {
    let mut state = driver.lock();
    match (state.machine.has_ended(), state.failure.take()) {
        (Some(Ending::Complete), _) => Ok(()),
        (_, Some(failure)) => Err(failure),
        (Some(Ending::Cancelled(cancel)), None) => Err(EndError::Here(reason(&cancel))),
        (Some(Ending::CancelledByPeer(cancel)), None) => Err(EndError::Peer(reason(&cancel))),
        (None, None) => Err(EndError::Here("the session did not end".into())),
    }
}
