//! A connection to another host as it is shown beside those of this one: `weft stat` and `weft
//! top`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::end::Process;
use crate::kernel::Linux;
use crate::reason::Reason;
use crate::registry::Registry;
use crate::sweep::take_slot;
use crate::tuple::Tuple;
use crate::words::{Direction, Role, Side, joined};

/// What carries a connection, as a slot says it.
pub(crate) const VERBS: u32 = 1;

/// A slot that only shows.
#[derive(Debug)]
pub struct Shown {
    registry: &'static Registry,
    slot: usize,
    generation: u32,
    over: AtomicBool,
    out: &'static Direction,
    come: &'static Direction,
}

impl Shown {
    /// Takes a slot for the connection of which this process is one end. `None` if there is none.
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
        // Without the socket's number: it is no end that a program could inherit.
        own.pid.store(me.pid, Ordering::Relaxed);
        for (word, part) in own.program.iter().zip(me.program.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        registry.show(slot, generation, VERBS);
        registry.counters().offered.fetch_add(1, Ordering::Relaxed);
        Some(Self { registry, slot, generation, over: AtomicBool::new(false), out, come })
    }

    /// Both ends have agreed.
    pub(crate) fn begun(&self) {
        let acceptor = Side::of(self.registry, self.slot, Role::Acceptor);
        acceptor.joined.store(joined::CONFIRMED, Ordering::Relaxed);
        self.registry.counters().joined.fetch_add(1, Ordering::Relaxed);
    }

    /// The peer has not agreed: TCP carries it, and it is not shown.
    pub(crate) fn given_up(&self) {
        self.registry.count_fallback(Reason::Remote);
        self.end();
    }

    /// The own direction has gone back to TCP.
    pub(crate) fn left(&self) {
        let head = self.out.head.load(Ordering::Relaxed);
        self.out.back_at.store(head, Ordering::Relaxed);
    }

    /// The peer's direction has gone back to TCP.
    pub(crate) fn peer_left(&self) {
        let head = self.come.head.load(Ordering::Relaxed);
        self.come.back_at.store(head, Ordering::Relaxed);
    }

    /// Gives the slot back, once.
    fn end(&self) {
        if !self.over.swap(true, Ordering::AcqRel) {
            // When the kernel has forgotten the connection, others may have given it back.
            self.registry.release(self.slot, self.generation);
        }
    }

    /// So many bytes have been put into the peer's ring by one call.
    pub(crate) fn sent(&self, bytes: usize) {
        self.out.switch_at.store(0, Ordering::Relaxed);
        self.out.head.fetch_add(bytes as u64, Ordering::Relaxed);
        self.out.tail.fetch_add(bytes as u64, Ordering::Relaxed);
        self.out.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// So many bytes have been read.
    pub(crate) fn received(&self, bytes: usize) {
        self.come.switch_at.store(0, Ordering::Relaxed);
        self.come.head.fetch_add(bytes as u64, Ordering::Relaxed);
        self.come.tail.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.end();
    }
}
