//! Unreliable datagrams: the state of a UD queue pair, instead of a connection.
//!
//! One message is one UDP datagram ([`weft_wire::datagram`]). The UDP socket belongs to the port
//! (`port`) of the queue pair's number; address handles (`AddressHandle`) name the destination, a
//! queue pair or a group (`multicast`). A send is complete once the kernel has taken the datagram.
//! A received message is dropped, and counted, if its Q_Key is wrong, if no receive is posted, or
//! if the receive is too small (IBTA 9.8.3, 9.9.3).
//!
//! There are two locks, which are never held together: `tx` for sending, taken before the send
//! queue's, and `rx` for receiving, taken before the receive queue's.

mod grh;
pub(crate) mod multicast;
mod owner;
mod port;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_sys::{Arrival, Lock, NoteLock};
use weft_wire::datagram::{self, CRC_LEN, HEADER_LEN, Header};
use weft_wire::ddp::FIRST_MSN;

use crate::attr::QpState;
use crate::device::gid_of;
use crate::limits::OUTBOXES_MAX;
use crate::link::host::Completions;
use crate::link::payload::Payload;
use crate::link::place::{gather, scatter};
use crate::mr::AccessError;
use crate::queue::recv::{Fit, RecvWork};
use crate::queue::send::Progress;
use crate::registered::MrCache;
use crate::udp::Outbox;
use crate::wc::{Completion, FLAG_GRH, FLAG_WITH_IMM, HEADER_IPV4, HEADER_IPV6, Opcode, Status};
use crate::wr::{Destination, Operation, SendFlags, Sge};

pub use crate::ah::AddressHandle;
use grh::GRH_LEN;
pub(crate) use owner::{DatagramTarget, Owner, Routes};
pub(crate) use port::Port;

/// A send's Q_Key with this bit is replaced by the queue pair's own (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// The part of a queue pair that sends and receives datagrams.
#[derive(Debug)]
pub(crate) struct Datagram {
    port: Arc<Port>,
    qkey: AtomicU32,
    /// Whether there may be something to send.
    pending_work: AtomicBool,
    tx: NoteLock<Tx>,
    rx: Lock<Rx>,
    counters: Counters,
}

#[derive(Debug)]
struct Tx {
    outbox: Outbox,
    cache: MrCache,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Number of messages that have been put into the outbox.
    handed: u64,
    /// The error of the next request, which is reported once all earlier ones are complete.
    fault: Option<Status>,
    drain_reported: bool,
}

#[derive(Debug, Default)]
struct Rx {
    cache: MrCache,
    work: RecvWork,
}

#[derive(Debug, Default)]
struct Counters {
    received: AtomicU64,
    wrong_qkey: AtomicU64,
    no_receive: AtomicU64,
    receive_too_small: AtomicU64,
}

/// Datagram counters for `weft dump`.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) sent: u64,
    pub(crate) refused_by_network: u64,
    pub(crate) received: u64,
    pub(crate) wrong_qkey: u64,
    pub(crate) no_receive: u64,
    pub(crate) receive_too_small: u64,
    /// Malformed datagrams and datagrams for no UD queue pair, counted for the whole port, which
    /// several queue pairs share.
    pub(crate) port_unknown: u64,
    pub(crate) port_malformed: u64,
}

impl Datagram {
    pub(crate) fn new(port: Arc<Port>) -> Self {
        let tx = Tx {
            outbox: Outbox::new(port.socket().can_segment()),
            cache: MrCache::default(),
            sges: Vec::new(),
            inline: Vec::new(),
            handed: 0,
            fault: None,
            drain_reported: false,
        };
        Self {
            port,
            qkey: AtomicU32::new(0),
            pending_work: AtomicBool::new(false),
            tx: NoteLock::new(tx),
            rx: Lock::new(Rx::default()),
            counters: Counters::default(),
        }
    }

    /// Changes the state to INIT, RTR, RTS or SQD, and sets the Q_Key.
    pub(crate) fn enter(&self, qp: &impl Owner, to: QpState, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
        {
            let mut tx = self.tx.lock();
            // An error that came in between takes precedence.
            if qp.state() == QpState::Err {
                return;
            }
            tx.drain_reported = false;
            qp.enter_state(to);
        }
        self.drive(qp);
    }

    /// Stops sending and receiving, for RESET or destruction. On return nothing is in progress.
    pub(crate) fn stop(&self) {
        {
            let mut tx = self.tx.lock();
            tx.outbox.clear();
            tx.fault = None;
            tx.handed = tx.outbox.done();
        }
        // A thread that is receiving has seen the new state, or is done once the lock is free.
        drop(self.rx.lock());
    }

    /// Flushes all work in the error state.
    pub(crate) fn fail(&self, qp: &impl Owner) {
        self.drive(qp);
        self.flush_receives(qp);
    }

    /// Flushes the queue pair's own receives; those of a shared queue stay (IBTA 10.2.9.3).
    pub(crate) fn flush_receives(&self, qp: &impl Owner) {
        let mut rx = self.rx.lock();
        if qp.shares_receives() {
            return qp.last_receive_taken();
        }
        while qp.receives().pop(&mut rx.work) {
            let wr_id = rx.work.wr_id;
            let flushed = Completion::new(wr_id, Status::WrFlushErr, Opcode::Recv, qp.number());
            qp.receive_completions().push(flushed, false);
        }
    }

    /// Sends what is posted, or leaves that to the thread that holds the lock.
    pub(crate) fn drive(&self, qp: &impl Owner) {
        self.pending_work.store(true, Ordering::SeqCst);
        while self.pending_work.load(Ordering::SeqCst) {
            let Some(mut tx) = self.tx.try_lock() else { return };
            self.pending_work.store(false, Ordering::SeqCst);
            let before = tx.outbox.done();
            self.transmit(qp, &mut tx);
            let sent = tx.outbox.done() - before;
            drop(tx);
            self.port.note_sent(sent);
        }
    }

    fn transmit(&self, qp: &impl Owner, tx: &mut Tx) {
        for _ in 0..OUTBOXES_MAX {
            match qp.state() {
                QpState::Err | QpState::Sqe => return flush_sends(qp, tx, None),
                QpState::Reset => return,
                _ => {}
            }
            fill(qp, tx);
            if tx.outbox.is_empty() && tx.fault.is_none() {
                return report_drained(qp, tx);
            }
            let mut all = tx.outbox.send(self.port.socket());
            if !all {
                self.port.await_room(&qp.datagram_target());
                // Room that became free before the registration is not notified.
                all = tx.outbox.send(self.port.socket());
            }
            complete(qp, tx);
            if !all {
                return;
            }
            if let Some(fault) = tx.fault.take() {
                // Only the sending half fails (IBTA 10.3.1.6).
                qp.enter_state(QpState::Sqe);
                return flush_sends(qp, tx, Some(fault));
            }
        }
        qp.requeue();
    }

    /// Processes a datagram for this queue pair.
    pub(crate) fn receive(
        &self,
        qp: &impl Owner,
        header: &Header,
        arrival: &Arrival,
        payload: &[u8],
    ) {
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        if header.qkey != self.qkey.load(Ordering::Relaxed) {
            return count(&self.counters.wrong_qkey);
        }
        let mut rx = self.rx.lock();
        let Rx { cache, work } = &mut *rx;
        if !matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return;
        }
        let length = GRH_LEN + payload.len();
        match qp.take_receive_for(length as u64, work) {
            Fit::Taken => count(&self.counters.received),
            Fit::Empty => return count(&self.counters.no_receive),
            Fit::TooSmall => return count(&self.counters.receive_too_small),
        }
        let context = qp.context();
        let grh = grh::of(arrival.from.ip(), arrival.to, payload.len());
        let placed = scatter(cache, context, &work.sges, 0, Payload::Bytes(&grh)).and_then(|()| {
            scatter(cache, context, &work.sges, GRH_LEN as u64, Payload::Bytes(payload))
        });
        let wr_id = work.wr_id;
        if placed.is_err() {
            let failed = Completion::new(wr_id, Status::LocProtErr, Opcode::Recv, qp.number());
            qp.receive_completions().push(failed, false);
            drop(rx);
            return qp.fail();
        }
        let completion = Completion {
            // A datagram's length fits in 32 bits.
            byte_len: length as u32,
            imm_data: u32::from_ne_bytes(header.imm.unwrap_or_default()),
            src_qp: header.from,
            slid: lid_of(&arrival.from),
            sl: if arrival.from.is_ipv4() { HEADER_IPV4 } else { HEADER_IPV6 },
            wc_flags: FLAG_GRH | if header.imm.is_some() { FLAG_WITH_IMM } else { 0 },
            ..Completion::new(wr_id, Status::Success, Opcode::Recv, qp.number())
        };
        qp.receive_completions().push(completion, header.solicited);
    }

    /// The current datagram counters.
    pub(crate) fn counted(&self) -> Counted {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sent, refused_by_network) = {
            let tx = self.tx.lock();
            (tx.outbox.done(), tx.outbox.dropped())
        };
        let (port_unknown, port_malformed) = self.port.dropped();
        Counted {
            sent,
            refused_by_network,
            received: load(&self.counters.received),
            wrong_qkey: load(&self.counters.wrong_qkey),
            no_receive: load(&self.counters.no_receive),
            receive_too_small: load(&self.counters.receive_too_small),
            port_unknown,
            port_malformed,
        }
    }
}

/// Puts posted messages into the outbox, as many as it has room for.
fn fill(qp: &impl Owner, tx: &mut Tx) {
    while tx.fault.is_none() && qp.state() == QpState::Rts {
        let (to, imm, solicited) = {
            let sq = qp.sends();
            let Some((_, work)) = sq.peek_next() else { return };
            if !tx.outbox.has_room(HEADER_LEN + work.length as usize + CRC_LEN) {
                return;
            }
            let Operation::Datagram { to, imm } = &work.operation else { return };
            let found = (to.clone(), *imm, work.flags.contains(SendFlags::SOLICITED));
            sq.copy_next(&mut tx.sges, &mut tx.inline);
            found
        };
        if let Err(fault) = put(qp, tx, &to, imm, solicited) {
            tx.fault = Some(fault);
            return;
        }
        tx.handed += 1;
        qp.sends().advance(Progress::Sent(tx.handed));
    }
}

/// Puts a message into the outbox; its gather list and inline data are in `tx`.
fn put(
    qp: &impl Owner,
    tx: &mut Tx,
    to: &Destination,
    imm: Option<u32>,
    solicited: bool,
) -> Result<(), Status> {
    if !Arc::ptr_eq(to.ah.pd(), qp.context().pd) {
        return Err(Status::LocQpOpErr);
    }
    let qkey = if to.qkey & OWN_QKEY == 0 { to.qkey } else { qp.qkey() };
    let header = Header {
        to: to.qp_num,
        from: qp.number(),
        qkey,
        msn: FIRST_MSN.wrapping_add(tx.handed as u32),
        imm: imm.map(u32::to_ne_bytes),
        solicited,
    };
    let has_crc = to.ah.has_crc();
    let context = qp.context();
    let Tx { outbox, cache, sges, inline, .. } = tx;
    let written = outbox.push(to.ah.address_of(to.qp_num), to.ah.source(), |bytes| {
        let start = bytes.len();
        bytes.resize(start + HEADER_LEN, 0);
        header.emit(has_crc, &mut bytes[start..]);
        bytes.extend_from_slice(inline);
        let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
        gather(cache, context, sges, 0, length, bytes)?;
        if has_crc {
            let crc = datagram::check_value(&bytes[start..]);
            bytes.extend_from_slice(&crc);
        }
        Ok::<(), AccessError>(())
    });
    written.map_err(|_| Status::LocProtErr)
}

/// Completes the sends whose datagrams have left the outbox.
fn complete(qp: &impl Owner, tx: &Tx) {
    let mut sq = qp.sends();
    while let Some(work) = sq.pop_complete(tx.outbox.done()) {
        if work.flags.contains(SendFlags::SIGNALED) {
            qp.send_completions().push(work.completion(Status::Success, qp.number()), false);
        }
    }
}

/// Ends all sends: the oldest completes with `first`, the others are flushed.
fn flush_sends(qp: &impl Owner, tx: &mut Tx, first: Option<Status>) {
    tx.outbox.clear();
    tx.fault = None;
    tx.handed = tx.outbox.done();
    let mut status = first;
    let mut sq = qp.sends();
    while let Some(work) = sq.pop() {
        let status = status.take().unwrap_or(Status::WrFlushErr);
        qp.send_completions().push(work.completion(status, qp.number()), false);
    }
}

/// Reports that the send queue is drained, if the program has stopped it.
fn report_drained(qp: &impl Owner, tx: &mut Tx) {
    if qp.state() == QpState::Sqd && !std::mem::replace(&mut tx.drain_reported, true) {
        qp.send_queue_drained();
    }
}

/// The sender's LID if it has an IPv4 address, otherwise 0: see [`crate::device::Device::lid`].
fn lid_of(from: &SocketAddr) -> u16 {
    let gid = gid_of(from.ip());
    if from.is_ipv4() { u16::from_be_bytes([gid[14], gid[15]]) } else { 0 }
}
