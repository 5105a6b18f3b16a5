//! Batches of small Sends and Writes in shared memory.
//!
//! Most of a message's cost is the transfer of the ring's cache lines between cores. A batch takes
//! locks once, not for each message, and has no atomic operation between two messages that would
//! wait for the cache lines of the first. Unusual messages are left to the general code.

use weft_sys::{Region, SLOT_BODY_LEN};
use weft_wire::ddp::Header;
use weft_wire::rdmap::{self, Opcode};

use super::host::{Completions, Host, Keys, PinnedRegion};
use super::ring::{INLINE, SLOT_ROOM, View, len_and_kind};
use super::service::Service;
use super::{Fault, Link};
use crate::access::Access;
use crate::attr::QpState;
use crate::limits::{KEY_HELD_BYTES_MAX, SMALL_WRITE_MAX};
use crate::queue::send::{self, SendQueue, Source};
use crate::wc::{self, Completion, Status};
use crate::wr::{Operation, SendFlags, Sge};

impl<H: Host> Link<H> {
    /// Sends messages that come from one piece of memory each, as many as are posted and the ring
    /// has room for. Returns whether there was one.
    pub(super) fn push_small_sends(&mut self, host: &H) -> bool {
        let context = host.context();
        let is_ready = self.rules.state == QpState::Rts && self.phase.is_open();
        let Some(ring) = self.transport.ring_mut().filter(|_| is_ready) else { return false };
        let mut keys = std::mem::take(&mut self.sender.keys);
        let mut local = Local::by(&mut keys);
        let before = self.sender.messages;
        let mut sq = host.sends();
        while ring.has_room() {
            let Some((_, work)) = sq.peek_next() else { break };
            let is_plain =
                matches!(work.operation, Operation::Send { imm: None, invalidate: None });
            if !is_plain
                || work.srqn != 0
                || work.length as usize > SLOT_ROOM
                || work.flags.contains(SendFlags::FENCE)
            {
                break;
            }
            let length = work.length;
            let solicited = work.flags.contains(SendFlags::SOLICITED);
            let opcode = if solicited { Opcode::SendSe } else { Opcode::Send };
            let (qn, msn) = (rdmap::queue::SEND, self.sender.send_msn);
            let header =
                Header::Untagged { last: true, ulp: opcode.control(), ulp_word: 0, qn, msn, mo: 0 };
            match sq.next_source() {
                Some(Source::Inline(bytes)) => {
                    ring.fill_slot(INLINE, &header, bytes.len(), self.receiver.placed, |room| {
                        room.copy_from_slice(bytes);
                    });
                }
                Some(Source::Piece(piece)) => {
                    let Some(region) = local.part(context, piece, Access::empty()) else { break };
                    ring.fill_slot(INLINE, &header, region.len(), self.receiver.placed, |room| {
                        region.fill(room);
                    });
                }
                None => break,
            }
            self.sender.send_msn = msn.wrapping_add(1);
            self.sender.messages += 1;
            self.sender.appended += u64::from(length);
            sq.advance(send::Progress::Sent(self.sender.messages));
        }
        host.note_unsent(&sq);
        drop((sq, local));
        self.sender.keys = keys;
        if self.sender.messages == before {
            return false;
        }
        self.receiver.placed_reported = self.receiver.placed;
        true
    }

    /// Carries out small Writes from one region to one mapped key, as many as are posted. Returns
    /// whether there was one.
    pub(super) fn write_small(&mut self, host: &H) -> bool {
        let context = host.context();
        // There must be no Read that these Writes could overtake, and no Write in the ring that
        // could overtake them.
        let is_ready = self.rules.state == QpState::Rts
            && self.phase.is_open()
            && self.sender.outstanding.is_empty();
        let Some(ring) = self.transport.ring_mut().filter(|_| is_ready) else { return false };
        if ring.last_write > self.sender.peer_placed {
            return false;
        }
        let mut sq = host.sends();
        let Some((key, ..)) = next_small_write(&sq) else { return false };
        let Some(remote) = ring.keys.hold(&*ring.session, key) else { return false };
        let mut local = Local::by(&mut self.sender.keys);
        let mut written = 0;
        while written < KEY_HELD_BYTES_MAX
            && let Some((next_key, at, length)) = next_small_write(&sq)
            && next_key == key
        {
            let mapped = remote.mapped(at, length.into(), Access::REMOTE_WRITE);
            let (Some(place), Some(source)) = (mapped, sq.next_source()) else { break };
            match source {
                Source::Inline(bytes) => place.memory.place_bytes(place.offset, bytes),
                Source::Piece(piece) => {
                    let Some(region) = local.part(context, piece, Access::empty()) else { break };
                    place.memory.place(place.offset, &region);
                }
            }
            sq.advance(send::Progress::Done);
            written += u64::from(length);
        }
        host.note_unsent(&sq);
        drop((local, remote));
        self.sender.appended += written;
        if written != 0 {
            self.complete_held(sq, host);
        }
        written != 0
    }

    /// Receives Sends that fit a slot and go to one piece of memory each, up to `max`. Returns how
    /// many. The first slot that is unusual or invalid is left to the general code.
    pub(super) fn take_small_sends(
        &mut self,
        view: &View,
        max: u32,
        host: &H,
    ) -> Result<u32, Fault> {
        let is_usual = self.is_acknowledged()
            && self.opening.peer_began
            && !self.receiver.current.active
            && self.rnr.messages.is_empty()
            && self.receiver.send_imm.is_none()
            && !self.config.shares_receives
            && matches!(self.service, Service::Reliable);
        if !is_usual {
            return Ok(0);
        }
        self.take_first_acknowledgement(view, host)?;
        let (send, solicited) = (Opcode::Send.control(), Opcode::SendSe.control());
        let context = host.context();
        let mut keys = std::mem::take(&mut self.receiver.keys);
        let mut local = Local::by(&mut keys);
        let mut taken = 0;
        let mut receives = host.receives();
        let mut completions = host.receive_completions();
        while taken < max && completions.has_room() {
            let Some((len, INLINE)) = view.rx.peek().map(len_and_kind) else { break };
            let mut body = [0; SLOT_BODY_LEN];
            view.rx.read(len, &mut body);
            let Some((placed, segment)) = body.get(..len).and_then(<[u8]>::split_first_chunk)
            else {
                break;
            };
            let Ok((
                Header::Untagged { last: true, ulp, qn: rdmap::queue::SEND, msn, mo: 0, .. },
                at,
            )) = Header::parse(segment)
            else {
                break;
            };
            // An acknowledgement must complete our requests before the message that carries it
            // does, as it may be an answer to them: programs rely on that.
            let is_news = self.newly_placed(u32::from_ne_bytes(*placed)) != 0;
            if ulp != send && ulp != solicited || is_news {
                break;
            }
            let payload = &segment[at..];
            let Some((wr_id, target)) = receives.front_piece() else { break };
            let Ok(length) = u32::try_from(payload.len()) else { break };
            if length > target.length {
                break;
            }
            let room = Sge { length, ..target };
            let Some(region) = local.part(context, room, Access::LOCAL_WRITE) else { break };
            let queue = &mut self.receiver.queues[rdmap::queue::SEND as usize];
            if queue.check(msn, 0, payload.len(), true, target.length.into()).is_err() {
                break;
            }
            region.copy_in(payload);
            receives.pop_front_piece();
            let completion =
                Completion::new(wr_id, Status::Success, wc::Opcode::Recv, self.config.number);
            completions.push(Completion { byte_len: length, ..completion }, ulp == solicited);
            self.receiver.placed += 1;
            taken += 1;
            if let Some(ring) = self.transport.ring_mut() {
                ring.release(view, 0);
            }
        }
        drop((completions, receives, local));
        self.receiver.keys = keys;
        Ok(taken)
    }

    /// Takes the acknowledgement of the next slot, before the batch's locks are taken, because
    /// completing requests takes locks, too.
    fn take_first_acknowledgement(&mut self, view: &View, host: &H) -> Result<(), Fault> {
        let Some((len, _)) = view.rx.peek().map(len_and_kind) else { return Ok(()) };
        let mut body = [0; SLOT_BODY_LEN];
        view.rx.read(len, &mut body);
        match body.get(..len).and_then(<[u8]>::first_chunk) {
            Some(placed) => self.acknowledged(u32::from_ne_bytes(*placed), host),
            None => Ok(()),
        }
    }
}

/// The key, address and length of the next request, if it is a small Write.
#[inline]
fn next_small_write(sq: &SendQueue) -> Option<(u32, u64, u32)> {
    let (_, work) = sq.peek_next()?;
    match work.operation {
        Operation::Write { remote_addr, rkey, imm: None }
            if (1..=SMALL_WRITE_MAX).contains(&work.length) =>
        {
            Some((rkey, remote_addr, work.length))
        }
        _ => None,
    }
}

/// The local memory of a batch: one region, which stays pinned meanwhile.
struct Local<'a, K: Keys> {
    keys: Option<&'a mut K>,
    held: Option<K::PinnedRegion<'a>>,
}

impl<'a, K: Keys> Local<'a, K> {
    fn by(keys: &'a mut K) -> Self {
        Self { keys: Some(keys), held: None }
    }

    /// The memory of `piece`; `None` if it is in another region, or if the rights `needs` are not
    /// granted.
    #[inline]
    fn part(&mut self, context: K::Context<'_>, piece: Sge, needs: Access) -> Option<Region> {
        if let Some(keys) = self.keys.take() {
            self.held = keys.pin_region(context, piece.lkey, needs).ok();
        }
        let held = self.held.as_ref().filter(|held| held.is_of(piece.lkey))?;
        held.part(piece.addr, piece.length.into())
    }
}
