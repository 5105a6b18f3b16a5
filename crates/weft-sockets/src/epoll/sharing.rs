//! Instances that a child has inherited by `fork(2)`: most children never use them. The first that
//! does says so in a word that it shares with its parent; from then on the instance is the
//! kernel's alone, on both sides.
//!
//! # Safety
//! Pages of words are mapped once, and never unmapped.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use weft_sys::SectionLock;

const PAGE: usize = 4_096;

/// Words of this process that no instance has had. A child begins a page of its own.
static FREE: SectionLock<&'static [AtomicU8]> = SectionLock::new(&[]);

/// Whether an instance is used by two processes.
#[derive(Debug)]
pub(super) struct Sharing {
    /// `None`: there was no memory, and a child that inherits the instance cannot say so.
    word: Option<&'static AtomicU8>,
    is_inherited: AtomicBool,
}

impl Sharing {
    pub(super) fn new() -> Self {
        Self { word: take(), is_inherited: AtomicBool::new(false) }
    }

    /// Whether a child could tell.
    pub(super) fn can_be_notified(&self) -> bool {
        self.word.is_some()
    }

    /// This is a child just born, and the instance is the parent's.
    pub(super) fn inherit(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    /// Whether the parent made the instance.
    pub(super) fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed)
    }

    /// Whether another process may have changed the instance.
    pub(super) fn is_used_by_others(&self) -> bool {
        self.is_inherited() || self.word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    /// This process is about to use the instance. Returns whether another one may do so, too.
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

/// A word of zero that stays the same for children.
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
    // SAFETY: the kernel chooses where.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED) };
    let start = start.ok()?.cast::<AtomicU8>();
    // SAFETY: so many bytes, zero, that stay mapped; nobody has them but by this slice.
    Some(unsafe { std::slice::from_raw_parts(start, PAGE) })
}

/// Before a fork.
pub(super) fn freeze() {
    FREE.freeze();
}

/// After it.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(super) unsafe fn thaw() {
    // SAFETY: guaranteed by the caller.
    unsafe { FREE.thaw() };
}

/// This is a child just born: what is free is the parent's.
pub(super) fn forked() {
    *FREE.lock() = &[];
}
