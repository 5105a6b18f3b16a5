//! Clones whose child resumes on the program's stack.
//!
//! # Safety
//! The code preserves all registers but rax, rcx and r11, and the stack, as a system call does.
#![allow(unsafe_code)]

use std::arch::naked_asm;

use super::frame::RED_ZONE;
use super::place::ThreadVariables;
use super::{code, switch};

/// Makes a `clone(2)` whose child resumes on this very stack, or on a new one, so that nothing may
/// be left on the stack: a thread-local word holds where both resume. The thread is disarmed here;
/// the parent is armed again before it resumes.
#[unsafe(naked)]
pub(super) extern "C" fn odd_clone() {
    naked_asm!(
        "syscall",
        "mov r11, [rip + weft_place@GOTTPOFF]",
        "mov rcx, fs:[r11 + {resume}]",
        "test rax, rax",
        "jne 2f",
        "jmp rcx",
        "2:",
        "lea rsp, [rsp - {red_zone}]",
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push rcx",
        "mov eax, {prctl}",
        "mov edi, {option}",
        "mov esi, {on}",
        "mov rdx, [rip + {start}]",
        "mov r10, [rip + {len}]",
        "lea r8, [rip + {selector}]",
        "syscall",
        "pop rcx",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "lea rsp, [rsp + {red_zone}]",
        "jmp rcx",
        resume = const std::mem::offset_of!(ThreadVariables, resume),
        red_zone = const RED_ZONE,
        prctl = const libc::SYS_prctl,
        option = const switch::SET_DISPATCH,
        on = const switch::ON,
        start = sym code::ALLOWED_START,
        len = sym code::ALLOWED_LEN,
        selector = sym switch::SELECTOR,
    )
}
