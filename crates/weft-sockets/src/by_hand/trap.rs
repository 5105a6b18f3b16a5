//! The handler of the kernel's reports. It makes no system call by itself and calls no hook: the
//! stack that it is on may be small, and what it changes of the thread (its mask, its stack of
//! signals) would be undone at its end. So it changes where the thread goes on.
//!
//! # Safety
//! The context is the kernel's, of the thread that has made a call and waits for it: its registers
//! are the call's number and arguments. Its stack has room below the bytes that the ABI reserves,
//! as it would need for a signal.
#![allow(unsafe_code)]

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::frame::{Frame, PASSED_LEN, RED_ZONE};
use super::place::own;
use super::{code, landing, signals, stacks, threads};
use crate::limits::CALL_NUMBERS_MAX;
use crate::reach::{REACH, Reach};

/// `SYS_USER_DISPATCH`: why there is a `SIGSYS`.
const REPORTED: c_int = 2;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// What the kernel says of a report, as it has `siginfo_t`.
#[repr(C)]
struct Report {
    signal: c_int,
    error: c_int,
    code: c_int,
    _padding: c_int,
    address: usize,
    number: c_int,
    processor: u32,
}

/// What becomes of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The kernel does it, at the gate.
    Pass,
    /// [`calls::landed`](super::calls::landed) does it.
    Land,
    /// `rt_sigreturn(2)`: at the gate, with the stack as it is.
    Return,
}

static WAYS: [Way; CALL_NUMBERS_MAX] = {
    let mut ways = [Way::Pass; CALL_NUMBERS_MAX];
    let mut number = 0;
    while number < CALL_NUMBERS_MAX {
        if !matches!(REACH[number], Reach::Stays) {
            ways[number] = Way::Land;
        }
        number += 1;
    }
    ways[libc::SYS_rt_sigreturn as usize] = Way::Return;
    ways[libc::SYS_rt_sigprocmask as usize] = Way::Land;
    ways[libc::SYS_rt_sigaction as usize] = Way::Land;
    ways[libc::SYS_rt_sigsuspend as usize] = Way::Land;
    ways
};

/// The handler of `SIGSYS`.
pub(super) extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: what the kernel has written.
    let report = unsafe { &*info.cast::<Report>() };
    if report.code != REPORTED {
        if !threads::is_call_to_arm(info) {
            // SAFETY: the handler's own arguments.
            unsafe { signals::forward(signal, info, context) };
        }
        return;
    }
    // SAFETY: the handler's own arguments.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let way = usize::try_from(report.number).ok().and_then(|number| WAYS.get(number));
    let is_known = way.is_some() && report.processor == X86_64;
    match way {
        Some(Way::Return) if is_known => set_register(context, libc::REG_RIP, code::gate()),
        Some(Way::Land) if is_known && !code::is_own(report.address) => {
            // SAFETY: the context is of a call that waits.
            unsafe { to_land(context, false) };
        }
        // SAFETY: the context is of a call that waits.
        Some(_) if is_known => unsafe { pass(context) },
        // SAFETY: the context is of a call that waits.
        _ => unsafe { to_land(context, true) },
    }
}

fn register(context: &ucontext_t, register: c_int) -> usize {
    context.uc_mcontext.gregs[register as usize] as usize
}

fn set_register(context: &mut ucontext_t, register: c_int, value: usize) {
    context.uc_mcontext.gregs[register as usize] = value as i64;
}

/// The kernel does the call, at the gate: signals and results are as if the program's instruction
/// had been let through.
unsafe fn pass(context: &mut ucontext_t) {
    let stack = register(context, libc::REG_RSP) - RED_ZONE - PASSED_LEN;
    let words: [usize; 2] =
        [landing::passed as *const () as usize, register(context, libc::REG_RIP)];
    // SAFETY: below what the program has on its stack.
    unsafe { (stack as *mut [usize; 2]).write_unaligned(words) };
    set_register(context, libc::REG_RSP, stack);
    set_register(context, libc::REG_RIP, code::gate());
}

/// A function of ours does the call, where there is a stack for it.
unsafe fn to_land(context: &mut ucontext_t, is_foreign: bool) {
    let stack = register(context, libc::REG_RSP);
    let used = own!(own_used);
    let top = match stacks::stack_for(context, stack) {
        Some(top) => top,
        // There is no memory for a stack of ours: the program's has to do.
        None => stack - RED_ZONE,
    };
    let place = (top - size_of::<Frame>()) & !(align_of::<Frame>() - 1);
    let get = |which| register(context, which);
    let frame = Frame {
        rax: get(libc::REG_RAX),
        rbx: get(libc::REG_RBX),
        rdx: get(libc::REG_RDX),
        rsi: get(libc::REG_RSI),
        rdi: get(libc::REG_RDI),
        rbp: get(libc::REG_RBP),
        r8: get(libc::REG_R8),
        r9: get(libc::REG_R9),
        r10: get(libc::REG_R10),
        r12: get(libc::REG_R12),
        r13: get(libc::REG_R13),
        r14: get(libc::REG_R14),
        r15: get(libc::REG_R15),
        flags: get(libc::REG_EFL),
        rip: get(libc::REG_RIP),
        rsp: stack,
        own_used: used,
        is_foreign,
    };
    // SAFETY: room on a stack, aligned, below all that is in use there.
    unsafe { (place as *mut Frame).write(frame) };
    set_register(context, libc::REG_RSP, place);
    set_register(context, libc::REG_RIP, landing::land as *const () as usize);
}
