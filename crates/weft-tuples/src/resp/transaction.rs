//! What a connection has for its next transaction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::parse::Words;
use crate::limits::{COMMAND_LEN_MAX, OVERHEAD_LEN, TRANSACTION_COMMANDS_MAX};
use crate::model::{Name, Refusal, Space};

/// The commands of a transaction that has begun, and the elements that must not change before it.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands since `MULTI`. `None` before it.
    queued: Option<Vec<Words>>,
    /// Their bytes.
    len: usize,
    /// One of them was refused, so that none is done.
    is_broken: bool,
    /// The elements that must not change, and since when.
    watched: HashMap<Name, u64>,
}

/// What becomes of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has not begun.
    None,
    /// A command was refused.
    Broken,
    /// A watched element has changed.
    Changed,
    /// These commands are done.
    Done(Vec<Words>),
}

impl Transaction {
    /// Begins. Returns false if it has begun.
    pub(super) fn begin(&mut self) -> bool {
        let has_begun = self.has_begun();
        self.queued.get_or_insert_default();
        !has_begun
    }

    pub(super) fn has_begun(&self) -> bool {
        self.queued.is_some()
    }

    /// Keeps a command for later. Returns false if there is no place for it.
    pub(super) fn keep(&mut self, words: &Words) -> bool {
        let len: usize = words.iter().map(|word| word.len() + OVERHEAD_LEN).sum();
        let Some(queued) = &mut self.queued else { return false };
        let is_long = self.len.saturating_add(len) > COMMAND_LEN_MAX;
        if is_long || queued.len() >= TRANSACTION_COMMANDS_MAX {
            self.is_broken = true;
            return false;
        }
        self.len += len;
        queued.push(words.clone());
        true
    }

    /// Notes that a command was refused, if it would be one of the transaction.
    pub(super) fn break_off(&mut self) {
        self.is_broken |= self.has_begun();
    }

    /// Ends without doing anything.
    pub(super) fn end(&mut self, space: &mut Space) {
        self.unwatch(space);
        *self = Self::default();
    }

    /// Ends, and says what is to be done.
    pub(super) fn finish(&mut self, space: &mut Space) -> Fate {
        let has_changed = self.watched.iter().any(|(name, since)| space.has_changed(name, *since));
        let Some(queued) = self.queued.take() else { return Fate::None };
        let is_broken = self.is_broken;
        self.end(space);
        match (is_broken, has_changed) {
            (true, _) => Fate::Broken,
            (_, true) => Fate::Changed,
            _ => Fate::Done(queued),
        }
    }

    /// Watches an element. The earlier time counts of one that is watched already.
    pub(super) fn watch(&mut self, name: Name, space: &mut Space) -> Result<(), Refusal> {
        if let Entry::Vacant(place) = self.watched.entry(name) {
            let since = space.follow(place.key())?;
            place.insert(since);
        }
        Ok(())
    }

    pub(super) fn unwatch(&mut self, space: &mut Space) {
        for (name, _) in self.watched.drain() {
            space.unfollow(&name);
        }
    }
}
