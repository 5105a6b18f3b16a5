//! Hooks of the calls by which a process becomes another user for good.
//!
//! The new user has no access to the files that processes of the old user share, and the kernel
//! does not let it duplicate their sockets any more. So connections fall back to TCP first. A
//! process that changes only its effective user may change back, and keeps them.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged.
#![allow(unsafe_code)]

use libc::{c_int, uid_t};
use weft_sys::calls::process::getuid;

use crate::next::next;
use crate::reason::Reason;
use crate::{errno, identity, mode, seccomp_fallback};

/// The value for "no change" in the calls that take several user ids.
const UNCHANGED: uid_t = uid_t::MAX;

/// Has connections fall back before the process's real user changes.
pub(crate) fn becoming(user: uid_t) {
    if user == UNCHANGED || user == getuid().as_raw() || !mode::enabled() {
        return;
    }
    if identity::is_borrowed() || mode::is_in_fallback() {
        return;
    }
    let before = errno::get();
    seccomp_fallback::leave_all(Reason::User);
    errno::set_raw(before);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    becoming(user);
    next!(setuid(user: uid_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    becoming(real);
    next!(setreuid(real: uid_t, effective: uid_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    becoming(real);
    next!(setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int)
}
