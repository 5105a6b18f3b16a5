//! System calls about the whole process: forks by number, namespaces, seccomp. The process stays on
//! TCP if it uses something that Weft cannot see.
//!
//! # Safety
//! The arguments are the program's. A fork is made while all locks are frozen.
#![allow(unsafe_code)]

use libc::{c_int, c_long, c_uint, c_void};

use super::fallback;
use crate::arguments::{Arguments, clone_flags, is_nowhere};
use crate::process;
use crate::seccomp_fallback::{self, keep_on_tcp};

/// Offset of the stack in `struct clone_args`.
const STACK_AT: usize = 40;

/// Returns whether a `clone(2)` or `clone3(2)` is a fork, whose child continues after the call with
/// a copy of the stack. For others it makes all preparations.
///
/// # Safety
/// The arguments are those of the program's call.
pub(super) unsafe fn is_fork(number: c_long, a: Arguments) -> bool {
    // SAFETY: the caller guarantees the program's arguments.
    let flags = unsafe { clone_flags(number, a) };
    let mut stack = a[1];
    if number == libc::SYS_clone3 {
        if is_nowhere(a[0] as *const c_void) {
            return false;
        }
        // SAFETY: not an impossible address, so it is the program's structure, which has this
        // field.
        stack = unsafe { ((a[0] + STACK_AT) as *const usize).read_unaligned() };
    }
    let shares = flags & libc::CLONE_VM as usize != 0;
    if !shares && stack == 0 {
        return true;
    }
    cloning(flags);
    false
}

/// Prepares for a child that is neither a fork nor a thread of the C library.
pub(crate) fn cloning(flags: usize) {
    let has = |flag: c_int| flags & flag as usize != 0;
    if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
        keep_on_tcp("a thread was made by clone(2)");
    } else {
        fallback::all();
    }
}

/// Makes a system call that is a fork.
///
/// # Safety
/// The arguments are the program's; the child gets its own memory and stack.
pub(super) unsafe fn fork(number: c_long, a: Arguments, flags: usize) -> c_long {
    let fork = process::Forking::begin(flags as c_int);
    // SAFETY: the caller guarantees that the call is a fork.
    let child = unsafe { weft_sys::system_call(number, a) };
    fork.end(child);
    child
}

/// Enters the fallback before a `seccomp(2)` that gives up system calls.
pub(crate) fn seccomp(operation: c_uint, filter: *const c_void) {
    let gives_up_calls = match operation {
        libc::SECCOMP_SET_MODE_STRICT => true,
        // Without a filter the call only asks whether the kernel supports filters.
        libc::SECCOMP_SET_MODE_FILTER => !is_nowhere(filter),
        _ => false,
    };
    if gives_up_calls {
        seccomp_fallback::enter();
    }
}

/// Prepares for an `unshare(2)`: thread ids belong to one PID namespace, and the descriptor table
/// to one process. (Connections in another network namespace are named with its number.)
pub(crate) fn unsharing(flags: c_int) {
    if flags & libc::CLONE_NEWPID != 0 {
        process::begin_children_elsewhere();
    }
    if flags & libc::CLONE_FILES != 0 {
        keep_on_tcp("unshare(2) of the descriptors");
    }
}

/// Prepares for a `setns(2)`; kind 0 means whatever namespace the descriptor has.
pub(crate) fn entering(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        process::begin_children_elsewhere();
    }
}
