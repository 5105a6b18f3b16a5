//! Switches the kernel's reports of calls by hand on and off, for each thread.
//!
//! # Safety
//! The kernel reads a static byte.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_int;
use weft_sys::raw_system_call;

use super::code;
use super::place::own;

/// `PR_SET_SYSCALL_USER_DISPATCH`.
pub(crate) const SET_DISPATCH: c_int = 59;
pub(super) const ON: usize = 1;
const OFF: usize = 0;

/// The selector byte of all armed threads: report calls, or let them through.
pub(super) static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Has armed threads report from here on.
pub(super) fn report_all() {
    SELECTOR.store(BLOCK, Ordering::SeqCst);
}

/// Arms the calling thread.
pub(super) fn arm() -> Result<(), &'static str> {
    // The kernel reports calls as soon as dispatch is on, and Weft's own calls then have to use the
    // gate: so the flag is set first.
    own!(is_armed = true);
    let [start, len] =
        [&code::ALLOWED_START, &code::ALLOWED_LEN].map(|word| word.load(Ordering::Relaxed));
    if dispatch(ON, start, len) == 0 {
        return Ok(());
    }
    own!(is_armed = false);
    Err("calls by hand cannot be seen: the kernel does not report them")
}

/// Disarms the calling thread for now.
pub(super) fn disarm() {
    dispatch(OFF, 0, 0);
}

fn dispatch(mode: usize, start: usize, len: usize) -> isize {
    let selector = if mode == OFF { 0 } else { SELECTOR.as_ptr() as usize };
    let arguments = [SET_DISPATCH as usize, mode, start, len, selector, 0];
    // SAFETY: the selector is a static byte.
    unsafe { raw_system_call(libc::SYS_prctl, arguments) }
}

/// Stops the reports of all threads.
pub(super) fn let_all_through() {
    SELECTOR.store(ALLOW, Ordering::SeqCst);
}
