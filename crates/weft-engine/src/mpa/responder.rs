//! The passive side of a connection: from its first byte to our MPA reply.
//!
//! A [`Responder`] has no socket and no clock. Each method takes an input, and the time where that
//! matters. After each call the caller drains [`Responder::poll_effect`]; it calls
//! [`Responder::timed_out`] at [`Responder::timeout`]:
//!
//! ```text
//! reading ──> waiting ──> done (accepted, rejected)
//!    └───────────┴──────> done (ended, cancelled)
//! ```
//!
//! No method panics, whatever the peer sends and in whatever order the methods are called.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_wire::mpa::negotiate::{self, NegotiateError, Negotiated, Params, Request};

/// Size and time limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest private data of a request, in bytes.
    pub private_data_max: usize,
    /// How long a request may take to arrive completely.
    pub request_time: Duration,
    /// How long a request waits for its answer before [`Effect::Overdue`].
    pub answer_time: Duration,
}

/// An action that the machine requests.
#[derive(Debug)]
pub enum Effect {
    /// The request is complete. It waits for [`Responder::accept`] or [`Responder::reject`].
    Requested(Request),
    /// The request has waited for too long. It can still be answered.
    Overdue,
    /// Send these bytes.
    Transmit(Vec<u8>),
    /// Close the connection: the peer closed it, broke the protocol or was too slow. No effect
    /// follows.
    Ended,
}

/// The state machine of a connection that has not been answered.
#[derive(Debug)]
pub struct Responder {
    exchange: negotiate::Responder,
    answer_time: Duration,
    phase: ResponderPhase,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Copy, Debug)]
enum ResponderPhase {
    /// Waits for the rest of the request.
    Reading { deadline: Instant },
    /// The request waits for its answer; the deadline is `None` once it has passed.
    Waiting { deadline: Option<Instant> },
    /// Answered, ended or cancelled.
    Done,
}

impl Responder {
    /// Creates the machine of a connection that was accepted `now`.
    #[must_use]
    pub fn new(now: Instant, limits: Limits) -> Self {
        let Limits { private_data_max, request_time, answer_time } = limits;
        Self {
            exchange: negotiate::Responder::new(negotiate::Limits { private_data_max }),
            answer_time,
            phase: ResponderPhase::Reading { deadline: now + request_time },
            effects: VecDeque::new(),
        }
    }

    /// Handles received bytes.
    pub fn received(&mut self, now: Instant, bytes: &[u8]) {
        match self.phase {
            ResponderPhase::Reading { .. } => match self.exchange.input(bytes) {
                Ok((_, None)) => {}
                Ok((used, Some(request))) if used == bytes.len() => {
                    self.phase = ResponderPhase::Waiting { deadline: Some(now + self.answer_time) };
                    self.effects.push_back(Effect::Requested(request));
                }
                // Bytes behind the request, before our reply.
                Ok((_, Some(_))) | Err(_) => self.ended(),
            },
            // Until our reply only the end of the stream may follow (RFC 5044 section 7.1.2).
            ResponderPhase::Waiting { .. } if !bytes.is_empty() => self.ended(),
            ResponderPhase::Waiting { .. } | ResponderPhase::Done => {}
        }
    }

    /// Handles the end of the stream.
    pub fn ended(&mut self) {
        if !self.is_done() {
            self.phase = ResponderPhase::Done;
            self.effects.push_back(Effect::Ended);
        }
    }

    /// Handles the timeout of [`Self::timeout`]. May be called without a reason.
    pub fn timed_out(&mut self, now: Instant) {
        if self.timeout().is_none_or(|timeout| now < timeout) {
            return;
        }
        match &mut self.phase {
            ResponderPhase::Reading { .. } => self.ended(),
            ResponderPhase::Waiting { deadline } => {
                *deadline = None;
                self.effects.push_back(Effect::Overdue);
            }
            ResponderPhase::Done => {}
        }
    }

    /// When [`Self::timed_out`] must be called, if nothing else happens.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match self.phase {
            ResponderPhase::Reading { deadline } => Some(deadline),
            ResponderPhase::Waiting { deadline } => deadline,
            ResponderPhase::Done => None,
        }
    }

    /// Accepts the request.
    ///
    /// # Errors
    /// [`NegotiateError::NoRequest`] if none waits; those of [`negotiate::Responder::accept`],
    /// after which the request still waits.
    pub fn accept(
        &mut self,
        params: Params,
        private_data: &[u8],
    ) -> Result<Negotiated, NegotiateError> {
        if !self.is_waiting() {
            return Err(NegotiateError::NoRequest);
        }
        let (reply, negotiated) = self.exchange.accept(params, private_data)?;
        self.phase = ResponderPhase::Done;
        self.effects.push_back(Effect::Transmit(reply));
        Ok(negotiated)
    }

    /// Rejects the request, if one waits; the caller then closes the connection. If the private
    /// data does not fit, there is no reply.
    pub fn reject(&mut self, private_data: &[u8]) {
        if self.is_waiting() {
            self.phase = ResponderPhase::Done;
            if let Ok(reply) = self.exchange.reject(private_data) {
                self.effects.push_back(Effect::Transmit(reply));
            }
        }
    }

    /// Whether a request waits for its answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, ResponderPhase::Waiting { .. })
    }

    /// Whether the connection has been answered, ended or cancelled.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, ResponderPhase::Done)
    }

    /// The next effect to execute.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Cancels; no effect follows.
    pub fn cancel(&mut self) {
        self.phase = ResponderPhase::Done;
        self.effects.clear();
    }
}
