//! Emulates the directory that names a device's network interface:
//! `/sys/class/infiniband/<device>/device/net`.
//!
//! A program that lists it (pyverbs runs `ls`) gets a C library stream on another directory. The
//! entries of that directory are never read: the hooks answer for this stream.
//!
//! # Safety
//! POSIX requires that a stream is open and used by one thread at a time. The entry of a slot is
//! written before its stream is published, and only read afterwards.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{DIR, dirent, dirent64};
use weft_sys::NextFunction;

use crate::limits::{NAME_MAX, STREAMS_MAX};
use crate::path::{Ours, ours};

/// A stream on an emulated directory.
struct Slot {
    stream: AtomicPtr<DIR>,
    /// Whether its only entry has been read.
    read: AtomicBool,
    entry: UnsafeCell<MaybeUninit<dirent64>>,
}

// SAFETY: the entry is written before the stream is published, and then used by the one thread that
// reads the stream.
unsafe impl Sync for Slot {}

/// Marks a slot that is being filled; no stream has this address.
const TAKEN: *mut DIR = ptr::without_provenance_mut(1);

static STREAMS: [Slot; STREAMS_MAX] = [const {
    Slot {
        stream: AtomicPtr::new(ptr::null_mut()),
        read: AtomicBool::new(false),
        entry: UnsafeCell::new(MaybeUninit::zeroed()),
    }
}; STREAMS_MAX];

fn slot_of(stream: *mut DIR) -> Option<&'static Slot> {
    // NULL marks a free slot.
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

    /// Fills in the only entry.
    ///
    /// # Safety
    /// This thread has taken the slot and not published it; `name` has `length` bytes, at most
    /// [`NAME_MAX`].
    unsafe fn fill(&self, name: *const c_char, length: usize) {
        // SAFETY: the caller guarantees that this thread alone has the slot.
        let entry = unsafe { &mut *self.entry.get() };
        // SAFETY: all fields are integers, and the static was zeroed.
        let entry = unsafe { entry.assume_init_mut() };
        entry.d_ino = 1;
        entry.d_type = libc::DT_DIR;
        entry.d_reclen = size_of::<dirent64>() as u16;
        entry.d_name = [0; 256];
        // SAFETY: the caller guarantees `length` bytes, and `NAME_MAX` is below the field's size.
        unsafe { ptr::copy_nonoverlapping(name, entry.d_name.as_mut_ptr(), length) };
        self.read.store(false, Ordering::Relaxed);
    }

    /// Returns the entry the first time, and then NULL for the end of the directory.
    fn next(&self) -> *mut dirent64 {
        let read = self.read.swap(true, Ordering::Relaxed);
        if read { ptr::null_mut() } else { self.entry.get().cast() }
    }
}

const _: () = assert!(NAME_MAX < 256);

unsafe fn opendir_next(path: *const c_char) -> *mut DIR {
    static NEXT: NextFunction = NextFunction::new(c"opendir");
    type Hooked = unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR;
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.unsectioned()) } {
        // SAFETY: the path is the program's or a literal.
        Some(next) => unsafe { next(path) },
        None => ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the program passes NULL or a C string.
    if let Some(Ours::NetDirectory(name, length)) = unsafe { ours(path) }
        && let Some(slot) = Slot::take()
    {
        // SAFETY: this thread has just taken the slot, and the name is a part of the path.
        unsafe { slot.fill(name, length) };
        // SAFETY: the path is a C string.
        let stream = unsafe { opendir_next(c"/".as_ptr()) };
        slot.stream.store(stream, Ordering::Release);
        return stream;
    }
    // SAFETY: passes on the program's own argument.
    unsafe { opendir_next(path) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closedir(stream: *mut DIR) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"closedir");
    if let Some(slot) = slot_of(stream) {
        slot.stream.store(ptr::null_mut(), Ordering::Release);
    }
    type Hooked = unsafe extern "C-unwind" fn(*mut DIR) -> c_int;
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.unsectioned()) } {
        // SAFETY: passes on the program's own argument.
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
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            match unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.unsectioned()) } {
                // SAFETY: passes on the program's own argument.
                Some(next) => unsafe { next(stream) },
                None => ptr::null_mut(),
            }
        }
    )* };
}

// On 64-bit systems both entry types are the same.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>());
readers! {
    readdir: c"readdir" -> dirent;
    readdir64: c"readdir64" -> dirent64;
}
