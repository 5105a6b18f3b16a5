//! A connection that speaks the Redis protocol.

use super::commands::{Call, Pending, Problem, READ_ONLY, Step, is_of_session, reply};
use super::parse::{Parser, Words};
use super::reply::Replies;
use super::roster::{Addresses, Roster, Session};
use crate::access::Guard;
use crate::input::Input;
use crate::limits::{OUTPUT_LEN_MAX, UNPROVEN_OUTPUT_LEN_MAX};
use crate::model::{Now, Outcome, Refusal, Space, Ticket};

/// A connection without its socket. While one of its operations waits, it begins no other.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    parser: Parser,
    replies: Replies,
    sent: usize,
    waiting: Option<(Ticket, Pending)>,
    is_ended: bool,
}

impl Connection {
    /// Makes a connection between these addresses, which the roster lists until it is dropped. Its
    /// client has to get past a guard.
    #[must_use]
    pub fn new(now: Now, roster: &Roster, addresses: Addresses, guard: Guard) -> Self {
        Self {
            session: roster.enter(addresses, now.clock, guard),
            parser: Parser::default(),
            replies: Replies::default(),
            sent: 0,
            waiting: None,
            is_ended: false,
        }
    }

    /// Whether the client has shown that it may use the server.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.session.is_admitted
    }

    /// While the connection has this much output, it begins no more commands.
    #[must_use]
    pub fn output_len_max(&self) -> usize {
        if self.session.is_admitted { OUTPUT_LEN_MAX } else { UNPROVEN_OUTPUT_LEN_MAX }
    }

    /// Runs the commands that have arrived. Returns the operation that waits, if one begins to.
    pub fn handle(&mut self, now: Now, input: &mut Input, space: &mut Space) -> Option<Ticket> {
        while self.waiting.is_none()
            && !self.is_ended
            && self.output().len() < self.output_len_max()
        {
            let words = self.next(input)?;
            let (replies, session) = (&mut self.replies, &mut self.session);
            match (Call { now, space, replies, session, may_wait: true }).run(&words) {
                Step::Replied => {}
                Step::Waits(ticket, pending) => {
                    self.waiting = Some((ticket, pending));
                    return Some(ticket);
                }
                Step::Quit => self.is_ended = true,
            }
        }
        None
    }

    /// Returns the next command that has arrived. Ends the connection if it is malformed.
    fn next(&mut self, input: &mut Input) -> Option<Words> {
        let is_admitted = self.session.is_admitted;
        self.parser.next(input, is_admitted).unwrap_or_else(|malformed| {
            self.replies.error(&format!("ERR Protocol error: {}", malformed.0));
            self.is_ended = true;
            None
        })
    }

    /// Writes the outcome of an operation that has waited. [`Self::handle`] can go on.
    pub fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        if let Some((_, pending)) = self.waiting.take_if(|(waiting, _)| *waiting == ticket)
            && let Err(problem) = reply(&mut self.replies, &pending, outcome)
        {
            self.replies.error(&problem.text(self.session.last_command));
        }
    }

    /// Answers the commands that have arrived while another server is the leader. Only those about
    /// the connection itself are run.
    pub fn refuse(&mut self, now: Now, input: &mut Input, space: &mut Space, leader: Option<&str>) {
        while !self.is_ended && self.output().len() < self.output_len_max() {
            let Some(words) = self.next(input) else { return };
            let (replies, session) = (&mut self.replies, &mut self.session);
            // A client that is not let in learns that, and no more.
            let is_run = !session.is_admitted || words.first().is_none_or(|it| is_of_session(it));
            if is_run {
                let space = &mut *space;
                let step = (Call { now, space, replies, session, may_wait: true }).run(&words);
                self.is_ended |= step == Step::Quit;
            } else if let Some(leader) = leader {
                replies.error(&format!("{READ_ONLY} The leader is {leader}"));
            } else {
                replies.error(&format!("{READ_ONLY} There is no leader"));
            }
        }
    }

    /// Ends the connection because the log has failed, or another server is the leader. All of the
    /// output but its first `kept` bytes tells of what may not be on disk, and is not sent.
    /// `is_asked` says whether there were more.
    pub fn fail(&mut self, refusal: Refusal, kept: usize, is_asked: bool) {
        self.replies.bytes.truncate(self.sent + kept);
        if is_asked || self.waiting.take().is_some() {
            self.replies.error(&Problem::Refused(refusal).text(""));
        }
        self.is_ended = true;
    }

    /// The operation that waits, which has to be cancelled if the peer is gone.
    #[must_use]
    pub fn waiting(&self) -> Option<Ticket> {
        self.waiting.as_ref().map(|(ticket, _)| *ticket)
    }

    /// Takes back what waits and what is watched, since the peer is gone.
    pub fn leave(&mut self, now: Now, space: &mut Space) {
        self.session.transaction.end(space);
        if let Some((ticket, _)) = &self.waiting {
            space.cancel(now, *ticket);
        }
    }

    /// Whether the connection ends when its output is sent.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.replies.bytes[self.sent..]
    }

    /// Notes that this many bytes of the output are sent.
    pub fn sent(&mut self, len: usize) {
        self.sent = (self.sent + len).min(self.replies.bytes.len());
        if self.sent == self.replies.bytes.len() {
            self.sent = 0;
            self.replies.bytes.clear();
            // A long reply does not keep its memory for good.
            self.replies.bytes.shrink_to(OUTPUT_LEN_MAX);
        }
    }
}
