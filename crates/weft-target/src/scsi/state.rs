//! The state of a unit besides its blocks: reservations, mode parameters, the medium.

use std::collections::HashMap;
use std::sync::Arc;

use super::access::Access;
use super::keep::{Keeper, Kept};
use super::nexus::{Initiator, Nexus, NexusId};
use super::reservations::Reservations;
use super::sense::Sense;
use crate::limits::{ATTENTIONS_MAX, COPIES_KEPT};

/// The state of a unit.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Each session that is logged in.
    nexuses: HashMap<NexusId, NexusState>,
    /// The initiator that has reserved the unit by RESERVE.
    pub(super) reserved_by: Option<NexusId>,
    /// Persistent reservations.
    pub(super) persistent: Reservations,
    /// Where they are kept, if they can outlive the target.
    pub(super) keeper: Option<Box<dyn Keeper>>,
    /// The mode parameters.
    pub(super) modes: Modes,
    /// Whether blocks can be reached.
    pub(super) medium: Medium,
}

/// The state that a unit has for one session.
#[derive(Debug)]
struct NexusState {
    initiator: Arc<Initiator>,
    attentions: Vec<Sense>,
    prevents_removal: bool,
    /// The last copies, the newest last.
    copies: Vec<CopyStatus>,
    /// The unit's count of aborts at the last one that its tasks were aborted by.
    last_abort: u64,
}

/// The result of an EXTENDED COPY.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyStatus {
    /// Its list identifier.
    pub(super) list: u8,
    /// All segments were copied.
    pub(super) is_complete: bool,
    /// Its segments.
    pub(super) segments: u16,
}

/// Mode parameters that an initiator may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes {
    /// Writes are complete before they are safe: WCE of the caching page.
    pub(super) write_back: bool,
    /// Sense data has descriptors: D_SENSE of the control page.
    pub(super) descriptor_sense: bool,
    /// Writes are refused: SWP of the control page.
    pub(super) write_protected: bool,
}

/// Whether blocks can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Medium {
    /// They can.
    #[default]
    Ready,
    /// The medium is ejected.
    Ejected,
    /// A SANITIZE is at work.
    Sanitizing,
    /// The last SANITIZE failed. `true` if its initiator allows to go on without another.
    SanitizeFailed {
        /// EXIT FAILURE MODE works.
        may_exit: bool,
    },
}

impl Medium {
    /// Why blocks cannot be reached.
    pub(super) fn failure(self) -> Option<Sense> {
        match self {
            Self::Ready => None,
            Self::Ejected => Some(Sense::MEDIUM_NOT_PRESENT),
            Self::Sanitizing => Some(Sense::SANITIZE_IN_PROGRESS),
            Self::SanitizeFailed { .. } => Some(Sense::SANITIZE_FAILED),
        }
    }
}

impl State {
    /// Adds a session. Its first command reports that the unit was reset.
    pub(super) fn attach(&mut self, nexus: &Nexus) {
        let (initiator, attentions) = (Arc::clone(&nexus.initiator), vec![Sense::RESET]);
        let (prevents_removal, copies, last_abort) = (false, Vec::new(), 0);
        let state = NexusState { initiator, attentions, prevents_removal, copies, last_abort };
        self.nexuses.insert(nexus.id, state);
    }

    /// Removes a session, and what it has reserved for as long as it lasts.
    pub(super) fn detach(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
        if self.reserved_by == Some(nexus) {
            self.reserved_by = None;
        }
    }

    /// Resets the unit: nothing is reserved by RESERVE, and no session prevents removal.
    pub(super) fn reset(&mut self, attention: Sense) {
        self.reserved_by = None;
        self.modes.write_protected = false;
        self.modes.descriptor_sense = false;
        for nexus in self.nexuses.values_mut() {
            nexus.prevents_removal = false;
        }
        self.notify(|_| true, attention);
    }

    /// Gives a unit attention to each session that `wanted` selects.
    pub(super) fn notify(&mut self, wanted: impl Fn(NexusId) -> bool, attention: Sense) {
        for (_, nexus) in self.nexuses.iter_mut().filter(|(id, _)| wanted(**id)) {
            if nexus.attentions.contains(&attention) {
                continue;
            }
            if nexus.attentions.len() == ATTENTIONS_MAX {
                nexus.attentions.clear();
                nexus.attentions.push(Sense::RESET);
            }
            nexus.attentions.push(attention);
        }
    }

    /// Gives a unit attention to all sessions.
    pub(super) fn notify_all(&mut self, attention: Sense) {
        self.notify(|_| true, attention);
    }

    /// Notes which sessions' tasks are aborted by the abort with this number.
    pub(super) fn abort(&mut self, wanted: impl Fn(NexusId) -> bool, number: u64) {
        for (_, nexus) in self.nexuses.iter_mut().filter(|(id, _)| wanted(**id)) {
            nexus.last_abort = number;
        }
    }

    /// The last abort of a session's tasks. `None` if the session has ended.
    pub(super) fn last_abort(&self, nexus: NexusId) -> Option<u64> {
        self.nexuses.get(&nexus).map(|nexus| nexus.last_abort)
    }

    /// Forgets a unit attention of a session.
    pub(super) fn forget(&mut self, nexus: NexusId, attention: Sense) {
        if let Some(state) = self.nexuses.get_mut(&nexus) {
            state.attentions.retain(|each| *each != attention);
        }
    }

    /// Gives a unit attention to all sessions of these initiators.
    pub(super) fn notify_initiators(&mut self, initiators: &[Initiator], attention: Sense) {
        let sessions = self.sessions_of(initiators);
        self.notify(|nexus| sessions.contains(&nexus), attention);
    }

    /// All sessions of these initiators.
    pub(super) fn sessions_of(&self, initiators: &[Initiator]) -> Vec<NexusId> {
        self.nexuses
            .iter()
            .filter(|(_, nexus)| initiators.contains(&nexus.initiator))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The oldest unit attention of a session, which is forgotten then.
    pub(super) fn take_attention(&mut self, nexus: NexusId) -> Option<Sense> {
        let attentions = &mut self.nexuses.get_mut(&nexus)?.attentions;
        if attentions.is_empty() { None } else { Some(attentions.remove(0)) }
    }

    /// Keeps the status of a copy, in the place of an older one with the same identifier.
    pub(super) fn keep_copy(&mut self, nexus: NexusId, copy: CopyStatus) {
        let Some(state) = self.nexuses.get_mut(&nexus) else { return };
        state.copies.retain(|other| other.list != copy.list);
        if state.copies.len() == COPIES_KEPT {
            state.copies.remove(0);
        }
        state.copies.push(copy);
    }

    /// The status of a copy of this session.
    pub(super) fn copy(&self, nexus: NexusId, list: u8) -> Option<CopyStatus> {
        self.nexuses.get(&nexus)?.copies.iter().copied().find(|copy| copy.list == list)
    }

    /// Notes whether a session prevents removal of the medium.
    pub(super) fn prevent_removal(&mut self, nexus: NexusId, prevents: bool) {
        if let Some(state) = self.nexuses.get_mut(&nexus) {
            state.prevents_removal = prevents;
        }
    }

    /// Whether any session prevents removal of the medium.
    pub(super) fn is_removal_prevented(&self) -> bool {
        self.nexuses.values().any(|nexus| nexus.prevents_removal)
    }

    /// Keeps the persistent reservations, which were like `before`.
    ///
    /// # Errors
    ///
    /// If they cannot be kept. They are as before then; initiators may have unit attentions of a
    /// change that has not happened, and look again.
    pub(super) fn keep(&mut self, before: Reservations) -> Result<(), Sense> {
        let kept = Kept::of(&self.persistent);
        let Some(keeper) = self.keeper.as_ref().filter(|_| kept != Kept::of(&before)) else {
            return Ok(());
        };
        keeper.keep(&kept).map_err(|_| {
            self.persistent = before;
            Sense::INTERNAL_FAILURE
        })
    }

    /// Whether a reservation refuses a command.
    pub(super) fn conflicts(&self, access: Access, nexus: &Nexus) -> bool {
        let is_reserved = self.reserved_by.is_some_and(|holder| holder != nexus.id);
        is_reserved && access.conflicts_with_reserve() || self.persistent.conflicts(access, nexus)
    }
}
