//! Threads: each arms itself before the program's function begins.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are, but for the function, which is jumped to by one of ours.
#![allow(unsafe_code)]

use std::arch::naked_asm;

use libc::{c_int, c_void, pthread_attr_t, size_t};

use crate::by_hand::{signals, threads};
use crate::next::next;

/// What a thread is to run.
struct Beginning {
    main: *const c_void,
    argument: *mut c_void,
    /// Bytes of its stack; 0: not known.
    stack: size_t,
    holds_off: bool,
}

/// What is in two registers when a function returns it.
#[repr(C)]
struct Main {
    main: *const c_void,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut Beginning) -> Main {
    // SAFETY: made for this thread alone.
    let beginning = unsafe { Box::from_raw(beginning) };
    let Beginning { main, argument, stack, holds_off } = *beginning;
    let here = 0_usize;
    threads::begun((&raw const here) as usize, stack, holds_off);
    Main { main, argument }
}

/// Where a thread begins. It leaves nothing on the stack.
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

/// Bytes of the stack that a thread with these attributes gets.
fn stack_of(attributes: *const pthread_attr_t) -> size_t {
    let mut len = 0;
    // SAFETY: plain data, for which zero is valid.
    let mut default: pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut from = attributes;
    if from.is_null() {
        // SAFETY: the place is a local variable.
        if unsafe { pthread_getattr_default_np(&raw mut default) } != 0 {
            return 0;
        }
        from = &raw const default;
    }
    // SAFETY: attributes of the program's or of the C library's.
    if unsafe { libc::pthread_attr_getstacksize(from, &raw mut len) } != 0 {
        len = 0;
    }
    if attributes.is_null() {
        // SAFETY: filled above.
        unsafe { libc::pthread_attr_destroy(&raw mut default) };
    }
    len
}

fn beginning(
    main: *const c_void,
    argument: *mut c_void,
    attributes: *const pthread_attr_t,
) -> *mut Beginning {
    let (stack, holds_off) = (stack_of(attributes), signals::holds_off());
    Box::into_raw(Box::new(Beginning { main, argument, stack, holds_off }))
}

/// There is no thread after all.
fn forget(beginning: *mut Beginning) {
    // SAFETY: made above, and nobody has got it.
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
