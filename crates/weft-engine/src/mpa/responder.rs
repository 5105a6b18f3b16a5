//! The passive side of a connection: from its first byte to our MPA reply.
//!
//! A [`Responder`] has no socket and no clock. Each method takes what has happened, with the time
//! where that matters. Drain [`Responder::poll_effect`] after each of them, and call
//! [`Responder::timed_out`] at [`Responder::timeout`]:
//!
//! ```text
//! reading ──> waiting ──> done (accepted, rejected)
//!    └───────────┴──────> done (ended, cancelled)
//! ```
//!
//! Nothing here panics, whatever the peer sends and whenever the methods are called.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_wire::mpa::negotiate::{self, NegotiateError, Negotiated, Params, Request};

/// What a peer may do, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest private data of a request, in bytes.
    pub private_data_max: usize,
    /// How long a request may take to come in whole.
    pub request_time: Duration,
    /// How long a request waits for its answer before [`Effect::Overdue`].
    pub answer_time: Duration,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// The request is whole. It waits for [`Responder::accept`] or [`Responder::reject`].
    Requested(Request),
    /// The request has waited for too long. It can still be answered.
    Overdue,
    /// Send these bytes.
    Transmit(Vec<u8>),
    /// The peer left, broke the protocol or was too slow: close the connection. Nothing follows.
    Ended,
}

/// One connection that has not been answered.
#[derive(Debug)]
pub struct Responder {
    exchange: negotiate::Responder,
    answer_time: Duration,
    phase: Phase,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The request is coming in.
    Reading { deadline: Instant },
    /// The request waits for its answer; without a deadline, once it has passed.
    Waiting { deadline: Option<Instant> },
    /// Answered, ended or cancelled.
    Done,
}

impl Responder {
    /// A connection has been accepted.
    #[must_use]
    pub fn new(now: Instant, limits: Limits) -> Self {
        let Limits { private_data_max, request_time, answer_time } = limits;
        Self {
            exchange: negotiate::Responder::new(negotiate::Limits { private_data_max }),
            answer_time,
            phase: Phase::Reading { deadline: now + request_time },
            effects: VecDeque::new(),
        }
    }

    /// Bytes have come.
    pub fn received(&mut self, now: Instant, bytes: &[u8]) {
        match self.phase {
            Phase::Reading { .. } => match self.exchange.input(bytes) {
                Ok((_, None)) => {}
                Ok((used, Some(request))) if used == bytes.len() => {
                    self.phase = Phase::Waiting { deadline: Some(now + self.answer_time) };
                    self.effects.push_back(Effect::Requested(request));
                }
                // Something behind the request, before our reply.
                Ok((_, Some(_))) | Err(_) => self.ended(),
            },
            // Nothing may come before our reply (RFC 5044 section 7.1.2) but the end of the stream.
            Phase::Waiting { .. } if !bytes.is_empty() => self.ended(),
            Phase::Waiting { .. } | Phase::Done => {}
        }
    }

    /// The stream has ended or broken.
    pub fn ended(&mut self) {
        if !self.is_done() {
            self.phase = Phase::Done;
            self.effects.push_back(Effect::Ended);
        }
    }

    /// The time of [`Self::timeout`] has come. May be called without a reason.
    pub fn timed_out(&mut self, now: Instant) {
        if self.timeout().is_none_or(|timeout| now < timeout) {
            return;
        }
        match &mut self.phase {
            Phase::Reading { .. } => self.ended(),
            Phase::Waiting { deadline } => {
                *deadline = None;
                self.effects.push_back(Effect::Overdue);
            }
            Phase::Done => {}
        }
    }

    /// When [`Self::timed_out`] is to be called, if nothing else happens.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Reading { deadline } => Some(deadline),
            Phase::Waiting { deadline } => deadline,
            Phase::Done => None,
        }
    }

    /// Accepts the request.
    ///
    /// # Errors
    /// [`NegotiateError::NoRequest`] when none waits; as [`negotiate::Responder::accept`], and then
    /// the request goes on waiting.
    pub fn accept(
        &mut self,
        params: Params,
        private_data: &[u8],
    ) -> Result<Negotiated, NegotiateError> {
        if !self.is_waiting() {
            return Err(NegotiateError::NoRequest);
        }
        let (reply, negotiated) = self.exchange.accept(params, private_data)?;
        self.phase = Phase::Done;
        self.effects.push_back(Effect::Transmit(reply));
        Ok(negotiated)
    }

    /// Refuses the request, if one waits. The connection is to be closed then. Private data that
    /// does not fit is left out, and the reply with it.
    pub fn reject(&mut self, private_data: &[u8]) {
        if self.is_waiting() {
            self.phase = Phase::Done;
            if let Ok(reply) = self.exchange.reject(private_data) {
                self.effects.push_back(Effect::Transmit(reply));
            }
        }
    }

    /// Whether a request waits for its answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// Whether there is nothing to wait for any more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
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
}
