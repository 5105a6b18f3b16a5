//! Children of forks that the hooks did not see: made by hand, before the process had a socket and
//! its calls by hand were reported.
//!
//! Such a child has a copy of the library's state, and another process id. So does a child of
//! `vfork(2)`, but that one shares the parent's memory, which must not change for it. A page that
//! the kernel wipes in children with memory of their own (`MADV_WIPEONFORK`, madvise(2)) tells the
//! two apart.
//!
//! # Safety
//! The page is mapped once, and never unmapped.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use weft_sys::calls::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The kernel maps whole pages.
const LEN: usize = 4096;

/// The wiped page, which holds the id of the process that owns the memory; NULL if there is none
/// (before Linux 4.14).
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Number of forks in progress that are seen: their children begin by themselves.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// The function with which a child begins as a process of its own.
static BEGINS: OnceLock<fn()> = OnceLock::new();

/// Prepares the page when the process begins. `begins` is called in a child of an unseen fork.
pub(crate) fn prepare(pid: u32, begins: fn()) {
    BEGINS.get_or_init(|| begins);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the new mapping.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), LEN, access, MapFlags::PRIVATE) };
    let Ok(page) = page else { return };
    // SAFETY: the range is the new mapping, which holds no data yet.
    let wiped = unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) };
    if wiped.is_err() {
        // SAFETY: the range is the new mapping, which nothing else uses.
        let _ = unsafe { munmap(page, LEN) };
        return;
    }
    OWNER.store(page.cast(), Ordering::Release);
    has_begun(pid);
}

/// Counts a fork that is seen, before it.
pub(crate) fn before_seen() {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

/// Ends the count after the fork, in the parent.
pub(crate) fn after_seen() {
    SEEN.fetch_sub(1, Ordering::Relaxed);
}

/// Records that process `pid` owns this memory.
pub(crate) fn has_begun(pid: u32) {
    SEEN.store(0, Ordering::Relaxed);
    if let Some(owner) = owner() {
        owner.store(pid, Ordering::Release);
    }
}

/// Returns whether the calling process, which the library does not know yet, owns this memory. The
/// first thread that asks lets it begin.
#[cold]
pub(crate) fn is_own(pid: u32) -> bool {
    let Some(owner) = owner().filter(|_| SEEN.load(Ordering::Relaxed) == 0) else { return false };
    match owner.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => BEGINS.get().into_iter().for_each(|begins| begins()),
        Err(other) => return other == pid, // Another thread has just begun.
    }
    true
}

fn owner() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is NULL or to a page that is never unmapped, of zeros at first.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}
