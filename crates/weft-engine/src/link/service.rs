//! The transport service of a connection: reliable, unreliable, or extended.
//!
//! An unreliable connection is the same stream with weaker guarantees (IBTA 9.8.3). Nothing is
//! acknowledged: a Send or Write is complete once TCP has it. A message that finds no receive, or
//! that may not access its target memory, is dropped without a report. An error of one side leaves
//! the other's state unchanged: what the other sends afterwards is lost, and still completes.
//!
//! A card drops a message without a receive at once. Here messages arrive in bursts, and the
//! program may see the first only after the last has been read. So a message that finds no receive
//! stops the stream for a moment, in which the program can post one.

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

/// How long a message of an unreliable connection waits for a receive: 0.12 s, in the encoding of
/// `min_rnr_timer`.
const RNR_TIMER: u8 = 27;

/// The parts of messages that an unreliable connection drops.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// The rest of the current Send.
    send: bool,
    /// The rest of the current Write.
    write: bool,
    /// The last Write, and with it the Immediate Data behind it.
    last_write: bool,
    /// Whether the next message waits for a receive.
    starved: bool,
    /// Whether the wait has timed out: messages without a receive are dropped at once until one is
    /// posted.
    impatient: bool,
    /// Number of the peer's messages that were dropped.
    count: u64,
}

/// The guarantees of a connection, and its reaction to errors.
#[derive(Debug)]
pub(super) enum Service {
    /// Messages are acknowledged, and wait for receives.
    Reliable,
    /// Messages may be lost.
    Unreliable(Loss),
    /// Reliable, and each message names its receive queue: the target of an extended connection.
    Extended,
}

impl Service {
    /// The service of a queue pair type.
    pub(super) fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Uc => Self::Unreliable(Loss::default()),
            QpType::XrcRecv => Self::Extended,
            QpType::Rc | QpType::Ud | QpType::XrcSend => Self::Reliable,
        }
    }

    /// Whether the sides acknowledge placed messages.
    #[inline]
    pub(super) fn acknowledges(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether requests to a lost peer are retried for a while and then fail. Otherwise they are
    /// lost, and complete.
    pub(super) fn retries(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether an error of one side ends the connection for both.
    pub(super) fn terminates(&self) -> bool {
        !matches!(self, Self::Unreliable(_))
    }

    /// Whether a message waits for a receive in the stream and stops it.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        matches!(self, Self::Unreliable(loss) if loss.starved)
    }

    /// Handles the timeout of a message that waits for a receive in the stream.
    pub(super) fn stop_waiting_for_receive(&mut self) {
        if let Self::Unreliable(loss) = self
            && loss.starved
        {
            (loss.starved, loss.impatient) = (false, true);
        }
    }

    /// Drops a message that has found no receive, if the service drops such messages. Returns
    /// whether it does.
    pub(super) fn drops_unmatched(&mut self) -> bool {
        match self {
            Self::Unreliable(loss) => {
                loss.count += 1;
                true
            }
            Self::Reliable | Self::Extended => false,
        }
    }

    /// Handles the result of placing a segment of a Write; after a refusal the rest of the Write is
    /// dropped.
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

    /// Whether the rest of the current Write is dropped.
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

    /// Number of the peer's messages that were dropped since the connection was opened.
    pub(super) fn messages_dropped(&self) -> u64 {
        match self {
            Self::Unreliable(loss) => loss.count,
            Self::Reliable | Self::Extended => 0,
        }
    }
}

impl<H: Host> Link<H> {
    // ---- Sending ----

    /// Completes the requests of an unreliable connection that has no peer (any more): what they
    /// send is lost.
    pub(super) fn send_to_nobody(&mut self, host: &H) {
        self.enter(PhaseEvent::Abandoned);
        self.give_back_receive(host);
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

    /// Stops sending after an error of a request, until the program changes the state; receiving
    /// goes on (IBTA 10.3.1.6).
    pub(super) fn enter_send_error(&mut self, status: Status, host: &H) {
        self.rules.state = QpState::Sqe;
        host.enter_state(QpState::Sqe);
        self.flush_sends(host, Some(status), 0);
    }

    // ---- Receiving ----

    /// Whether the next segment starts a message for which no receive is posted, and which can wait
    /// for one in the stream.
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

    /// Processes a segment of a Send of an unreliable connection.
    pub(super) fn send_or_drop(
        &mut self,
        opcode: Opcode,
        invalidate: Option<u32>,
        placement: Placement,
        payload: Payload<'_>,
        host: &H,
    ) -> Result<(), Fault> {
        let Placement { first, last, offset, .. } = placement;
        // Unreliable connections have no numbered receive queues, so the number is 0.
        let finds_none = first && !self.start_receive(0, host)?;
        let Service::Unreliable(loss) = &mut self.service else { return Ok(()) };
        if first {
            loss.send = finds_none;
        }
        let end = u64::from(offset) + payload.len() as u64;
        // A message that does not fit leaves its receive to the next message.
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
            // This is the program's own error, which does not concern the peer.
            self.fail_receive(Status::LocProtErr, host);
            self.notices.disconnected = true;
            self.fail(host, None, 0);
            return Ok(());
        }
        if last {
            let imm = self.receiver.send_imm.take();
            let len = u32::try_from(end).unwrap_or(u32::MAX);
            // An invalidation that fails drops the message, as a write that fails does.
            let _ = self.finish_receive(opcode, len, imm, None, invalidate, host);
        }
        Ok(())
    }

    /// Number of the peer's messages that were dropped since the connection was opened.
    pub(crate) fn messages_dropped(&self) -> u64 {
        self.service.messages_dropped()
    }

    /// Ends an unreliable connection whose peer broke the protocol or terminated, because the rest
    /// of its stream is meaningless.
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
