//! The life of a connection from opening to its end, and what happens to work requests then.

use std::ops::DerefMut;

use weft_wire::mpa::negotiate::RtrKind;

use super::framing::Framing;
use super::host::{Completions, Host};
use super::phase::PhaseEvent;
use super::{Agreement, AwaitedPeer, Link, LinkPhase, Rules, Transport};
use crate::attr::{QpAttr, QpState, QpType};
use crate::log::{self, Level};
use crate::queue::recv::RecvWork;
use crate::queue::send::SendQueue;
use crate::wc::{Completion, Opcode, Status};
use crate::wr::SendFlags;

impl<H: Host> Link<H> {
    /// Opens the connection after the MPA exchange: only FPDUs follow. `early` are bytes that came
    /// behind the peer's MPA frame.
    pub(crate) fn open(&mut self, agreement: Agreement, early: &[u8]) {
        let negotiated = &agreement.negotiated;
        //= rfc5040#section-6.1
        //# Once in RDMA enabled mode, an implementation MUST send only RDMA Messages across the
        //# transport Stream until the RDMAP Stream is torn down.
        if self.phase.set_awaiting(false) {
            // Stop the timer of that wait, so that its expiry is not taken for that of an RNR
            // timer.
            self.notices.rnr = Some(None);
        }
        self.enter(PhaseEvent::Opened);
        self.transport = Transport::Stream(Framing::new(negotiated, agreement.mulpdu, early));
        self.opening.rtr_due = negotiated.rtr.filter(|_| agreement.initiator);
        // RFC 5044 section 7.1.2: the responder sends nothing before the initiator's first FPDU.
        self.opening.hold = !agreement.initiator;
        self.agreement = Some(agreement);
    }

    pub(super) fn enter(&mut self, event: PhaseEvent) {
        self.phase = self.phase.after(event);
    }

    /// Whether this side must not send before the first message of a foreign initiator that has not
    /// agreed to send one (RTR).
    pub(crate) fn awaits_first_fpdu(&self) -> bool {
        self.opening.hold
            && self.phase.is_open()
            && !self.is_weft_peer()
            && self.rtr_expected().is_none()
    }

    /// Ends the wait for the initiator's first message.
    pub(crate) fn stop_holding(&mut self) {
        self.opening.hold = false;
    }

    /// Whether the peer runs Weft.
    pub(crate) fn is_weft_peer(&self) -> bool {
        self.peer_ack_stag().is_some()
    }

    /// Whether the sides acknowledge placed messages.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_weft_peer() && self.service.acknowledges()
    }

    pub(super) fn peer_ack_stag(&self) -> Option<u32> {
        self.agreement.as_ref().and_then(|agreement| agreement.peer_ack_stag)
    }

    pub(super) fn rtr_expected(&self) -> Option<RtrKind> {
        let agreement = self.agreement.as_ref()?;
        agreement.negotiated.rtr.filter(|_| !agreement.initiator)
    }

    /// Whether messages of the peer may be processed now.
    pub(super) fn receives(&self) -> bool {
        let ready =
            matches!(self.rules.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        ready && self.phase.is_open()
    }

    /// Completes the oldest send requests, as far as they are done.
    //= rfc5040#section-5.5
    //# RDMA Operations MUST be Completed at the Local Peer in the order that they were submitted by
    //# the ULP.
    pub(crate) fn complete_sends(&mut self, host: &H) {
        self.complete_held(host.sends(), host);
        self.check_drained(host);
    }

    pub(super) fn complete_held(&mut self, mut sq: impl DerefMut<Target = SendQueue>, host: &H) {
        let count =
            if self.is_acknowledged() { self.sender.peer_placed } else { self.sender.taken };
        let mut batch = None;
        while let Some(work) = sq.pop_complete(count) {
            if work.flags.contains(SendFlags::SIGNALED) {
                let completion = work.completion(Status::Success, self.config.number);
                batch.get_or_insert_with(|| host.send_completions()).push(completion, false);
            }
        }
    }

    /// Reports once that the send queue has been drained (IBTA 10.3.1.5).
    pub(crate) fn check_drained(&mut self, host: &H) {
        let is_drained = self.rules.state == QpState::Sqd
            && !self.sender.outgoing.active
            && !host.sends().is_awaiting();
        if is_drained && !std::mem::replace(&mut self.sender.drain_reported, true) {
            host.send_queue_drained();
        }
    }

    /// Ends all work: the oldest send request completes with `first`, all other requests are
    /// flushed. The connection is closed once the output that is due has been sent.
    pub(crate) fn fail(&mut self, host: &H, first: Option<Status>, vendor_err: u32) {
        self.rules.state = QpState::Err;
        host.enter_state(QpState::Err);
        if let Some(ring) = self.transport.ring() {
            ring.withdraw_grants();
        }
        self.sender.outgoing.active = false;
        self.sender.outstanding.clear();
        self.rnr.clear();
        if std::mem::take(&mut self.rnr.remote) {
            self.notices.rnr = Some(None);
        }
        self.enter(PhaseEvent::Closed);
        self.flush_sends(host, first, vendor_err);
        self.flush_receives(host);
    }

    /// Flushes the send queue; also called for requests that a program posts in the error state.
    pub(crate) fn flush_sends(&mut self, host: &H, first: Option<Status>, vendor_err: u32) {
        let mut status = first;
        let mut sq = host.sends();
        while let Some(work) = sq.pop() {
            let status = status.take().unwrap_or(Status::WrFlushErr);
            let vendor_err = if status == Status::WrFlushErr { 0 } else { vendor_err };
            let completion = work.completion(status, self.config.number);
            host.send_completions().push(Completion { vendor_err, ..completion }, false);
        }
    }

    /// Gives the receive of a message that has not arrived whole back to its shared queue. A
    /// receive of the connection's own queue stays, to be flushed.
    pub(crate) fn give_back_receive(&mut self, host: &H) {
        let current = &mut self.receiver.current;
        let is_shared = self.config.shares_receives || current.queue.is_some();
        if is_shared && std::mem::take(&mut current.active) {
            host.give_back_receive(current.queue.as_ref(), &current.work);
        }
    }

    /// Flushes the queue pair's own receives; those of a shared queue stay (IBTA 10.2.9.3).
    pub(crate) fn flush_receives(&mut self, host: &H) {
        self.give_back_receive(host);
        let number = self.config.number;
        let flushed = |wr_id| Completion::new(wr_id, Status::WrFlushErr, Opcode::Recv, number);
        if std::mem::take(&mut self.receiver.current.active) {
            let completion = flushed(self.receiver.current.work.wr_id);
            host.complete_receive(self.receiver.current.queue.as_ref(), completion, false);
        }
        if self.config.shares_receives {
            host.last_receive_taken();
            return;
        }
        let mut work = RecvWork::default();
        let mut rq = host.receives();
        while rq.pop(&mut work) {
            host.receive_completions().push(flushed(work.wr_id), false);
        }
    }

    /// Handles the end of the stream: `errno` is 0 after the peer's FIN, and otherwise the error of
    /// a reset or timeout.
    pub(crate) fn lost(&mut self, host: &H, errno: u32) {
        if self.phase.is_closed() {
            return;
        }
        let was_open = self.phase.is_open();
        if was_open {
            let reason = if errno == 0 { "by the peer".into() } else { format!("errno {errno}") };
            log::write(
                Level::Info,
                format_args!("qp {:#08x}: closed, {reason}", self.config.number),
            );
        }
        //= rfc5041#section-7
        //# All LLP errors reported to DDP SHOULD be passed up to the ULP.
        //= rfc5041#section-3
        //# For a specific LLP Stream, the LLP MUST provide a mechanism to indicate that the LLP
        //# Stream has been gracefully torn down.
        //= rfc5041#section-5.4
        //# At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are
        //# true: * the last DDP Segment of the DDP Message had its Last flag set,
        //= rfc5041#section-6.2.2
        //# Thus, any of the following fatal errors on a DDP Stream MUST cause DDP to indicate to
        //# the ULP that a fatal error has occurred: * Underlying LLP Connection or LLP Stream is
        //# lost.
        self.enter(PhaseEvent::Lost { errno });
        self.give_back_receive(host);
        if let Some(ring) = self.transport.ring() {
            ring.end();
        }
        if was_open {
            self.notices.disconnected = true;
            self.await_peer(host);
        }
    }

    /// Starts to wait for a lost peer, as a card does that retries a request before it fails. A
    /// program that is done may exit while a request of its peer is still under way, and the peer
    /// needs the time to find out that it is done, too. A peer that has not connected yet gets more
    /// time.
    pub(crate) fn await_peer(&mut self, host: &H) {
        let which = match (self.phase, self.rules.state) {
            (LinkPhase::Closed { .. }, _) if !self.service.retries() => {
                return self.send_to_nobody(host);
            }
            (LinkPhase::Closed { .. }, _) => AwaitedPeer::Gone,
            (LinkPhase::Idle { .. }, QpState::Rts) => AwaitedPeer::NotYetThere,
            _ => return,
        };
        if host.sends().len() != 0 && !self.phase.set_awaiting(true) {
            self.notices.awaited = Some(which);
        }
    }

    /// Takes over the attributes that the program has set.
    pub(crate) fn set_rules(&mut self, attr: &QpAttr, state: QpState) {
        if state == QpState::Sqd && self.rules.state != QpState::Sqd {
            self.sender.drain_reported = false;
        }
        if let Some(ring) = self.transport.ring()
            && self.rules.access != attr.qp_access_flags
        {
            ring.withdraw_grants();
        }
        self.rules = Rules {
            state,
            access: attr.qp_access_flags,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            src_qp: if self.config.qp_type == QpType::XrcRecv { attr.dest_qp_num } else { 0 },
        };
    }

    /// Closes the stream once everything that has been handed over is sent.
    //= rfc5040#section-6.2
    //# There are three methods for terminating an RDMAP Stream: ULP Graceful Termination, RDMAP
    //# Abortive Termination, and LLP Abortive Termination.
    //= rfc5041#section-6.2
    //# DDP MUST NOT independently initiate Stream Teardown. DDP either responds to a stream being
    //# torn down by the LLP or processes a request from the ULP to tear down a stream.
    pub(crate) fn close(&mut self) {
        self.enter(PhaseEvent::Closed);
    }

    /// Handles that there is no peer and none will connect: requests fail as after a card's last
    /// retry.
    pub(crate) fn unreachable(&mut self, host: &H, errno: u32) {
        self.enter(PhaseEvent::Abandoned);
        if !self.service.retries() {
            self.send_to_nobody(host);
        } else if host.sends().len() != 0 {
            self.fail(host, Some(Status::RetryExcErr), errno);
        }
    }

    /// Handles the end of a wait: the peer has posted no receive within the RNR retries, or it has
    /// been lost for longer than retries take.
    pub(crate) fn give_up_waiting(&mut self, host: &H) {
        if self.phase.set_awaiting(false) {
            let errno = match self.phase {
                LinkPhase::Closed { errno, .. } => errno,
                _ => {
                    let number = self.config.number;
                    log::write(Level::Error, format_args!("qp {number:#08x}: no peer came"));
                    0
                }
            };
            self.unreachable(host, errno);
        } else if self.rnr.remote {
            self.notices.disconnected = true;
            self.fail(host, Some(Status::RnrRetryExcErr), 0);
        } else {
            self.service.stop_waiting_for_receive();
        }
    }

    /// Whether the peer has sent more than the message that starts the stream (RTR).
    pub(crate) fn has_received_messages(&self) -> bool {
        self.receiver.placed != 0
            || self.has_waiting()
            || self.receiver.current.active
            || !self.responder.queue.is_empty()
    }

    /// Bytes received from and sent to the peer since the connection was opened.
    pub(crate) fn byte_counters(&self) -> (u64, u64) {
        (self.receiver.bytes, self.sender.taken)
    }

    /// Counts bytes received from the peer.
    pub(crate) fn count_received(&mut self, count: usize) {
        self.receiver.bytes += count as u64;
    }

    /// A defect that the simulation must find: counts one message more as placed than was placed.
    #[cfg(test)]
    pub(crate) fn overcount_placed(&mut self) {
        self.receiver.placed += 1;
    }

    /// Counters for `weft dump`: messages sent, messages placed at the peer, messages placed here,
    /// and bytes in the RNR queue.
    pub(crate) fn counters(&self) -> (u64, u64, u64, usize) {
        (self.sender.messages, self.sender.peer_placed, self.receiver.placed, self.rnr.bytes)
    }
}
