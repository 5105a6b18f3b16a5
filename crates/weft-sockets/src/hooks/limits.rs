//! Hooks of the calls that give up system calls or limit the address space.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. `prctl` is variadic in C: all possible arguments are declared and passed
//! on here, in the registers where they would be.
#![allow(unsafe_code)]

use libc::{__rlimit_resource_t, c_int, c_ulong, c_void, pid_t, rlimit};

use crate::arguments::is_nowhere;
use crate::next::next;
use crate::{by_hand, mode, seccomp_fallback, shared_files};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(
    option: c_int,
    first: c_ulong,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
) -> c_int {
    // Without a filter the call only asks whether the kernel supports filters.
    let is_strict = first == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if option == libc::PR_SET_SECCOMP && (is_strict || !is_nowhere(second as *const c_void)) {
        seccomp_fallback::enter();
    }
    if option == by_hand::switch::SET_DISPATCH {
        by_hand::give_up(); // The program uses the kernel's dispatch itself.
        seccomp_fallback::keep_on_tcp("the program has its system calls reported");
    }
    next!(prctl(
        option: c_int, first: c_ulong, second: c_ulong, third: c_ulong, fourth: c_ulong
    ) -> c_int)
}

/// Unmaps shared memory that is not in use, because the program limits its address space.
///
/// # Safety
/// The limit is NULL or the program's.
unsafe fn limiting(resource: __rlimit_resource_t, limit: *const rlimit) {
    if resource != libc::RLIMIT_AS || is_nowhere(limit) {
        return;
    }
    // SAFETY: not NULL, so the caller guarantees a valid limit.
    let limit = unsafe { limit.read() };
    if limit.rlim_cur != libc::RLIM_INFINITY && mode::enabled() {
        shared_files::shrink();
    }
}

/// Defines a hook that sets a limit of this process.
macro_rules! hook_setrlimit {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            resource: __rlimit_resource_t,
            limit: *const rlimit,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { limiting(resource, limit) };
            next!($name(resource: __rlimit_resource_t, limit: *const rlimit) -> c_int)
        }
    };
}
hook_setrlimit!(setrlimit);
hook_setrlimit!(setrlimit64);

/// Defines a hook that sets a limit of any process. Another process is treated as this one, which
/// is harmless.
macro_rules! hook_prlimit {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            pid: pid_t,
            resource: __rlimit_resource_t,
            limit: *const rlimit,
            old: *mut rlimit,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { limiting(resource, limit) };
            next!($name(
                pid: pid_t, resource: __rlimit_resource_t, limit: *const rlimit, old: *mut rlimit
            ) -> c_int)
        }
    };
}
hook_prlimit!(prlimit);
hook_prlimit!(prlimit64);
