//! The stat slot of a connection to another host: it makes `weft stat` and `weft top` list it
//! beside the connections of this host.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::end::Process;
use crate::kernel::Linux;
use crate::reason::Reason;
use crate::registry::Registry;
use crate::sweep::take_slot;
use crate::tuple::Tuple;
use crate::words::{Direction, Role, Side, joined};

/// The value of a slot's carrier word for verbs.
pub(crate) const VERBS: u32 = 1;

/// A slot that serves only for display.
#[derive(Debug)]
pub struct StatSlot {
    registry: &'static Registry,
    slot: usize,
    generation: u32,
    over: AtomicBool,
    out: &'static Direction,
    come: &'static Direction,
}

impl StatSlot {
    /// Takes a slot for a connection of which this process is one end. `None` if there is no free
    /// slot.
    #[must_use]
    pub fn new(
        registry: &'static Registry,
        tuple: &Tuple,
        role: Role,
        me: &Process,
    ) -> Option<Self> {
        let (slot, generation) = take_slot::<Linux>(registry, tuple)?;
        let [own, peer] = [role, role.other()].map(|role| Side::of(registry, slot, role));
        let [out, come] = [role, role.other()].map(|from| Direction::of(registry, slot, from));
        own.reset();
        peer.reset();
        out.reset();
        come.reset();
        // Without a cookie: this is not an end that a program could inherit.
        own.pid.store(me.pid, Ordering::Relaxed);
        for (word, part) in own.program.iter().zip(me.program.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        registry.show(slot, generation, VERBS);
        registry.counters().offered.fetch_add(1, Ordering::Relaxed);
        Some(Self { registry, slot, generation, over: AtomicBool::new(false), out, come })
    }

    /// Records that both ends have agreed.
    pub(crate) fn begun(&self) {
        let acceptor = Side::of(self.registry, self.slot, Role::Acceptor);
        acceptor.joined.store(joined::CONFIRMED, Ordering::Relaxed);
        self.registry.counters().joined.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the peer has not agreed: TCP carries the connection, and it is not listed.
    pub(crate) fn given_up(&self) {
        self.registry.count_fallback(Reason::Remote);
        self.end();
    }

    /// Records that the sending direction has fallen back to TCP.
    pub(crate) fn fell_back(&self) {
        let head = self.out.head.load(Ordering::Relaxed);
        self.out.tcp_resume_seq.store(head, Ordering::Relaxed);
    }

    /// Records that the peer's direction has fallen back to TCP.
    pub(crate) fn peer_left(&self) {
        let head = self.come.head.load(Ordering::Relaxed);
        self.come.tcp_resume_seq.store(head, Ordering::Relaxed);
    }

    /// Releases the slot, once.
    fn end(&self) {
        if !self.over.swap(true, Ordering::AcqRel) {
            // Once the kernel has closed the connection, a sweep of another process may have
            // released the slot.
            self.registry.release(self.slot, self.generation);
        }
    }

    /// Records that one call has put this many bytes into the peer's ring.
    pub(crate) fn sent(&self, bytes: usize) {
        self.out.shm_start_seq.store(0, Ordering::Relaxed);
        self.out.head.fetch_add(bytes as u64, Ordering::Relaxed);
        self.out.tail.fetch_add(bytes as u64, Ordering::Relaxed);
        self.out.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that this many bytes have been read.
    pub(crate) fn received(&self, bytes: usize) {
        self.come.shm_start_seq.store(0, Ordering::Relaxed);
        self.come.head.fetch_add(bytes as u64, Ordering::Relaxed);
        self.come.tail.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for StatSlot {
    fn drop(&mut self) {
        self.end();
    }
}
