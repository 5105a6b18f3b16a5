//! The holders of one side's socket: processes, by their numbers.
//!
//! A process adds itself when it gets the socket and removes itself when it closes it, so no
//! process removes another one: a program that was started with a socket, and was never added,
//! changes nothing when it ends. The count only shows *early* that a side has no holder any more.
//! Whether a slot has been left behind is decided by asking the kernel ([`crate::sweep`]).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::Kernel;
use crate::registry::Registry;
use crate::words::{Role, Side};

/// Bit that marks, beside a process's number, a child which that process is about to have.
const CHILD_FLAG: u32 = 1 << 31;
/// The process that receives the socket over a Unix socket.
const RECEIVER: u32 = CHILD_FLAG - 1;
/// The process that finds the connector's offer.
const ACCEPTOR: u32 = CHILD_FLAG - 2;

/// A holder in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The process with this number.
    Process(u32),
    /// A child that this process is about to have.
    ChildOf(u32),
    /// The process that receives the socket.
    Receiver,
    /// The process that accepts the connection.
    Acceptor,
}

impl Holder {
    fn word(self) -> u32 {
        match self {
            Self::Process(pid) => pid,
            Self::ChildOf(pid) => pid | CHILD_FLAG,
            Self::Receiver => RECEIVER,
            Self::Acceptor => ACCEPTOR,
        }
    }
}

/// The table of holders of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    side: &'static Side,
}

impl Holders {
    pub(crate) fn of(registry: &'static Registry, slot: usize, role: Role) -> Self {
        Self { side: Side::of(registry, slot, role) }
    }

    /// Adds a holder, or records that there are uncounted ones if the table is full.
    pub(crate) fn add(&self, holder: Holder) {
        self.refs().fetch_add(1, Ordering::AcqRel);
        let added = self.words().any(|word| {
            word.compare_exchange(0, holder.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if !added {
            self.refs().fetch_sub(1, Ordering::AcqRel);
            self.add_uncounted();
        }
    }

    /// Adds a holder beside others. `false` if none is left, which the peer may have noticed.
    pub(crate) fn join(&self, holder: Holder) -> bool {
        let more = |refs: u32| (refs > 0).then(|| refs + 1);
        let joined = self.refs().fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok();
        if joined {
            self.add(holder);
            self.refs().fetch_sub(1, Ordering::AcqRel);
        }
        joined
    }

    /// Records, for good, that processes outside the table may hold the socket.
    pub(crate) fn add_uncounted(&self) {
        if self.side.uncounted.swap(1, Ordering::AcqRel) == 0 {
            self.refs().fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Replaces a holder by another one. `false` if the table does not have it.
    pub(crate) fn replace(&self, from: Holder, to: Holder) -> bool {
        self.words().any(|word| {
            let (from, to) = (from.word(), to.word());
            word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Removes a holder once. Returns whether no holder is known any more.
    pub(crate) fn remove(&self, holder: Holder) -> bool {
        let removed = self.words().any(|word| {
            let from = holder.word();
            word.compare_exchange(from, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if removed {
            self.refs().fetch_sub(1, Ordering::AcqRel) == 1
        } else {
            self.refs().load(Ordering::Acquire) == 0
        }
    }

    /// The processes that are in the table by their numbers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        let numbers = self.words().map(|word| word.load(Ordering::Relaxed));
        numbers.filter(|&number| number != 0 && number < ACCEPTOR)
    }

    /// The number of the process that is the only holder.
    pub(crate) fn only(&self) -> Option<u32> {
        let is_alone = self.refs().load(Ordering::Relaxed) == 1;
        self.processes().next().filter(|_| is_alone)
    }

    /// Whether there were holders, and all were killed. A process that has closed the socket is no
    /// holder any more. `false` if a holder's number is not known.
    pub(crate) fn are_killed<K: Kernel>(&self) -> bool {
        let refs = self.refs().load(Ordering::Relaxed) as usize;
        refs > 0 && refs == self.processes().count() && !self.processes().any(K::is_alive)
    }

    /// Clears the table, for a new connection.
    pub(crate) fn reset(&self) {
        self.words().for_each(|word| word.store(0, Ordering::Relaxed));
        self.side.uncounted.store(0, Ordering::Relaxed);
        self.refs().store(0, Ordering::Relaxed);
    }

    fn refs(&self) -> &'static AtomicU32 {
        &self.side.refs
    }

    fn words(&self) -> impl Iterator<Item = &'static AtomicU32> + Clone + use<> {
        self.side.holders.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HOLDERS_MAX;

    fn holders() -> Holders {
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &'static Registry =
            Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
        registry.open_slot(0).expect("accessible");
        registry.leave();
        Holders::of(registry, 0, Role::Connector)
    }

    #[test]
    fn only_added_holders_are_removed() {
        let holders = holders();
        holders.add(Holder::Process(7));
        assert!(!holders.remove(Holder::Process(8)), "never added");
        holders.add(Holder::ChildOf(7));
        assert!(holders.replace(Holder::ChildOf(7), Holder::Process(9)));
        assert!(!holders.replace(Holder::ChildOf(7), Holder::Process(10)), "born once");
        assert!(!holders.remove(Holder::Process(7)));
        assert!(!holders.remove(Holder::Process(7)), "once");
        assert!(holders.remove(Holder::Process(9)), "the last one");
    }

    #[test]
    fn holder_joins_only_while_there_is_another() {
        let holders = holders();
        assert!(!holders.join(Holder::Process(7)));
        holders.add(Holder::Process(8));
        assert!(holders.join(Holder::Process(7)));
        assert!(!holders.remove(Holder::Process(8)));
        assert!(holders.remove(Holder::Process(7)));
    }

    #[test]
    fn overflowing_holder_table_never_counts_as_empty() {
        let holders = holders();
        let all = 1..HOLDERS_MAX as u32 + 3;
        all.clone().for_each(|pid| holders.add(Holder::Process(pid)));
        assert!(all.clone().all(|pid| !holders.remove(Holder::Process(pid))));
        holders.reset();
        holders.add(Holder::Process(1));
        assert!(holders.remove(Holder::Process(1)));
    }
}
