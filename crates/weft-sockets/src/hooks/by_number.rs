//! `syscall(2)`, by which libuv closes, libseccomp asks for its filters, and some servers fork; and
//! `clone(2)`.
//!
//! # Safety
//! Each function jumps to the next one with all registers and the stack as they were, so that it
//! may be any system call, or to one that takes its arguments as `syscall` does: the number first,
//! the last of six on the stack. What is asked before such a jump is called with the registers
//! saved.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_long;

use crate::limits::CALL_NUMBERS_MAX;
use crate::next::next;
use crate::reach::{REACH, Reach};
use crate::ways::dispatch;

/// The next ones, once they are known.
static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What is to be done with a number, for the code below.
const PASS: u8 = 0;
const DISPATCH: u8 = 1;
const ASK: u8 = 2;

static WHAT: [u8; CALL_NUMBERS_MAX] = {
    let mut what = [PASS; CALL_NUMBERS_MAX];
    let mut number = 0;
    while number < CALL_NUMBERS_MAX {
        if !matches!(REACH[number], Reach::Stays) {
            what[number] = DISPATCH;
        }
        number += 1;
    }
    // A thread begins with registers and a stack that only a jump leaves as they are.
    what[libc::SYS_clone as usize] = ASK;
    what[libc::SYS_clone3 as usize] = ASK;
    what[libc::SYS_vfork as usize] = ASK;
    what
};

/// Before the first call that is passed on, and before one of [`ASK`]: whether to dispatch it.
extern "C" fn prepare(number: c_long, a: usize, b: usize) -> bool {
    if SYSCALL.load(Ordering::Relaxed).is_null() {
        // SAFETY: the name is a C string; every C library has the function.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
        SYSCALL.store(next, Ordering::Release);
    }
    // SAFETY: the program's own arguments.
    unsafe { dispatch::is_fork(number, [a, b, 0, 0, 0, 0]) }
}

/// A system call that may reach something of ours.
unsafe extern "C" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own arguments.
    let done = unsafe { dispatch::call(number, [a, b, c, d, e, f]) };
    done.unwrap_or_else(|| {
        next!(syscall(
            number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
        ) -> c_long)
    })
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {what}]",
        "movzx eax, byte ptr [rax + rdi]",
        "cmp al, {dispatch}",
        "je {by_number}",
        "cmp al, {ask}",
        "je 3f",
        "2:",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "je 3f",
        "jmp rax",
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jne {by_number}",
        "mov rax, [rip + {next}]",
        "jmp rax",
        numbers = const CALL_NUMBERS_MAX,
        what = sym WHAT,
        dispatch = const DISPATCH,
        ask = const ASK,
        by_number = sym by_number,
        next = sym SYSCALL,
        prepare = sym prepare,
    )
}
