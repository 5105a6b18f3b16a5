//! Becoming another user for good.
//!
//! The new user has no right to what the process shares with processes of the old one, and the
//! kernel does not let it fetch their sockets any more. So connections go to TCP first. A process
//! that changes its effective user alone may become the old one again, and keeps them.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_int, uid_t};
use rustix::process::getuid;

use crate::next::next;
use crate::reason::Reason;
use crate::{errno, identity, mode, seccomp_fallback};

/// No change, to the functions that take several users.
const UNCHANGED: uid_t = uid_t::MAX;

/// The process's real user is about to be this one.
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
