//! Queue pairs.
//!
//! A queue pair has three locks, always taken in this order: `conn` (protocol state and socket),
//! `sq` and `rq` (posted work). Posting takes only the queue's lock; a poster that finds `conn`
//! taken leaves a note in `kick`, at which the holder looks afterwards.

pub mod conn;
mod datagram;
mod first_word;
mod host;
mod init;
pub(crate) mod peers;
pub mod pending;
mod service;
mod sharing;
mod transition;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::{Lock, LockGuard, NoteLock};

pub use crate::attr::{AddressVector, AttrMask, GlobalRoute, QpAttr, QpCap, QpState, QpType};
use crate::context::Context;
use crate::cq::{Cq, CqUser};
use crate::device::{Gid, address_of, gid_of};
use crate::event::{AsyncEvent, Element, EventKind, Object};
use crate::hello::Identity;
use crate::limits::{
    DATAGRAM_MAX, INLINE_MAX, INLINE_MIN, MESSAGE_MAX, QP_WR_MAX, READ_DEPTH_MAX, SGE_MAX,
};
use crate::link::host::Work;
use crate::link::{AwaitedPeer, Config, Link};
use crate::pd::{Pd, PdUser};
use crate::queue::recv::{RecvQueue, RecvWork};
use crate::queue::send::{SendLimits, SendQueue};
use crate::reactor::{Reactor, Source, TimerId};
use crate::srq::{AwaitsReceive, Srq, SrqUser};
use crate::ud::{self, Datagram};
use crate::wr::{RecvRequest, SendRequest};
use crate::xrc::Xrcd;
use crate::{Errno, Result, registered, shm};

use conn::Conn;
pub use conn::Connection;
use datagram::find_addressee;
pub use init::QpInit;
use peers::numbers;
pub use peers::{all, find};

/// Bytes and requests that may wait for the next poll before they are sent all the same: enough to
/// share a system call well, not so many that the peer has nothing to do meanwhile.
const DEFER_BYTES_MAX: u64 = 256 << 10;
const DEFER_REQUESTS_MAX: u64 = 64;
/// Requests between two polls from which on more of the same are expected.
const BURST_MIN: u64 = 4;
/// Messages of the peer's whose acknowledgement may wait for the next poll, for the same reason.
const DEFER_ACKS_MAX: u64 = 16;

/// How long requests wait for a peer that should connect: a little longer than the side that dials
/// tries, so that its failure, which says more, comes first.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(32);
/// How long requests to a peer that is gone wait at most before they fail.
const RETRY_TIME_MAX: Duration = Duration::from_millis(500);

const KICK_RECEIVE: u32 = 1;
const KICK_SEND: u32 = 1 << 1;
const KICK_UNPARK: u32 = 1 << 2;
/// Receive until the socket says that it is empty.
const KICK_DRAIN: u32 = 1 << 3;
/// Look at what is in shared memory.
const KICK_RING: u32 = 1 << 4;

/// Who is told about a queue pair's connection (the connection manager).
pub trait Monitor: Send + Sync + std::fmt::Debug {
    /// The connection has ended: by the peer, by a failure, or by an error of this side.
    fn disconnected(&self);
}

/// The objects that a queue pair keeps in use until it is destroyed.
#[derive(Debug)]
#[allow(dead_code)] // Held for their `Drop`.
struct Holds {
    pd: PdUser,
    send_cq: CqUser,
    recv_cq: CqUser,
    srq: Option<SrqUser>,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    me: Weak<Self>,
    number: u32,
    ack_stag: u32,
    init: QpInit,
    pd: Arc<Pd>,
    holds: Lock<Option<Holds>>,
    /// The C ABI's own name for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    attr: Lock<QpAttr>,
    state: AtomicU32,
    pub(crate) sq: Lock<SendQueue>,
    pub(crate) rq: Lock<RecvQueue>,
    conn: NoteLock<Conn>,
    /// In the place of a connection, which then stays idle.
    datagram: Option<Datagram>,
    kick: AtomicU32,
    deferred: AtomicBool,
    /// Changed under the lock of `sq` only.
    has_unsent: AtomicBool,
    /// The last deferred requests were several: one to an idle connection will not be the only one.
    posts_bursts: AtomicBool,
    parked: AtomicBool,
    retry_timer: Lock<Option<TimerId>>,
    monitor: Lock<Option<Weak<dyn Monitor>>>,
    last_wqe_told: AtomicBool,
    /// Who has it open, each of whom destroys it once.
    users: AtomicUsize,
}

impl Qp {
    /// `ibv_create_qp`. The sizes become what was asked for, or [`INLINE_MIN`].
    ///
    /// # Errors
    /// `EINVAL` for sizes beyond the device's; `ENOMEM` when there are no numbers or keys left.
    pub fn new(pd: &Arc<Pd>, mut init: QpInit) -> Result<Arc<Self>> {
        init.cap.max_inline_data = init.cap.max_inline_data.max(INLINE_MIN);
        let cap = init.cap;
        let fits = cap.max_send_wr <= QP_WR_MAX
            && cap.max_recv_wr <= QP_WR_MAX
            && cap.max_send_sge <= SGE_MAX
            && cap.max_recv_sge <= SGE_MAX
            && cap.max_inline_data <= INLINE_MAX;
        if !fits {
            return Err(Errno::INVAL);
        }
        let is_target = init.qp_type == QpType::XrcRecv;
        if is_target != init.xrcd.is_some() || (init.srq.is_some() && !init.qp_type.receives()) {
            return Err(Errno::INVAL);
        }
        let holds = Holds {
            pd: pd.user(),
            send_cq: init.send_cq.user(),
            recv_cq: init.recv_cq.user(),
            srq: init.srq.as_ref().map(Srq::user),
        };
        let (number, datagram) = match init.qp_type {
            QpType::Ud => {
                let (number, port) = numbers()
                    .allocate_for_datagrams(|port| ud::Port::open(port, find_addressee))?;
                (number, Some(Datagram::new(port)))
            }
            _ => (numbers().allocate()?, None),
        };
        let ack_stag = match registered::reserve() {
            Ok(key) => key,
            Err(error) => {
                numbers().release(number);
                return Err(error);
            }
        };
        let limits = SendLimits {
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_message: if datagram.is_some() { DATAGRAM_MAX } else { MESSAGE_MAX },
            sq_sig_all: init.sq_sig_all,
        };
        let own_receives = if init.srq.is_some() { 0 } else { cap.max_recv_wr };
        let qp = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            number,
            ack_stag,
            pd: Arc::clone(pd),
            holds: Lock::new(Some(holds)),
            cookie: AtomicUsize::new(0),
            attr: Lock::new(QpAttr::default()),
            state: AtomicU32::new(QpState::Reset as u32),
            sq: Lock::new(SendQueue::new(limits)),
            rq: Lock::new(RecvQueue::new(own_receives, cap.max_recv_sge)),
            conn: NoteLock::new(Conn::new(Link::new(link_config(number, ack_stag, &init)))),
            datagram,
            kick: AtomicU32::new(0),
            deferred: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            posts_bursts: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            retry_timer: Lock::new(None),
            monitor: Lock::new(None),
            last_wqe_told: AtomicBool::new(false),
            users: AtomicUsize::new(1),
            init,
        });
        shm::find_by(|number| Some(find(number)? as _));
        numbers().bind(number, &qp);
        Ok(qp)
    }

    /// `ibv_create_qp_ex` with an XRC domain: a queue pair that peers send to. Its queues and
    /// protection domain are those of the shared receive queues of the domain; what every queue
    /// pair has stays empty.
    ///
    /// # Errors
    /// `ENOMEM` when there are no numbers or keys left.
    pub fn new_target(context: &Arc<Context>, xrcd: &Arc<Xrcd>) -> Result<Arc<Self>> {
        let pd = Pd::new(context);
        let cq = Cq::new(context, 1, None)?;
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            send_cq: Arc::clone(&cq),
            recv_cq: cq,
            srq: None,
            xrcd: Some(Arc::clone(xrcd)),
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        Self::new(&pd, init)
    }

    /// `ibv_open_qp`: the queue pair of this process with this number that peers of the domain send
    /// to. It is destroyed by the last [`Qp::destroy`].
    #[must_use]
    pub fn open_target(xrcd: &Arc<Xrcd>, number: u32) -> Option<Arc<Self>> {
        let qp = find(number)?;
        let is_of_domain = qp.xrcd().is_some_and(|own| Arc::ptr_eq(own, xrcd));
        let share = |users: usize| (users != 0).then_some(users + 1);
        let is_shared = is_of_domain
            && qp.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, share).is_ok();
        is_shared.then_some(qp)
    }

    /// The queue pair number, 24 bits.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What kind of queue pair it is.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Where sends complete.
    #[must_use]
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.init.send_cq
    }

    /// Where receives complete.
    #[must_use]
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.init.recv_cq
    }

    /// Where receives come from, if not from a queue of its own.
    #[must_use]
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.init.srq.as_ref()
    }

    /// Whose shared receive queues peers send to, on the target of an extended connection.
    pub(crate) fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.init.xrcd.as_ref()
    }

    /// The state, which an error may have changed since the last `modify`.
    #[must_use]
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    /// `ibv_query_qp`: attributes, sizes, and whether every send is signalled.
    #[must_use]
    pub fn query(&self) -> (QpAttr, QpCap, bool) {
        let mut attr = *self.attr.lock();
        attr.qp_state = self.state();
        attr.cur_qp_state = attr.qp_state;
        attr.cap = self.init.cap;
        (attr, self.init.cap, self.init.sq_sig_all)
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// `EINVAL` for a transition that does not exist, and for attributes that are missing, do not
    /// belong to it, or have a value out of range.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let mask = transition::relevant(self.init.qp_type, mask);
        let from = self.state();
        let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != from {
            return Err(Errno::INVAL);
        }
        transition::check(self.init.qp_type, from, to, mask)?;
        self.check_values(attr, mask)?;
        self.store(attr, mask);
        match to {
            QpState::Reset => self.reset(),
            QpState::Err => self.enter_error(),
            _ => self.enter(from, to),
        }
        Ok(())
    }

    /// Starts posting send work requests. Other posting threads wait until the value is dropped,
    /// which also rings the doorbell.
    #[must_use]
    pub fn start_post(&self) -> Poster<'_> {
        Poster { qp: self, sq: Some(self.sq.lock()), was_idle: false, posted: 0 }
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// `EINVAL` in the RESET state, without a receive queue of its own, or for too many scatter
    /// entries; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        let state = self.state();
        if state == QpState::Reset || self.init.srq.is_some() || !self.init.qp_type.receives() {
            return Err(Errno::INVAL);
        }
        self.rq.lock().push(request)?;
        // Looked at again, for an error that came meanwhile has flushed what was there before.
        if self.state() == QpState::Err {
            match &self.datagram {
                Some(datagram) => datagram.flush_receives(self),
                None => self.conn.lock().link.flush_receives(self),
            }
            self.drive(0);
        } else if self.parked.load(Ordering::SeqCst) {
            self.drive(KICK_UNPARK);
        }
        Ok(())
    }

    /// Messages wait for a receive: the next one to be posted will be brought to them. Returns
    /// whether there is one already.
    fn await_receive(&self, link: &Link<Self>) -> bool {
        if self.xrcd().is_some() {
            let awaited = link.awaited_queue().and_then(|number| self.find_queue(number));
            // A queue that is gone brings nothing: looking again finds that out.
            return awaited.is_none_or(|srq| srq.await_receive_among_others(self.waiter()));
        }
        match &self.init.srq {
            Some(srq) => srq.await_receive(self.waiter(), &self.parked),
            None => {
                // Posting puts a receive into the queue before it looks at this.
                self.parked.store(true, Ordering::SeqCst);
                self.has_receive()
            }
        }
    }

    fn waiter(&self) -> Weak<dyn AwaitsReceive> {
        Weak::clone(&self.me) as _
    }

    /// `ibv_destroy_qp`. Afterwards no completion and no event of it appears any more. One that is
    /// shared is destroyed by the last of its users.
    pub fn destroy(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if self.datagram.is_some() {
            ud::multicast::forget(self);
        }
        peers::forget(self);
        self.publish_state(QpState::Reset);
        self.drop_connection();
        numbers().release(self.number);
        registered::release(self.ack_stag);
        self.stop_retry_timer();
        *self.monitor.lock() = None;
        self.send_cq().forget(self.number);
        self.recv_cq().forget(self.number);
        let is_own = |event: &AsyncEvent| match &event.element {
            Element::Qp(qp) => qp.is(self),
            _ => false,
        };
        self.context().forget_events(is_own);
        *self.holds.lock() = None;
    }

    /// What a Weft peer must know to talk to this queue pair.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            qp_num: self.number,
            ack_stag: self.ack_stag,
            gid: self.own_gid(),
            process: *shm::own_id(),
        }
    }

    /// Gives the queue pair its connection; data flows as soon as the state allows.
    ///
    /// # Errors
    /// `EISCONN` when it has one; `EINVAL` for a queue pair that has none by its kind; what
    /// registration of the socket reports.
    pub fn attach(&self, connection: Connection) -> Result<()> {
        if self.datagram.is_some() {
            return Err(Errno::INVAL);
        }
        let opened = self.conn.lock().open(self, connection);
        // Refused or not: who posted meanwhile has left that to this thread, which held the lock.
        self.drive(KICK_RECEIVE | KICK_DRAIN | KICK_SEND);
        opened
    }

    /// Who is to be told of the connection's fate.
    pub fn set_monitor(&self, monitor: Weak<dyn Monitor>) {
        *self.monitor.lock() = Some(monitor);
    }

    /// Ends the connection in order: what has been handed over is sent, then the stream is closed.
    /// The state does not change.
    pub fn disconnect(&self) {
        self.conn.lock().link.close();
        self.drive(KICK_SEND);
    }

    /// Whether the program has not taken all of its completions.
    pub(crate) fn has_unread(&self) -> bool {
        [self.send_cq(), self.recv_cq()].iter().any(|cq| cq.has_any_of(self.number))
    }

    /// The GID by which peers know this queue pair.
    pub(crate) fn own_gid(&self) -> Gid {
        let index = self.attr.lock().ah_attr.global.map_or(0, |route| route.sgid_index);
        let gids = self.context().device().gids();
        gids.get(usize::from(index)).or_else(|| gids.first()).copied().unwrap_or_default()
    }

    /// The peer that the program named: its GID and queue pair number. `None` before RTR.
    pub(crate) fn wanted_peer(&self) -> Option<(Gid, u32)> {
        if !matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return None;
        }
        let attr = self.attr.lock();
        let gid = match attr.ah_attr.global {
            Some(route) => route.dgid,
            None => gid_of(self.context().device().address_of_lid(attr.ah_attr.dlid)?),
        };
        Some((gid, attr.dest_qp_num))
    }

    /// The address of [`Qp::own_gid`].
    pub(crate) fn own_address(&self) -> IpAddr {
        address_of(self.own_gid())
    }

    /// Read depths: what we serve, and what we use.
    pub(crate) fn depths(&self) -> (u16, u16) {
        let attr = self.attr.lock();
        (attr.max_dest_rd_atomic.into(), attr.max_rd_atomic.into())
    }

    /// The peer cannot be reached: requests fail as if a card's retries were exhausted.
    pub(crate) fn unreachable(&self, error: Errno) {
        let errno = error.raw_os_error().unsigned_abs();
        self.conn.lock().fail_unreachable(self, errno);
        self.drive(KICK_SEND);
    }

    /// The transport of its connection, as `weft dump` names it.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        let transport = self.transport_of(&self.conn.lock());
        self.drive(0); // What others left to this thread meanwhile.
        transport
    }

    fn transport_of(&self, conn: &Conn) -> &'static str {
        if self.datagram.is_some() { "udp" } else { conn.transport() }
    }

    /// How far it is.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let conn = self.conn.lock();
        let (messages_sent, messages_placed_there, messages_placed_here, bytes_parked) =
            conn.link.counters();
        let (bytes_in, bytes_out) = conn.link.byte_counters();
        let (sends_posted, sends_waiting) = {
            let sq = self.sq.lock();
            (sq.len(), sq.unsent())
        };
        let snapshot = Snapshot {
            transport: self.transport_of(&conn),
            one_sided: conn.link.reach(),
            peer: conn.peer(),
            peer_is_weft: conn.link.is_weft_peer(),
            sends_posted,
            sends_waiting,
            receives_posted: self.rq.lock().len(),
            messages_sent,
            messages_placed_there,
            messages_placed_here,
            messages_dropped: conn.link.messages_dropped(),
            bytes_parked,
            bytes_in,
            bytes_out,
            datagrams: self.datagram.as_ref().map(Datagram::counted),
        };
        drop(conn);
        self.drive(0); // Likewise.
        snapshot
    }

    pub(crate) fn unsent(&self) -> u64 {
        self.sq.lock().unsent()
    }

    pub(crate) fn publish_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
    }

    pub(crate) fn report_drained(&self) {
        if self.attr.lock().en_sqd_async_notify {
            self.report(EventKind::SqDrained);
        }
    }

    /// No receive of the shared queue will be taken any more (IBTA 10.2.9.3).
    pub(crate) fn report_last_wqe(&self) {
        if !self.last_wqe_told.swap(true, Ordering::AcqRel) {
            self.report(EventKind::QpLastWqeReached);
        }
    }

    pub(crate) fn report(&self, kind: EventKind) {
        let element = Element::Qp(self.me() as Arc<dyn Object>);
        self.context().post_event(AsyncEvent { kind, element });
    }

    /// The protocol without a socket, for the simulation.
    #[cfg(test)]
    pub(crate) fn with_link<R>(&self, look: impl FnOnce(&mut Link<Self>) -> R) -> R {
        look(&mut self.conn.lock().link)
    }

    pub(crate) fn me(&self) -> Arc<Self> {
        // `&self` comes from an `Arc` (see `new`), so there is one.
        self.me.upgrade().expect("a queue pair lives in an Arc")
    }

    fn check_values(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let gids = self.context().device().gids().len();
        let route_ok =
            |av: &AddressVector| av.global.is_none_or(|route| usize::from(route.sgid_index) < gids);
        let checks = [
            (AttrMask::PORT, attr.port_num == 1),
            (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
            (AttrMask::PATH_MTU, (1..=5).contains(&attr.path_mtu)),
            (AttrMask::AV, route_ok(&attr.ah_attr)),
            (AttrMask::DEST_QPN, attr.dest_qp_num < 1 << 24),
            (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= READ_DEPTH_MAX),
            (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= READ_DEPTH_MAX),
            (AttrMask::TIMEOUT, attr.timeout <= 31),
            (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
            (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
            (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer <= 31),
        ];
        let good = checks.iter().all(|(bit, ok)| !mask.contains(*bit) || *ok);
        if good { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn store(&self, attr: &QpAttr, mask: AttrMask) {
        let mut own = self.attr.lock();
        let own = &mut *own;
        let mut set = |bit: AttrMask, copy: &mut dyn FnMut(&mut QpAttr)| {
            if mask.contains(bit) {
                copy(own);
            }
        };
        set(AttrMask::ACCESS_FLAGS, &mut |own| own.qp_access_flags = attr.qp_access_flags);
        set(AttrMask::PKEY_INDEX, &mut |own| own.pkey_index = attr.pkey_index);
        set(AttrMask::PORT, &mut |own| own.port_num = attr.port_num);
        set(AttrMask::QKEY, &mut |own| own.qkey = attr.qkey);
        set(AttrMask::AV, &mut |own| own.ah_attr = attr.ah_attr);
        set(AttrMask::PATH_MTU, &mut |own| own.path_mtu = attr.path_mtu);
        set(AttrMask::TIMEOUT, &mut |own| own.timeout = attr.timeout);
        set(AttrMask::RETRY_CNT, &mut |own| own.retry_cnt = attr.retry_cnt);
        set(AttrMask::RNR_RETRY, &mut |own| own.rnr_retry = attr.rnr_retry);
        set(AttrMask::RQ_PSN, &mut |own| own.rq_psn = attr.rq_psn);
        set(AttrMask::SQ_PSN, &mut |own| own.sq_psn = attr.sq_psn);
        set(AttrMask::MAX_QP_RD_ATOMIC, &mut |own| own.max_rd_atomic = attr.max_rd_atomic);
        set(AttrMask::MAX_DEST_RD_ATOMIC, &mut |own| {
            own.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        });
        set(AttrMask::MIN_RNR_TIMER, &mut |own| own.min_rnr_timer = attr.min_rnr_timer);
        set(AttrMask::DEST_QPN, &mut |own| own.dest_qp_num = attr.dest_qp_num);
        set(AttrMask::PATH_MIG_STATE, &mut |own| own.path_mig_state = attr.path_mig_state);
        set(AttrMask::EN_SQD_ASYNC_NOTIFY, &mut |own| {
            own.en_sqd_async_notify = attr.en_sqd_async_notify;
        });
    }

    /// A change between INIT, RTR, RTS and SQD.
    fn enter(&self, from: QpState, to: QpState) {
        let attr = *self.attr.lock();
        if let Some(datagram) = &self.datagram {
            return datagram.enter(self, to, attr.qkey);
        }
        let is_connected = {
            let mut conn = self.conn.lock();
            // An error may have come between; it wins.
            if self.state() == QpState::Err {
                return;
            }
            conn.link.set_rules(&attr, to);
            self.publish_state(to);
            conn.link.check_drained(self);
            !conn.link.phase.is_idle()
        };
        // The connection manager brings its queue pairs a connection before it moves them.
        if from == QpState::Init && to == QpState::Rtr && !is_connected {
            peers::connect(self);
        }
        self.drive(KICK_RECEIVE | KICK_DRAIN | KICK_SEND);
    }

    pub(crate) fn enter_error(&self) {
        if let Some(datagram) = &self.datagram {
            self.publish_state(QpState::Err);
            return datagram.fail(self);
        }
        peers::forget(self);
        self.publish_state(QpState::Err);
        self.conn.lock().link.fail(self, None, 0);
        self.drive(KICK_SEND);
    }

    fn reset(&self) {
        peers::forget(self);
        self.publish_state(QpState::Reset);
        self.drop_connection();
        self.stop_retry_timer();
        self.sq.lock().clear();
        let mut work = RecvWork::default();
        while self.rq.lock().pop(&mut work) {}
        self.send_cq().forget(self.number);
        self.recv_cq().forget(self.number);
        self.last_wqe_told.store(false, Ordering::Release);
        *self.attr.lock() = QpAttr::default();
    }

    fn fresh_conn(&self) -> Conn {
        Conn::new(Link::new(link_config(self.number, self.ack_stag, &self.init)))
    }

    fn drop_connection(&self) {
        if let Some(datagram) = &self.datagram {
            return datagram.stop();
        }
        let old = std::mem::replace(&mut *self.conn.lock(), self.fresh_conn());
        old.linger(self);
    }

    /// Work has been posted: sends it now, or leaves it to the next poll so that it can go out
    /// together with what else will have been posted by then.
    fn ring(&self, first_of_idle: bool, unsent: u64, unsent_bytes: u64) {
        let reactor = Reactor::get();
        let enough = unsent >= DEFER_REQUESTS_MAX || unsent_bytes >= DEFER_BYTES_MAX;
        let alone = first_of_idle && !self.posts_bursts.load(Ordering::Relaxed);
        if alone || enough || !reactor.may_defer() {
            let _busy = reactor.busy();
            self.drive(KICK_SEND);
        } else {
            self.defer(reactor);
        }
    }

    fn defer(&self, reactor: &Reactor) {
        if !self.deferred.swap(true, Ordering::AcqRel) {
            reactor.defer(self.me());
        }
    }

    /// Does what `what` asks for, or leaves it to the thread that is at it.
    fn drive(&self, mut what: u32) {
        if let Some(datagram) = &self.datagram {
            return datagram.drive(self);
        }
        while what != 0 || self.kick.load(Ordering::SeqCst) != 0 {
            let Some(mut conn) = self.take_conn_or_leave(what) else { return };
            if self.kick.load(Ordering::SeqCst) != 0 {
                what |= self.kick.swap(0, Ordering::SeqCst);
            }
            let mut again = false;
            if what & KICK_UNPARK != 0 {
                conn.link.retry_waiting(self);
                again = true;
            }
            if what & KICK_RING != 0 || again {
                conn.receive_shared(self);
            }
            if what & KICK_RECEIVE != 0 || again {
                let drain = again || what & KICK_DRAIN != 0;
                if conn.receive(self, drain) {
                    Reactor::get().requeue(self.me());
                }
            }
            if !conn.link.wants_receive() {
                // With a shared queue it says that this queue pair is on its list.
                if self.init.srq.is_none() && self.parked.load(Ordering::SeqCst) {
                    self.parked.store(false, Ordering::SeqCst);
                }
            } else if self.await_receive(&conn.link) {
                self.kick.fetch_or(KICK_UNPARK, Ordering::SeqCst);
            }
            let wants_ack_only = what & KICK_SEND == 0 && conn.link.only_acks_due(self);
            let acks_due = conn.link.acks_due();
            // On an extended connection the answer goes another way, and must not come first.
            let may_wait = acks_due < DEFER_ACKS_MAX && self.init.qp_type != QpType::XrcRecv;
            if wants_ack_only && may_wait && Reactor::get().may_defer() {
                if conn.link.is_shared() {
                    conn.link.settle_ring(true);
                } else if acks_due != 0 {
                    self.defer(Reactor::get());
                }
            } else {
                conn.transmit(self);
            }
            let notices = std::mem::take(&mut conn.link.notices);
            drop(conn);
            self.give_notice(notices);
            what = 0;
        }
    }

    /// The connection, or, if another thread is at it, `what` is left to that thread.
    fn take_conn_or_leave(&self, what: u32) -> Option<LockGuard<'_, Conn, true>> {
        self.conn.try_lock().or_else(|| {
            self.kick.fetch_or(what, Ordering::SeqCst);
            // It may have looked just before, and gone.
            self.conn.try_lock()
        })
    }

    fn give_notice(&self, notices: crate::link::Notices) {
        match notices.rnr {
            Some(Some(wait)) => self.start_rnr_timer(wait.timer),
            Some(None) => self.stop_retry_timer(),
            None => {}
        }
        match notices.awaited {
            Some(AwaitedPeer::Gone) => self.start_retry_timer(self.retry_time()),
            Some(AwaitedPeer::NotYetThere) => self.start_retry_timer(CONNECT_TIME_MAX),
            None => {}
        }
        if notices.disconnected {
            let monitor = self.monitor.lock().as_ref().and_then(Weak::upgrade);
            if let Some(monitor) = monitor {
                monitor.disconnected();
            }
        }
    }

    fn start_rnr_timer(&self, timer: u8) {
        const FOREVER: u8 = 7;
        let retries = self.attr.lock().rnr_retry;
        if retries >= FOREVER {
            return;
        }
        // Each message that waits has its own time.
        self.start_retry_timer(rnr_delay(timer) * (u32::from(retries) + 1));
    }

    /// How long a card sends again what no one acknowledges (IBTA 9.7.6.1.3), up to a bound.
    fn retry_time(&self) -> Duration {
        const FOREVER: u8 = 0;
        let attr = self.attr.lock();
        if attr.timeout == FOREVER {
            return RETRY_TIME_MAX;
        }
        let timeout = Duration::from_nanos(4_096 << attr.timeout.min(31));
        RETRY_TIME_MAX.min(timeout * (u32::from(attr.retry_cnt) + 1))
    }

    fn start_retry_timer(&self, wait: Duration) {
        let fresh = Reactor::get().start_timer(Instant::now() + wait, self.me());
        if let Some(old) = self.retry_timer.lock().replace(fresh) {
            Reactor::get().stop_timer(old);
        }
    }

    fn stop_retry_timer(&self) {
        if let Some(timer) = self.retry_timer.lock().take() {
            Reactor::get().stop_timer(timer);
        }
    }
}

impl AwaitsReceive for Qp {
    fn left_srq_list(&self) {
        self.parked.store(false, Ordering::SeqCst);
    }

    fn receive_posted(&self) {
        self.drive(KICK_UNPARK);
    }
}

impl Object for Qp {
    fn cookie(&self) -> &AtomicUsize {
        &self.cookie
    }
}

impl Source for Qp {
    fn ready(&self) {
        self.drive(KICK_RECEIVE | KICK_DRAIN);
    }

    fn ready_to(&self, ended: bool) {
        self.drive(if ended { KICK_RECEIVE | KICK_DRAIN } else { KICK_RECEIVE });
    }

    fn flush(&self) {
        self.deferred.store(false, Ordering::Release);
        self.posts_bursts.store(self.unsent() >= BURST_MIN, Ordering::Relaxed);
        self.drive(KICK_SEND);
    }

    fn requeued(&self) {
        self.drive(KICK_RECEIVE | KICK_DRAIN);
    }

    fn expired(&self, _: Instant) {
        *self.retry_timer.lock() = None;
        self.conn.lock().link.give_up_waiting(self);
        self.drive(KICK_SEND | KICK_RECEIVE | KICK_DRAIN);
    }
}

/// The send queue of a queue pair, held for posting.
#[derive(Debug)]
pub struct Poster<'a> {
    qp: &'a Qp,
    sq: Option<LockGuard<'a, SendQueue>>,
    was_idle: bool,
    /// Number of requests that this value has posted.
    posted: usize,
}

impl Poster<'_> {
    /// Posts one work request.
    ///
    /// # Errors
    /// `EINVAL` before RTS, for an operation that the type does not have, or for a malformed
    /// request; `ENOMEM` when the queue is full.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<()> {
        self.push_to(request, 0)
    }

    /// Posts one work request for a shared receive queue of the peer's, on an extended connection;
    /// on others the number is not looked at.
    ///
    /// # Errors
    /// As [`Poster::push`].
    pub fn push_to(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<()> {
        if matches!(self.qp.state(), QpState::Reset | QpState::Init | QpState::Rtr)
            || !self.qp.init.qp_type.has(&request.operation)
        {
            return Err(Errno::INVAL);
        }
        let Some(sq) = &mut self.sq else { return Err(Errno::INVAL) };
        if self.posted == 0 {
            self.was_idle = sq.len() == 0;
        }
        let srqn = if self.qp.init.qp_type == QpType::XrcSend { srqn } else { 0 };
        sq.push(request, srqn)?;
        self.qp.has_unsent.store(true, Ordering::Release);
        self.posted += 1;
        Ok(())
    }

    /// Takes back what this value has posted: none of it has been sent yet.
    pub fn cancel(mut self) {
        if let Some(sq) = &mut self.sq {
            sq.take_back(self.posted);
        }
        self.posted = 0;
    }
}

impl Drop for Poster<'_> {
    fn drop(&mut self) {
        let (unsent, unsent_bytes) =
            self.sq.take().map_or((0, 0), |sq| (sq.unsent(), sq.unsent_bytes()));
        if self.posted == 0 {
            return;
        }
        let failed = matches!(self.qp.state(), QpState::Err | QpState::Sqe);
        if failed && self.qp.datagram.is_none() {
            self.qp.conn.lock().link.flush_sends(self.qp, None, 0);
            self.qp.drive(0);
        } else {
            self.qp.ring(self.was_idle, unsent, unsent_bytes);
        }
    }
}

fn link_config(number: u32, ack_stag: u32, init: &QpInit) -> Config {
    Config { number, ack_stag, qp_type: init.qp_type, shares_receives: init.srq.is_some() }
}

/// The delay that a value of `min_rnr_timer` stands for (IBTA table 45).
fn rnr_delay(timer: u8) -> Duration {
    const HUNDREDTHS_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let hundredths = HUNDREDTHS_MS.get(usize::from(timer)).copied().unwrap_or(65536);
    Duration::from_micros(u64::from(hundredths) * 10)
}

/// How far a queue pair is, for the debug dump.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) transport: &'static str,
    /// How Writes, Reads and atomics reach the memory of a peer that memory is shared with.
    pub(crate) one_sided: Option<&'static str>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) peer_is_weft: bool,
    pub(crate) sends_posted: usize,
    pub(crate) sends_waiting: u64,
    pub(crate) receives_posted: usize,
    pub(crate) messages_sent: u64,
    pub(crate) messages_placed_there: u64,
    pub(crate) messages_placed_here: u64,
    pub(crate) messages_dropped: u64,
    pub(crate) bytes_parked: usize,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) datagrams: Option<ud::Counted>,
}
