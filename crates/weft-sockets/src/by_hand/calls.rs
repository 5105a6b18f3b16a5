//! Executes a call by hand, on the thread that has made it.
//!
//! # Safety
//! The arguments are those that the program has passed to the kernel, and the frame is that of the
//! suspended call.
#![allow(unsafe_code)]

use libc::{c_int, c_long};
use weft_sys::raw_system_call;

use super::frame::Frame;
use super::outside::outside;
use super::place::own;
use super::state::give_up;
use super::{odd_clone, signals, switch};
use crate::arguments::{Arguments, clone_flags};
use crate::errno;

/// Length of the `syscall` instruction, in bytes.
const INSTRUCTION_LEN: usize = 2;

/// Executes a call by hand. It runs outside the signal handler, because a call may sleep, be
/// interrupted, or never return (a jump out of a handler).
pub(super) fn execute_call(frame: &mut Frame) {
    let before = errno::get();
    let number = frame.rax as c_long;
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10, frame.r8, frame.r9];
    if frame.is_foreign {
        // A 32-bit or x32 call: let the program's own instruction through.
        give_up();
        (outside().keep_on_tcp)("system calls of another processor are made");
        frame.rip -= INSTRUCTION_LEN;
        return errno::set_raw(before);
    }
    // SAFETY: the registers hold the arguments of the program's own call.
    if let Some(result) = unsafe { do_call(frame, number, arguments) } {
        frame.rax = result.cast_unsigned();
    }
    errno::set_raw(before);
}

/// Returns the call's result as the kernel reports it. `None`: the frame now says where the call is
/// made.
///
/// # Safety
/// The arguments are the program's.
unsafe fn do_call(frame: &mut Frame, number: c_long, arguments: Arguments) -> Option<isize> {
    let done = match number {
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork => {
            // SAFETY: guaranteed by the caller.
            if !unsafe { (outside().is_fork)(number, arguments) } {
                // SAFETY: guaranteed by the caller.
                unsafe { clone_oddly(frame, number, arguments) };
                return None;
            }
            // SAFETY: guaranteed by the caller.
            unsafe { (outside().call)(number, arguments) }
        }
        // SAFETY: guaranteed by the caller.
        libc::SYS_rt_sigprocmask => return Some(unsafe { signals::mask_by_number(arguments) }),
        // SAFETY: guaranteed by the caller.
        libc::SYS_rt_sigaction => return Some(unsafe { signals::action_by_number(arguments) }),
        // SAFETY: guaranteed by the caller.
        libc::SYS_rt_sigsuspend => return Some(unsafe { signals::suspend_by_number(arguments) }),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { (outside().call)(number, arguments) },
    };
    Some(match done {
        Some(-1) => -(errno::get() as isize),
        Some(result) => result as isize,
        // SAFETY: guaranteed by the caller.
        None => unsafe { raw_system_call(number, arguments) },
    })
}

/// Makes a clone whose child shares the memory or starts on another stack. Either the program's own
/// instruction makes it, or [`odd_clone::odd_clone`], which leaves nothing on the stack.
///
/// # Safety
/// The arguments are the program's.
unsafe fn clone_oddly(frame: &mut Frame, number: c_long, arguments: Arguments) {
    // SAFETY: guaranteed by the caller.
    let flags = unsafe { clone_flags(number, arguments) };
    let has = |flag: c_int| flags & flag as usize != 0;
    let is_thread = has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) || has(libc::CLONE_SETTLS);
    if is_thread || !own!(is_armed) {
        // `is_fork` has the process stay on TCP.
        give_up();
        frame.rip -= INSTRUCTION_LEN;
        return;
    }
    own!(resume = frame.rip);
    switch::disarm();
    frame.rip = odd_clone::odd_clone as *const () as usize;
}
