//! System calls that no hook sees: `syscall(2)` of the C library leads to the hooks of the very
//! library that makes them.
//!
//! They go through a *gate*: `syscall; ret`. It is one of ours, until a process that has the kernel
//! report its system calls (Syscall User Dispatch) names one in the C library, whose code alone
//! makes calls without a report.
//!
//! # Safety
//! What a system call does to memory and descriptors is for the caller to vouch for.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where system calls are made: the address of `syscall; ret`.
#[cfg(target_arch = "x86_64")]
static GATE: AtomicPtr<()> = AtomicPtr::new(own_gate as *const () as *mut ());

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn own_gate() {
    std::arch::naked_asm!("syscall", "ret")
}

/// Has all calls of [`system_call`] be made elsewhere.
///
/// # Safety
/// The instructions `syscall; ret` are there for ever.
#[cfg(target_arch = "x86_64")]
pub unsafe fn set_system_call_gate(gate: *const ()) {
    GATE.store(gate.cast_mut(), Ordering::Release);
}

/// Makes a system call, with results as the C library has them: -1 and `errno`.
///
/// # Safety
/// As the call's manual page says of its arguments; those that it does not take are 0. It returns
/// once, or in a child that has a memory of its own.
pub unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise.
        let result = unsafe { raw_system_call(number, arguments) };
        if !(-4095..0).contains(&result) {
            return result as libc::c_long;
        }
        // SAFETY: the address of this thread's `errno`.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: it is this thread's own.
        unsafe { *place = -result as libc::c_int };
        -1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller vouches for what the call does.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    }
}

/// The same with results as the kernel has them, and without `errno`.
///
/// # Safety
/// As for [`system_call`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn raw_system_call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel's convention; the caller vouches for what the call does. The stack has
    // room for the gate's address of return, as `nostack` is not said.
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
        // SAFETY: it takes no memory.
        let pid = unsafe { system_call(libc::SYS_getpid, [0; 6]) };
        // SAFETY: it takes no memory.
        let bad = unsafe { system_call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(pid, libc::c_long::from(std::process::id().cast_signed()));
        assert_eq!(bad, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        // SAFETY: it takes no memory.
        let raw = unsafe { raw_system_call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(raw, -(libc::EBADF as isize));
    }
}
