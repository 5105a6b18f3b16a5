//! The simulated hosts, their connections, and the schedule.

use std::collections::{HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{Arena, GUARD_LEN, LEN, LIBRARY_AT, Piece};
use super::model::{Cause, ModelEnd, Receive, Window};
use super::net::{Pipe, Taken};
use super::setup::Setup;
use crate::access::Access;
use crate::context::Context;
use crate::cq::Cq;
use crate::device::{Device, gid_of};
use crate::event::{Element, EventKind};
use crate::link::Agreement;
use crate::mw::{Mw, WindowType};
use crate::pd::Pd;
use crate::qp::{
    AddressVector, AttrMask, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType, pending,
    required,
};
use crate::reactor::Source;
use crate::srq::{Srq, SrqAttr};
use crate::wc::Opcode;
use crate::wr::RecvRequest;

/// The result of a check; `Err` describes what is wrong.
pub(super) type Check<T = ()> = Result<T, String>;

/// A defect that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// The network changes a byte, and there is no CRC.
    CorruptByte,
    /// A side counts what it has sent as placed at the peer.
    EarlyAcknowledgement,
    /// A byte of memory changes that no request may write.
    WildWrite,
    /// A completion is reported twice.
    DoubleCompletion,
    /// A completion is lost.
    LostCompletion,
}

/// Maximum number of receives in a shared queue.
const SRQ_LEN: u32 = 64;
/// Maximum number of completions in a queue: more than there is work at any time.
const CQ_LEN: u32 = 4096;
/// Maximum number of receives of one queue pair.
const RQ_LEN: usize = 16;
/// Rounds without progress after which the run has ended.
const QUIET_ROUNDS: usize = 4;
/// Rounds after which a run that has not ended has failed.
const ROUNDS_MAX: usize = 20_000;
/// Number of recent actions in the report of a failure.
const TRACE_LEN: usize = 60;

pub(super) struct Host {
    pub(super) pd: Arc<Pd>,
    pub(super) arena: Arena,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) srq_posted: Vec<Receive>,
    /// Additions to the shared word that certainly happened, and those that may have happened.
    pub(super) added: u64,
    pub(super) perhaps_added: u64,
    /// Old values of the shared word that atomics have returned; each can be returned once.
    pub(super) seen: HashSet<u64>,
}

pub(super) struct World {
    pub(super) rng: fastrand::Rng,
    pub(super) setup: Setup,
    pub(super) hosts: Vec<Host>,
    pub(super) ends: Vec<ModelEnd>,
    /// The faults of each connection.
    pub(super) causes: Vec<Vec<Cause>>,
    /// Memory that a broken connection may or may not have written: host and piece.
    pub(super) uncertain: Vec<(usize, Piece)>,
    pub(super) next_id: u64,
    pub(super) posted: usize,
    context: Arc<Context>,
    now: u64,
    mutation: Option<Mutation>,
    mutated: bool,
    trace: VecDeque<String>,
}

impl World {
    pub(super) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = match mutation {
            None => Setup::new(&mut rng),
            Some(_) => Setup::plain(&mut rng),
        };
        let device = Device {
            name: "weft_sim".into(),
            interface: "sim".into(),
            index: 1,
            loopback: true,
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
        };
        let context = Context::open(&device).expect("a descriptor");
        let mut world = Self {
            hosts: Vec::new(),
            ends: Vec::new(),
            causes: vec![Vec::new(); setup.pairs],
            uncertain: Vec::new(),
            next_id: 1,
            posted: 0,
            context,
            now: 0,
            mutation,
            mutated: false,
            trace: VecDeque::new(),
            setup,
            rng,
        };
        world.note(|world| format!("{:?}", world.setup));
        world.make_hosts();
        world.make_ends();
        world
    }

    fn make_hosts(&mut self) {
        for host in 0..2 {
            let pd = Pd::new(&self.context);
            let arena = Arena::new(&pd, &mut self.rng);
            let attr = SrqAttr { max_wr: SRQ_LEN, max_sge: 4, srq_limit: 0 };
            let srq = self.setup.srq[host].then(|| Srq::new(&pd, attr).expect("a shared queue"));
            let (added, perhaps_added, seen) = (0, 0, HashSet::new());
            let srq_posted = Vec::new();
            self.hosts.push(Host { pd, arena, srq, srq_posted, added, perhaps_added, seen });
        }
    }

    fn make_ends(&mut self) {
        let cq = |context| Cq::new(context, CQ_LEN, None).expect("a completion queue");
        let host_cqs = [cq(&self.context), cq(&self.context)];
        for index in 0..2 * self.setup.pairs {
            let host = index % 2;
            let (send_cq, recv_cq) = if self.setup.one_cq[host] {
                (Arc::clone(&host_cqs[host]), Arc::clone(&host_cqs[host]))
            } else {
                (cq(&self.context), cq(&self.context))
            };
            let Host { pd, srq, .. } = &self.hosts[host];
            let cap = QpCap {
                max_send_wr: self.setup.max_send_wr,
                max_recv_wr: RQ_LEN as u32,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            };
            let init = QpInit {
                qp_type: QpType::Rc,
                send_cq: Arc::clone(&send_cq),
                recv_cq: Arc::clone(&recv_cq),
                srq: srq.clone(),
                xrcd: None,
                cap,
                sq_sig_all: self.rng.u8(..4) == 0,
            };
            let qp = Qp::new(pd, init).expect("a queue pair");
            let mw = Mw::allocate(pd, WindowType::Two).expect("a window");
            self.ends.push(ModelEnd {
                qp,
                host,
                peer: index ^ 1,
                send_cq,
                recv_cq,
                sq: VecDeque::new(),
                rq: VecDeque::new(),
                messages: VecDeque::new(),
                pipe: Pipe::new(self.setup.pipe),
                word: 0,
                window: Window { mw, bound: false, changing: false, used: 0 },
                failed: false,
                poisoned: None,
                flushed_receive: false,
                last_wqe: false,
                rnr_deadline: None,
                draining: false,
                drained_at: None,
                unconfirmed: Vec::new(),
            });
        }
        for index in 0..self.ends.len() {
            self.bring_up(index);
        }
    }

    /// Moves a queue pair through INIT, RTR and RTS, and connects it at one of them.
    fn bring_up(&mut self, index: usize) {
        let qp = Arc::clone(&self.ends[index].qp);
        let open_at = self.rng.u8(..3);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let init = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: access,
            port_num: 1,
            ..QpAttr::default()
        };
        let modify = |attr: &QpAttr| {
            let to = attr.qp_state;
            let mask = required(QpType::Rc, to).expect("a transition");
            qp.modify(attr, mask).unwrap_or_else(|error| panic!("{to:?}: {error}"));
        };
        modify(&init);
        if open_at == 0 {
            self.open(index);
        }
        let dest_qp_num = self.ends[self.ends[index].peer].qp.number();
        let dgid = gid_of(Ipv4Addr::LOCALHOST.into());
        let global = Some(GlobalRoute { dgid, ..GlobalRoute::default() });
        let rtr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: 3,
            dest_qp_num,
            max_dest_rd_atomic: self.setup.depth,
            min_rnr_timer: 1,
            ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
            ..QpAttr::default()
        };
        pending::expect((dgid, dest_qp_num));
        modify(&rtr);
        pending::unexpect((dgid, dest_qp_num));
        if open_at == 1 {
            self.open(index);
        }
        let rts = QpAttr {
            qp_state: QpState::Rts,
            timeout: 14,
            retry_cnt: 7,
            // Retry for ever; the simulation has its own timeout.
            rnr_retry: 7,
            max_rd_atomic: self.setup.depth,
            ..QpAttr::default()
        };
        modify(&rts);
        if open_at == 2 {
            self.open(index);
        }
    }

    fn open(&mut self, index: usize) {
        let end = &self.ends[index];
        let peer_ack_stag = self.ends[end.peer].qp.identity().ack_stag;
        let agreement = Agreement {
            initiator: self.setup.initiators[end.host],
            negotiated: self.setup.negotiated(end.host),
            peer_ack_stag: self.setup.weft.then_some(peer_ack_stag),
            mulpdu: self.setup.mulpdu,
        };
        end.qp.with_link(|link| {
            link.open(agreement, &[]);
            link.notices = Default::default();
        });
    }

    /// Whether the mutation has occurred.
    pub(super) fn mutated(&self) -> bool {
        self.mutated
    }

    /// Runs the whole simulation.
    pub(super) fn run(&mut self) -> Check {
        let steps_max = 200_000;
        let mut steps = 0;
        while self.posted < self.setup.posts && steps < steps_max {
            self.step()?;
            steps += 1;
        }
        self.wind_up()
    }

    /// The faults and the recent actions.
    pub(super) fn report(&self) -> String {
        let causes = self.causes.iter().flatten().map(|cause| format!("  cause: {cause:?}\n"));
        causes.chain(self.trace.iter().map(|line| format!("  {line}\n"))).collect()
    }

    pub(super) fn note(&mut self, line: impl FnOnce(&Self) -> String) {
        let line = format!("{:6} {}", self.now, line(self));
        if self.trace.len() > TRACE_LEN {
            // Keep the first line, which has the parameters.
            self.trace.remove(1);
        }
        self.trace.push_back(line);
    }

    pub(super) fn cause(&mut self, end: usize, cause: Cause) {
        self.note(|_| format!("cause at {end}: {cause:?}"));
        self.causes[end / 2].push(cause);
    }

    fn step(&mut self) -> Check {
        self.now += 1;
        let end = self.rng.usize(..self.ends.len());
        let total: u32 = self.setup.weights.iter().sum();
        let mut pick = self.rng.u32(..total);
        let action = self
            .setup
            .weights
            .iter()
            .position(|&weight| {
                let chosen = pick < weight;
                pick = pick.saturating_sub(weight);
                chosen
            })
            .unwrap_or(0);
        match action {
            0 => self.post_some(end),
            1 => self.post_receives(end),
            2 => self.output(end),
            3 => self.input(end),
            4 => self.poll()?,
            5 => {
                let until = self.now + self.rng.u64(..300);
                self.ends[end].pipe.hold(until);
            }
            6 => self.toggle_draining(end),
            _ => self.go_wrong(end),
        }
        self.expire(end);
        self.mutate(end);
        self.take_events()
    }

    // ---- The network ----

    fn output(&mut self, index: usize) {
        let chunk = self.rng.usize(1..=self.setup.chunk);
        let end = &mut self.ends[index];
        let room = end.pipe.room().min(chunk);
        let (qp, pipe) = (&end.qp, &mut end.pipe);
        let notices = qp.with_link(|link| {
            let any = link.output(qp);
            if any && room > 0 {
                let waiting = link.unsent();
                let count = waiting.len().min(room);
                pipe.push(&waiting[..count]);
                link.sent(count, qp);
            }
            if pipe.is_cut() {
                link.discard_output();
            }
            if !any && link.is_drained() || link.phase.is_closed() {
                pipe.finish();
            }
            std::mem::take(&mut link.notices)
        });
        self.noticed(index, notices);
    }

    fn input(&mut self, index: usize) {
        let chunk = self.rng.usize(1..=self.setup.chunk);
        let (now, peer) = (self.now, self.ends[index].peer);
        let qp = Arc::clone(&self.ends[index].qp);
        let pipe = &mut self.ends[peer].pipe;
        let notices = qp.with_link(|link| {
            link.input(&qp);
            if let Some(room) = link.rx_room() {
                let limit = chunk.min(room.capacity() - room.len());
                match pipe.take(now, limit) {
                    Taken::Bytes(bytes) => {
                        room.extend_from_slice(&bytes);
                        link.input(&qp);
                    }
                    Taken::Nothing => {}
                    Taken::Fin => {
                        link.lost(&qp, 0);
                    }
                    Taken::Reset => {
                        link.lost(&qp, 104);
                        link.discard_output();
                    }
                }
            }
            std::mem::take(&mut link.notices)
        });
        self.noticed(index, notices);
    }

    fn noticed(&mut self, index: usize, notices: crate::link::Notices) {
        match (notices.rnr, self.setup.rnr_ticks) {
            (Some(Some(_)), Some(ticks)) => self.ends[index].rnr_deadline = Some(self.now + ticks),
            (Some(None), _) => self.ends[index].rnr_deadline = None,
            _ => {}
        }
        // Handle messages that wait for a receive, as the reactor does.
        self.ends[index].qp.requeued();
        self.ends[index].qp.flush();
    }

    fn expire(&mut self, index: usize) {
        if self.ends[index].rnr_deadline.is_some_and(|deadline| deadline <= self.now) {
            self.ends[index].rnr_deadline = None;
            self.cause(index, Cause::NotReady(index));
            let qp = &self.ends[index].qp;
            qp.with_link(|link| {
                link.give_up_waiting(qp);
                link.notices = Default::default();
            });
        }
    }

    // ---- The programs ----

    fn toggle_draining(&mut self, index: usize) {
        let end = &mut self.ends[index];
        match end.qp.state() {
            QpState::Rts if !end.draining => {
                let attr = QpAttr {
                    qp_state: QpState::Sqd,
                    en_sqd_async_notify: true,
                    ..QpAttr::default()
                };
                let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
                end.qp.modify(&attr, mask).expect("SQD");
                (end.draining, end.drained_at) = (true, None);
                self.note(|_| format!("{index} drains"));
            }
            QpState::Sqd => {
                let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
                end.qp.modify(&attr, AttrMask::STATE).expect("RTS");
                (end.draining, end.drained_at) = (false, None);
                self.note(|_| format!("{index} goes on"));
            }
            _ => {}
        }
    }

    pub(super) fn post_receives(&mut self, index: usize) {
        for _ in 0..self.rng.usize(1..4) {
            if !self.post_receive(index) {
                return;
            }
        }
    }

    fn post_receive(&mut self, index: usize) -> bool {
        let host = self.ends[index].host;
        let posted = match &self.hosts[host].srq {
            Some(_) => self.hosts[host].srq_posted.len() < self.receives_max() * 2,
            None => self.ends[index].rq.len() < self.receives_max(),
        };
        if !posted {
            return false;
        }
        let Some(list) = self.allocate_list(host, self.setup.receive_len) else { return false };
        let wr_id = self.id();
        let Host { arena, srq, .. } = &self.hosts[host];
        let sges: Vec<_> = list.iter().map(|&piece| arena.sge(piece)).collect();
        let request = RecvRequest { wr_id, sges: &sges };
        let receive = Receive { wr_id, list };
        match srq {
            Some(srq) => {
                srq.post(&request).expect("room in the shared queue");
                self.hosts[host].srq_posted.push(receive);
            }
            None => {
                self.ends[index].qp.post_recv(&request).expect("room in the receive queue");
                self.ends[index].rq.push_back(receive);
            }
        }
        self.note(|_| format!("{index} posts receive {wr_id}"));
        true
    }

    /// Maximum number of receives of a queue pair, so that half of the memory is enough for all.
    fn receives_max(&self) -> usize {
        RQ_LEN.min(LEN / 2 / self.setup.pairs / self.setup.receive_len)
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Allocates `len` bytes in total, in up to as many pieces as a list may have.
    pub(super) fn allocate_list(&mut self, host: usize, len: usize) -> Option<Vec<Piece>> {
        let parts = self.rng.usize(1..=self.setup.max_sge);
        let mut list = Vec::new();
        let mut rest = len;
        for part in 1..=parts {
            let count = if part == parts { rest } else { self.rng.usize(..=rest) };
            let Some(at) = self.hosts[host].arena.allocate(count) else {
                self.release_list(host, &list);
                return None;
            };
            list.push((at, count));
            rest -= count;
        }
        Some(list)
    }

    pub(super) fn release_list(&mut self, host: usize, list: &[Piece]) {
        for &piece in list {
            self.hosts[host].arena.release(piece);
        }
    }

    fn go_wrong(&mut self, index: usize) {
        if !self.setup.faults || !self.causes[index / 2].is_empty() || self.rng.u8(..8) != 0 {
            return;
        }
        match self.rng.u8(..6) {
            0 => {
                self.cause(index, Cause::Cut);
                for at in [index, index ^ 1] {
                    let keep = self.rng.usize(..=self.ends[at].pipe.len());
                    self.ends[at].pipe.cut(keep);
                }
            }
            1 => {
                self.cause(index, Cause::Program(index));
                let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
                self.ends[index].qp.modify(&attr, AttrMask::STATE).expect("always allowed");
            }
            _ => self.post_poison(index),
        }
    }

    fn mutate(&mut self, index: usize) {
        if self.mutated || self.posted < 5 || self.rng.u8(..10) != 0 {
            return;
        }
        let end = &self.ends[index];
        self.mutated = match self.mutation {
            None => false,
            Some(Mutation::CorruptByte) => {
                let pipe = &mut self.ends[index].pipe;
                pipe.corrupt(self.rng.usize(..=pipe.len()))
            }
            Some(Mutation::EarlyAcknowledgement) => {
                let (sent, ..) = self.ends[end.peer].qp.with_link(|link| link.counters());
                let (.., placed, _) = end.qp.with_link(|link| link.counters());
                if placed < sent {
                    end.qp.with_link(|link| link.overcount_placed());
                }
                placed < sent
            }
            Some(Mutation::WildWrite) => {
                let len = LEN as isize;
                let places = [-1, -(GUARD_LEN as isize), len, len + 100, LIBRARY_AT as isize + 600];
                let at = places[self.rng.usize(..places.len())];
                self.hosts[end.host].arena.scribble(at, &[0x5a]);
                true
            }
            Some(Mutation::DoubleCompletion) => match end.send_cq.take() {
                Some(completion) => {
                    end.send_cq.push(completion, false);
                    end.send_cq.push(completion, false);
                    true
                }
                None => false,
            },
            Some(Mutation::LostCompletion) => end.send_cq.take().is_some(),
        };
        if self.mutated {
            self.note(|world| format!("{:?} at {index}", world.mutation));
        }
    }

    // ---- Completions and events ----

    /// Takes all completions. Receives come first, because a send may complete only after the
    /// receive that it was for has.
    pub(super) fn poll(&mut self) -> Check {
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for index in 0..self.ends.len() {
            for cq in [&self.ends[index].send_cq, &self.ends[index].recv_cq] {
                while let Some(completion) = cq.take() {
                    if (completion.opcode as u32) < Opcode::Recv as u32 {
                        sends.push(completion);
                    } else {
                        receives.push(completion);
                    }
                }
            }
        }
        for completion in receives {
            let index = self.end_of(completion.qp_num)?;
            self.note(|_| format!("{index} received {completion:?}"));
            self.received(index, &completion)?;
        }
        for completion in sends {
            let index = self.end_of(completion.qp_num)?;
            self.note(|_| format!("{index} completed {completion:?}"));
            self.completed(index, &completion)?;
        }
        Ok(())
    }

    fn end_of(&self, number: u32) -> Check<usize> {
        let found = self.ends.iter().position(|end| end.qp.number() == number);
        found.ok_or_else(|| format!("a completion of the unknown queue pair {number:#x}"))
    }

    fn take_events(&mut self) -> Check {
        while let Some(event) = self.context.take_event() {
            let found = match &event.element {
                Element::Qp(qp) => self.ends.iter().position(|end| qp.is(&*end.qp)),
                _ => None,
            };
            let Some(index) = found else {
                return Err(format!("an unexpected event {:?}", event.kind));
            };
            self.note(|_| format!("{index} event {:?}", event.kind));
            let causes = &self.causes[index / 2];
            match event.kind {
                EventKind::SqDrained => {
                    let end = &mut self.ends[index];
                    if end.draining {
                        let (sent, ..) = end.qp.with_link(|link| link.counters());
                        if end.qp.sq.lock().is_awaiting() {
                            return Err(format!("{index} has drained with work under way"));
                        }
                        end.drained_at = Some(sent);
                    }
                }
                EventKind::QpLastWqeReached if self.setup.srq[self.ends[index].host] => {
                    self.ends[index].last_wqe = true;
                }
                EventKind::QpAccessErr | EventKind::QpReqErr => {
                    let refused =
                        |cause: &Cause| matches!(*cause, Cause::Remote(at, _) if at != index);
                    if !causes.iter().any(refused) {
                        return Err(format!("{index} has no reason for {:?}", event.kind));
                    }
                }
                EventKind::QpFatal => {
                    let reported = |cause: &Cause| cause.is_reported_to(index, self.setup.weft);
                    if !causes.iter().any(reported) {
                        return Err(format!("{index} has no reason for {:?}", event.kind));
                    }
                }
                other => return Err(format!("{index} has an unexpected event {other:?}")),
            }
        }
        for (index, end) in self.ends.iter().enumerate() {
            let Some(before) = end.drained_at else { continue };
            let (sent, ..) = end.qp.with_link(|link| link.counters());
            if sent != before {
                return Err(format!("{index} sends though it is drained"));
            }
        }
        Ok(())
    }

    // ---- The end ----

    /// Lets everything come to an end, first while draining ends still drain, and checks the
    /// results.
    fn wind_up(&mut self) -> Check {
        self.note(|_| "winding up".into());
        self.settle_down()?;
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            if end.draining && end.qp.state() == QpState::Sqd {
                if end.drained_at.is_none() && self.causes[index / 2].is_empty() {
                    return Err(format!("{index} never drained"));
                }
                self.toggle_draining(index);
            }
        }
        self.settle_down()?;
        for index in 0..self.ends.len() {
            if self.causes[index / 2].is_empty() {
                self.check_at_rest(index)?;
            } else {
                let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
                self.ends[index].qp.modify(&attr, AttrMask::STATE).expect("always allowed");
                let harmless = Cause::Program(index);
                if !self.causes[index / 2].contains(&harmless) {
                    self.causes[index / 2].push(harmless);
                }
            }
        }
        self.poll()?;
        self.take_events()?;
        for index in 0..self.ends.len() {
            if !self.causes[index / 2].is_empty() {
                self.check_flushed(index)?;
            }
        }
        self.check_memory()
    }

    fn settle_down(&mut self) -> Check {
        let mut quiet = 0;
        let mut before = Vec::new();
        let mut rounds = 0;
        while quiet < QUIET_ROUNDS {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err("it never comes to rest".into());
            }
            // From now on the network delivers everything.
            self.now += 1000;
            self.setup.chunk = self.setup.chunk.max(500);
            for index in 0..self.ends.len() {
                if self.receives_missing(index) {
                    self.post_receives(index);
                }
                for _ in 0..20 {
                    self.output(index);
                    self.input(index);
                }
                self.expire(index);
            }
            self.poll()?;
            self.take_events()?;
            let now = self.progress();
            quiet = if now == before { quiet + 1 } else { 0 };
            if quiet > 0 {
                // Another thread of the process may be working for a queue pair that this one found
                // locked.
                std::thread::sleep(Duration::from_micros(50));
            }
            before = now;
        }
        Ok(())
    }

    fn receives_missing(&self, index: usize) -> bool {
        let end = &self.ends[index];
        match &self.hosts[end.host].srq {
            Some(_) => self.hosts[end.host].srq_posted.len() < 4,
            // In the error state each receive would be flushed at once, for ever.
            None => end.rq.len() < 4 && end.qp.state() != QpState::Err,
        }
    }

    /// A value that changes with any progress: for each end, the requests left and the bytes sent,
    /// in the network, and waiting for receives.
    fn progress(&self) -> Vec<(usize, u64, usize, usize)> {
        let of = |end: &ModelEnd| {
            let (taken, waiting) =
                end.qp.with_link(|link| (link.byte_counters().1, link.counters().3));
            (end.qp.sq.lock().len(), taken, end.pipe.len(), waiting)
        };
        self.ends.iter().map(of).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for end in &self.ends {
            end.window.mw.deallocate();
            end.qp.destroy();
        }
    }
}
