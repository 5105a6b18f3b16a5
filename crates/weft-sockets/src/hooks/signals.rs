//! Handlers of signals: what is known of them is asked anew when one is set.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_int, c_void, sighandler_t};

use crate::next::{Next, next};
use crate::process;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let done = next!(sigaction(
        signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction
    ) -> c_int);
    if !action.is_null() {
        process::handlers_changed();
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let done = next!(siginterrupt(signal: c_int, interrupts: c_int) -> c_int);
    process::handlers_changed();
    done
}

/// Sets a handler by the next library's function of a name, in the manner of `signal(2)`.
macro_rules! set {
    ($name:ident, $c_name:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            static NEXT: Next = Next::new($c_name);
            type Set = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Set>>(NEXT.address()) };
            // SAFETY: the program's own arguments.
            let old = next.map_or(libc::SIG_ERR, |next| unsafe { next(signal, handler) });
            process::handlers_changed();
            old
        }
    };
}
set!(signal, c"signal");
set!(bsd_signal, c"bsd_signal");
set!(ssignal, c"ssignal");
set!(sysv_signal, c"sysv_signal");
set!(__sysv_signal, c"__sysv_signal");
set!(sigset, c"sigset");
