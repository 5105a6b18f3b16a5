//! Elements of which somebody wants to know when they change.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::operation::Name;

/// Elements that are watched, and those of them that have changed.
#[derive(Debug, Default)]
pub(super) struct Watched {
    names: HashSet<Name>,
    /// Whether each was deleted, too.
    changed: HashMap<Name, bool>,
}

impl Watched {
    pub(super) fn insert(&mut self, name: &Name) {
        self.names.insert(Rc::clone(name));
    }

    pub(super) fn remove(&mut self, name: &Name) {
        self.names.remove(name);
        self.changed.remove(name);
    }

    /// Notes that an element has changed.
    pub(super) fn note(&mut self, name: &Name, is_deleted: bool) {
        if self.names.contains(name) {
            *self.changed.entry(Rc::clone(name)).or_default() |= is_deleted;
        }
    }

    pub(super) fn next(&mut self) -> Option<(Name, bool)> {
        let name = self.changed.keys().next().map(Rc::clone)?;
        self.changed.remove_entry(&name)
    }
}
