//! A table from descriptors to the state of the open files that they stand for.
//!
//! # Safety
//! Entries are leaked and reused, so that a reference to one stays valid. An entry's content
//! belongs to one open file from [`Table::install`] until the last reference is released; the
//! holder of a reference (a descriptor, or a call in progress) always finds the same content in it.
//! A look-up takes its reference, and then checks that the table still names the entry: see
//! [`Slot`], whose model checks this against concurrent closes and opens.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use weft_sys::{SectionLock, Slot};

use crate::limits::FDS_MAX;
use crate::mode;

/// Number of entries that are mapped at once.
const MADE_AT_ONCE: usize = 32;

/// A type of content that has a table.
pub(crate) trait Listed: Send + Sync + 'static {
    /// Returns the one table of this type.
    fn table() -> &'static Table<Self>
    where
        Self: Sized;

    /// Records the content's own table entry; called once, by [`Table::install`].
    fn placed(&self, place: Place) {
        let _ = place;
    }
}

/// The table entry of a content, for the content itself. Its users need not know the table's type.
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
    /// Returns whether `fd` still stands for the content: another thread may have closed the
    /// descriptor, and its number may stand for another file by now.
    pub(crate) fn is_at(&self, fd: RawFd) -> bool {
        let cell = usize::try_from(fd).ok().and_then(|fd| self.cells.get(fd));
        cell.is_some_and(|cell| ptr::addr_eq(cell.load(Ordering::Acquire), self.entry))
    }

    /// Takes a reference, if `fd` still stands for the content.
    pub(crate) fn keep_at(&self, fd: RawFd) -> Option<Kept> {
        let kept = self.entry.hold().then_some(Kept(self.entry))?;
        self.is_at(fd).then_some(kept)
    }
}

/// A reference to an entry of any type.
pub(crate) struct Kept(&'static dyn AnyEntry);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&ptr::from_ref(self.0)).finish()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: this value owns one reference, and is being dropped.
        unsafe { self.0.release() };
    }
}

/// An entry of any type.
trait AnyEntry: Sync {
    /// Takes a reference. Returns `false` if the entry is empty.
    fn hold(&self) -> bool;

    /// Releases a reference.
    ///
    /// # Safety
    /// The caller owns the reference, and does not use it any more.
    unsafe fn release(&'static self);
}

impl<T: Listed> AnyEntry for Entry<T> {
    fn hold(&self) -> bool {
        self.content.hold()
    }

    unsafe fn release(&'static self) {
        // SAFETY: the caller owns the reference that it releases.
        if let Some(content) = unsafe { self.content.release() } {
            T::table().retire(self, content);
        }
    }
}

/// A table from descriptors to contents. Reading it takes no lock.
pub(crate) struct Table<T: 'static> {
    /// For each descriptor NULL, or its entry.
    cells: [AtomicPtr<()>; FDS_MAX],
    /// Held while a new content is put into the table.
    opening: SectionLock<()>,
    /// Entries without a descriptor.
    spare: SectionLock<Spare<T>>,
    /// No descriptor from this number on has ever been in the table.
    end: AtomicU32,
}

/// The state of an open file; duplicates made by `dup(2)` share it.
struct Entry<T> {
    /// Each descriptor and each call that uses the content holds a reference.
    content: Slot<T>,
    /// Number of descriptors.
    fds: AtomicU32,
    /// The next entry in the list of spare ones.
    next: AtomicPtr<Self>,
}

/// Entries without a descriptor: a linked list of used ones, and a slice of new ones. They do not
/// come from the heap, because a signal handler that opens or closes a socket may have interrupted
/// the program's allocator.
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

    /// Takes an entry. `None` if there is no memory.
    fn pop(&mut self) -> Option<&'static Entry<T>> {
        if let Some(entry) = self.first {
            // SAFETY: the pointer is NULL or an entry, which is never freed.
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
        use weft_sys::calls::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let len = MADE_AT_ONCE * size_of::<Entry<T>>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let start: *mut Entry<T> = start.ok()?.cast();
        for at in 0..MADE_AT_ONCE {
            // SAFETY: `at` is below the number of entries in the new mapping.
            let place = unsafe { start.add(at) };
            // SAFETY: the place is inside the new mapping, aligned, and not yet known to any other
            // thread.
            unsafe { place.write(Entry::new()) };
        }
        // SAFETY: all entries have been written, and the mapping is never unmapped.
        Some(unsafe { std::slice::from_raw_parts(start, MADE_AT_ONCE) })
    }
}

/// A reference to an entry with its content.
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
        // SAFETY: this value owns a reference until it is dropped.
        let content = unsafe { self.0.content.get() };
        let Some(content) = content else { unreachable!("a referenced entry has a content") };
        content
    }
}

impl<T: Listed> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value owns one reference, and is being dropped.
        unsafe { self.0.release() };
    }
}

impl<T: Listed> Held<T> {
    /// Returns how many descriptors of this process stand for the file.
    pub(crate) fn descriptors(&self) -> u32 {
        self.0.fds.load(Ordering::Acquire)
    }

    /// Takes another reference.
    pub(crate) fn again(&self) -> Self {
        // SAFETY: this value owns a reference, so the content is there.
        unsafe { self.0.content.hold_again() };
        Self(self.0)
    }

    /// Returns whether both are the same open file.
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
            opening: SectionLock::new(()),
            spare: SectionLock::new(Spare { first: None, fresh: &[] }),
            end: AtomicU32::new(0),
        }
    }

    #[cold]
    fn retire(&self, entry: &'static Entry<T>, content: T) {
        // A process in the fallback opens no socket, and may not be allowed to defer signals.
        if !mode::is_in_fallback() {
            self.spare.lock().push(entry);
        }
        drop(content);
    }

    fn cell(&self, fd: RawFd) -> Option<&AtomicPtr<()>> {
        usize::try_from(fd).ok().and_then(|fd| self.cells.get(fd))
    }

    /// Returns the content of `fd`.
    #[inline]
    pub(crate) fn find(&self, fd: RawFd) -> Option<Held<T>> {
        let cell = self.cell(fd)?;
        loop {
            let entry: *mut Entry<T> = cell.load(Ordering::Acquire).cast();
            // SAFETY: the pointer is NULL or an entry, which is never freed.
            let entry = unsafe { entry.as_ref() }?;
            if !entry.content.hold() {
                continue; // The descriptor has just been closed.
            }
            let held = Held(entry);
            if ptr::addr_eq(cell.load(Ordering::Acquire), entry) {
                return Some(held);
            }
            // The descriptor has just been closed. `held` may be the last reference to the entry's
            // new content.
        }
    }

    /// Returns whether `fd` is in the table, without taking a reference.
    #[inline]
    pub(crate) fn knows(&self, fd: RawFd) -> bool {
        self.cell(fd).is_some_and(|cell| !cell.load(Ordering::Relaxed).is_null())
    }

    /// Puts the new descriptor `fd` into the table.
    pub(crate) fn install(&'static self, fd: RawFd, content: T) {
        let Some(cell) = self.cell(fd) else { return };
        let opening = self.opening.lock();
        let entry = self.spare.lock().pop();
        let Some(entry) = entry else {
            drop(opening);
            return drop(self.remove(fd));
        };
        entry.fds.store(1, Ordering::Relaxed);
        // SAFETY: the entry is new or spare, so its content has been taken out, and this thread
        // alone has it.
        unsafe { entry.content.fill(content) };
        // SAFETY: the content has just been filled, and the descriptor's reference keeps it.
        if let Some(content) = unsafe { entry.content.get() } {
            content.placed(Place { entry, cells: &self.cells });
        }
        self.note_end(fd);
        let old = cell.swap(ptr::from_ref(entry).cast_mut().cast(), Ordering::AcqRel);
        drop(opening);
        abandon::<T>(old.cast());
    }

    /// Records that `copy` is a duplicate of `held`.
    pub(crate) fn share(&self, held: &Held<T>, copy: RawFd) {
        let Some(cell) = self.cell(copy) else { return };
        std::mem::forget(held.again()); // The descriptor owns this reference.
        held.0.fds.fetch_add(1, Ordering::AcqRel);
        self.note_end(copy);
        let old = cell.swap(ptr::from_ref(held.0).cast_mut().cast(), Ordering::AcqRel);
        abandon::<T>(old.cast());
    }

    /// Replaces the content of all descriptors of `held`.
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

    /// Removes `fd`, which is closed or about to be closed. Returns its content;
    /// [`Held::descriptors`] says how many descriptors are left.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Held<T>> {
        let entry: *mut Entry<T> = self.cell(fd)?.swap(ptr::null_mut(), Ordering::AcqRel).cast();
        // SAFETY: the pointer is NULL or an entry, which is never freed.
        let entry = unsafe { entry.as_ref() }?;
        entry.fds.fetch_sub(1, Ordering::AcqRel);
        // The descriptor's reference becomes the caller's.
        Some(Held(entry))
    }

    /// Returns every descriptor of the table in a range.
    pub(crate) fn within(&self, first: u32, last: u32) -> impl Iterator<Item = RawFd> + '_ {
        let end = self.end.load(Ordering::Acquire);
        let fds = first..end.min(last.saturating_add(1));
        fds.filter_map(|fd| RawFd::try_from(fd).ok()).filter(|&fd| self.knows(fd))
    }

    fn note_end(&self, fd: RawFd) {
        self.end.fetch_max(fd.unsigned_abs() + 1, Ordering::AcqRel);
    }

    /// Stops all threads from adding to the table until [`Table::thaw`], before a fork counts the
    /// child's descriptors. The calling thread's signals are deferred until then.
    pub(crate) fn stop_opening(&self) {
        self.opening.freeze();
    }

    /// Locks the table after [`Table::stop_opening`] and before the fork, so that no other thread
    /// is in the middle of a change.
    pub(crate) fn freeze(&self) {
        self.spare.freeze();
    }

    /// Unlocks the table after the fork, in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or its copy in the parent, has called [`Table::stop_opening`] and
    /// [`Table::freeze`].
    pub(crate) unsafe fn thaw(&self) {
        // SAFETY: the caller has frozen `spare`.
        unsafe { self.spare.thaw() };
        // SAFETY: the caller has frozen `opening`.
        unsafe { self.opening.thaw() };
    }
}

/// Drops the reference of a descriptor that was closed unseen, and whose number has been reused.
fn abandon<T: Listed>(old: *mut Entry<T>) {
    // SAFETY: the pointer is NULL or an entry, which is never freed.
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

    /// A content of the tests: its number, and whether it is still alive.
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
            assert!(self.place.set(place).is_ok(), "`placed` must be called once");
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
    fn content_lives_as_long_as_a_descriptor_or_a_call_uses_it() {
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
    fn reused_number_drops_its_old_content() {
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
        assert!(alive.load(Ordering::SeqCst), "`kept` holds a reference");
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
