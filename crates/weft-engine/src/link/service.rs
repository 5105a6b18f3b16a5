//! What a connection promises: reliable, unreliable, or extended.
//!
//! An unreliable connection is the same stream with less promised (IBTA 9.8.3). Nothing is
//! acknowledged: a Send or Write is complete once TCP has it. A message that finds no
//! receive, or may not touch the memory it is for, is dropped without a report. What becomes of
//! one side leaves the other's state as it is: what it sends then is lost, and complete all the
//! same.
//!
//! A card drops a message at once. Here messages come in bursts, of which the program may see the
//! first only when the last has been read; so a message that finds no receive holds up the stream
//! for a moment, in which the program can post one.

use weft_wire::ddp::{Header, Placement};
use weft_wire::error::ProtocolError;
use weft_wire::rdmap::{self, Opcode};

use super::fault::Handled;
use super::host::Host;
use super::payload::Payload;
use super::phase::PhaseEvent;
use super::{Fault, Link, RnrWait, place};
use crate::attr::{QpState, QpType};
use crate::log::{self, Level};
use crate::queue::send::Progress;
use crate::wc::Status;
use crate::wr::Operation;

/// How long a message waits for a receive: 0.12 s, in the encoding of `min_rnr_timer`.
const RNR_TIMER: u8 = 27;

/// What is being dropped, and why.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// The rest of the Send under way.
    send: bool,
    /// The rest of the Write under way.
    write: bool,
    /// The last Write, and with it the Immediate Data behind it.
    last_write: bool,
    /// The next message waits for a receive.
    starved: bool,
    /// It has waited long enough: what finds no receive is dropped at once until one is posted.
    impatient: bool,
    /// Messages of the peer's that were dropped.
    count: u64,
}

/// What a connection promises, and how it deals with what goes wrong.
#[derive(Debug)]
pub(super) enum Service {
    /// Messages are acknowledged, and wait for receives.
    Reliable,
    /// Messages may be lost.
    Unreliable(Loss),
    /// Reliable, and messages name the receive queue that they are for: the target of an extended
    /// connection.
    Extended,
}

impl Service {
    /// What a queue pair of this type promises.
    pub(super) fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Uc => Self::Unreliable(Loss::default()),
            QpType::XrcRecv => Self::Extended,
            QpType::Rc | QpType::Ud | QpType::XrcSend => Self::Reliable,
        }
    }

    /// Whether the sides tell each other what they have placed.
    #[inline]
    pub(super) fn acknowledges(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether requests to a peer that is gone are tried again for a while, and fail then. If not,
    /// they are lost, and complete.
    pub(super) fn retries(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether an error of one side ends the connection for both.
    pub(super) fn terminates(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether a message waits for a receive where it is, and holds up the stream.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        matches!(self, Self::Unreliable(loss) if loss.starved)
    }

    /// The message that waits for a receive has waited long enough.
    pub(super) fn stop_waiting_for_receive(&mut self) {
        if let Self::Unreliable(loss) = self
            && loss.starved
        {
            (loss.starved, loss.impatient) = (false, true);
        }
    }

    /// Drops a message that has found no receive, if such are dropped.
    pub(super) fn drops_unmatched(&mut self) -> bool {
        match self {
            Self::Unreliable(loss) => {
                loss.count += 1;
                true
            }
            Self::Reliable | Self::Extended => false,
        }
    }

    /// A segment of a Write has been placed, or refused, and with it the rest of the Write.
    ///
    /// # Errors
    /// The refusal, if it ends the connection.
    #[inline]
    pub(super) fn settle_write(&mut self, placed: Handled, last: bool) -> Handled {
        let Self::Unreliable(loss) = self else { return placed };
        loss.write |= placed.is_err();
        if last {
            loss.last_write = std::mem::take(&mut loss.write);
            loss.count += u64::from(loss.last_write);
        }
        Ok(())
    }

    /// Whether the rest of the Write under way is dropped.
    #[inline]
    pub(super) fn drops_write(&self) -> bool {
        matches!(self, Self::Unreliable(loss) if loss.write)
    }

    /// Whether the Write before this Immediate Data was dropped.
    pub(super) fn dropped_last_write(&mut self) -> bool {
        match self {
            Self::Unreliable(loss) => std::mem::take(&mut loss.last_write),
            Self::Reliable | Self::Extended => false,
        }
    }

    /// Messages of the peer's that were dropped since the connection began.
    pub(super) fn messages_dropped(&self) -> u64 {
        match self {
            Self::Unreliable(loss) => loss.count,
            Self::Reliable | Self::Extended => 0,
        }
    }
}

impl<H: Host> Link<H> {
    // ---- Sending ----

    /// There is no peer (any more): what is sent to it is lost.
    pub(super) fn send_to_nobody(&mut self, host: &H) {
        self.enter(PhaseEvent::Abandoned);
        self.sender.outgoing.active = false;
        self.discard_output();
        self.sender.taken = self.sender.appended;
        while self.rules.state == QpState::Rts {
            let operation = host.sends().peek_next().map(|(_, work)| work.operation.clone());
            match operation {
                None => break,
                Some(
                    operation @ (Operation::LocalInvalidate { .. } | Operation::BindWindow { .. }),
                ) => {
                    if !self.run_locally(&operation, host) {
                        break;
                    }
                }
                Some(_) => host.sends().advance(Progress::Done),
            }
        }
        self.complete_sends(host);
    }

    /// An error of a request's own ends sending, until the program says otherwise; receiving goes
    /// on (IBTA 10.3.1.6).
    pub(super) fn enter_send_error(&mut self, status: Status, host: &H) {
        self.rules.state = QpState::Sqe;
        host.enter_state(QpState::Sqe);
        self.flush_sends(host, Some(status), 0);
    }

    // ---- Receiving ----

    /// Whether the next segment begins a message for which there is no receive, and which can wait
    /// for one where it is.
    #[inline]
    pub(super) fn waits_for_receive(&mut self, ulpdu: &[u8], host: &H) -> bool {
        let Service::Unreliable(loss) = &mut self.service else { return false };
        let begins_message = matches!(
            Header::parse(ulpdu),
            Ok((Header::Untagged { qn: rdmap::queue::SEND, mo: 0, .. }, _))
        );
        if !begins_message || self.receiver.current.active {
            return false;
        }
        if host.has_receive() {
            loss.impatient = false;
            if std::mem::take(&mut loss.starved) {
                self.notices.rnr = Some(None);
            }
            return false;
        }
        if !loss.impatient && !std::mem::replace(&mut loss.starved, true) {
            self.notices.rnr = Some(Some(RnrWait { timer: RNR_TIMER }));
        }
        loss.starved
    }

    /// A segment of a Send.
    pub(super) fn send_or_drop(
        &mut self,
        opcode: Opcode,
        invalidate: Option<u32>,
        placement: Placement,
        payload: Payload<'_>,
        host: &H,
    ) -> Result<(), Fault> {
        let Placement { first, last, offset, .. } = placement;
        // The receive queue of a first segment has no number.
        let finds_none = first && !self.start_receive(0, host)?;
        let Service::Unreliable(loss) = &mut self.service else { return Ok(()) };
        if first {
            loss.send = finds_none;
        }
        let end = u64::from(offset) + payload.len() as u64;
        // The receive of a message that does not fit is left to the next one.
        loss.send |= end > self.receiver.current.capacity;
        if loss.send {
            if last {
                self.receiver.send_imm = None;
                loss.count += 1;
            }
            return Ok(());
        }
        let context = host.receive_context(self.receiver.current.queue.as_ref());
        let sges = &self.receiver.current.work.sges;
        if place::scatter(&mut self.receiver.keys, context, sges, offset.into(), payload).is_err() {
            // The program's own mistake, of which the peer need not know.
            self.fail_receive(Status::LocProtErr, host);
            self.notices.disconnected = true;
            self.fail(host, None, 0);
            return Ok(());
        }
        if last {
            let imm = self.receiver.send_imm.take();
            let len = u32::try_from(end).unwrap_or(u32::MAX);
            // What cannot be invalidated is dropped like what cannot be written.
            let _ = self.finish_receive(opcode, len, imm, None, invalidate, host);
        }
        Ok(())
    }

    /// Messages of the peer's that were dropped since the connection began.
    pub(crate) fn messages_dropped(&self) -> u64 {
        self.service.messages_dropped()
    }

    /// The peer broke a rule of the protocol, so that its stream makes no sense any more.
    pub(super) fn abandon_stream(&mut self, error: Option<ProtocolError>, host: &H) {
        let why = error.map_or_else(|| "terminated by the peer".into(), |error| error.to_string());
        log::write(
            Level::Warn,
            format_args!("qp {:#08x}: leaves its peer: {why}", self.config.number),
        );
        self.notices.disconnected = true;
        self.send_to_nobody(host);
    }
}
