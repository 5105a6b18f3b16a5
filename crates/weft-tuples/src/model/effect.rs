//! The effects of operations that outlive the server.

use super::criteria::{Criteria, ElementEnd};
use super::operation::{Name, Outcome};
use super::tuple::{Item, Rank, Stamp, stored_len};
use crate::limits::OVERHEAD_LEN;

/// The name that a client has given itself, at random.
pub type ClientId = [u8; 16];

/// A change of the state. The effects of a service, applied to an empty one in their order, make
/// the same tuples, ranks and kept answers. What waits has no effects: it ends with the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An element exists from now on without tuples, too.
    Kept {
        /// Its name.
        element: Name,
        /// How it behaves.
        criteria: Criteria,
        /// The largest time stamp that it has had.
        last: Stamp,
    },
    /// Tuples are in an element, which is made if there is none.
    Inserted {
        /// The element.
        element: Name,
        /// The tuples.
        items: Vec<Item>,
        /// The position of the next tuple at the back of any element.
        serial: i64,
    },
    /// Tuples are taken from an end.
    Removed {
        /// The element.
        element: Name,
        /// From which end.
        end: ElementEnd,
        /// How many.
        count: u32,
    },
    /// Tuples are removed, wherever they are.
    Dropped {
        /// The element.
        element: Name,
        /// Their ranks.
        ranks: Vec<Rank>,
    },
    /// Tuples are observed for the first time, in an element that counts those that are not.
    Observed {
        /// The element.
        element: Name,
        /// Their ranks.
        ranks: Vec<Rank>,
    },
    /// An element is deleted with its tuples.
    Deleted {
        /// The element.
        element: Name,
    },
    /// The position of the next tuple at the back of any element.
    Serial(i64),
    /// A client is known.
    Entered {
        /// The client.
        client: ClientId,
        /// It has the answers of all its operations up to this number.
        confirmed: u64,
    },
    /// An operation of a client has changed the space, or has changed nothing before one that has,
    /// and its answer is kept.
    Answered {
        /// The client.
        client: ClientId,
        /// It has the answers of all its operations up to this number.
        confirmed: u64,
        /// The number of the operation.
        number: u64,
        /// The answer.
        outcome: Outcome,
    },
    /// A client is not known any more.
    Forgotten {
        /// The client.
        client: ClientId,
    },
}

/// The state does not allow an effect: it is not of this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// The effects since they were taken the last time, if they are recorded.
#[derive(Debug, Default)]
pub(super) struct Effects {
    effects: Option<Vec<Effect>>,
    bytes: usize,
}

impl Effects {
    /// Records effects from now on.
    pub(super) fn start(&mut self) {
        self.effects.get_or_insert_default();
    }

    pub(super) fn are_recorded(&self) -> bool {
        self.effects.is_some()
    }

    pub(super) fn add(&mut self, effect: impl FnOnce() -> Effect) {
        if let Some(effects) = &mut self.effects {
            let effect = effect();
            self.bytes += effect.bytes();
            effects.push(effect);
        }
    }

    /// Returns about how many bytes the effects take up.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self) -> Vec<Effect> {
        self.bytes = 0;
        self.effects.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Effect {
    fn bytes(&self) -> usize {
        let items: &[Item] = match self {
            Self::Inserted { items, .. } => items,
            Self::Answered { outcome, .. } => outcome.removed(),
            _ => &[],
        };
        OVERHEAD_LEN + items.iter().map(|it| stored_len(&it.rank.key, &it.fields)).sum::<usize>()
    }
}

impl Outcome {
    /// The tuples that the operation has taken out of an element.
    pub(super) fn removed(&self) -> &[Item] {
        match self {
            Self::Taken(_, items) => items,
            Self::Transferred(item) => std::slice::from_ref(item),
            _ => &[],
        }
    }

    /// Whether the answer is logged, with the change that it tells of or with the client's next
    /// one. Those that tell what is there are not: their operations may be done again. That of an
    /// observe is if it has marked tuples as read.
    pub(super) fn is_logged(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Described(_) | Self::Listed(_))
    }

    /// Whether the operation has changed the space.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Put(..) | Self::Taken(..) | Self::Transferred(_) | Self::Observed(_) => true,
            Self::Created(is_new) => *is_new,
            Self::Deleted(existed) => *existed,
            Self::Read(_)
            | Self::Described(_)
            | Self::Listed(_)
            | Self::Nothing
            | Self::Cancelled
            | Self::Refused(_) => false,
        }
    }
}
