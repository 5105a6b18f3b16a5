//! System calls about the whole process: forks by number, io_uring, namespaces; and the end of
//! moving connections where something is used that Weft does not see.
//!
//! # Safety
//! Arguments are the program's, as its calls guarantee. A fork is made while all locks are frozen.
#![allow(unsafe_code)]

use libc::{c_int, c_long, c_uint, c_void};

use super::leave;
use crate::arguments::{Arguments, clone_flags, is_nowhere};
use crate::process;
use crate::seccomp_fallback::{self, keep_on_tcp};

/// Where `struct clone_args` has its stack.
const STACK_AT: usize = 40;

/// Before a `clone(2)` or `clone3(2)`: whether it is a fork, whose child goes on behind the call
/// with a copy of the stack. For others everything is done that is to be done before.
///
/// # Safety
/// The arguments are the program's.
pub(super) unsafe fn is_fork(number: c_long, a: Arguments) -> bool {
    // SAFETY: guaranteed by the caller.
    let flags = unsafe { clone_flags(number, a) };
    let mut stack = a[1];
    if number == libc::SYS_clone3 {
        if is_nowhere(a[0] as *const c_void) {
            return false;
        }
        // SAFETY: within the program's own structure.
        stack = unsafe { ((a[0] + STACK_AT) as *const usize).read_unaligned() };
    }
    let shares = flags & libc::CLONE_VM as usize != 0;
    if !shares && stack == 0 {
        return true;
    }
    cloning(flags);
    false
}

/// A child is about to be born that is neither a fork nor a thread of the C library's.
pub(crate) fn cloning(flags: usize) {
    let has = |flag: c_int| flags & flag as usize != 0;
    if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
        keep_on_tcp("a thread was made by clone(2)");
    } else {
        leave::all();
    }
}

/// Makes a system call that is a fork.
///
/// # Safety
/// The arguments are the program's; the child gets a memory and a stack of its own.
pub(super) unsafe fn fork(number: c_long, a: Arguments, flags: usize) -> c_long {
    let fork = process::Forking::begin(flags as c_int);
    // SAFETY: guaranteed by the caller.
    let born = unsafe { weft_sys::system_call(number, a) };
    fork.end(born);
    born
}

/// Before a `seccomp(2)`.
pub(crate) fn seccomp(operation: c_uint, filter: *const c_void) {
    let gives_up_calls = match operation {
        libc::SECCOMP_SET_MODE_STRICT => true,
        // Without a filter it is a question whether there could be one.
        libc::SECCOMP_SET_MODE_FILTER => !is_nowhere(filter),
        _ => false,
    };
    if gives_up_calls {
        seccomp_fallback::enter();
    }
}

/// Before an `unshare(2)`. Threads have numbers of one PID namespace, and what is known of
/// descriptors is of one table. (Addresses of a network namespace are named with its number.)
pub(crate) fn unsharing(flags: c_int) {
    if flags & libc::CLONE_NEWPID != 0 {
        process::begin_children_elsewhere();
    }
    if flags & libc::CLONE_FILES != 0 {
        keep_on_tcp("unshare(2) of the descriptors");
    }
}

/// Before a `setns(2)`; 0 stands for whatever the descriptor is.
pub(crate) fn entering(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        process::begin_children_elsewhere();
    }
}
