//! Memory that goes, or is no longer to be read: what has been deferred of it is copied first. When
//! nothing is deferred each of these costs a load.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. `mremap` is variadic in C: the argument is declared here and always
//! handed on, present or not, in the register where it would be.
#![allow(unsafe_code)]

use std::cell::Cell;

use libc::{c_int, c_void, off_t, size_t};
use weft_sys::NextFunction;

use crate::zcopy::deferred::revoke;

type Free = unsafe extern "C" fn(*mut c_void);
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;

static FREE: NextFunction = NextFunction::new(c"free");
static REALLOC: NextFunction = NextFunction::new(c"realloc");

thread_local! {
    /// This thread is looking for the allocator's `free`.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Finds the allocator, before any send can be deferred: to look for it may call it.
pub(crate) fn prepare() {
    let _ = (next_free(), REALLOC.address());
}

fn revoke_block(block: *mut c_void) {
    // SAFETY: a block of the allocator's, which is about to be given back to it.
    revoke(block as usize, || unsafe { libc::malloc_usable_size(block) });
}

/// The allocator's `free`. `None` while this thread looks for it.
#[inline]
fn next_free() -> Option<Free> {
    let known = FREE.known();
    let address = if known.is_null() { find_free() } else { known };
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    unsafe { std::mem::transmute::<*mut c_void, Option<Free>>(address) }
}

/// `dlsym` itself frees what it has kept to say of an earlier failure. It does so by our `free`,
/// which must not look for the allocator then: the caller that does frees it, or it stays.
#[cold]
fn find_free() -> *mut c_void {
    if IS_LOOKING.replace(true) {
        return std::ptr::null_mut();
    }
    let found = FREE.address();
    IS_LOOKING.set(false);
    found
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    revoke_block(block);
    if let Some(next) = next_free() {
        // SAFETY: the program's own argument.
        unsafe { next(block) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, len: size_t) -> *mut c_void {
    revoke_block(block);
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Realloc>>(REALLOC.address()) };
    // SAFETY: the program's own arguments.
    next.map_or(std::ptr::null_mut(), |next| unsafe { next(block, len) })
}

/// Before `munmap(2)`.
pub(crate) fn unmapping(addr: usize, len: usize) {
    revoke(addr, || len);
}

/// Before `madvise(2)`.
pub(crate) fn advising(addr: usize, len: usize, advice: c_int) {
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE) {
        revoke(addr, || len);
    }
}

/// Before `mprotect(2)`.
pub(crate) fn protecting(addr: usize, len: usize, protection: c_int) {
    if protection & libc::PROT_READ == 0 {
        revoke(addr, || len);
    }
}

/// Before `mremap(2)`.
pub(crate) fn moving(addr: usize, old: usize, len: usize, flags: c_int, to: usize) {
    revoke(addr, || old);
    if flags & libc::MREMAP_FIXED != 0 {
        revoke(to, || len);
    }
}

/// Before `mmap(2)`.
pub(crate) fn mapping(addr: usize, len: usize, flags: c_int) {
    if flags & libc::MAP_FIXED != 0 {
        revoke(addr, || len);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    unmapping(addr as usize, len);
    crate::next::next!(munmap(addr: *mut c_void, len: size_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    advising(addr as usize, len, advice);
    crate::next::next!(madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: size_t, protection: c_int) -> c_int {
    protecting(addr as usize, len, protection);
    crate::next::next!(mprotect(addr: *mut c_void, len: size_t, protection: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    addr: *mut c_void,
    old: size_t,
    len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    moving(addr as usize, old, len, flags, to as usize);
    static NEXT: NextFunction = NextFunction::new(c"mremap");
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Mremap>>(NEXT.address()) };
    // SAFETY: the program's own arguments.
    next.map_or(libc::MAP_FAILED, |next| unsafe { next(addr, old, len, flags, to) })
}

/// Maps by the next library's function of a name, over what is there if so asked.
macro_rules! map {
    ($name:ident, $c_name:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            addr: *mut c_void,
            len: size_t,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            mapping(addr as usize, len, flags);
            static NEXT: NextFunction = NextFunction::new($c_name);
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Mmap>>(NEXT.address()) };
            next.map_or(libc::MAP_FAILED, |next| {
                // SAFETY: the program's own arguments.
                unsafe { next(addr, len, protection, flags, fd, offset) }
            })
        }
    };
}
map!(mmap, c"mmap");
map!(mmap64, c"mmap64");
