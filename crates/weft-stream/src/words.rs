//! The words of a slot: what both ends of a connection, and all processes that share them, know of
//! it.

use weft_sys::{FutexWord, Waits};

pub(crate) use crate::layout::{Direction, NONE, Side};
use crate::registry::Registry;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Called `connect(2)`.
    Connector = 0,
    /// Called `accept(2)`.
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

/// How far a side has agreed.
pub(crate) mod joined {
    /// The connector: its offer stands. The acceptor: nobody has come yet.
    pub(crate) const NO: u32 = 0;
    /// The acceptor looks at the rings.
    pub(crate) const JOINED: u32 = 1;
    /// The connector has seen that, and looks at them, too.
    pub(crate) const CONFIRMED: u32 = 2;
}

impl Side {
    pub(crate) fn of(registry: &'static Registry, slot: usize, role: Role) -> &'static Self {
        &registry.page(slot).sides[role as usize]
    }

    /// The words by which its threads wait.
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
