//! Hooks of the calls that free memory, or make it unreadable. Deferred sends of that memory are
//! copied first. If no send is deferred each call costs one load.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. `mremap` is variadic in C: the argument is always declared and passed on
//! here, in the register where it would be.
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
    /// Whether this thread is looking up the allocator's `free`.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Looks up the allocator before any send can be deferred: the lookup itself may allocate.
pub(crate) fn prepare() {
    let _ = (next_free(), REALLOC.address());
}

fn revoke_block(block: *mut c_void) {
    // SAFETY: the program passes a block of the allocator's, which is still allocated.
    revoke(block as usize, || unsafe { libc::malloc_usable_size(block) });
}

/// Returns the allocator's `free`. `None` while this thread looks it up.
#[inline]
fn next_free() -> Option<Free> {
    let known = FREE.known();
    let address = if known.is_null() { find_free() } else { known };
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    unsafe { std::mem::transmute::<*mut c_void, Option<Free>>(address) }
}

/// `dlsym` itself frees its text of an earlier failure, through this library's `free`, which must
/// not look up the allocator then. Such a block is leaked unless the caller frees it.
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
        // SAFETY: passes on the program's own argument.
        unsafe { next(block) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, len: size_t) -> *mut c_void {
    revoke_block(block);
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Realloc>>(REALLOC.address()) };
    // SAFETY: passes on the program's own arguments.
    next.map_or(std::ptr::null_mut(), |next| unsafe { next(block, len) })
}

/// Copies deferred sends of the memory that `munmap(2)` is about to unmap.
pub(crate) fn unmapping(addr: usize, len: usize) {
    revoke(addr, || len);
}

/// Copies deferred sends of the memory that `madvise(2)` is about to discard.
pub(crate) fn advising(addr: usize, len: usize, advice: c_int) {
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE) {
        revoke(addr, || len);
    }
}

/// Copies deferred sends of the memory that `mprotect(2)` is about to make unreadable.
pub(crate) fn protecting(addr: usize, len: usize, protection: c_int) {
    if protection & libc::PROT_READ == 0 {
        revoke(addr, || len);
    }
}

/// Copies deferred sends of the memory that `mremap(2)` is about to move or replace.
pub(crate) fn moving(addr: usize, old: usize, len: usize, flags: c_int, to: usize) {
    revoke(addr, || old);
    if flags & libc::MREMAP_FIXED != 0 {
        revoke(to, || len);
    }
}

/// Copies deferred sends of the memory that `mmap(2)` is about to replace.
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
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Mremap>>(NEXT.address()) };
    // SAFETY: passes on the program's own arguments.
    next.map_or(libc::MAP_FAILED, |next| unsafe { next(addr, old, len, flags, to) })
}

/// Defines a hook that maps by the next library's function, perhaps over an existing mapping.
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
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Mmap>>(NEXT.address()) };
            next.map_or(libc::MAP_FAILED, |next| {
                // SAFETY: passes on the program's own arguments.
                unsafe { next(addr, len, protection, flags, fd, offset) }
            })
        }
    };
}
map!(mmap, c"mmap");
map!(mmap64, c"mmap64");
