//! The directory that names a device's network interface:
//! `/sys/class/infiniband/<device>/device/net`.
//!
//! A program that lists it (pyverbs by `ls`) is given a stream of the C library's on another
//! directory, whose entries are never read: those of our streams are answered here.
//!
//! # Safety
//! A stream that a program hands in is open, and used by one thread at a time, as POSIX demands. A
//! slot's entry is written before its stream is known to anybody, and after that by its reader.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{DIR, dirent, dirent64};
use weft_sys::NextFunction;

use crate::limits::NAME_MAX;
use crate::path::{Ours, ours};

/// Streams that may be open at once; a program reads one at a time. More find no directory.
const SLOTS: usize = 8;

/// A stream of ours.
struct Slot {
    stream: AtomicPtr<DIR>,
    /// Its one entry has been read.
    read: AtomicBool,
    entry: UnsafeCell<MaybeUninit<dirent64>>,
}

// SAFETY: the entry is used as the module says.
unsafe impl Sync for Slot {}

/// A slot that is being filled: no stream has this address.
const TAKEN: *mut DIR = ptr::without_provenance_mut(1);

static STREAMS: [Slot; SLOTS] = [const {
    Slot {
        stream: AtomicPtr::new(ptr::null_mut()),
        read: AtomicBool::new(false),
        entry: UnsafeCell::new(MaybeUninit::zeroed()),
    }
}; SLOTS];

fn slot_of(stream: *mut DIR) -> Option<&'static Slot> {
    // NULL stands for a slot that is free.
    let mut slots = STREAMS.iter().filter(|_| !stream.is_null());
    slots.find(|slot| slot.stream.load(Ordering::Acquire) == stream)
}

impl Slot {
    fn take() -> Option<&'static Self> {
        STREAMS.iter().find(|slot| {
            let free = ptr::null_mut();
            slot.stream.compare_exchange(free, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Names the one entry.
    ///
    /// # Safety
    /// The slot is taken and not published; `name` has `length` bytes, at most [`NAME_MAX`].
    unsafe fn fill(&self, name: *const c_char, length: usize) {
        // SAFETY: the slot is this thread's alone.
        let entry = unsafe { &mut *self.entry.get() };
        // SAFETY: a structure of integers, for which zero is valid; it was zero to begin with.
        let entry = unsafe { entry.assume_init_mut() };
        entry.d_ino = 1;
        entry.d_type = libc::DT_DIR;
        entry.d_reclen = size_of::<dirent64>() as u16;
        entry.d_name = [0; 256];
        // SAFETY: the caller's promise; a name is shorter than the field.
        unsafe { ptr::copy_nonoverlapping(name, entry.d_name.as_mut_ptr(), length) };
        self.read.store(false, Ordering::Relaxed);
    }

    /// The entry, the first time; then none, which is the end of the directory.
    fn next(&self) -> *mut dirent64 {
        let read = self.read.swap(true, Ordering::Relaxed);
        if read { ptr::null_mut() } else { self.entry.get().cast() }
    }
}

const _: () = assert!(NAME_MAX < 256);

unsafe fn opendir_next(path: *const c_char) -> *mut DIR {
    static NEXT: NextFunction = NextFunction::new(c"opendir");
    type Hooked = unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR;
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) } {
        // SAFETY: the program's path or our own.
        Some(next) => unsafe { next(path) },
        None => ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: NULL or the program's C string.
    if let Some(Ours::NetDirectory(name, length)) = unsafe { ours(path) }
        && let Some(slot) = Slot::take()
    {
        // SAFETY: taken just now; the name is in the path.
        unsafe { slot.fill(name, length) };
        // SAFETY: a C string; every system has this directory.
        let stream = unsafe { opendir_next(c"/".as_ptr()) };
        slot.stream.store(stream, Ordering::Release);
        return stream;
    }
    // SAFETY: the program's own argument.
    unsafe { opendir_next(path) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closedir(stream: *mut DIR) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"closedir");
    if let Some(slot) = slot_of(stream) {
        slot.stream.store(ptr::null_mut(), Ordering::Release);
    }
    type Hooked = unsafe extern "C-unwind" fn(*mut DIR) -> c_int;
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) } {
        // SAFETY: the program's own argument.
        Some(next) => unsafe { next(stream) },
        None => -1,
    }
}

macro_rules! readers {
    ($($name:ident: $name_c:literal -> $entry:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(stream: *mut DIR) -> *mut $entry {
            static NEXT: NextFunction = NextFunction::new($name_c);
            if let Some(slot) = slot_of(stream) {
                return slot.next().cast();
            }
            type Hooked = unsafe extern "C-unwind" fn(*mut DIR) -> *mut $entry;
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) } {
                // SAFETY: the program's own argument.
                Some(next) => unsafe { next(stream) },
                None => ptr::null_mut(),
            }
        }
    )* };
}

// On 64-bit systems the two entries are the same.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>());
readers! {
    readdir: c"readdir" -> dirent;
    readdir64: c"readdir64" -> dirent64;
}
