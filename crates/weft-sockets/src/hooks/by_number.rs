//! `syscall(2)`: libuv closes with it, libseccomp installs filters, and some servers fork. And
//! `clone(2)`.
//!
//! # Safety
//! Each function either jumps to the next one with all registers and the stack unchanged, so that
//! it may be any system call, or to a function with `syscall`'s own arguments: the number first,
//! the last of six on the stack. Functions that are called before such a jump run with the
//! registers saved.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_long;
use weft_sys::Section;

use crate::limits::CALL_NUMBERS_MAX;
use crate::next::next;
use crate::reach::{REACH, Reach};
use crate::ways::dispatch;

/// The next library's `syscall`, once it is known.
static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What the assembly does with a number: pass it on, dispatch it, or ask [`prepare`].
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
    // A child starts with the caller's registers and stack, which only a jump preserves.
    what[libc::SYS_clone as usize] = ASK;
    what[libc::SYS_clone3 as usize] = ASK;
    what[libc::SYS_vfork as usize] = ASK;
    what
};

/// Looks up the next function before the first call, and returns whether to dispatch a call of
/// [`ASK`].
extern "C" fn prepare(number: c_long, a: usize, b: usize) -> bool {
    if SYSCALL.load(Ordering::Relaxed).is_null() {
        let _section = Section::begin(); // No handler jumps out of the lookup.
        // SAFETY: the name is a C string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
        SYSCALL.store(next, Ordering::Release);
    }
    // SAFETY: the arguments are those of the program's call.
    unsafe { dispatch::is_fork(number, [a, b, 0, 0, 0, 0]) }
}

/// Executes a system call that may reach a descriptor of Weft's.
unsafe extern "C" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the arguments are those of the program's call.
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
