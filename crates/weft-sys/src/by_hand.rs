//! System calls that do not pass the hooks. The C library's `syscall(2)` would call the hooks of
//! the library that makes them.
//!
//! They go through a *gate*, the instructions `syscall; ret`. It is Weft's own, until a process
//! that has the kernel report its system calls (Syscall User Dispatch) sets one in the C library,
//! because only calls from there are not reported.
//!
//! # Safety
//! The caller guarantees what the system call does to memory and descriptors.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of `syscall; ret`, where system calls are made.
#[cfg(target_arch = "x86_64")]
static GATE: AtomicPtr<()> = AtomicPtr::new(own_gate as *const () as *mut ());

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn own_gate() {
    std::arch::naked_asm!("syscall", "ret")
}

/// Sets the gate that all later calls of [`system_call`] use.
///
/// # Safety
/// The instructions `syscall; ret` stay at this address for ever.
#[cfg(target_arch = "x86_64")]
pub unsafe fn set_system_call_gate(gate: *const ()) {
    GATE.store(gate.cast_mut(), Ordering::Release);
}

/// Makes a system call, with results like the C library's: -1 and `errno`.
///
/// # Safety
/// The arguments are valid as the call's manual page requires; unused ones are 0. The call returns
/// once, or also in a child that has its own memory.
pub unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller fulfils the conditions of `system_call`, which are the same.
        let result = unsafe { raw_system_call(number, arguments) };
        if !(-4095..0).contains(&result) {
            return result as libc::c_long;
        }
        // SAFETY: the function has no arguments and returns the address of this thread's `errno`.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the pointer is this thread's `errno`, which no other thread accesses.
        unsafe { *place = -result as libc::c_int };
        -1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller fulfils the conditions of `system_call`.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    }
}

/// Makes a system call, with results like the kernel's, and does not set `errno`.
///
/// # Safety
/// Those of [`system_call`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn raw_system_call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the registers are those of the kernel's calling convention, and the caller guarantees
    // what the call does. `nostack` is not given, so the stack has room for the return address of
    // the gate.
    unsafe {
        std::arch::asm!(
            "call qword ptr [rip + {gate}]",
            gate = sym GATE,
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_the_c_library() {
        // SAFETY: `getpid` accesses no memory.
        let pid = unsafe { system_call(libc::SYS_getpid, [0; 6]) };
        // SAFETY: `close` accesses no memory, and the number is no descriptor.
        let bad = unsafe { system_call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(pid, libc::c_long::from(std::process::id().cast_signed()));
        assert_eq!(bad, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        // SAFETY: `close` accesses no memory, and the number is no descriptor.
        let raw = unsafe { raw_system_call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(raw, -(libc::EBADF as isize));
    }
}
