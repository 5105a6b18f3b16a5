//! Threads.
//!
//! # Safety
//! Each call passes addresses of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::num::NonZero;

use rustix::io::Errno;
pub use rustix::process::Pid;
pub use rustix::time::Timespec;

pub use super::data::sched_yield;
use super::raw::{address, call, int};

/// The types of calls that sleep on several words.
pub mod futex {
    pub use rustix::thread::futex::{Wait, WaitFlags, WaitPtr};
}

/// The number of the calling thread.
///
/// # Panics
/// Never: the kernel gives each thread a number above 0.
#[must_use]
pub fn gettid() -> Pid {
    // SAFETY: the call accesses no memory.
    let number = unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    Pid::from_raw(number as libc::pid_t).expect("a thread has a number")
}

/// Sleeps for a time.
///
/// # Errors
/// `EINTR` after a signal, `EINVAL` for no time.
pub fn nanosleep(time: &Timespec) -> Result<(), Errno> {
    // SAFETY: the time lives during the call.
    unsafe { call(libc::SYS_nanosleep, [address(Some(time)), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Sets by how many nanoseconds the kernel may delay the ends of the calling thread's sleeps
/// (`PR_SET_TIMERSLACK`).
///
/// # Errors
/// Those of `prctl(2)`.
pub fn set_timer_slack(nanoseconds: NonZero<u32>) -> Result<(), Errno> {
    let arguments = [int(libc::PR_SET_TIMERSLACK), nanoseconds.get() as usize, 0, 0, 0, 0];
    // SAFETY: the call accesses no memory.
    unsafe { call(libc::SYS_prctl, arguments) }.map(drop)
}
