//! Tracks which instances a child uses that it has inherited by `fork(2)`; most children use none.
//! The first use sets a flag in memory that is shared with the parent. From then on only the kernel
//! serves the instance, in both processes.
//!
//! # Safety
//! Pages of flags are mapped once, and never unmapped.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use weft_sys::SectionLock;
use weft_sys::calls::mm::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4_096;

/// Free flags of this process. A child starts with a page of its own.
static FREE: SectionLock<&'static [AtomicU8]> = SectionLock::new(&[]);

/// Whether two processes use an instance.
#[derive(Debug)]
pub(super) struct Sharing {
    /// The shared flag. `None`: there was no memory, and a child cannot set it.
    word: Option<&'static AtomicU8>,
    is_inherited: AtomicBool,
}

impl Sharing {
    pub(super) fn new() -> Self {
        Self { word: take(), is_inherited: AtomicBool::new(false) }
    }

    /// Returns whether a child can set the flag.
    pub(super) fn can_be_notified(&self) -> bool {
        self.word.is_some()
    }

    /// Marks the instance as inherited, in a forked child.
    pub(super) fn inherit(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    /// Returns whether the parent has created the instance.
    pub(super) fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed)
    }

    /// Returns whether another process may have changed the instance.
    pub(super) fn is_used_by_others(&self) -> bool {
        self.is_inherited() || self.word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Marks the instance as used by this process. Returns whether another one may use it, too.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        if self.is_inherited.load(Ordering::Relaxed) {
            if let Some(word) = self.word {
                word.store(1, Ordering::SeqCst);
            }
            return true;
        }
        self.word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }
}

/// Takes a flag that is 0 and stays shared with children.
fn take() -> Option<&'static AtomicU8> {
    let mut free = FREE.lock();
    if free.is_empty() {
        *free = map()?;
    }
    let (first, rest) = free.split_first()?;
    *free = rest;
    Some(first)
}

fn map() -> Option<&'static [AtomicU8]> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the new mapping.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED) };
    let start = start.ok()?.cast::<AtomicU8>();
    // SAFETY: the new mapping has PAGE zero bytes, is never unmapped, and is accessed by this slice
    // alone.
    Some(unsafe { std::slice::from_raw_parts(start, PAGE) })
}

/// Locks the free list before a fork.
pub(super) fn freeze() {
    FREE.freeze();
}

/// Unlocks it after the fork.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`freeze`].
pub(super) unsafe fn thaw() {
    // SAFETY: the caller has frozen `FREE`.
    unsafe { FREE.thaw() };
}

/// Drops the free flags in a forked child: they are the parent's.
pub(super) fn forked() {
    *FREE.lock() = &[];
}
