//! Which descriptors are ours, and what we know of each.
//!
//! # Safety
//! Entries are leaked and used again and again, so that a reference to one is valid for ever. An
//! entry's content belongs to one open socket from [`install`] until the last reference is given
//! back; who holds a reference (a descriptor's, or that of a call under way) finds the same socket
//! in it. A look-up takes its reference and then looks whether the table still names the entry: see
//! [`Slot`], whose model tries this beside closes and opens.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use weft_sys::{SignalLock, Slot};

use crate::datagram::Datagram;
use crate::epoll::Epoll;
use crate::settings;
use crate::stream::Stream;

/// Descriptors from here on are never ours.
pub(crate) const FDS_MAX: usize = 1 << 20;

static TABLE: [AtomicPtr<Entry>; FDS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS_MAX];
/// Entries that no descriptor has.
static SPARE: SignalLock<Spare> = SignalLock::new(Spare { first: None, fresh: &[] });
/// Entries that are made at once.
const MADE_AT_ONCE: usize = 32;
/// No descriptor from here on has ever been in the table.
static END: AtomicU32 = AtomicU32::new(0);

/// What a descriptor of ours is.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Almost all are the large one, and they are looked at often.
pub(crate) enum Kind {
    /// A TCP socket.
    Stream(Stream),
    /// A UDP socket.
    Datagram(Datagram),
    /// An epoll instance.
    Epoll(Epoll),
}

/// What is known of an open file; descriptors that `dup(2)` made share it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Held by each descriptor and each call that has it.
    kind: Slot<Kind>,
    /// Descriptors that have it.
    fds: AtomicU32,
    /// The next spare one, of an entry that is spare.
    next: AtomicPtr<Self>,
}

/// Entries that no descriptor has: a list through themselves, and such as never had one. A handler
/// that opens or closes a socket may have interrupted the program's allocator, so they are not the
/// allocator's.
struct Spare {
    first: Option<&'static Entry>,
    fresh: &'static [Entry],
}

impl Spare {
    fn push(&mut self, entry: &'static Entry) {
        let next = self.first.map_or(ptr::null_mut(), |first| ptr::from_ref(first).cast_mut());
        entry.next.store(next, Ordering::Relaxed);
        self.first = Some(entry);
    }

    /// `None` if there is no memory.
    fn pop(&mut self) -> Option<&'static Entry> {
        if let Some(entry) = self.first {
            // SAFETY: NULL, or an entry, which is never freed.
            self.first = unsafe { entry.next.load(Ordering::Relaxed).as_ref() };
            return Some(entry);
        }
        if self.fresh.is_empty() {
            self.fresh = Self::make()?;
        }
        let (entry, rest) = self.fresh.split_first()?;
        self.fresh = rest;
        Some(entry)
    }

    fn make() -> Option<&'static [Entry]> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let len = MADE_AT_ONCE * size_of::<Entry>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let start: *mut Entry = start.ok()?.cast();
        for at in 0..MADE_AT_ONCE {
            // SAFETY: within the mapping, whose pages are aligned for anything.
            let place = unsafe { start.add(at) };
            // SAFETY: likewise, and nobody else knows it.
            unsafe { place.write(Entry::new()) };
        }
        // SAFETY: all are written, and the mapping stays for ever.
        Some(unsafe { std::slice::from_raw_parts(start, MADE_AT_ONCE) })
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Kind>();
};

/// A reference to an entry.
#[derive(Debug)]
pub(crate) struct Held(&'static Entry);

impl Deref for Held {
    type Target = Kind;
    #[inline]
    fn deref(&self) -> &Kind {
        // SAFETY: held, until this is dropped.
        let kind = unsafe { self.0.kind.get() };
        let Some(kind) = kind else { unreachable!("an entry that is held has a content") };
        kind
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the hold that this stands for.
        if let Some(kind) = unsafe { self.0.kind.release() } {
            retire(self.0, kind);
        }
    }
}

impl Held {
    /// How many descriptors of this process stand for it.
    pub(crate) fn descriptors(&self) -> u32 {
        self.0.fds.load(Ordering::Acquire)
    }

    /// The same for another holder.
    pub(crate) fn again(&self) -> Self {
        // SAFETY: held by this.
        unsafe { self.0.kind.hold_again() };
        Self(self.0)
    }

    /// Whether both are the same open file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            kind: Slot::default(),
            fds: AtomicU32::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

#[cold]
fn retire(entry: &'static Entry, kind: Kind) {
    // A confined process opens no socket any more, and may not be allowed to hold signals off.
    if !settings::is_confined() {
        SPARE.lock().push(entry);
    }
    drop(kind);
}

fn cell(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd))
}

/// What `fd` is, if it is ours.
#[inline]
pub(crate) fn find(fd: RawFd) -> Option<Held> {
    let cell = cell(fd)?;
    loop {
        let entry = cell.load(Ordering::Acquire);
        // SAFETY: NULL, or an entry, which is never freed.
        let entry = unsafe { entry.as_ref() }?;
        if !entry.kind.hold() {
            continue; // It was closed in between, and the table names it no more.
        }
        let held = Held(entry);
        if ptr::eq(cell.load(Ordering::Acquire), entry) {
            return Some(held);
        }
        // It was closed in between. What the entry is now goes with this if it is the last to go.
    }
}

/// Whether `fd` is ours, without holding it.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    cell(fd).is_some_and(|cell| !cell.load(Ordering::Relaxed).is_null())
}

/// Makes `fd`, just opened, ours.
pub(crate) fn install(fd: RawFd, kind: Kind) {
    let Some(cell) = cell(fd) else { return };
    let spare = SPARE.lock().pop();
    let Some(entry) = spare else { return drop(remove(fd)) };
    entry.fds.store(1, Ordering::Relaxed);
    // SAFETY: fresh, or spare, which it is since its last content was taken out.
    unsafe { entry.kind.fill(kind) };
    note_end(fd);
    let old = cell.swap(ptr::from_ref(entry).cast_mut(), Ordering::AcqRel);
    abandon(old);
}

/// `copy` stands for the same open file as `held` from now on.
pub(crate) fn share(held: &Held, copy: RawFd) {
    let Some(cell) = cell(copy) else { return };
    std::mem::forget(held.again()); // The descriptor's.
    held.0.fds.fetch_add(1, Ordering::AcqRel);
    note_end(copy);
    let old = cell.swap(ptr::from_ref(held.0).cast_mut(), Ordering::AcqRel);
    abandon(old);
}

/// All descriptors of `held` stand for something else from now on.
pub(crate) fn replace(held: &Held, kind: Kind) {
    let is_copy = |fd: &RawFd| find(*fd).is_some_and(|other| other.is(held));
    let mut copies = within(0, u32::MAX).filter(is_copy);
    let Some(first) = copies.next() else { return };
    let copies: Vec<RawFd> = copies.collect();
    install(first, kind);
    if let Some(new) = find(first) {
        copies.into_iter().for_each(|copy| share(&new, copy));
    }
}

/// `fd` is closed, or is about to be. Returns what it was; the number of descriptors left is
/// [`Held::descriptors`].
pub(crate) fn remove(fd: RawFd) -> Option<Held> {
    let entry = cell(fd)?.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: NULL, or an entry, which is never freed.
    let entry = unsafe { entry.as_ref() }?;
    entry.fds.fetch_sub(1, Ordering::AcqRel);
    // The descriptor's reference becomes the caller's.
    Some(Held(entry))
}

/// A descriptor that was closed behind our back, and whose number has come up again.
fn abandon(old: *mut Entry) {
    // SAFETY: NULL, or an entry, which is never freed.
    if let Some(old) = unsafe { old.as_ref() } {
        old.fds.fetch_sub(1, Ordering::AcqRel);
        drop(Held(old));
    }
}

/// Every descriptor of ours in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let end = END.load(Ordering::Acquire);
    let fds = first..end.min(last.saturating_add(1));
    fds.filter_map(|fd| RawFd::try_from(fd).ok()).filter(|&fd| knows(fd))
}

fn note_end(fd: RawFd) {
    END.fetch_max(fd.unsigned_abs() + 1, Ordering::AcqRel);
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn freeze() {
    SPARE.freeze();
}

/// After it, in the parent and in the child.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller's promise.
    unsafe { SPARE.thaw() };
}
