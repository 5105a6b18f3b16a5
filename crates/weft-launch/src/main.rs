//! The executable, without a C library: where the kernel begins, and the functions that the
//! compiler takes for granted.
//!
//! # Safety
//! The kernel begins at `_start` with the stack that its interface describes: the number of the
//! arguments, pointers to them and a null pointer, pointers to the variables and a null pointer,
//! and pairs of numbers of which the last has the key 0. The compiler calls the functions for
//! memory with valid addresses and lengths, and the direction flag is clear, as at every call.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::panic::PanicInfo;

use weft_launch::{Strings, end, run};

/// The key of the path with which the kernel executed this file (`AT_EXECFN`).
const EXECUTED_AS: usize = 31;
/// The exit status of `env(1)` if it cannot start a program.
const CANNOT_RUN: usize = 126;

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() {
    naked_asm!(
        "xor ebp, ebp",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {start}",
        "ud2",
        start = sym start
    )
}

extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the stack begins with this number.
    let count = unsafe { stack.read() };
    // SAFETY: the arguments follow.
    let arguments = unsafe { stack.add(1) };
    // SAFETY: the variables follow, behind the null pointer.
    let variables = unsafe { arguments.add(count + 1) };
    // SAFETY: nobody else has these strings, and nothing here changes them.
    let arguments = unsafe { Strings::new(arguments.cast()) };
    // SAFETY: nobody else has the variables either, and nothing here changes them.
    let environment = unsafe { Strings::new(variables.cast()) };
    // SAFETY: the pairs follow, behind the null pointer.
    let pairs = unsafe { variables.add(environment.len() + 1) };
    // SAFETY: the pairs begin there.
    run(arguments, environment, unsafe { executed_as(pairs) });
    end(CANNOT_RUN)
}

/// # Safety
/// Pairs of numbers begin there, of which the last has the key 0.
unsafe fn executed_as(mut pairs: *const usize) -> Option<&'static CStr> {
    loop {
        // SAFETY: it is a pair's key.
        match unsafe { pairs.read() } {
            0 => return None,
            EXECUTED_AS => break,
            // SAFETY: it is not the last pair.
            _ => pairs = unsafe { pairs.add(2) },
        }
    }
    // SAFETY: the value follows the key.
    let value = unsafe { pairs.add(1) };
    // SAFETY: it is a pointer to a string.
    let name = unsafe { value.cast::<*const c_char>().read() };
    // SAFETY: the kernel has put the string above the stack.
    Some(unsafe { CStr::from_ptr(name) })
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    end(CANNOT_RUN)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller guarantees the memory.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
    // SAFETY: the caller guarantees the memory.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, in("eax") byte, inout("rcx") len => _,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const c_void, other: *const c_void, len: usize) -> c_int {
    let order: c_int;
    // SAFETY: the caller guarantees the memory.
    unsafe {
        asm!("cmp ecx, ecx", "repe cmpsb", "seta al", "setb cl", "sub al, cl", "movsx eax, al",
            inout("rsi") one => _, inout("rdi") other => _, inout("rcx") len => _,
            lateout("eax") order, options(nostack));
    }
    order
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const c_void, other: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller guarantees the memory.
    unsafe { memcmp(one, other, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(string: *const c_char) -> usize {
    let left: usize;
    // SAFETY: the caller guarantees that the string ends with a null.
    unsafe {
        asm!("repne scasb", inout("rdi") string => _, in("al") 0_u8,
            inout("rcx") usize::MAX => left, options(nostack));
    }
    usize::MAX - left - 1
}
