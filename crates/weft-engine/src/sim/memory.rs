//! The memory of a simulated host: registered, with guards around it, and with a shadow copy of its
//! expected contents.
//!
//! # Safety
//! The registered range lies inside one allocation that outlives the registration. One thread runs
//! the simulation, and no other thread has the keys, so nothing changes the memory while it is
//! read.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use weft_sys::Region;

use crate::access::Access;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::wr::Sge;

/// Number of registered bytes.
pub(super) const LEN: usize = 2 << 20;
/// Number of words for atomics at the start.
pub(super) const WORDS: usize = 64;
/// Start of the bytes behind the words that never change; reads use them.
pub(super) const LIBRARY_AT: usize = WORDS * 8;
pub(super) const LIBRARY_LEN: usize = 64 << 10;
pub(super) const GUARD_LEN: usize = 4096;
const GUARD: u8 = 0xa5;

/// A piece of the memory: offset and length.
pub(super) type Piece = (usize, usize);

/// Registered memory.
pub(super) struct Arena {
    cells: Box<[UnsafeCell<u64>]>,
    shadow: Vec<u8>,
    /// Offsets and lengths of free pieces.
    free: BTreeMap<usize, usize>,
    /// The region that grants all rights.
    pub(super) mr: Arc<Mr>,
    /// A region of the same memory without remote rights.
    pub(super) private: Arc<Mr>,
    /// A region of the same memory without local write.
    pub(super) readonly: Arc<Mr>,
}

impl Arena {
    pub(super) fn new(pd: &Arc<Pd>, rng: &mut fastrand::Rng) -> Self {
        let guard = u64::from_ne_bytes([GUARD; 8]);
        let words = (LEN + 2 * GUARD_LEN) / 8;
        let cells: Box<[_]> = vec![guard; words].into_iter().map(UnsafeCell::new).collect();
        let first = cells.as_ptr() as usize + GUARD_LEN;
        // SAFETY: the range lies inside `cells`, which lives until after the deregistration in
        // `drop`. The cells are `UnsafeCell`s, so they may change behind shared references.
        let region = unsafe { Region::new(first, LEN) }.expect("no wrap");
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let register = |access| Mr::register(pd, region, first as u64, access).expect("room");
        let mut arena = Self {
            mr: register(all),
            private: register(Access::LOCAL_WRITE),
            readonly: register(Access::REMOTE_READ),
            cells,
            shadow: vec![GUARD; LEN],
            free: BTreeMap::from([(LIBRARY_AT + LIBRARY_LEN, LEN - LIBRARY_AT - LIBRARY_LEN)]),
        };
        arena.write(0, &[0; WORDS * 8]);
        let mut library = vec![0; LIBRARY_LEN];
        rng.fill(&mut library);
        arena.write(LIBRARY_AT, &library);
        arena
    }

    pub(super) fn addr(&self, offset: usize) -> u64 {
        self.mr.iova() + offset as u64
    }

    pub(super) fn sge(&self, (offset, len): Piece) -> Sge {
        let length = u32::try_from(len).expect("arenas are small");
        Sge { addr: self.addr(offset), length, lkey: self.mr.key() }
    }

    /// The current contents of a piece.
    pub(super) fn read(&self, (offset, len): Piece) -> &[u8] {
        assert!(offset + len <= LEN);
        let first = self.mr.iova() as usize + offset;
        // SAFETY: the range is inside the allocation (asserted). Nothing changes it while the slice
        // lives: this is the only thread that runs the simulation, and `&self` keeps it from
        // driving the engine meanwhile.
        unsafe { std::slice::from_raw_parts(first as *const u8, len) }
    }

    /// Writes to the memory as the program does, and to the shadow copy.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.scribble(offset as isize, bytes);
        self.settle(offset, bytes);
    }

    /// Writes without updating the shadow copy: a defect that must be found. May write to the
    /// guards, too.
    pub(super) fn scribble(&self, offset: isize, bytes: &[u8]) {
        let end = offset + bytes.len() as isize;
        let guard = GUARD_LEN as isize;
        assert!(offset >= -guard && end <= LEN as isize + guard);
        let place = (self.mr.iova() as isize + offset) as *mut u8;
        // SAFETY: the range is inside the allocation (asserted), and its cells may change at any
        // time. No slice of `read` exists, because this is the only thread and it holds none.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) }
    }

    /// Sets the expected contents of these bytes.
    pub(super) fn settle(&mut self, offset: usize, bytes: &[u8]) {
        self.shadow[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Accepts the current contents of a piece, which a broken connection may or may not have
    /// written.
    pub(super) fn accept_current(&mut self, (offset, len): Piece) {
        let now = self.read((offset, len)).to_vec();
        self.settle(offset, &now);
    }

    /// The offset, within the registered range, of the first byte that is not as expected.
    pub(super) fn first_difference(&self) -> Option<isize> {
        let first = (self.mr.iova() as usize - GUARD_LEN) as *const u8;
        // SAFETY: the range is the whole allocation of `cells`. Nothing changes it while the slice
        // lives: this is the only thread, and it does not drive the engine in this function.
        let all = unsafe { std::slice::from_raw_parts(first, LEN + 2 * GUARD_LEN) };
        let (inside, before, behind) =
            (&all[GUARD_LEN..GUARD_LEN + LEN], &all[..GUARD_LEN], &all[GUARD_LEN + LEN..]);
        let at = if before.iter().any(|&byte| byte != GUARD) {
            -1
        } else if behind.iter().any(|&byte| byte != GUARD) {
            LEN as isize
        } else if inside != self.shadow {
            inside.iter().zip(&self.shadow).position(|(a, b)| a != b)? as isize
        } else {
            return None;
        };
        Some(at)
    }

    /// Number of free bytes.
    pub(super) fn free_len(&self) -> usize {
        self.free.values().sum()
    }

    /// Allocates a piece.
    pub(super) fn allocate(&mut self, len: usize) -> Option<usize> {
        if len == 0 {
            return Some(LIBRARY_AT);
        }
        let len = len.next_multiple_of(8);
        let (&at, &room) = self.free.iter().find(|&(_, &room)| room >= len)?;
        self.free.remove(&at);
        if room > len {
            self.free.insert(at + len, room - len);
        }
        Some(at)
    }

    /// Frees a piece.
    pub(super) fn release(&mut self, (at, len): Piece) {
        if len == 0 {
            return;
        }
        let (mut at, mut len) = (at, len.next_multiple_of(8));
        if let Some((&before, &room)) = self.free.range(..at).next_back()
            && before + room == at
        {
            self.free.remove(&before);
            (at, len) = (before, room + len);
        }
        if let Some(room) = self.free.remove(&(at + len)) {
            len += room;
        }
        self.free.insert(at, len);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for mr in [&self.mr, &self.private, &self.readonly] {
            // A window may still be bound, but no request uses the keys any more.
            let _ = mr.deregister();
            mr.invalidate();
        }
        let _ = &self.cells;
    }
}
