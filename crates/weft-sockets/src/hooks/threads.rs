//! Hooks of the calls that create threads: each thread arms itself before the program's function
//! begins.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on, except that the new thread starts in [`start`], which jumps to the program's
//! function.
#![allow(unsafe_code)]

use std::arch::naked_asm;

use libc::{c_int, c_void, pthread_attr_t, size_t};

use crate::by_hand::{signals, threads};
use crate::next::next;

/// What a new thread executes.
struct Beginning {
    main: *const c_void,
    argument: *mut c_void,
    /// The size of its stack in bytes; 0 if it is not known.
    stack: size_t,
    blocks_sigsys: bool,
}

/// Two words that a function returns in registers.
#[repr(C)]
struct Main {
    main: *const c_void,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut Beginning) -> Main {
    // SAFETY: `beginning` has made the box for this thread alone.
    let beginning = unsafe { Box::from_raw(beginning) };
    let Beginning { main, argument, stack, blocks_sigsys } = *beginning;
    let here = 0_usize;
    threads::begun((&raw const here) as usize, stack, blocks_sigsys);
    Main { main, argument }
}

/// The entry point of a thread. It leaves nothing on the stack.
#[unsafe(naked)]
extern "C" fn start() {
    naked_asm!(
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        begin = sym begin,
    )
}

unsafe extern "C" {
    fn pthread_getattr_default_np(attributes: *mut pthread_attr_t) -> c_int;
}

/// Returns the stack size in bytes of a thread with these attributes.
fn stack_of(attributes: *const pthread_attr_t) -> size_t {
    let mut len = 0;
    // SAFETY: plain data, for which zero is valid.
    let mut default: pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut from = attributes;
    if from.is_null() {
        // SAFETY: the attributes go to a local variable.
        if unsafe { pthread_getattr_default_np(&raw mut default) } != 0 {
            return 0;
        }
        from = &raw const default;
    }
    // SAFETY: the attributes are the program's, or the C library has just filled them in.
    if unsafe { libc::pthread_attr_getstacksize(from, &raw mut len) } != 0 {
        len = 0;
    }
    if attributes.is_null() {
        // SAFETY: `pthread_getattr_default_np` has initialised it.
        unsafe { libc::pthread_attr_destroy(&raw mut default) };
    }
    len
}

fn beginning(
    main: *const c_void,
    argument: *mut c_void,
    attributes: *const pthread_attr_t,
) -> *mut Beginning {
    let (stack, blocks_sigsys) = (stack_of(attributes), signals::blocks_sigsys());
    Box::into_raw(Box::new(Beginning { main, argument, stack, blocks_sigsys }))
}

/// Frees the state of a thread that could not be created.
fn forget(beginning: *mut Beginning) {
    // SAFETY: `beginning` has made the box, and no thread has got it.
    drop(unsafe { Box::from_raw(beginning) });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const pthread_attr_t,
    main: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let ours = beginning(main, argument, attributes);
    let (main, argument): (*const c_void, *mut c_void) = (start as *const () as _, ours.cast());
    let made = next!(pthread_create(
        thread: *mut libc::pthread_t, attributes: *const pthread_attr_t, main: *const c_void,
        argument: *mut c_void
    ) -> c_int);
    if made != 0 {
        forget(ours);
    }
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_create(
    thread: *mut libc::pthread_t,
    main: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let ours = beginning(main, argument, std::ptr::null());
    let (main, argument): (*const c_void, *mut c_void) = (start as *const () as _, ours.cast());
    let made = next!(thrd_create(
        thread: *mut libc::pthread_t, main: *const c_void, argument: *mut c_void
    ) -> c_int);
    if made != 0 {
        forget(ours);
    }
    made
}
