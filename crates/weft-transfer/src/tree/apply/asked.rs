//! The names that a source was asked for.

use std::collections::HashSet;

use crate::wire::record::{Entry, ROOT, Record};
use crate::wire::record_name::Name;

/// The only names that a source may create in the root. The root keeps its own attributes: a source
/// that was asked for single names must not choose others.
#[derive(Clone, Debug)]
pub struct Asked(pub HashSet<Name>);

impl Asked {
    pub(super) fn allows(&self, entry: &Entry) -> bool {
        match &entry.name {
            Some(name) => entry.parent != ROOT || self.0.contains(name),
            None => false,
        }
    }

    /// Returns the number of a record's entry if the source was not asked for it.
    #[must_use]
    pub fn refused(&self, record: &Record) -> Option<u64> {
        match record {
            Record::Entry(entry) | Record::Offer(entry) | Record::Whole { entry, .. } => {
                (!self.allows(entry)).then_some(entry.number)
            }
            _ => None,
        }
    }
}
