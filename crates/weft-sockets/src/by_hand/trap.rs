//! The handler of `SIGSYS`. It makes no system call and calls no hook: its stack may be small, and
//! returning from it would undo what it changes of the thread (the mask, the signal stack). So it
//! only changes where the thread resumes.
//!
//! # Safety
//! The kernel has written the context of a thread that is stopped at a system call: the registers
//! hold the call's number and arguments. As for any signal, the stack has room below the bytes that
//! the ABI reserves.
#![allow(unsafe_code)]

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::frame::{Frame, PASSED_LEN, RED_ZONE};
use super::place::own;
use super::{code, signals, stacks, threads, trampoline};
use crate::limits::CALL_NUMBERS_MAX;
use crate::reach::{REACH, Reach};

/// `SYS_USER_DISPATCH`: the code of a `SIGSYS` that dispatch has raised.
const REPORTED: c_int = 2;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// `siginfo_t` as the kernel fills it in for a report.
#[repr(C)]
struct SigsysInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    _padding: c_int,
    address: usize,
    number: c_int,
    processor: u32,
}

/// How a call is executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Execution {
    /// The kernel executes it, at the gate.
    Pass,
    /// [`calls::execute_call`](super::calls::execute_call) executes it.
    Land,
    /// `rt_sigreturn(2)`: the kernel executes it at the gate, with the stack unchanged.
    Return,
}

static EXECUTIONS: [Execution; CALL_NUMBERS_MAX] = {
    let mut ways = [Execution::Pass; CALL_NUMBERS_MAX];
    let mut number = 0;
    while number < CALL_NUMBERS_MAX {
        if !matches!(REACH[number], Reach::Stays) {
            ways[number] = Execution::Land;
        }
        number += 1;
    }
    ways[libc::SYS_rt_sigreturn as usize] = Execution::Return;
    ways[libc::SYS_rt_sigprocmask as usize] = Execution::Land;
    ways[libc::SYS_rt_sigaction as usize] = Execution::Land;
    ways[libc::SYS_rt_sigsuspend as usize] = Execution::Land;
    ways
};

/// The handler of `SIGSYS`.
pub(super) extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t`, which has this layout.
    let report = unsafe { &*info.cast::<SigsysInfo>() };
    if report.code != REPORTED {
        if !threads::is_arm_signal(info) {
            // SAFETY: these are the arguments of this handler.
            unsafe { signals::forward(signal, info, context) };
        }
        return;
    }
    // SAFETY: the kernel passes a `ucontext_t` that only this handler uses.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let way = usize::try_from(report.number).ok().and_then(|number| EXECUTIONS.get(number));
    let is_known = way.is_some() && report.processor == X86_64;
    match way {
        Some(Execution::Return) if is_known => set_register(context, libc::REG_RIP, code::gate()),
        Some(Execution::Land) if is_known && !code::is_own(report.address) => {
            // SAFETY: the context is of a thread stopped at a system call.
            unsafe { redirect(context, false) };
        }
        // SAFETY: the context is of a thread stopped at a system call.
        Some(_) if is_known => unsafe { pass(context) },
        // SAFETY: the context is of a thread stopped at a system call.
        _ => unsafe { redirect(context, true) },
    }
}

fn register(context: &ucontext_t, register: c_int) -> usize {
    context.uc_mcontext.gregs[register as usize] as usize
}

fn set_register(context: &mut ucontext_t, register: c_int, value: usize) {
    context.uc_mcontext.gregs[register as usize] = value as i64;
}

/// Has the kernel execute the call at the gate, with the same signals and results as at the
/// program's own instruction.
unsafe fn pass(context: &mut ucontext_t) {
    let stack = register(context, libc::REG_RSP) - RED_ZONE - PASSED_LEN;
    let words: [usize; 2] =
        [trampoline::passed as *const () as usize, register(context, libc::REG_RIP)];
    // SAFETY: below the red zone, where the stack has room as for any signal.
    unsafe { (stack as *mut [usize; 2]).write_unaligned(words) };
    set_register(context, libc::REG_RSP, stack);
    set_register(context, libc::REG_RIP, code::gate());
}

/// Has [`trampoline::enter`] execute the call, on a stack with enough room.
unsafe fn redirect(context: &mut ucontext_t, is_foreign: bool) {
    let stack = register(context, libc::REG_RSP);
    let used = own!(own_used);
    let top = match stacks::stack_for(context, stack) {
        Some(top) => top,
        // No memory for a stack of Weft's: use the program's.
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
    // SAFETY: `place` is aligned, and below everything in use on a stack that has room.
    unsafe { (place as *mut Frame).write(frame) };
    set_register(context, libc::REG_RSP, place);
    set_register(context, libc::REG_RIP, trampoline::enter as *const () as usize);
}
