//! The programs' work requests, and what the model expects of them.

use std::sync::Arc;

use super::memory::{LEN, LIBRARY_AT, LIBRARY_LEN, Piece, WORDS};
use super::model::{Cause, Effect, Message, Payload, Work};
use super::world::World;
use crate::access::Access;
use crate::mr::Mr;
use crate::qp::QpState;
use crate::wc::{Opcode, Status};
use crate::wr::{Data, Operation, SendFlags, SendRequest, Sge, WindowBind};

/// The word at each host that all ends of the other host add to.
const SHARED_WORD: usize = WORDS - 1;
/// A key that is not in use; the keys of the table are greater.
const NO_KEY: u32 = 0x77;

/// A work request about to be posted.
struct Plan {
    operation: Operation,
    opcode: Opcode,
    list: Vec<Piece>,
    effect: Effect,
    last_use_of: Option<Piece>,
    by_window: bool,
    message: Option<Message>,
}

impl Plan {
    fn new(opcode: Opcode, operation: Operation, list: Vec<Piece>, effect: Effect) -> Self {
        let (last_use_of, by_window, message) = (None, false, None);
        Self { operation, opcode, list, effect, last_use_of, by_window, message }
    }
}

impl World {
    /// Posts a few requests, as far as the queue and the memory have room.
    pub(super) fn post_some(&mut self, index: usize) {
        for _ in 0..self.rng.usize(1..=4) {
            let peer_host = self.ends[self.ends[index].peer].host;
            // The rest of the memory is reserved for receives, so that requests never prevent them.
            let memory = [self.ends[index].host, peer_host]
                .iter()
                .all(|&host| self.hosts[host].arena.free_len() > LEN / 2);
            if !memory || !self.has_room(index) || self.posted >= self.setup.posts {
                return;
            }
            let Some(plan) = self.plan(index) else { return };
            self.post(index, plan);
        }
    }

    fn has_room(&self, index: usize) -> bool {
        self.ends[index].sq.len() < self.setup.max_send_wr as usize
    }

    fn plan(&mut self, index: usize) -> Option<Plan> {
        let kinds = if self.setup.weft { 7 } else { 3 };
        match self.rng.u8(..kinds) {
            0 => self.plan_send(index),
            1 => self.plan_write(index),
            2 => self.plan_read(index, None),
            3 => self.plan_own_word(index),
            4 => self.plan_shared_word(index),
            5 => self.plan_window(index),
            _ => self.plan_write_and_read_back(index),
        }
    }

    fn plan_send(&mut self, index: usize) -> Option<Plan> {
        let len = self.rng.usize(..=self.setup.send_len);
        let (list, bytes) = self.fresh_source(index, len)?;
        let invalidate = self.take_peers_window(index);
        let imm =
            (self.setup.weft && invalidate.is_none() && self.rng.bool()).then(|| self.rng.u32(..));
        let id = self.id();
        let message = Message { id, bytes, written: None, imm, invalidate };
        let operation = Operation::Send { imm, invalidate };
        let plan = Plan::new(Opcode::Send, operation, list, Effect::Sent { message: id });
        Some(Plan { message: Some(message), ..plan })
    }

    /// The key of the peer's window, to be invalidated, if no request needs it any more.
    fn take_peers_window(&mut self, index: usize) -> Option<u32> {
        let peer = self.ends[index].peer;
        let take = self.setup.weft && self.ends[index].poisoned.is_none() && self.rng.u8(..3) == 0;
        let window = &mut self.ends[peer].window;
        if !take || !window.bound || window.changing || window.used != 0 {
            return None;
        }
        (window.bound, window.changing) = (false, true);
        Some(window.mw.key())
    }

    fn plan_write(&mut self, index: usize) -> Option<Plan> {
        let len_max = [0, 8, self.setup.len_max.min(3000), self.setup.len_max][self.rng.usize(..4)];
        let len = self.rng.usize(..=len_max);
        let (list, bytes) = self.fresh_source(index, len)?;
        let peer = self.ends[index].peer;
        let peer_host = self.ends[peer].host;
        let Some(at) = self.hosts[peer_host].arena.allocate(len) else {
            self.release_list(self.ends[index].host, &list);
            return None;
        };
        let imm = (self.setup.weft && self.rng.u8(..4) == 0).then(|| self.rng.u32(..));
        let (rkey, by_window) = self.remote_key(index);
        let remote_addr = self.hosts[peer_host].arena.addr(at);
        let target = (at, len);
        let id = imm.map(|_| self.id());
        let message = id.map(|id| Message {
            id,
            bytes: Payload(Vec::new()),
            written: Some(len),
            imm,
            invalidate: None,
        });
        let effect = Effect::Written { target, bytes, message: id };
        let operation = Operation::Write { remote_addr, rkey, imm };
        let plan = Plan::new(Opcode::RdmaWrite, operation, list, effect);
        Some(Plan { last_use_of: Some(target), by_window, message, ..plan })
    }

    /// Posts a Write and plans a Read of the same bytes right behind it.
    fn plan_write_and_read_back(&mut self, index: usize) -> Option<Plan> {
        let mut write = self.plan_write(index)?;
        let Effect::Written { target, bytes, .. } = &write.effect else { return None };
        let (target, bytes) = (*target, bytes.clone());
        write.last_use_of = None;
        self.post(index, write);
        // Without room for the Read the piece stays allocated to the end of the run.
        if !self.has_room(index) {
            return None;
        }
        self.plan_read(index, Some((target, bytes)))
    }

    fn plan_read(&mut self, index: usize, of: Option<(Piece, Payload)>) -> Option<Plan> {
        let peer_host = self.ends[self.ends[index].peer].host;
        let last_use_of = of.as_ref().map(|(piece, _)| *piece);
        let ((at, len), expected) = of.unwrap_or_else(|| {
            let len_max = [0, 100, self.setup.len_max][self.rng.usize(..3)].min(LIBRARY_LEN);
            let len = self.rng.usize(..=len_max);
            let piece = (LIBRARY_AT + self.rng.usize(..=LIBRARY_LEN - len), len);
            (piece, Payload(self.hosts[peer_host].arena.read(piece).to_vec()))
        });
        let list = self.allocate_list(self.ends[index].host, len)?;
        let (rkey, by_window) = self.remote_key(index);
        let remote_addr = self.hosts[peer_host].arena.addr(at);
        let operation = Operation::Read { remote_addr, rkey };
        let plan = Plan::new(Opcode::RdmaRead, operation, list, Effect::Read { expected });
        Some(Plan { last_use_of, by_window, ..plan })
    }

    fn plan_own_word(&mut self, index: usize) -> Option<Plan> {
        let peer_host = self.ends[self.ends[index].peer].host;
        let list = self.allocate_list(self.ends[index].host, 8)?;
        let (rkey, by_window) = self.remote_key(index);
        let remote_addr = self.hosts[peer_host].arena.addr(index * 8);
        let old = self.ends[index].word;
        let (operation, opcode, new) = if self.rng.bool() {
            let add = self.rng.u64(..);
            (
                Operation::FetchAdd { remote_addr, rkey, add },
                Opcode::FetchAdd,
                old.wrapping_add(add),
            )
        } else {
            let swap = self.rng.u64(..);
            let hit = self.rng.u8(..3) != 0;
            let compare = if hit { old } else { old ^ 1 };
            let operation = Operation::CompareSwap { remote_addr, rkey, compare, swap };
            (operation, Opcode::CompSwap, if hit { swap } else { old })
        };
        let plan = Plan::new(opcode, operation, list, Effect::Atomic { old, new });
        Some(Plan { by_window, ..plan })
    }

    fn plan_shared_word(&mut self, index: usize) -> Option<Plan> {
        let peer_host = self.ends[self.ends[index].peer].host;
        let list = self.allocate_list(self.ends[index].host, 8)?;
        let (rkey, by_window) = self.remote_key(index);
        let remote_addr = self.hosts[peer_host].arena.addr(SHARED_WORD * 8);
        let operation = Operation::FetchAdd { remote_addr, rkey, add: 1 };
        let plan = Plan::new(Opcode::FetchAdd, operation, list, Effect::SharedAdd);
        Some(Plan { by_window, ..plan })
    }

    /// Binds this end's window, or invalidates it.
    fn plan_window(&mut self, index: usize) -> Option<Plan> {
        let end = &mut self.ends[index];
        if end.window.changing || end.window.used != 0 || end.poisoned.is_some() {
            return None;
        }
        end.window.changing = true;
        let window = Arc::clone(&end.window.mw);
        if std::mem::take(&mut end.window.bound) {
            let operation = Operation::LocalInvalidate { rkey: window.key() };
            return Some(Plan::new(Opcode::LocalInv, operation, vec![], Effect::Invalidated));
        }
        let arena = &self.hosts[end.host].arena;
        let bind = WindowBind {
            region: Some(Arc::clone(&arena.mr)),
            addr: arena.addr(0),
            length: LEN as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        let rkey = window.next_key();
        let operation = Operation::BindWindow { window, rkey, bind };
        Some(Plan::new(Opcode::BindMw, operation, vec![], Effect::Bound))
    }

    /// A key for the peer's memory, and whether it is the key of the peer's window.
    fn remote_key(&mut self, index: usize) -> (u32, bool) {
        let peer = &self.ends[self.ends[index].peer];
        let by_window = peer.window.bound && !peer.window.changing && self.rng.bool();
        let key =
            if by_window { peer.window.mw.key() } else { self.hosts[peer.host].arena.mr.key() };
        (key, by_window)
    }

    /// Allocates memory with random bytes to send.
    fn fresh_source(&mut self, index: usize, len: usize) -> Option<(Vec<Piece>, Payload)> {
        let host = self.ends[index].host;
        let list = self.allocate_list(host, len)?;
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        let mut rest = bytes.as_slice();
        for &(at, count) in &list {
            let (now, later) = rest.split_at(count);
            self.hosts[host].arena.write(at, now);
            rest = later;
        }
        Some((list, Payload(bytes)))
    }

    fn post(&mut self, index: usize, plan: Plan) {
        let Plan { operation, opcode, list, effect, last_use_of, by_window, message } = plan;
        let host = self.ends[index].host;
        let length = list.iter().map(|&(_, len)| len).sum();
        let may_inline = matches!(opcode, Opcode::Send | Opcode::RdmaWrite) && length <= 256;
        let inline = may_inline && self.rng.bool();
        let last_slot = self.ends[index].sq.len() + 1 >= self.setup.max_send_wr as usize;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, last_slot || self.rng.bool());
        flags.set(SendFlags::SOLICITED, self.rng.bool());
        flags.set(SendFlags::FENCE, self.rng.u8(..8) == 0);
        let sq_sig_all = self.ends[index].qp.query().2;
        let signalled = sq_sig_all || flags.contains(SendFlags::SIGNALED);
        let wr_id = self.id();

        let poisoned = self.ends[index].poisoned.is_some();
        let effect = if poisoned { Effect::Fails } else { effect };
        let work = Work { wr_id, signalled, opcode, length, list, last_use_of, by_window, effect };
        self.note(|_| format!("{index} posts {work:?}"));

        let arena = &self.hosts[host].arena;
        // A request that writes to its list needs that right; one that reads does not.
        let takes_answer = matches!(opcode, Opcode::RdmaRead | Opcode::FetchAdd | Opcode::CompSwap);
        let keys = [&arena.mr, &arena.private, &arena.readonly].map(|mr: &Arc<Mr>| mr.key());
        let usable = if takes_answer { 2 } else { 3 };
        let sges: Vec<Sge> = (work.list.iter())
            .map(|&piece| Sge { lkey: keys[self.rng.usize(..usable)], ..arena.sge(piece) })
            .collect();
        let pieces: Vec<Vec<u8>> =
            work.list.iter().map(|&piece| arena.read(piece).to_vec()).collect();
        let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let data = if inline { Data::Inline(&borrowed) } else { Data::Gather(&sges) };
        let request = SendRequest { wr_id, operation, flags, data };
        let qp = Arc::clone(&self.ends[index].qp);
        qp.start_post().push(&request).expect("room in the send queue");
        if inline {
            // The program may reuse the memory at once.
            for &(at, len) in &work.list {
                self.hosts[host].arena.write(at, &vec![0xdd; len]);
            }
        }

        let peer = self.ends[index].peer;
        self.ends[peer].window.used += usize::from(work.by_window);
        let end = &mut self.ends[index];
        if !poisoned {
            end.messages.extend(message);
            if let Effect::Atomic { new, .. } = work.effect {
                end.word = new;
            }
        }
        end.sq.push_back(work);
        self.posted += 1;
    }

    /// Posts a request that cannot succeed.
    pub(super) fn post_poison(&mut self, index: usize) {
        let state = self.ends[index].qp.state();
        if !self.has_room(index) || !matches!(state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let pick = self.rng.u8(..7);
        let length = if pick == 6 { self.setup.receive_len + 1 } else { 4 };
        let Some((list, bytes)) = self.fresh_source(index, length) else { return };
        let end = &self.ends[index];
        let arena = &self.hosts[self.ends[end.peer].host].arena;
        let (remote_addr, rkey) = (arena.addr(LIBRARY_AT), arena.mr.key());
        let write = |rkey| Operation::Write { remote_addr, rkey, imm: None };
        let (local, remote) =
            (|status| Cause::Local(index, status), |status| Cause::Remote(index, status));
        let (opcode, operation, cause) = match pick {
            0 => {
                let operation = Operation::Send { imm: None, invalidate: Some(NO_KEY) };
                (Opcode::Send, operation, remote(Status::RemOpErr))
            }
            1 if self.setup.weft => {
                let operation = Operation::FetchAdd { remote_addr, rkey, add: 1 };
                (Opcode::FetchAdd, operation, local(Status::LocLenErr))
            }
            1 => {
                // Foreign peers do not support immediate data.
                let operation = Operation::Write { remote_addr, rkey, imm: Some(1) };
                (Opcode::RdmaWrite, operation, local(Status::RemInvReqErr))
            }
            2 => (Opcode::LocalInv, Operation::LocalInvalidate { rkey: NO_KEY }, {
                local(Status::LocProtErr)
            }),
            3 => (Opcode::RdmaWrite, write(NO_KEY), remote(Status::RemAccessErr)),
            4 => (Opcode::RdmaWrite, write(arena.readonly.key()), remote(Status::RemAccessErr)),
            5 => {
                let remote_addr = arena.addr(LEN - 3);
                let operation = Operation::Read { remote_addr, rkey };
                (Opcode::RdmaRead, operation, remote(Status::RemAccessErr))
            }
            _ => {
                let operation = Operation::Send { imm: None, invalidate: None };
                (Opcode::Send, operation, remote(Status::RemInvReqErr))
            }
        };
        let id = self.id();
        let message = (opcode == Opcode::Send).then(|| {
            let (written, imm, invalidate) = (None, None, Some(NO_KEY).filter(|_| pick == 0));
            Message { id, bytes, written, imm, invalidate }
        });
        self.cause(index, cause);
        let plan = Plan::new(opcode, operation, list, Effect::Fails);
        self.post(index, Plan { message, ..plan });
        self.ends[index].poisoned = Some(id);
    }
}

/// The word of an end, in the memory of its peer's host.
pub(super) fn own_word(index: usize) -> Piece {
    (index * 8, 8)
}

/// The shared word.
pub(super) fn shared_word() -> Piece {
    (SHARED_WORD * 8, 8)
}
