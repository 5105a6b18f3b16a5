//! Elements of which somebody wants to know whether they have changed since some time.

use std::collections::HashMap;
use std::rc::Rc;

use super::operation::{Name, Refusal};
use crate::limits::FOLLOWED_MAX;

/// When elements that are followed have changed at last. Time is counted in changes.
#[derive(Debug, Default)]
pub(super) struct Followed {
    names: HashMap<Name, Follow>,
    /// How many followers there are in all.
    followers: usize,
    clock: u64,
}

#[derive(Debug, Default)]
struct Follow {
    followers: usize,
    changed: u64,
}

impl Followed {
    /// Adds a follower of an element, whether or not it exists. Returns the present time.
    pub(super) fn insert(&mut self, name: &Name) -> Result<u64, Refusal> {
        if self.followers >= FOLLOWED_MAX {
            return Err(Refusal::Busy);
        }
        self.followers += 1;
        self.names.entry(Rc::clone(name)).or_default().followers += 1;
        Ok(self.clock)
    }

    /// Removes one that was added.
    pub(super) fn remove(&mut self, name: &Name) {
        let Some(follow) = self.names.get_mut(name) else { return };
        self.followers -= 1;
        follow.followers -= 1;
        if follow.followers == 0 {
            self.names.remove(name);
        }
    }

    /// Notes that an element has changed.
    pub(super) fn note(&mut self, name: &Name) {
        if self.followers != 0
            && let Some(follow) = self.names.get_mut(name)
        {
            self.clock += 1;
            follow.changed = self.clock;
        }
    }

    /// Whether an element that is followed has changed since.
    pub(super) fn has_changed(&self, name: &Name, since: u64) -> bool {
        self.names.get(name).is_some_and(|follow| follow.changed > since)
    }
}
