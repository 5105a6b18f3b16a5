//! Children of forks that nobody has seen: made by hand, before the process had a socket and its
//! calls by hand were reported.
//!
//! Such a child has a copy of all that the library knows, and another number. So has a child of
//! `vfork(2)`, but that one shares the memory, and nothing of it may be changed for it. A page that
//! the kernel empties in children with a memory of their own (`MADV_WIPEONFORK`, madvise(2)) tells
//! the two apart.
//!
//! # Safety
//! The page is mapped once, and stays.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The kernel maps whole pages.
const LEN: usize = 4096;

/// The number of the process whose memory this is, in the page; NULL where there is none, before
/// Linux 4.14.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Forks under way that are seen: their children say themselves that they have begun.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// What has a child begin to be a process of its own.
static BEGINS: OnceLock<fn()> = OnceLock::new();

/// The process begins. A child that nobody has seen will begin by a function.
pub(crate) fn prepare(pid: u32, begins: fn()) {
    BEGINS.get_or_init(|| begins);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), LEN, access, MapFlags::PRIVATE) };
    let Ok(page) = page else { return };
    // SAFETY: the whole of that mapping, which holds nothing yet.
    let wiped = unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) };
    if wiped.is_err() {
        // SAFETY: nobody else has it.
        let _ = unsafe { munmap(page, LEN) };
        return;
    }
    OWNER.store(page.cast(), Ordering::Release);
    has_begun(pid);
}

/// Before a fork that is seen.
pub(crate) fn before_seen() {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

/// After it, in the parent.
pub(crate) fn after_seen() {
    SEEN.fetch_sub(1, Ordering::Relaxed);
}

/// A process has this memory from here on: this one, of this number.
pub(crate) fn has_begun(pid: u32) {
    SEEN.store(0, Ordering::Relaxed);
    if let Some(owner) = owner() {
        owner.store(pid, Ordering::Release);
    }
}

/// Whether the memory is of the calling process, which is another one than the library knows of.
/// The first who asks begins to be it.
#[cold]
pub(crate) fn is_own(pid: u32) -> bool {
    let Some(owner) = owner().filter(|_| SEEN.load(Ordering::Relaxed) == 0) else { return false };
    match owner.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => BEGINS.get().into_iter().for_each(|begins| begins()),
        Err(other) => return other == pid, // Another thread's turn.
    }
    true
}

fn owner() -> Option<&'static AtomicU32> {
    // SAFETY: NULL, or a page of zeros at first, which stays mapped.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}
