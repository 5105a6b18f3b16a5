//! Local and remote keys: a table for the whole process from 32-bit keys to registered memory.
//!
//! Keys come from the system's random source. So a peer cannot guess the key of memory that was not
//! announced to it, and a stale key hardly ever names new memory. The low eight bits are the part
//! that a program may change itself (`ibv_inc_rkey`, type 2 windows).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::limits::MR_MAX;
use crate::{Errno, Result, random};

#[derive(Debug)]
struct Slot<T> {
    key: u32,
    keyed: T,
}

type Table<T> = HashMap<u32, Slot<T>, BuildHasherDefault<Identity>>;

/// A table of keys and their objects.
#[derive(Debug)]
pub(crate) struct Keys<T> {
    table: RwLock<Table<T>>,
}

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Self { table: RwLock::default() }
    }
}

/// A hasher that uses the key itself, because keys are random.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }
    fn write_u32(&mut self, value: u32) {
        // hashbrown takes the bucket from the low bits and the tag from the high ones.
        self.0 = u64::from(value) | u64::from(value) << 41;
    }
}

/// Number of low bits that the program may choose.
const TAG_BITS: u32 = 8;

impl<T: Clone> Keys<T> {
    fn read(&self) -> RwLockReadGuard<'_, Table<T>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a key and stores what `make` returns for it.
    ///
    /// # Errors
    /// `ENOMEM` when [`MR_MAX`] keys are in use.
    pub(crate) fn insert(&self, make: impl FnOnce(u32) -> T) -> Result<u32> {
        let mut table = self.write();
        if table.len() >= MR_MAX as usize {
            return Err(Errno::NOMEM);
        }
        loop {
            let key = u32::from_ne_bytes(random::bytes()?);
            let index = key >> TAG_BITS;
            // Index 0 would allow the key 0, which programs and protocols use for "no key".
            if index != 0 && !table.contains_key(&index) {
                table.insert(index, Slot { key, keyed: make(key) });
                return Ok(key);
            }
        }
    }

    /// The object of a key, if the key is in use.
    pub(crate) fn find(&self, key: u32) -> Option<T> {
        let table = self.read();
        let slot = table.get(&(key >> TAG_BITS))?;
        (slot.key == key).then(|| slot.keyed.clone())
    }

    /// Changes the key of an object from `old` to `new`, which may differ in its low eight bits
    /// only.
    ///
    /// # Errors
    /// `EINVAL` if `old` is not in use or `new` differs in other bits.
    pub(crate) fn rename(&self, old: u32, new: u32) -> Result<()> {
        if old >> TAG_BITS != new >> TAG_BITS {
            return Err(Errno::INVAL);
        }
        match self.write().get_mut(&(old >> TAG_BITS)) {
            Some(slot) if slot.key == old => {
                slot.key = new;
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Replaces the object of a key by `keyed`.
    ///
    /// # Errors
    /// `EINVAL` if the key is not in use.
    pub(crate) fn replace(&self, key: u32, keyed: T) -> Result<()> {
        match self.write().get_mut(&(key >> TAG_BITS)) {
            Some(slot) if slot.key == key => {
                slot.keyed = keyed;
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Frees a key. Does nothing if the key is not in use.
    pub(crate) fn remove(&self, key: u32) {
        let mut table = self.write();
        if table.get(&(key >> TAG_BITS)).is_some_and(|slot| slot.key == key) {
            table.remove(&(key >> TAG_BITS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_found_until_renamed_or_removed() {
        let keys = Keys::default();
        let key = keys.insert(|_| ()).expect("room");
        assert!(keys.find(key).is_some());
        assert!(keys.find(key ^ 1).is_none(), "another tag is another key");
        let renamed = key & !0xff | (key + 1) & 0xff;
        assert_eq!(keys.rename(key, renamed), Ok(()));
        assert!(keys.find(key).is_none());
        assert!(keys.find(renamed).is_some());
        assert_eq!(keys.rename(renamed, renamed ^ 0x100), Err(Errno::INVAL));
        keys.remove(renamed);
        assert!(keys.find(renamed).is_none());
    }
}
