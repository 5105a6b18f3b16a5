//! `syscall(2)`: libseccomp asks for its filters by it, and some servers fork by it, into
//! namespaces of the child's own.
//!
//! # Safety
//! The function jumps to the next one with all registers and the stack as they were, so that it may
//! be any system call, but for two: `seccomp`, before which registers are saved, and a `clone` that
//! is a fork, whose child has a stack of its own behind it as any child of `fork` has.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_long, c_uint, c_ulong};

use super::born;
use super::data::is_nowhere;
use crate::next::next;
use crate::{confine, process};

/// The next one, once it is known.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Before the first call, and before one of `seccomp(2)`.
extern "C" fn prepare(number: c_long, operation: c_uint, _flags: c_uint, filter: *const c_void) {
    // SAFETY: the name is a C string; every C library has the function.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    NEXT.store(next, Ordering::Release);
    let confines = match operation {
        libc::SECCOMP_SET_MODE_STRICT => true,
        // Without a filter it is a question whether there could be one.
        libc::SECCOMP_SET_MODE_FILTER => !is_nowhere(filter),
        _ => false,
    };
    if number == libc::SYS_seccomp && confines {
        confine::confine();
    }
}

/// `clone(2)` that is a fork: neither memory nor stack are others than a fork's.
extern "C" fn clone(
    flags: c_ulong,
    stack: *mut c_void,
    parent: *mut c_int,
    child: *mut c_int,
    tls: c_ulong,
) -> c_long {
    born::check_sharing(flags as c_int);
    let leaves = flags & libc::CLONE_NEWPID as c_ulong != 0;
    let was_elsewhere = leaves && process::begin_children_elsewhere();
    process::before_fork();
    let number = libc::SYS_clone;
    let born: c_long = next!(syscall(
        number: c_long, flags: c_ulong, stack: *mut c_void, parent: *mut c_int,
        child: *mut c_int, tls: c_ulong
    ) -> c_long);
    if born != 0 {
        process::in_parent();
        if leaves && !was_elsewhere {
            process::end_children_elsewhere();
        }
    } else {
        process::in_child();
    }
    born
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {number_of_clone}",
        "je 3f",
        "cmp rdi, {number_of_seccomp}",
        "je 4f",
        "2:",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "je 4f",
        "jmp rax",
        // Is it a fork?
        "3:",
        "test esi, {shared_memory}",
        "jne 2b",
        "test rdx, rdx",
        "jne 2b",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "jmp {clone}",
        "4:",
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
        "mov rax, [rip + {next}]",
        "jmp rax",
        number_of_clone = const libc::SYS_clone,
        number_of_seccomp = const libc::SYS_seccomp,
        shared_memory = const libc::CLONE_VM,
        next = sym NEXT,
        clone = sym clone,
        prepare = sym prepare,
    )
}
