//! A table from descriptors to what is known of the open files that they stand for.
//!
//! # Safety
//! Entries are leaked and used again and again, so that a reference to one is valid for ever. An
//! entry's content belongs to one open file from [`Table::install`] until the last reference is
//! given back; the holder of a reference (a descriptor, or a call under way) finds the same content
//! in it. A look-up takes its reference and then looks whether the table still names the entry: see
//! [`Slot`], whose model tries this beside closes and opens.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use weft_sys::{Lock, SignalLock, SignalsHeld, Slot};

use crate::limits::FDS_MAX;
use crate::mode;

/// Entries that are made at once.
const MADE_AT_ONCE: usize = 32;

/// What a table is of.
pub(crate) trait Listed: Send + Sync + 'static {
    /// The one table of these.
    fn table() -> &'static Table<Self>
    where
        Self: Sized;

    /// It stands in the table from here on. Once.
    fn placed(&self, place: Place) {
        let _ = place;
    }
}

/// Where something stands in its table, for itself: its user need not know what else the
/// table is of.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    entry: &'static dyn AnyEntry,
    cells: &'static [AtomicPtr<()>; FDS_MAX],
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Place").field(&ptr::from_ref(self.entry)).finish()
    }
}

impl Place {
    /// Whether `fd` still stands for it: another thread may have closed the descriptor, and its
    /// number may stand for something else by now.
    pub(crate) fn is_at(&self, fd: RawFd) -> bool {
        let cell = usize::try_from(fd).ok().and_then(|fd| self.cells.get(fd));
        cell.is_some_and(|cell| ptr::addr_eq(cell.load(Ordering::Acquire), self.entry))
    }

    /// Holds it, if `fd` still stands for it.
    pub(crate) fn keep_at(&self, fd: RawFd) -> Option<Kept> {
        let kept = self.entry.hold().then_some(Kept(self.entry))?;
        self.is_at(fd).then_some(kept)
    }
}

/// A reference to an entry, whatever is in it.
pub(crate) struct Kept(&'static dyn AnyEntry);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&ptr::from_ref(self.0)).finish()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the hold that this stands for.
        unsafe { self.0.release() };
    }
}

/// An entry, whatever is in it.
trait AnyEntry: Sync {
    /// Holds it. `false`: there is nothing in it.
    fn hold(&self) -> bool;

    /// Gives back a hold.
    ///
    /// # Safety
    /// The caller has it, and does not use it any more.
    unsafe fn release(&'static self);
}

impl<T: Listed> AnyEntry for Entry<T> {
    fn hold(&self) -> bool {
        self.content.hold()
    }

    unsafe fn release(&'static self) {
        // SAFETY: guaranteed by the caller.
        if let Some(content) = unsafe { self.content.release() } {
            T::table().retire(self, content);
        }
    }
}

/// A table from descriptors. Reading it takes no lock.
pub(crate) struct Table<T: 'static> {
    /// Each NULL, or the entry of a descriptor.
    cells: [AtomicPtr<()>; FDS_MAX],
    /// Held while something new is put into the table.
    opening: SignalLock<()>,
    /// Entries that no descriptor has. Its holder gets no signals.
    spare: Lock<Spare<T>>,
    /// No descriptor from here on has ever been in the table.
    end: AtomicU32,
}

/// What is known of an open file; descriptors that `dup(2)` made share it.
struct Entry<T> {
    /// Held by each descriptor and each call that has it.
    content: Slot<T>,
    /// Descriptors that have it.
    fds: AtomicU32,
    /// The next spare one, of an entry that is spare.
    next: AtomicPtr<Self>,
}

/// Entries that no descriptor has: a list through themselves, and such as never had one. A handler
/// that opens or closes a socket may have interrupted the program's allocator, so they are not the
/// allocator's.
struct Spare<T: 'static> {
    first: Option<&'static Entry<T>>,
    fresh: &'static [Entry<T>],
}

impl<T> Spare<T> {
    fn push(&mut self, entry: &'static Entry<T>) {
        let next = self.first.map_or(ptr::null_mut(), |first| ptr::from_ref(first).cast_mut());
        entry.next.store(next, Ordering::Relaxed);
        self.first = Some(entry);
    }

    /// `None` if there is no memory.
    fn pop(&mut self) -> Option<&'static Entry<T>> {
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

    fn make() -> Option<&'static [Entry<T>]> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let len = MADE_AT_ONCE * size_of::<Entry<T>>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let start: *mut Entry<T> = start.ok()?.cast();
        for at in 0..MADE_AT_ONCE {
            // SAFETY: within the mapping, whose pages are aligned for anything.
            let place = unsafe { start.add(at) };
            // SAFETY: within the mapping, whose pages are aligned for anything, and nobody else
            // knows it.
            unsafe { place.write(Entry::new()) };
        }
        // SAFETY: all are written, and the mapping stays for ever.
        Some(unsafe { std::slice::from_raw_parts(start, MADE_AT_ONCE) })
    }
}

/// A reference to an entry.
pub(crate) struct Held<T: Listed>(&'static Entry<T>);

impl<T: Listed + std::fmt::Debug> std::fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&**self).finish()
    }
}

impl<T: Listed> Deref for Held<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: held, until this is dropped.
        let content = unsafe { self.0.content.get() };
        let Some(content) = content else { unreachable!("an entry that is held has a content") };
        content
    }
}

impl<T: Listed> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the hold that this stands for.
        unsafe { self.0.release() };
    }
}

impl<T: Listed> Held<T> {
    /// How many descriptors of this process stand for it.
    pub(crate) fn descriptors(&self) -> u32 {
        self.0.fds.load(Ordering::Acquire)
    }

    /// The same for another holder.
    pub(crate) fn again(&self) -> Self {
        // SAFETY: held by this.
        unsafe { self.0.content.hold_again() };
        Self(self.0)
    }

    /// Whether both are the same open file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> Entry<T> {
    fn new() -> Self {
        Self {
            content: Slot::default(),
            fds: AtomicU32::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl<T: Listed> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            cells: [const { AtomicPtr::new(ptr::null_mut()) }; FDS_MAX],
            opening: SignalLock::new(()),
            spare: Lock::new(Spare { first: None, fresh: &[] }),
            end: AtomicU32::new(0),
        }
    }

    #[cold]
    fn retire(&self, entry: &'static Entry<T>, content: T) {
        // A process in the seccomp fallback opens no socket, and may not be allowed to hold signals
        // off.
        if !mode::is_in_fallback() {
            let signals = SignalsHeld::begin();
            self.spare.lock().push(entry);
            drop(signals);
        }
        drop(content);
    }

    fn cell(&self, fd: RawFd) -> Option<&AtomicPtr<()>> {
        usize::try_from(fd).ok().and_then(|fd| self.cells.get(fd))
    }

    /// What is known of `fd`.
    #[inline]
    pub(crate) fn find(&self, fd: RawFd) -> Option<Held<T>> {
        let cell = self.cell(fd)?;
        loop {
            let entry: *mut Entry<T> = cell.load(Ordering::Acquire).cast();
            // SAFETY: NULL, or an entry, which is never freed.
            let entry = unsafe { entry.as_ref() }?;
            if !entry.content.hold() {
                continue; // It was closed in between, and the table names it no more.
            }
            let held = Held(entry);
            if ptr::addr_eq(cell.load(Ordering::Acquire), entry) {
                return Some(held);
            }
            // It was closed in between. What the entry is now goes with this if it is the last.
        }
    }

    /// Whether `fd` is in the table, without holding it.
    #[inline]
    pub(crate) fn knows(&self, fd: RawFd) -> bool {
        self.cell(fd).is_some_and(|cell| !cell.load(Ordering::Relaxed).is_null())
    }

    /// Puts `fd`, just opened, into the table.
    pub(crate) fn install(&'static self, fd: RawFd, content: T) {
        let Some(cell) = self.cell(fd) else { return };
        let opening = self.opening.lock();
        let entry = self.spare.lock().pop();
        let Some(entry) = entry else {
            drop(opening);
            return drop(self.remove(fd));
        };
        entry.fds.store(1, Ordering::Relaxed);
        // SAFETY: fresh, or spare, which it is since its last content was taken out.
        unsafe { entry.content.fill(content) };
        // SAFETY: filled, with the descriptor's hold.
        if let Some(content) = unsafe { entry.content.get() } {
            content.placed(Place { entry, cells: &self.cells });
        }
        self.note_end(fd);
        let old = cell.swap(ptr::from_ref(entry).cast_mut().cast(), Ordering::AcqRel);
        drop(opening);
        abandon::<T>(old.cast());
    }

    /// `copy` stands for the same open file as `held` from now on.
    pub(crate) fn share(&self, held: &Held<T>, copy: RawFd) {
        let Some(cell) = self.cell(copy) else { return };
        std::mem::forget(held.again()); // The descriptor's.
        held.0.fds.fetch_add(1, Ordering::AcqRel);
        self.note_end(copy);
        let old = cell.swap(ptr::from_ref(held.0).cast_mut().cast(), Ordering::AcqRel);
        abandon::<T>(old.cast());
    }

    /// All descriptors of `held` stand for something else from now on.
    pub(crate) fn replace(&'static self, held: &Held<T>, content: T) {
        let is_copy = |fd: &RawFd| self.find(*fd).is_some_and(|other| other.is(held));
        let mut copies = self.within(0, u32::MAX).filter(is_copy);
        let Some(first) = copies.next() else { return };
        let copies: Vec<RawFd> = copies.collect();
        self.install(first, content);
        if let Some(new) = self.find(first) {
            copies.into_iter().for_each(|copy| self.share(&new, copy));
        }
    }

    /// `fd` is closed, or is about to be. Returns what it was; the number of descriptors left is
    /// [`Held::descriptors`].
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Held<T>> {
        let entry: *mut Entry<T> = self.cell(fd)?.swap(ptr::null_mut(), Ordering::AcqRel).cast();
        // SAFETY: NULL, or an entry, which is never freed.
        let entry = unsafe { entry.as_ref() }?;
        entry.fds.fetch_sub(1, Ordering::AcqRel);
        // The descriptor's reference becomes the caller's.
        Some(Held(entry))
    }

    /// Every descriptor of the table in a range.
    pub(crate) fn within(&self, first: u32, last: u32) -> impl Iterator<Item = RawFd> + '_ {
        let end = self.end.load(Ordering::Acquire);
        let fds = first..end.min(last.saturating_add(1));
        fds.filter_map(|fd| RawFd::try_from(fd).ok()).filter(|&fd| self.knows(fd))
    }

    fn note_end(&self, fd: RawFd) {
        self.end.fetch_max(fd.unsigned_abs() + 1, Ordering::AcqRel);
    }

    /// Before a fork counts what the child gets: nothing new is put into the table, by whatever
    /// thread, until [`Table::thaw`]. The calling thread gets no signals until then.
    pub(crate) fn stop_opening(&self) {
        self.opening.freeze();
    }

    /// After [`Table::stop_opening`], before the fork: no other thread is in the middle of a
    /// change.
    pub(crate) fn freeze(&self) {
        self.spare.freeze();
    }

    /// After it, in the parent and in the child.
    ///
    /// # Safety
    /// [`Table::stop_opening`] and [`Table::freeze`] have been called by this thread, or by the one
    /// that it was before the fork.
    pub(crate) unsafe fn thaw(&self) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.spare.thaw() };
        // SAFETY: guaranteed by the caller.
        unsafe { self.opening.thaw() };
    }
}

/// A descriptor that was closed behind our back, and whose number has come up again.
fn abandon<T: Listed>(old: *mut Entry<T>) {
    // SAFETY: NULL, or an entry, which is never freed.
    if let Some(old) = unsafe { old.as_ref() } {
        old.fds.fetch_sub(1, Ordering::AcqRel);
        drop(Held(old));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Listed, Place, Table};

    /// What the tests put into a table: under which number, and whether it is still there.
    struct Content {
        fd: i32,
        alive: Arc<AtomicBool>,
        place: std::sync::OnceLock<Place>,
    }

    static TABLE: Table<Content> = Table::new();

    impl Listed for Content {
        fn table() -> &'static Table<Self> {
            &TABLE
        }

        fn placed(&self, place: Place) {
            assert!(self.place.set(place).is_ok(), "placed once");
        }
    }

    impl Drop for Content {
        fn drop(&mut self) {
            self.alive.store(false, Ordering::SeqCst);
        }
    }

    fn install(fd: i32) -> Arc<AtomicBool> {
        let alive = Arc::new(AtomicBool::new(true));
        let place = std::sync::OnceLock::new();
        TABLE.install(fd, Content { fd, alive: Arc::clone(&alive), place });
        alive
    }

    #[test]
    fn content_lives_until_the_last_descriptor_and_the_last_call_are_gone() {
        let alive = install(100);
        let call = TABLE.find(100).expect("installed");
        TABLE.share(&call, 101);
        assert_eq!(call.descriptors(), 2);
        drop(TABLE.remove(100));
        assert!(!TABLE.knows(100) && TABLE.knows(101));
        drop(TABLE.remove(101));
        assert!(TABLE.find(101).is_none() && call.descriptors() == 0);
        assert!(alive.load(Ordering::SeqCst), "a call still uses it");
        drop(call);
        assert!(!alive.load(Ordering::SeqCst));
    }

    #[test]
    fn a_number_that_comes_up_again_forgets_what_it_was() {
        let old = install(110);
        let new = install(110);
        assert!(!old.load(Ordering::SeqCst) && new.load(Ordering::SeqCst));
        assert_eq!(TABLE.find(110).expect("installed").descriptors(), 1);
        drop(TABLE.remove(110));
    }

    #[test]
    fn all_descriptors_of_an_open_file_are_replaced() {
        let old = install(120);
        let held = TABLE.find(120).expect("installed");
        TABLE.share(&held, 121);
        let alive = Arc::new(AtomicBool::new(true));
        let place = std::sync::OnceLock::new();
        TABLE.replace(&held, Content { fd: 7, alive, place });
        drop(held);
        assert!(!old.load(Ordering::SeqCst));
        let [one, other] = [120, 121].map(|fd| TABLE.find(fd).expect("replaced"));
        assert!(one.is(&other) && one.fd == 7 && one.descriptors() == 2);
        [120, 121].into_iter().for_each(|fd| drop(TABLE.remove(fd)));
    }

    #[test]
    fn content_knows_whether_a_number_is_still_its_own() {
        let alive = install(130);
        let held = TABLE.find(130).expect("installed");
        let place = *held.place.get().expect("placed");
        let kept = place.keep_at(130).expect("still there");
        assert!(place.is_at(130) && !place.is_at(131) && !place.is_at(-1));
        install(130);
        assert!(!place.is_at(130) && place.keep_at(130).is_none());
        drop(held);
        assert!(alive.load(Ordering::SeqCst), "it is kept");
        drop(kept);
        assert!(!alive.load(Ordering::SeqCst));
        drop(TABLE.remove(130));
    }

    #[test]
    fn only_numbers_in_the_table_are_listed() {
        for fd in [140, 142, 145] {
            install(fd);
        }
        assert!(TABLE.within(140, 144).eq([140, 142]));
        assert!(TABLE.find(-1).is_none() && !TABLE.knows(i32::MAX));
        for fd in [140, 142, 145] {
            drop(TABLE.remove(fd));
        }
    }
}
