//! Grants: a small table, visible to both sides, of the memory that a side lets its peer access.
//!
//! Each entry names a part of a segment, the rights to it, and a secret that the program gives to
//! its peer with the entry's number. A user of an entry first counts itself in and then checks that
//! the secret is still there. A process that revokes an entry first clears the secret and then
//! waits until no user is counted. The peer may have written any value here, so readers check it.

use std::sync::atomic::{Ordering, fence};

use weft_sys::calls::rand::{GetRandomFlags, getrandom};

use crate::layout::GrantEntry;
use crate::limits::GRANTS_MAX;
use crate::registry::Registry;
use crate::words::Role;

const FREE: u64 = 0;
const FILLING: u64 = 1;

/// A part of a segment, and the rights to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The process that has the segment open.
    pub pid: u32,
    /// The segment's descriptor there.
    pub fd: u32,
    /// The segment's inode, which identifies it.
    pub inode: u64,
    /// The start of the part, in bytes.
    pub offset: u64,
    /// The part's length in bytes.
    pub len: u64,
    /// Bits with a meaning that the caller defines.
    pub rights: u32,
}

/// The number of a grant, and its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantId {
    /// Index in the table: below [`GRANTS_MAX`], unless the peer is hostile.
    pub index: u32,
    /// 64 random bits.
    pub secret: u64,
}

/// The table of one side.
#[derive(Clone, Copy, Debug)]
pub struct Grants {
    table: &'static [GrantEntry; GRANTS_MAX],
}

/// A grant in use. A process that revokes it waits until this is dropped.
#[derive(Debug)]
pub struct InUse {
    entry: &'static GrantEntry,
}

impl Grants {
    pub(crate) fn of(registry: &'static Registry, slot: usize, role: Role) -> Self {
        Self { table: &registry.page(slot).grants[role as usize] }
    }

    /// Clears the table, for a new connection.
    pub(crate) fn reset(&self) {
        self.table.iter().for_each(GrantEntry::reset);
    }

    /// Adds a grant. `None` if the table is full, or the kernel gives no random bits.
    #[must_use]
    pub fn add(&self, what: &Grant) -> Option<GrantId> {
        let secret = secret()?;
        let take = |entry: &GrantEntry| {
            entry.state.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let mut entries = self.table.iter().enumerate();
        // An entry that is in use still belongs to a process that died while using it.
        let (index, entry) =
            entries.find(|(_, entry)| entry.users.load(Ordering::Acquire) == 0 && take(entry))?;
        entry.pid.store(what.pid, Ordering::Relaxed);
        entry.fd.store(what.fd, Ordering::Relaxed);
        entry.rights.store(what.rights, Ordering::Relaxed);
        entry.inode.store(what.inode, Ordering::Relaxed);
        entry.offset.store(what.offset, Ordering::Relaxed);
        entry.len.store(what.len, Ordering::Relaxed);
        entry.state.store(secret, Ordering::Release);
        Some(GrantId { index: u32::try_from(index).ok()?, secret })
    }

    /// Revokes a grant: no operation begins to use it from here on. `false` if there is no such
    /// grant.
    #[must_use]
    pub fn revoke(&self, id: GrantId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        let gone =
            entry.state.compare_exchange(id.secret, FREE, Ordering::SeqCst, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        gone.is_ok()
    }

    /// Revokes all grants.
    pub fn revoke_all(&self) {
        for entry in self.table {
            entry.state.store(FREE, Ordering::SeqCst);
        }
    }

    /// Revokes the grants of one process.
    pub fn revoke_of(&self, pid: u32) {
        for entry in self.table {
            if entry.pid.load(Ordering::Relaxed) == pid {
                entry.state.store(FREE, Ordering::SeqCst);
            }
        }
    }

    /// Whether an operation is under way on a grant, even after it has been revoked.
    #[must_use]
    pub fn is_in_use(&self, id: GrantId) -> bool {
        self.entry(id).is_some_and(|entry| entry.users.load(Ordering::SeqCst) != 0)
    }

    /// Begins to use a grant. `None` if there is none with this secret.
    #[inline]
    #[must_use]
    pub fn begin(&self, id: GrantId) -> Option<InUse> {
        let entry = self.entry(id)?;
        entry.users.fetch_add(1, Ordering::SeqCst);
        let used = InUse { entry };
        let state = entry.state.load(Ordering::SeqCst);
        (state == id.secret).then_some(used)
    }

    /// The entry that an identifier names, if the identifier can be valid.
    fn entry(&self, id: GrantId) -> Option<&'static GrantEntry> {
        self.table.get(id.index as usize).filter(|_| id.secret > FILLING)
    }
}

impl InUse {
    /// The grant, as the table has it.
    #[must_use]
    pub fn grant(&self) -> Grant {
        let GrantEntry { pid, fd, inode, offset, len, rights, .. } = self.entry;
        Grant {
            pid: pid.load(Ordering::Relaxed),
            fd: fd.load(Ordering::Relaxed),
            inode: inode.load(Ordering::Relaxed),
            offset: offset.load(Ordering::Relaxed),
            len: len.load(Ordering::Relaxed),
            rights: rights.load(Ordering::Relaxed),
        }
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        self.entry.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn secret() -> Option<u64> {
    let mut bytes = [0; 8];
    loop {
        if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {
            return None;
        }
        let secret = u64::from_ne_bytes(bytes);
        if secret > FILLING {
            return Some(secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Grants {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        registry.open_slot(3).expect("memory");
        Grants::of(Box::leak(Box::new(registry)), 3, Role::Acceptor)
    }

    fn part(offset: u64) -> Grant {
        Grant { pid: 1, fd: 2, inode: 3, offset, len: 5, rights: 6 }
    }

    #[test]
    fn grant_is_usable_until_it_is_revoked() {
        let grants = grants();
        let id = grants.add(&part(8)).expect("room");
        let used = grants.begin(id).expect("granted");
        assert_eq!(used.grant(), part(8));
        assert!(grants.revoke(id) && !grants.revoke(id));
        assert!(grants.begin(id).is_none());
        assert!(grants.is_in_use(id));
        drop(used);
        assert!(!grants.is_in_use(id));
        let next = grants.add(&part(16)).expect("room");
        assert_eq!(next.index, id.index);
        assert!(grants.begin(id).is_none(), "its entry belongs to another grant");
        assert!(grants.begin(next).is_some());
    }

    #[test]
    fn wrong_identifiers_find_no_grant() {
        let grants = grants();
        let id = grants.add(&part(0)).expect("room");
        for wrong in [
            GrantId { secret: id.secret ^ 1 << 63, ..id },
            GrantId { index: id.index + 1, ..id },
            GrantId { index: u32::MAX, ..id },
            GrantId { index: id.index + 1, secret: FREE },
            GrantId { index: id.index + 1, secret: FILLING },
        ] {
            assert!(grants.begin(wrong).is_none());
            assert!(!grants.revoke(wrong));
        }
        assert!(!grants.is_in_use(id));
    }

    #[test]
    fn full_table_rejects_grants_and_entries_in_use_are_not_reused() {
        let grants = grants();
        let ids: Vec<_> =
            (0..GRANTS_MAX).map(|at| grants.add(&part(at as u64)).expect("room")).collect();
        assert_eq!(grants.add(&part(0)), None);
        let used = grants.begin(ids[4]);
        grants.revoke_all();
        assert!(ids.iter().all(|&id| grants.begin(id).is_none()));
        assert!((1..GRANTS_MAX).all(|_| grants.add(&part(0)).is_some()));
        assert_eq!(grants.add(&part(0)), None, "an operation is under way");
        drop(used);
        assert!(grants.add(&part(0)).is_some());
        grants.reset();
        assert!(grants.add(&part(0)).is_some());
    }
}
