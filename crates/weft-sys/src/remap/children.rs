//! Gives a forked child a copy of its own of remapped memory, which it must not share with its
//! parent. The parent makes the copies before the fork, so that neither it nor its peers can change
//! them, and drops them afterwards; the child moves them into place.
//!
//! # Safety
//! A lock guards the table. The thread that forks holds it across the fork, so the child holds it,
//! too. Mappings are replaced only where the kernel has reported, under the lock, that they are
//! segments.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};

use super::replica::Replica;
use super::{Piece, Place, map, pieces};
use crate::calls::io::Errno;
use crate::shared::SharedMemory;

/// A segment of this process.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) inode: u64,
    /// The segment's descriptor, open as long as the entry is in the table.
    pub(super) fd: RawFd,
    /// Weft's mapping.
    pub(super) pages: Weak<SharedMemory>,
}

/// What a child does with a piece of a segment.
#[derive(Debug)]
enum Repair {
    Put(Replica),
    /// Maps a private view of the segment, because there was no memory for a copy. It shows what
    /// the parent writes to pages that the child has not written to.
    View(Piece, RawFd),
    /// Aborts: the child cannot continue.
    Fail,
}

#[derive(Debug)]
struct State {
    entries: Vec<Entry>,
    /// Whether pieces of segments may exist that are not in the table any more.
    may_have_orphans: bool,
    /// The repairs for the child, during a fork.
    repairs: Vec<Repair>,
}

static LOCKED: AtomicBool = AtomicBool::new(false);
static STATE: StateCell = StateCell(UnsafeCell::new(State {
    entries: Vec::new(),
    may_have_orphans: false,
    repairs: Vec::new(),
}));

struct StateCell(UnsafeCell<State>);

// SAFETY: the state is reached only through a `Table`, and there is one at a time.
unsafe impl Sync for StateCell {}

/// The table of segments, locked.
pub(super) struct Table(());

impl Table {
    pub(super) fn lock() -> Self {
        while LOCKED.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Self(())
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: only one `Table` exists at a time, because `lock` waits until the last one is
        // dropped, and this one is borrowed exclusively.
        unsafe { &mut *STATE.0.get() }
    }

    /// Reserves room, so that the next [`Table::insert`] does not allocate.
    pub(super) fn make_room(&mut self) {
        self.state().entries.reserve(1);
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.state().entries.push(entry);
    }

    pub(super) fn remove(&mut self, inode: u64) {
        self.state().entries.retain(|entry| entry.inode != inode);
    }

    pub(super) fn may_have_orphans(&mut self) {
        self.state().may_have_orphans = true;
    }

    /// Weft's mapping of a segment.
    pub(super) fn pages_of(&mut self, inode: u64) -> Option<Arc<SharedMemory>> {
        self.state().entries.iter().find(|entry| entry.inode == inode)?.pages.upgrade()
    }

    /// Copies the pieces that a child must not share.
    fn prepare(&mut self) {
        let state = self.state();
        if state.entries.is_empty() && !state.may_have_orphans {
            return;
        }
        // Weft's own mappings are not the program's: a child may use them like the parent.
        let own = |at| {
            let mapped = |entry: &Entry| entry.pages.upgrade().map(|pages| pages.addr());
            state.entries.iter().any(|entry| mapped(entry) == Some(at))
        };
        state.repairs = match pieces(|entry| !own(entry.range.start)) {
            Ok(pieces) => pieces.iter().map(|piece| repair(&state.entries, piece)).collect(),
            Err(_) => vec![Repair::Fail],
        };
    }

    /// Replaces the child's pieces of segments by memory of its own.
    fn repair(&mut self) -> Result<(), Errno> {
        let state = self.state();
        // The entries are the parent's. Do not free them: another thread of it may have been using
        // them.
        std::mem::forget(std::mem::take(&mut state.entries));
        state.may_have_orphans = false;
        for repair in state.repairs.drain(..) {
            match repair {
                // SAFETY: this replaces shared pages by their copy, in a process that has only this
                // thread.
                Repair::Put(replica) => unsafe { replica.put()? },
                Repair::View(piece, fd) => {
                    let Piece { range, rights, offset, .. } = piece;
                    let place = Place { at: Some(range.start), len: range.len(), rights };
                    // SAFETY: this replaces shared pages by a private view of the same pages, in a
                    // process that has only this thread.
                    unsafe { map(&place, libc::MAP_PRIVATE, fd, offset)? };
                }
                Repair::Fail => return Err(Errno::NOMEM),
            }
        }
        Ok(())
    }
}

fn repair(entries: &[Entry], piece: &Piece) -> Repair {
    let segment = entries.iter().find(|entry| entry.inode == piece.inode).map(|entry| entry.fd);
    match (Replica::of(piece, segment), segment) {
        (Ok(replica), _) => Repair::Put(replica),
        (Err(_), Some(fd)) => Repair::View(piece.clone(), fd),
        (Err(_), None) => Repair::Fail,
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
    }
}

pub(super) fn watch_forks() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the functions live for ever. If they cannot be registered, a child shares the
        // pages.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before_fork() {
    let mut table = Table::lock();
    table.prepare();
    std::mem::forget(table);
}

extern "C" fn in_parent() {
    // `before_fork` has locked the table in the same thread.
    let mut table = Table(());
    table.state().repairs.clear();
}

extern "C" fn in_child() {
    // `before_fork` has locked the table in the thread of which this one is a copy.
    let mut table = Table(());
    if table.repair().is_err() {
        const WHY: &[u8] = b"weft: no memory for a forked process's copy of registered memory\n";
        // SAFETY: the bytes live for ever, and the length is theirs.
        unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
        std::process::abort();
    }
}
