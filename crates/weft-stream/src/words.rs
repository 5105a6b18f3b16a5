//! The words of a slot: the state of a connection that its ends, and all processes that share them,
//! have in common.

use weft_sys::{FutexWord, Waits};

pub(crate) use crate::layout::{Direction, NONE, Side};
use crate::registry::Registry;

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that called `connect(2)`.
    Connector = 0,
    /// The end that called `accept(2)`.
    Acceptor = 1,
}

impl Role {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// Values of [`Side::joined`]: how far a side has agreed to use the rings.
pub(crate) mod joined {
    /// Connector: the offer is in the table. Acceptor: no process has found it yet.
    pub(crate) const NO: u32 = 0;
    /// Acceptor: it reads the rings.
    pub(crate) const JOINED: u32 = 1;
    /// Connector: it has seen that the acceptor reads the rings, and reads them, too.
    pub(crate) const CONFIRMED: u32 = 2;
}

impl Side {
    pub(crate) fn of(registry: &'static Registry, slot: usize, role: Role) -> &'static Self {
        &registry.page(slot).sides[role as usize]
    }

    /// The words on which this side's threads wait.
    #[inline]
    pub(crate) fn waits(&self) -> Waits<'_> {
        Waits {
            sleepers: &self.sleepers,
            tag: &self.tag,
            wakeup: &self.wakeup,
            futex: FutexWord::on(&self.futex_wait),
            wanted: &self.space_wanted,
        }
    }
}

impl Direction {
    /// The direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> &'static Self {
        &registry.page(slot).directions[from as usize]
    }
}
