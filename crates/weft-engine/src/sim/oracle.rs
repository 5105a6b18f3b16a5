//! Checks of completions and of memory.

use super::memory::Piece;
use super::model::{Cause, Effect, Message, Receive, Work};
use super::work::{own_word, shared_word};
use super::world::{Check, World};
use crate::qp::QpState;
use crate::wc::{Completion, FLAG_WITH_IMM, FLAG_WITH_INV, Opcode, Status};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl World {
    // ---- Receives ----

    pub(super) fn received(&mut self, index: usize, completion: &Completion) -> Check {
        let receive = self.take_receive(index, completion.wr_id)?;
        let (host, peer) = (self.ends[index].host, self.ends[index].peer);
        match completion.status {
            Status::Success => {}
            Status::WrFlushErr => return self.receive_flushed(index, receive),
            Status::LocLenErr => {
                let too_long = |message: &Message| message.bytes.0.len() > self.setup.receive_len;
                let right = self.ends[peer].messages.front().is_some_and(too_long);
                ensure!(right, "{index} finds a message too long that is not: {completion:?}");
                self.uncertain.extend(receive.list.iter().map(|&piece| (host, piece)));
                return Ok(());
            }
            _ => return Err(format!("{index} has a failed receive: {completion:?}")),
        }
        ensure!(!self.ends[index].flushed_receive, "{index} receives behind a flush");
        let message = self.ends[peer].messages.pop_front();
        let Some(message) = message else {
            return Err(format!("{index} receives what nobody has sent: {completion:?}"));
        };
        check_received(index, completion, &message)?;
        self.check_list(host, &receive.list, &message.bytes.0)
            .map_err(|wrong| format!("{index} receives message {}: {wrong}", message.id))?;
        self.release_list(host, &receive.list);
        if message.invalidate.is_some() {
            self.ends[index].window.changing = false;
        }
        Ok(())
    }

    /// Takes the posted receive with this number. Receives of one queue pair complete in order;
    /// those of a shared queue are taken in order, but each queue pair completes them at its own
    /// time.
    fn take_receive(&mut self, index: usize, wr_id: u64) -> Check<Receive> {
        let end = &mut self.ends[index];
        let shared = &mut self.hosts[end.host];
        if shared.srq.is_some() {
            let at = shared.srq_posted.iter().position(|receive| receive.wr_id == wr_id);
            let at = at.ok_or_else(|| format!("{index} completes receive {wr_id} once more"))?;
            return Ok(shared.srq_posted.remove(at));
        }
        match end.rq.pop_front() {
            Some(receive) if receive.wr_id == wr_id => Ok(receive),
            other => Err(format!("{index} completes receive {wr_id} instead of {other:?}")),
        }
    }

    fn receive_flushed(&mut self, index: usize, receive: Receive) -> Check {
        ensure!(!self.causes[index / 2].is_empty(), "{index} flushes receives for no reason");
        let host = self.ends[index].host;
        // Only the first flushed receive may have been in use.
        if std::mem::replace(&mut self.ends[index].flushed_receive, true) {
            self.release_list(host, &receive.list);
        } else {
            self.uncertain.extend(receive.list.iter().map(|&piece| (host, piece)));
        }
        Ok(())
    }

    /// Compares the start of a list with the expected bytes, and makes them its expected contents.
    fn check_list(&mut self, host: usize, list: &[Piece], expected: &[u8]) -> Check {
        let mut rest = expected;
        for &(at, len) in list {
            let (now, later) = rest.split_at(len.min(rest.len()));
            self.check_bytes(host, (at, now.len()), now)?;
            rest = later;
        }
        Ok(())
    }

    fn check_bytes(&mut self, host: usize, piece: Piece, expected: &[u8]) -> Check {
        let arena = &mut self.hosts[host].arena;
        let found = arena.read(piece);
        if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
            return Err(format!("byte {at} of {} is not in place at {piece:?}", expected.len()));
        }
        arena.settle(piece.0, expected);
        Ok(())
    }

    // ---- Sends ----

    pub(super) fn completed(&mut self, index: usize, completion: &Completion) -> Check {
        let at = self.ends[index].sq.iter().position(|work| work.wr_id == completion.wr_id);
        let Some(at) = at else {
            return Err(format!("{index} completes what is not posted: {completion:?}"));
        };
        // Earlier requests have completed without a completion.
        for work in self.ends[index].sq.drain(..at).collect::<Vec<_>>() {
            ensure!(!work.signalled, "{index} never completes {work:?}");
            self.succeeded(index, work)?;
        }
        let Some(work) = self.ends[index].sq.pop_front() else { return Ok(()) };
        let right = work.opcode == completion.opcode;
        ensure!(right, "{index} has the wrong opcode: {completion:?} for {work:?}");
        if completion.status != Status::Success {
            return self.failed(index, work, completion.status);
        }
        let right = work.signalled && completion.byte_len as usize == work.length;
        ensure!(right, "{index}: {completion:?} for {work:?}");
        self.succeeded(index, work)
    }

    fn succeeded(&mut self, index: usize, work: Work) -> Check {
        ensure!(!self.ends[index].failed, "{index} succeeds behind a failure: {work:?}");
        let (host, peer) = (self.ends[index].host, self.ends[index].peer);
        let peer_host = self.ends[peer].host;
        let weft = self.setup.weft;
        let place = format!("{index}: request {} ({:?})", work.wr_id, work.opcode);
        match work.effect {
            Effect::Sent { message } => self.check_received_by_peer(index, message)?,
            Effect::Written { target, bytes, message: None } if !weft => {
                self.ends[index].unconfirmed.push((target, bytes.0));
                self.release_list(host, &work.list);
                return Ok(());
            }
            Effect::Written { target, bytes, message } => {
                self.check_bytes(peer_host, target, &bytes.0)
                    .map_err(|wrong| format!("{place} is complete, but {wrong}"))?;
                if let Some(message) = message {
                    self.check_received_by_peer(index, message)?;
                }
            }
            Effect::Read { expected } => self
                .check_list(host, &work.list, &expected.0)
                .map_err(|wrong| format!("{place} reads something else: {wrong}"))?,
            Effect::Atomic { old, new } => {
                self.check_list(host, &work.list, &old.to_ne_bytes())
                    .map_err(|wrong| format!("{place} brings another value: {wrong}"))?;
                let (at, _) = own_word(index);
                self.hosts[peer_host].arena.settle(at, &new.to_ne_bytes());
            }
            Effect::SharedAdd => {
                let seen = self.take_value(host, &work.list);
                self.hosts[peer_host].added += 1;
                let fresh = self.hosts[peer_host].seen.insert(seen);
                ensure!(fresh, "{place} sees {seen}, which another has seen");
            }
            Effect::Bound => {
                let window = &mut self.ends[index].window;
                (window.bound, window.changing) = (true, false);
            }
            Effect::Invalidated => self.ends[index].window.changing = false,
            Effect::Fails => {
                // A foreign peer's refusal arrives after the request has completed.
                let late = self.causes[index / 2]
                    .iter()
                    .any(|cause| matches!(*cause, Cause::Remote(at, _) if at == index));
                ensure!(!weft && late, "{place} succeeds, which it cannot");
                return Ok(());
            }
        }
        self.ends[peer].window.used -= usize::from(work.by_window);
        self.release_list(host, &work.list);
        if let Some(piece) = work.last_use_of {
            self.hosts[peer_host].arena.release(piece);
        }
        Ok(())
    }

    /// Checks that a peer that acknowledges has received a completed message.
    fn check_received_by_peer(&self, index: usize, message: u64) -> Check {
        let open = self.ends[index].messages.iter().any(|waiting| waiting.id == message);
        let early = self.setup.weft && open;
        ensure!(!early, "{index}: message {message} is complete, but not received");
        Ok(())
    }

    /// The word in a list, whose contents are accepted.
    fn take_value(&mut self, host: usize, list: &[Piece]) -> u64 {
        let arena = &mut self.hosts[host].arena;
        let bytes: Vec<u8> =
            list.iter().flat_map(|&piece| arena.read(piece).iter().copied()).collect();
        list.iter().for_each(|&piece| arena.accept_current(piece));
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn failed(&mut self, index: usize, work: Work, status: Status) -> Check {
        let causes = &self.causes[index / 2];
        if std::mem::replace(&mut self.ends[index].failed, true) {
            ensure!(status == Status::WrFlushErr, "{index} fails twice: {status:?}, {work:?}");
        } else {
            // A foreign peer's refusal may arrive when no request is left to fail.
            let late = !self.setup.weft && status == Status::WrFlushErr;
            let allowed = causes.iter().any(|&cause| {
                let reported = cause.is_reported_to(index, self.setup.weft);
                let own_affair = matches!(cause, Cause::Local(..)) && status == Status::RemOpErr;
                cause.status_at(index) == status
                    || reported && own_affair
                    || late && (reported || matches!(cause, Cause::Remote(..)))
            });
            ensure!(allowed, "{index} fails with {status:?} for no reason: {work:?}");
            let blames = |cause: &Cause| match *cause {
                Cause::Local(at, reason) => at == index && reason == status,
                // Messages that wait for a receive delay those behind them.
                Cause::Remote(at, reason) => {
                    let end = &self.ends[index];
                    at == index
                        && reason == status
                        && self.setup.weft
                        && end.messages.iter().all(|message| Some(message.id) >= end.poisoned)
                }
                _ => false,
            };
            let guilty = matches!(work.effect, Effect::Fails) || !causes.iter().any(blames);
            ensure!(guilty, "{index} blames an innocent request: {status:?}, {work:?}");
        }
        // The memory of the failed request may or may not have been written until everything has
        // ended.
        let (host, peer_host) = (self.ends[index].host, self.ends[self.ends[index].peer].host);
        self.uncertain.extend(work.list.iter().map(|&piece| (host, piece)));
        match work.effect {
            Effect::Written { target, .. } => self.uncertain.push((peer_host, target)),
            Effect::Atomic { .. } => self.uncertain.push((peer_host, own_word(index))),
            Effect::SharedAdd => self.hosts[peer_host].perhaps_added += 1,
            _ => {}
        }
        Ok(())
    }

    // ---- At rest ----

    /// Checks a connection without any fault: everything posted has completed.
    pub(super) fn check_at_rest(&mut self, index: usize) -> Check {
        self.take_unsignalled(index)?;
        let end = &self.ends[index];
        ensure!(end.messages.is_empty(), "{index}: message {:?} got lost", end.messages.front());
        let (sent, reported, _, waiting) = end.qp.with_link(|link| link.counters());
        let (.., placed, _) = self.ends[end.peer].qp.with_link(|link| link.counters());
        ensure!(waiting == 0 && end.pipe.len() == 0, "{index} is not at rest");
        ensure!(
            !self.setup.weft || sent == placed && sent == reported,
            "{index} has sent {sent} messages; {placed} are placed, it knows of {reported}"
        );
        let open = end.qp.with_link(|link| link.phase.is_open());
        ensure!(open && end.qp.state() == QpState::Rts, "{index} is not connected any more");
        let peer_host = self.ends[end.peer].host;
        for (target, bytes) in std::mem::take(&mut self.ends[index].unconfirmed) {
            self.check_bytes(peer_host, target, &bytes)
                .map_err(|wrong| format!("{index}: a write in the end: {wrong}"))?;
        }
        Ok(())
    }

    /// Checks a broken connection whose queue pair is in the error state: nothing is left.
    pub(super) fn check_flushed(&mut self, index: usize) -> Check {
        self.take_unsignalled(index)?;
        let end = &mut self.ends[index];
        ensure!(end.rq.is_empty(), "{index} keeps {} receives", end.rq.len());
        let shared = self.hosts[end.host].srq.is_some();
        ensure!(!shared || end.last_wqe, "{index} never said that its last receive was reached");
        let peer_host = 1 - end.host;
        let unconfirmed = end.unconfirmed.drain(..).map(|(target, _)| (peer_host, target));
        self.uncertain.extend(unconfirmed);
        Ok(())
    }

    /// Completes the last requests, which may have no completion of their own.
    fn take_unsignalled(&mut self, index: usize) -> Check {
        let left = self.ends[index].qp.sq.lock().len();
        ensure!(left == 0, "{index} keeps {left} requests");
        // A failed request has a completion, so what is left precedes it.
        for work in std::mem::take(&mut self.ends[index].sq) {
            ensure!(!work.signalled, "{index} never completes {work:?}");
            self.succeeded(index, work)?;
        }
        Ok(())
    }

    pub(super) fn check_memory(&mut self) -> Check {
        for (host, piece) in std::mem::take(&mut self.uncertain) {
            self.hosts[host].arena.accept_current(piece);
        }
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let bytes = host.arena.read(shared_word());
            let word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            let (least, most) = (host.added, host.added + host.perhaps_added);
            let right = (least..=most).contains(&word) && host.seen.iter().all(|&old| old < word);
            ensure!(right, "the shared word of host {number} is {word}, not {least}..={most}");
            host.arena.accept_current(shared_word());
            if let Some(at) = host.arena.first_difference() {
                return Err(format!("memory of host {number} has changed at {at}"));
            }
        }
        Ok(())
    }
}

fn check_received(index: usize, completion: &Completion, message: &Message) -> Check {
    let opcode = if message.written.is_some() { Opcode::RecvRdmaWithImm } else { Opcode::Recv };
    let byte_len = message.written.unwrap_or(message.bytes.0.len());
    let (flags, imm_data) = match (message.imm, message.invalidate) {
        (Some(imm), _) => (FLAG_WITH_IMM, imm),
        (None, Some(key)) => (FLAG_WITH_INV, key),
        (None, None) => (0, 0),
    };
    let right = completion.opcode == opcode
        && completion.byte_len as usize == byte_len
        && completion.wc_flags == flags
        && completion.imm_data == imm_data;
    ensure!(right, "{index} receives {message:?} as {completion:?}");
    Ok(())
}
