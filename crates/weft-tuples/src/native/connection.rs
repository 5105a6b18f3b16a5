//! A connection of a client of Weft's own.

use std::collections::{HashMap, VecDeque};

use super::rights;
use crate::access::{Guard, User};
use crate::input::Input;
use crate::limits::OUTPUT_LEN_MAX;
use crate::model::{Called, ClientId, Name, Now, Outcome, Refusal, Request, Service, Ticket, Wait};
use crate::wire::{
    Action, Answer, Hello, Leader, Malformed, RequestFrame, TailPlace, Welcome, frame, split,
};

/// A connection without its socket. Its operations need not end in the order in which they began.
#[derive(Debug, Default)]
pub struct Connection {
    guard: Guard,
    id: Option<ClientId>,
    /// The requests that wait.
    waiting: HashMap<Ticket, u64>,
    /// The requests for tails that are not answered.
    tails: VecDeque<(u64, Name)>,
    output: Vec<u8>,
    sent: usize,
    /// The client has got the answer to its greeting.
    is_welcomed: bool,
    /// The client has shown that it may use the server.
    is_admitted: bool,
    /// Whose client it is.
    user: User,
    is_ended: bool,
}

impl Connection {
    /// Makes a connection whose client has to get past a guard.
    #[must_use]
    pub fn new(guard: Guard) -> Self {
        Self { is_admitted: guard.is_open(), guard, ..Self::default() }
    }

    /// Whether the client has shown that it may use the server.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Handles what has arrived. Returns the operations that begin to wait.
    ///
    /// # Errors
    ///
    /// If the peer does not speak the protocol.
    pub fn handle(
        &mut self,
        now: Now,
        input: &mut Input,
        service: &mut Service,
    ) -> Result<Vec<Ticket>, Malformed> {
        let mut tickets = Vec::new();
        if self.id.is_none() && !self.greet(now, input, service)? {
            return Ok(tickets);
        }
        while !self.is_ended && self.output().len() < OUTPUT_LEN_MAX {
            let Some(bytes) = split(input.bytes(), RequestFrame::LEN_MAX)? else { break };
            let (len, request) = (bytes.len(), RequestFrame::decode(bytes)?);
            input.consume(4 + len);
            tickets.extend(self.run(now, request, service));
        }
        Ok(tickets)
    }

    fn greet(
        &mut self,
        now: Now,
        input: &mut Input,
        service: &mut Service,
    ) -> Result<bool, Malformed> {
        if self.is_ended {
            return Ok(false);
        }
        let Some(hello) = self.next_hello(input)? else { return Ok(false) };
        let entered = match self.is_admitted {
            true => service.enter(now, hello.id, hello.returns),
            false => Err(Refusal::Token),
        };
        self.output.extend(Welcome(entered).encode());
        match entered {
            Ok(()) => self.id = Some(hello.id),
            Err(_) => self.is_ended = true,
        }
        Ok(entered.is_ok())
    }

    /// Takes the client's first message, and notes whether the client may use the server.
    fn next_hello(&mut self, input: &mut Input) -> Result<Option<Hello>, Malformed> {
        let Some((hello, len)) = Hello::split(input.bytes())? else { return Ok(None) };
        input.consume(len);
        let user = self.guard.admit(None, &hello.token);
        self.is_admitted = user.is_some();
        self.user = user.unwrap_or_default();
        Ok(Some(hello))
    }

    fn run(&mut self, now: Now, request: RequestFrame, service: &mut Service) -> Option<Ticket> {
        let RequestFrame { number, confirmed, action } = request;
        let id = self.id?;
        match action {
            Action::Do(operation, _) if !rights::allow(&self.user, &operation) => {
                self.write(number, &Answer::Outcome(Outcome::Refused(Refusal::Rights)));
            }
            Action::Do(operation, wait) => {
                let wait = match wait {
                    Some(wait) if wait.is_zero() => Wait::No,
                    // A time beyond the clock is for ever.
                    Some(wait) => now.clock.checked_add(wait).map_or(Wait::Forever, Wait::Until),
                    None => Wait::Forever,
                };
                let request = Request { number, confirmed, operation, wait };
                match service.call(now, id, request) {
                    Called::Done(outcome) => {
                        let outcome = rights::shown(&self.user, outcome);
                        self.write(number, &Answer::Outcome(outcome));
                    }
                    Called::Waits(ticket) => {
                        self.waiting.insert(ticket, number);
                        return Some(ticket);
                    }
                }
            }
            Action::Cancel(of) => {
                let was_waiting = service.cancel(now, id, of);
                self.write(number, &Answer::Cancelled(was_waiting));
            }
            Action::Part => {
                service.part(now, id);
                (self.id, self.is_ended) = (None, true);
            }
            Action::Tail(name) => self.tails.push_back((number, name)),
        }
        None
    }

    /// Takes a request for a tail, which is answered by [`Self::answer_tail`].
    pub fn next_tail(&mut self) -> Option<(u64, Name)> {
        self.tails.pop_front()
    }

    /// Answers a request for a tail.
    pub fn answer_tail(&mut self, number: u64, place: Option<TailPlace>) {
        self.write(number, &Answer::Tail(place));
    }

    fn write(&mut self, number: u64, answer: &Answer) {
        self.output.extend(frame(number, answer));
    }

    /// Writes the outcome of an operation that has waited.
    pub fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        if let Some(number) = self.waiting.remove(&ticket) {
            self.write(number, &Answer::Outcome(outcome));
        }
    }

    /// Refuses a client because another server is the leader. Its address is sent, if it is known.
    ///
    /// # Errors
    ///
    /// If the peer does not speak the protocol.
    pub fn refuse(&mut self, input: &mut Input, leader: Option<&str>) -> Result<(), Malformed> {
        if self.is_ended || self.next_hello(input)?.is_none() {
            return Ok(());
        }
        if self.is_admitted {
            self.output.extend(Welcome(Err(Refusal::Elsewhere)).encode());
            self.output.extend(Leader(leader.unwrap_or_default().to_owned()).encode());
        } else {
            self.output.extend(Welcome(Err(Refusal::Token)).encode());
        }
        self.is_ended = true;
        Ok(())
    }

    /// Ends the connection because the log has failed, or another server is the leader. All of the
    /// output but its first `kept` bytes tells of what may not be on disk, and is not sent.
    pub fn fail(&mut self, refusal: Refusal, kept: usize) {
        self.output.truncate(self.sent + kept);
        if self.is_welcomed || kept != 0 {
            self.write(0, &Answer::Outcome(Outcome::Refused(refusal)));
        } else {
            self.output.extend(Welcome(Err(refusal)).encode());
            if refusal == Refusal::Elsewhere {
                self.output.extend(Leader::default().encode());
            }
        }
        self.is_ended = true;
    }

    /// The client that is connected.
    #[must_use]
    pub fn client(&self) -> Option<ClientId> {
        self.id
    }

    /// Forgets the client, which has another connection.
    pub fn replaced(&mut self) {
        (self.id, self.is_ended) = (None, true);
    }

    /// Whether the connection ends when its output is sent.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Notes that this many bytes of the output are sent.
    pub fn sent(&mut self, len: usize) {
        self.is_welcomed |= len != 0;
        self.sent = (self.sent + len).min(self.output.len());
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output.clear();
            self.output.shrink_to(OUTPUT_LEN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Token;

    const TOKEN: &[u8] = b"the token of the server";

    /// What a connection answers to a first message of a client with this token.
    fn refused(token: &[u8]) -> Vec<u8> {
        let mut connection = Connection::new(Guard::new(Token::new(TOKEN).ok()));
        let mut input = Input::default();
        let hello = Hello { token: token.to_vec(), ..Hello::default() }.encode();
        input.space()[..hello.len()].copy_from_slice(&hello);
        input.received(hello.len());
        connection.refuse(&mut input, Some("192.0.2.1:7417")).unwrap();
        assert!(connection.is_ended() && connection.client().is_none());
        connection.output().to_vec()
    }

    #[test]
    fn leader_is_named_to_clients_with_the_token_only() {
        for token in [b"".as_slice(), b"the token of another server"] {
            assert_eq!(refused(token), Welcome(Err(Refusal::Token)).encode());
        }
        let elsewhere = refused(TOKEN);
        assert_eq!(elsewhere[..Welcome::LEN], Welcome(Err(Refusal::Elsewhere)).encode());
        assert!(elsewhere.ends_with(b"192.0.2.1:7417"));
    }
}
