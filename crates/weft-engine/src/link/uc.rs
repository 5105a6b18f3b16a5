//! Unreliable connections: the same stream, with less promised (IBTA 9.8.3).
//!
//! Nothing is acknowledged: a Send or Write is complete once TCP has it. A message that finds no
//! receive, or may not touch the memory it is for, is dropped, and nobody is told. What becomes of
//! one side leaves the other's state as it is: what it sends then is lost, and complete all the
//! same.
//!
//! A card drops a message at once. Here messages come in bursts, of which the program may see the
//! first only when the last has been read; so a message that finds no receive holds up the stream
//! for a moment, in which the program can post one.

use weft_wire::ddp::{Header, Placement};
use weft_wire::error::ProtocolError;
use weft_wire::rdmap::{self, Opcode};

use super::host::Host;
use super::payload::Payload;
use super::{Fault, Link, Phase, RnrWait, place};
use crate::attr::{QpState, QpType};
use crate::log::{self, Level};
use crate::queue::send::Progress;
use crate::wc::Status;
use crate::wr::Operation;

/// How long a message waits for a receive: 0.12 s, in the encoding of `min_rnr_timer`.
const PATIENCE: u8 = 27;

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

impl<H: Host> Link<H> {
    /// Whether messages may be lost.
    pub(super) fn is_unreliable(&self) -> bool {
        self.qp_type == QpType::Uc
    }

    // ---- Sending ----

    /// There is no peer (any more): what is sent to it is lost.
    pub(super) fn send_to_nobody(&mut self, host: &H) {
        self.phase = Phase::Closed;
        self.outgoing.active = false;
        self.discard_output();
        self.taken = self.appended;
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
    /// for one.
    pub(super) fn waits_for_receive(&mut self, ulpdu: &[u8], host: &H) -> bool {
        let begins_message = matches!(
            Header::parse(ulpdu),
            Ok((Header::Untagged { qn: rdmap::queue::SEND, mo: 0, .. }, _))
        );
        if !begins_message || self.receiving.active {
            return false;
        }
        if host.has_receive() {
            self.loss.impatient = false;
            if std::mem::take(&mut self.loss.starved) {
                self.notices.rnr = Some(None);
            }
            return false;
        }
        if !self.loss.impatient && !std::mem::replace(&mut self.loss.starved, true) {
            self.notices.rnr = Some(Some(RnrWait { timer: PATIENCE }));
        }
        self.loss.starved
    }

    /// Whether a message waits for a receive.
    pub(super) fn is_starved(&self) -> bool {
        self.loss.starved
    }

    /// The message that waits for a receive has waited long enough.
    pub(super) fn stop_waiting_for_receive(&mut self) {
        self.loss.impatient = std::mem::take(&mut self.loss.starved);
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
        if first {
            // Its receive queue has no number.
            self.loss.send = !self.start_receive(0, host)?;
        }
        let end = u64::from(offset) + payload.len() as u64;
        // The receive of a message that does not fit is left to the next one.
        self.loss.send |= end > self.receiving.capacity;
        if self.loss.send {
            if last {
                self.send_imm = None;
                self.count_loss();
            }
            return Ok(());
        }
        let context = host.receive_context(self.receiving.queue.as_ref());
        let sges = &self.receiving.work.sges;
        if place::scatter(&mut self.rx_cache, context, sges, offset.into(), payload).is_err() {
            // The program's own mistake, of which the peer need not know.
            self.fail_receive(Status::LocProtErr, host);
            self.notices.disconnected = true;
            self.fail(host, None, 0);
            return Ok(());
        }
        if last {
            let imm = self.send_imm.take();
            let len = u32::try_from(end).unwrap_or(u32::MAX);
            // What cannot be invalidated is dropped like what cannot be written.
            let _ = self.finish_receive(opcode, len, imm, None, invalidate, host);
        }
        Ok(())
    }

    /// A segment of a Write has been placed, or refused, and with it the rest of the Write.
    pub(super) fn keep_or_drop(&mut self, placed: bool, last: bool) {
        self.loss.write |= !placed;
        if last {
            self.loss.last_write = std::mem::take(&mut self.loss.write);
            self.loss.count += u64::from(self.loss.last_write);
        }
    }

    /// A message has been dropped.
    pub(super) fn count_loss(&mut self) {
        self.loss.count += 1;
    }

    /// Messages of the peer's that were dropped since the connection began.
    pub(crate) fn messages_dropped(&self) -> u64 {
        self.loss.count
    }

    /// Whether the rest of the Write under way is dropped.
    pub(super) fn drops_write(&self) -> bool {
        self.loss.write
    }

    /// Whether the Write before this Immediate Data was dropped.
    pub(super) fn dropped_last_write(&mut self) -> bool {
        std::mem::take(&mut self.loss.last_write)
    }

    /// The peer broke a rule of the protocol, so that its stream makes no sense any more.
    pub(super) fn leave_stream(&mut self, error: Option<ProtocolError>, host: &H) {
        let why = error.map_or_else(|| "terminated by the peer".into(), |error| error.to_string());
        log::write(Level::Warn, format_args!("qp {:#08x}: leaves its peer: {why}", self.number));
        self.notices.disconnected = true;
        self.send_to_nobody(host);
    }
}
