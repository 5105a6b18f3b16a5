//! A cache of memory registrations with lazy deregistration, like those of MPI libraries.

use std::collections::BTreeMap;

/// A registration. The map's key is the start of its range.
#[derive(Debug)]
struct Entry<H> {
    len: usize,
    users: u32,
    handle: H,
}

/// Registrations of ranges, by address. An unused registration stays until its slot is needed.
#[derive(Debug)]
pub(crate) struct Cache<H> {
    entries: BTreeMap<usize, Entry<H>>,
    capacity: usize,
}

impl<H> Cache<H> {
    /// Returns a cache for `capacity` unused registrations; registrations in use do not count.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: BTreeMap::new(), capacity }
    }

    /// Returns the registration of a range, if there is one, and counts a use.
    pub(crate) fn acquire(&mut self, start: usize, len: usize) -> Option<&H> {
        let entry = self.entries.get_mut(&start).filter(|entry| entry.len >= len)?;
        entry.users += 1;
        Some(&entry.handle)
    }

    /// Adds a new registration with one use. Returns the one with the same start that it replaces.
    pub(crate) fn insert(&mut self, start: usize, len: usize, handle: H) -> Option<H> {
        let entry = Entry { len, users: 1, handle };
        self.entries.insert(start, entry).map(|old| old.handle)
    }

    /// Ends one use. Returns the registration to deregister now, if any.
    pub(crate) fn release(&mut self, start: usize) -> Option<H> {
        if let Some(entry) = self.entries.get_mut(&start) {
            entry.users = entry.users.saturating_sub(1);
        }
        if self.entries.len() <= self.capacity {
            return None;
        }
        let idle = self.entries.iter().find(|(_, entry)| entry.users == 0);
        let start = *idle?.0;
        self.entries.remove(&start).map(|entry| entry.handle)
    }

    /// Removes and returns all registrations, in use or not.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = H> {
        std::mem::take(&mut self.entries).into_values().map(|entry| entry.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_registration_is_reused() {
        let mut cache = Cache::new(2);
        assert_eq!(cache.acquire(100, 8), None);
        cache.insert(100, 8, 'a');
        assert_eq!(cache.release(100), None);
        assert_eq!(cache.acquire(100, 8), Some(&'a'));
        assert_eq!(cache.acquire(100, 9), None, "the registration is too short");
        assert_eq!(cache.insert(100, 9, 'b'), Some('a'));
    }

    #[test]
    fn only_unused_entries_are_evicted() {
        let mut cache = Cache::new(1);
        cache.insert(100, 8, 'a');
        cache.insert(200, 8, 'b');
        assert_eq!(cache.release(200), Some('b'), "a is in use");
        assert_eq!(cache.release(100), None, "there is room for one");
        cache.insert(300, 8, 'c');
        assert_eq!(cache.release(300), Some('a'));
        assert_eq!(cache.drain().collect::<Vec<_>>(), ['c']);
    }

    #[test]
    fn cache_of_capacity_zero_deregisters_at_each_release() {
        let mut cache = Cache::new(0);
        cache.insert(100, 8, 'a');
        assert_eq!(cache.release(100), Some('a'));
    }
}
