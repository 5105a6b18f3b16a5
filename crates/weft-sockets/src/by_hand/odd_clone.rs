//! Clones whose child goes on with the program's stack as it is.
//!
//! # Safety
//! As in [`landing`](super::landing): registers and the stack are left as a system call leaves
//! them.
#![allow(unsafe_code)]

use std::arch::naked_asm;

use super::frame::RED_ZONE;
use super::place::Place;
use super::{code, switch};

/// A `clone(2)` whose child goes on with this very stack, or with one of its own, so that nothing
/// may be left on it: where both go on is in a word of the thread. The thread is not armed; the
/// parent is again when it goes on.
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
        resume = const std::mem::offset_of!(Place, resume),
        red_zone = const RED_ZONE,
        prctl = const libc::SYS_prctl,
        option = const switch::SET_DISPATCH,
        on = const switch::ON,
        start = sym code::ALLOWED_START,
        len = sym code::ALLOWED_LEN,
        selector = sym switch::SELECTOR,
    )
}
