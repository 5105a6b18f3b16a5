//! One connection, from its first byte to its last.

use std::sync::Arc;

use super::addresses::Addresses;
use super::closed::Closed;
use super::full::{Context, FullFeature};
use super::job::{Done, Job};
use super::login::{LoginState, Step};
use super::output::Output;
use super::portal::Portal;
use super::wake::Wake;
use crate::limits::{DATA_SEGMENT_LEN_MAX, LOGIN_SEGMENT_LEN_MAX, OUTPUT_LEN_MAX};
use crate::wire::{
    Digests, Framer, Login, LoginResponse, Request, Response, SendBuffer, Sequence, append,
};

/// A connection of an initiator, without its socket.
#[derive(Debug)]
pub struct Connection {
    framer: Framer,
    output: Output,
    phase: ConnectionPhase,
    addresses: Addresses,
    portal: Arc<Portal>,
    wake: Wake,
    /// Jobs that have ended.
    done: Vec<Done>,
    /// Why the connection ends, in a turn that is not over.
    ending: Option<Closed>,
}

#[derive(Debug)]
enum ConnectionPhase {
    Login(Box<LoginState>),
    /// The session waits for the one that it replaces.
    Opening(Box<Opening>),
    Full(Box<FullFeature>),
    /// What is left of the output is sent, then the connection ends.
    Ending(Closed),
}

/// A session with the response to the login, which is not sent yet.
#[derive(Debug)]
struct Opening {
    full: FullFeature,
    response: LoginResponse,
    answer: Vec<u8>,
    sequence: Sequence,
}

impl Connection {
    /// Returns a connection without bytes; `wake` wakes the thread that serves it.
    #[must_use]
    pub fn new(portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        Self::with(LoginState::default(), portal, addresses, wake)
    }

    /// Returns the same, for a connection over RDMA: its PDUs have no digests, and its data is
    /// carried by a [`Datamover`](crate::iser::Datamover).
    #[must_use]
    pub fn over_rdma(portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        Self::with(LoginState::over_rdma(), portal, addresses, wake)
    }

    fn with(login: LoginState, portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        let framer = Framer::new(LOGIN_SEGMENT_LEN_MAX);
        let phase = ConnectionPhase::Login(Box::new(login));
        let (output, done, ending) = (Output::default(), Vec::new(), None);
        Self { framer, output, phase, addresses, portal, wake, done, ending }
    }

    /// Whether the initiator has logged in.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Full(_))
    }

    /// Over RDMA, whether the memory that a write names has the data of the command's own PDU,
    /// too. The login agrees on it.
    pub(crate) fn has_whole_buffers(&mut self) -> bool {
        self.full().is_some_and(|full| full.has_whole_buffers())
    }

    /// Asks the initiator to log out within this many seconds. `handle` has to follow.
    ///
    /// # Errors
    ///
    /// If the connection is over, because the initiator has not logged in.
    pub fn ask_to_log_out(&mut self, seconds: u16) -> Result<(), Closed> {
        match &mut self.phase {
            ConnectionPhase::Login(_) | ConnectionPhase::Opening(_) => {
                return Err(Closed::Draining);
            }
            ConnectionPhase::Full(full) => full.ask_to_log_out(seconds),
            ConnectionPhase::Ending(_) => {}
        }
        Ok(())
    }

    /// Where received bytes go. `received` has to follow, then `handle`.
    pub fn space(&mut self) -> &mut [u8] {
        self.framer.space()
    }

    /// Notes that the first `len` bytes of `space` were received.
    pub fn received(&mut self, len: usize) {
        self.framer.received(len);
    }

    /// Whether more bytes should be received now. Not while too many are to be sent, or wait for a
    /// store.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let has_room = match &self.phase {
            ConnectionPhase::Login(_) => true,
            ConnectionPhase::Full(full) => full.has_room(),
            ConnectionPhase::Opening(_) | ConnectionPhase::Ending(_) => false,
        };
        has_room && self.output().len() < OUTPUT_LEN_MAX
    }

    /// Work that waits for a store, to be carried out by any thread. To be asked for after
    /// `handle`, until there is none.
    pub fn next_job(&mut self) -> Option<Job> {
        match &mut self.phase {
            ConnectionPhase::Full(full) => full.next_job(),
            ConnectionPhase::Opening(opening) => opening.full.next_job(),
            ConnectionPhase::Login(_) | ConnectionPhase::Ending(_) => None,
        }
    }

    /// Takes the result of a job of this connection. `handle` has to follow.
    pub fn complete(&mut self, done: Done) {
        self.done.push(done);
    }

    /// The bytes to be sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.output.unsent()
    }

    /// Notes that the first `len` bytes of `output` were sent. `handle` has to follow.
    pub fn sent(&mut self, len: usize) {
        self.output.sent(len);
    }

    /// Handles what was received and what jobs have done, and continues what waits for room in the
    /// output. Returns whether there is more to do once the output is sent.
    ///
    /// # Errors
    ///
    /// If the connection is over. What is left of the output is not worth sending then.
    pub fn handle(&mut self) -> Result<bool, Closed> {
        let was_logged_in = self.full().is_some();
        let has_more = self.take_turn()?;
        match self.full() {
            Some(full) if !was_logged_in && full.shared_group().is_some() => full.share(),
            _ => return Ok(has_more),
        }
        self.take_turn()
    }

    /// Does what can be done now, while no other connection of the session is at work.
    fn take_turn(&mut self) -> Result<bool, Closed> {
        // The guards borrow the session, not the connection.
        let session = self.full().and_then(|full| full.session().cloned());
        let _work = match &session {
            Some(session) => Some(session.work().ok_or_else(|| self.why_closed())?),
            None => None,
        };
        let group = self.full().and_then(|full| full.shared_group());
        let mut turn = group.as_ref().and_then(|group| group.turn());
        if let (Some(shared), Some(full)) = (&mut turn, self.full()) {
            full.begin_turn(shared);
        }
        let result = self.go_on();
        if let (Some(shared), Some(full)) = (&mut turn, self.full()) {
            full.end_turn(shared);
        }
        drop(turn);
        if let Some(closed) = self.ending.take() {
            self.phase = ConnectionPhase::Ending(closed);
        }
        match &self.phase {
            ConnectionPhase::Ending(closed) if self.output().is_empty() => {
                result.and_then(|_| Err(closed.clone()))
            }
            ConnectionPhase::Ending(_) => result.and(Ok(true)),
            _ => result,
        }
    }

    /// Why others have ended the connection: its session has a reason, or all connections end.
    pub(crate) fn why_closed(&mut self) -> Closed {
        let session = self.full().and_then(|full| full.session());
        session.and_then(|session| session.why_closed()).unwrap_or(Closed::Stopped)
    }

    /// The session, from the end of the login on.
    fn full(&mut self) -> Option<&mut FullFeature> {
        match &mut self.phase {
            ConnectionPhase::Full(full) => Some(full),
            ConnectionPhase::Opening(opening) => Some(&mut opening.full),
            ConnectionPhase::Login(_) | ConnectionPhase::Ending(_) => None,
        }
    }

    fn go_on(&mut self) -> Result<bool, Closed> {
        for done in std::mem::take(&mut self.done) {
            if let Some(closed) = self.take_result(done) {
                self.ending = Some(closed);
            }
        }
        self.open();
        if let ConnectionPhase::Full(full) = &mut self.phase
            && let Some(closed) = full.hear(self.output.bytes())?
        {
            self.ending = Some(closed);
        }
        loop {
            if self.ending.is_some() {
                return Ok(true);
            }
            if let ConnectionPhase::Full(full) = &mut self.phase {
                let unsent_len = self.output.unsent().len();
                full.send_data(self.output.bytes(), unsent_len);
            }
            if !self.wants_input() {
                return Ok(!self.output().is_empty());
            }
            if !self.handle_one()? {
                return Ok(false);
            }
        }
    }

    fn take_result(&mut self, done: Done) -> Option<Closed> {
        match &mut self.phase {
            ConnectionPhase::Full(full) => full.complete(done, self.output.bytes()),
            ConnectionPhase::Opening(opening) => opening.full.complete(done, self.output.bytes()),
            ConnectionPhase::Login(_) | ConnectionPhase::Ending(_) => None,
        }
    }

    /// Ends the login of a session that waits for no other one any more.
    fn open(&mut self) {
        if !matches!(self.phase, ConnectionPhase::Opening(_)) {
            return;
        }
        let phase = std::mem::replace(&mut self.phase, ConnectionPhase::Ending(Closed::Replaced));
        self.phase = match phase {
            ConnectionPhase::Opening(opening) if !opening.full.is_opening() => {
                let Opening { full, response, answer, sequence } = *opening;
                // A connection that joins finds the window of its session.
                let sequence = full.window().map_or(sequence, |(expected_command, command_max)| {
                    Sequence { expected_command, command_max, ..sequence }
                });
                let response = Response::Login(response);
                append(self.output.bytes(), &response, sequence, Digests::default(), &answer);
                self.framer.agree(full.digests(), DATA_SEGMENT_LEN_MAX);
                ConnectionPhase::Full(Box::new(full))
            }
            other => other,
        };
    }

    /// Handles the next PDU. Returns `false` if there is none.
    fn handle_one(&mut self) -> Result<bool, Closed> {
        let Some(pdu) = self.framer.next_pdu()? else { return Ok(false) };
        let request = Request::parse(pdu.header);
        match &mut self.phase {
            ConnectionPhase::Login(login) => {
                let Ok(Request::Login(request)) = request else {
                    return Err(Closed::Protocol("another request before the login is complete"));
                };
                let step =
                    login.handle(&request, pdu.data, &self.portal, self.addresses.remote.ip());
                self.log_in(&request, step);
            }
            ConnectionPhase::Full(full) => {
                if pdu.is_damaged {
                    return Err(Closed::DataDigest);
                }
                if request.as_ref().is_ok_and(|request| full.has_to_wait(request)) {
                    self.framer.put_back();
                    return Ok(false);
                }
                let context = Context { portal: &self.portal, addresses: self.addresses };
                if let Some(closed) = full.handle(request, &pdu, &context, self.output.bytes())? {
                    self.ending = Some(closed);
                }
            }
            ConnectionPhase::Opening(_) | ConnectionPhase::Ending(_) => {}
        }
        Ok(true)
    }

    fn log_in(&mut self, request: &Login, step: Step) {
        // StatSN goes on from where the initiator expects it; requests of a login are immediate.
        let status = request.expected_status;
        let sequence = Sequence {
            status,
            expected_command: request.command_number,
            command_max: request.command_number,
        };
        let respond = |output: &mut SendBuffer, response: LoginResponse, answer: &[u8]| {
            append(output, &Response::Login(response), sequence, Digests::default(), answer);
        };
        match step {
            Step::Continue(response, answer) => respond(self.output.bytes(), response, &answer),
            Step::Refused(response) => {
                respond(self.output.bytes(), response, &[]);
                self.phase = ConnectionPhase::Ending(Closed::Refused(response.status));
            }
            Step::Done(mut response, answer, logged_in) => {
                let full = FullFeature::new(
                    &self.portal,
                    self.addresses.remote,
                    logged_in,
                    (request.command_number, status.wrapping_add(1)),
                    self.wake.clone(),
                );
                let full = match full {
                    Ok(full) => full,
                    Err(status) => {
                        (response.transits, response.status) = (false, status);
                        respond(self.output.bytes(), response, &[]);
                        self.phase = ConnectionPhase::Ending(Closed::Refused(status));
                        return;
                    }
                };
                response.tsih = full.tsih();
                let opening = Opening { full, response, answer, sequence };
                self.phase = ConnectionPhase::Opening(Box::new(opening));
                self.open();
            }
        }
    }
}
