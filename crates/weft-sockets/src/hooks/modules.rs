//! Hooks of the functions by which a program reaches the C library past the hooks.
//!
//! * `dlopen` with `RTLD_DEEPBIND`: the module and its dependencies find the C library's functions
//!   before the hooks (PHP opens its extensions so). The process stays on TCP from there on.
//! * `dlsym` in a certain library (`dlopen("libc.so.6")`, as Python's `ctypes` and JNA do): the
//!   program gets the hook. It gets the C library's own functions on memory: programs that cache
//!   registrations (libfabric, UCX) look these up to change their code, by which they see the calls
//!   within the C library, too.
//!
//! The C library decides by the caller's address where it looks: for `dlopen` in the caller's
//! `RUNPATH`, for `RTLD_NEXT` behind the caller. So these hooks end with a jump, and the C
//! library's function finds the program's return address on the stack.
//!
//! # Safety
//! The code in assembly keeps the arguments, whose registers the ABI lets a call change, and leaves
//! the stack as it was. Each function has the signature of the C library's function that it
//! interposes.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use weft_sys::NextFunction;

use crate::{errno, seccomp_fallback};

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

const WHY: &str = "a module with RTLD_DEEPBIND does not call the hooks";

/// Functions on memory that have hooks.
const OF_MEMORY: &[&CStr] =
    &[c"free", c"realloc", c"mmap", c"mmap64", c"munmap", c"madvise", c"mprotect", c"mremap"];

/// Whether a module that binds apart from the hooks has been opened.
static IS_APART: AtomicBool = AtomicBool::new(false);
static DLOPEN: NextFunction = NextFunction::new(c"dlopen");
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// This library's handle.
static OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Keeps the process on TCP if another library's constructor has opened such a module before this
/// library began.
pub(crate) fn begin() {
    if IS_APART.load(Ordering::Relaxed) {
        seccomp_fallback::keep_on_tcp(WHY);
    }
}

/// Prepares for a `dlopen(3)` with these flags. Returns the C library's function.
extern "C" fn before_opening(flags: c_int) -> *mut c_void {
    if flags & libc::RTLD_DEEPBIND != 0 && !IS_APART.swap(true, Ordering::Relaxed) {
        let before = errno::get();
        seccomp_fallback::keep_on_tcp(WHY);
        errno::set_raw(before);
    }
    found(DLOPEN.address())
}

/// Returns a function that the program can call in any case.
fn found(function: *mut c_void) -> *mut c_void {
    extern "C" fn fails() -> *mut c_void {
        ptr::null_mut()
    }
    if function.is_null() { fails as *mut c_void } else { function }
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_opening,
    )
}

/// Returns the C library's `dlsym(3)`. [`NextFunction`] would look it up by the hook.
extern "C" fn next_dlsym() -> *mut c_void {
    let known = DLSYM.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    unsafe extern "C" {
        #[link_name = "dlvsym"]
        fn versioned(
            handle: *mut c_void,
            name: *const c_char,
            version: *const c_char,
        ) -> *mut c_void;
    }
    // The C library has kept this version of the function since its first one for this processor.
    // SAFETY: both texts are C strings.
    let next = unsafe { versioned(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
    DLSYM.store(next, Ordering::Release);
    found(next)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // RTLD_DEFAULT is 0 and RTLD_NEXT is -1. The others are libraries.
    naked_asm!(
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2:",
        "jmp {in_library}",
        next = sym next_dlsym,
        in_library = sym dlsym_in,
    )
}

/// Executes `dlsym(3)` in a certain library.
unsafe extern "C" fn dlsym_in(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Lookup>(next_dlsym()) };
    // SAFETY: passes on the program's arguments.
    let function = unsafe { next(library, name) };
    // No look-up here may fail, because `dlerror` would report that to the program.
    if !is_of_c_library(function) {
        return function;
    }
    // SAFETY: looks behind this library, which makes the call, for the name that has been found.
    if unsafe { next(libc::RTLD_NEXT, name) } != function {
        return function;
    }
    // SAFETY: the name is a C string, by which the C library has found the function.
    let is_of_memory = OF_MEMORY.contains(&unsafe { CStr::from_ptr(name) });
    let own = own();
    if is_of_memory || own.is_null() {
        return function;
    }
    // Finds a hook, or the same function again, because this library depends on the C library.
    // SAFETY: the handle is open for ever, and the name is the program's.
    let hook = unsafe { next(own, name) };
    if hook.is_null() { function } else { hook }
}

fn is_of_c_library(function: *const c_void) -> bool {
    let base = |of| about(of).map(|info| info.dli_fbase);
    !function.is_null() && base(function) == base(libc::getuid as *const c_void)
}

/// Returns what is known of an address in a library.
fn about(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the result goes to a local variable.
    let is_known = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    is_known.then_some(info)
}

/// Returns this library's handle; NULL if it is not known.
fn own() -> *mut c_void {
    let known = OWN.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let Some(info) = about(own as *const c_void) else { return ptr::null_mut() };
    // SAFETY: this library's file name, which lives as long as the library.
    let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    OWN.store(handle, Ordering::Release);
    handle
}
