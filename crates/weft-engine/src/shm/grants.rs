//! The target's side of direct one-sided operations: grants of its keys to peers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::{Forkable, Lock, RemappedPages};

use super::keys::{Granted, Memory, Pages};
use super::remapping::Reach;
use super::segment::{GrantWords, Rings};
use super::session::Session;
use crate::access::Access;
use crate::clock::yield_until;
use crate::limits::{GRANTS_MAX, KEY_IN_USE_MAX};
use crate::log::{self, Level};

/// The grants to the peer of one connection.
#[derive(Debug)]
pub(crate) struct Grants {
    words: GrantWords,
    session: Weak<Session>,
    slots: Lock<Granting>,
    /// Whether the peer has held a key for too long. It is not waited for again.
    is_stuck: AtomicBool,
}

/// The rights and the range of a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) rights: Access,
    /// Whether the grant includes all of the region's write rights. If so, a peer that maps the
    /// region's segment, which is writable for everybody that has it, gets no more rights than
    /// that.
    pub(crate) grants_writing: bool,
    pub(crate) iova: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct Granting {
    keys: [Option<u32>; GRANTS_MAX],
    next: usize,
    /// Serial number of the last grant; never 0.
    serial: u32,
}

/// The holders of grants, by key.
static GRANTED: Forkable<Lock<HashMap<u32, Vec<Weak<Grants>>>>> =
    Forkable::new(|| Lock::new(HashMap::new()));

impl Grants {
    pub(crate) fn new(rings: &Rings, session: &Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            words: rings.own_grants(),
            session: Arc::downgrade(session),
            slots: Lock::new(Granting { keys: [None; GRANTS_MAX], next: 0, serial: 0 }),
            is_stuck: AtomicBool::new(false),
        })
    }

    /// Grants a key to the peer on these terms. When the peer may already use it, `confirm` checks
    /// again that the terms hold and returns how the region is reached; otherwise the grant is
    /// withdrawn. A deregistration, or a change of the queue pair's rights or state, either
    /// precedes `confirm`, which sees it, or follows it and finds the grant.
    pub(crate) fn grant(
        self: &Arc<Self>,
        key: u32,
        terms: Terms,
        confirm: impl FnOnce() -> Option<Reach>,
    ) -> Option<Granted> {
        let holders = &mut *GRANTED.get().lock();
        let holders = holders.entry(key).or_default();
        holders.retain(|other| other.strong_count() != 0 && !other.ptr_eq(&Arc::downgrade(self)));
        holders.push(Arc::downgrade(self));
        let (slot, serial) = self.take_slot(key);
        let Some(reach) = confirm() else {
            self.withdraw(key);
            return None;
        };
        let Terms { rights, grants_writing, iova, len } = terms;
        let may_map = |segment: &Arc<RemappedPages>| !segment.is_writable() || grants_writing;
        let pages = reach.pages.map(|pages| Pages {
            start: pages.start,
            len: pages.len,
            addr: pages.addr,
            memory: pages.segment.filter(may_map).map(Memory::Own),
        });
        Some(Granted { slot, serial, rights, iova, len, addr: reach.addr, pages })
    }

    fn take_slot(&self, key: u32) -> (usize, u32) {
        let mut slots = self.slots.lock();
        let slot = match slots.keys.iter().position(|&held| held == Some(key)) {
            Some(slot) => slot,
            None => {
                slots.next = (slots.next + 1) % GRANTS_MAX;
                slots.next
            }
        };
        slots.keys[slot] = Some(key);
        slots.serial = slots.serial.wrapping_add(1).max(1);
        self.words.set(slot, Some((key, slots.serial)));
        (slot, slots.serial)
    }

    /// Withdraws a key. On return it is not in use any more.
    fn withdraw(&self, key: u32) {
        {
            let mut slots = self.slots.lock();
            for (slot, held) in slots.keys.iter_mut().enumerate() {
                if *held == Some(key) {
                    *held = None;
                    self.words.set(slot, None);
                }
            }
        }
        self.wait_while(|in_use| in_use == key);
    }

    /// Withdraws all keys.
    pub(crate) fn withdraw_all(&self) {
        {
            let mut slots = self.slots.lock();
            slots.keys = [None; GRANTS_MAX];
            (0..GRANTS_MAX).for_each(|slot| self.words.set(slot, None));
        }
        self.wait_while(|in_use| in_use != 0);
    }

    /// Waits while the peer uses a key, unless the peer is dead or uses it for too long.
    fn wait_while(&self, is_used: impl Fn(u32) -> bool) {
        let is_over = || {
            !is_used(self.words.in_use())
                || self.is_stuck.load(Ordering::Relaxed)
                || !self.session.upgrade().is_some_and(|session| session.is_alive())
        };
        if !yield_until(KEY_IN_USE_MAX, is_over) {
            log::write(
                Level::Error,
                format_args!("a peer still uses a withdrawn key; this side no longer waits for it"),
            );
            self.is_stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Withdraws a key from all peers. On return no peer uses it, and none will.
pub(crate) fn revoke(key: u32) {
    let holders = GRANTED.get().lock().remove(&key).unwrap_or_default();
    for grants in holders.iter().filter_map(Weak::upgrade) {
        grants.withdraw(key);
    }
}
