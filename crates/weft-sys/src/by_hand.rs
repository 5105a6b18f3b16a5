//! System calls that no hook sees: `syscall(2)` of the C library leads to the hooks of the very
//! library that makes them.
//!
//! # Safety
//! What a system call does to memory and descriptors is for the caller to vouch for.
#![allow(unsafe_code)]

/// Makes a system call, with results as the C library has them: -1 and `errno`.
///
/// # Safety
/// As the call's manual page says of its arguments; those that it does not take are 0. It returns
/// once, or in a child that has a memory of its own.
pub unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    #[cfg(target_arch = "x86_64")]
    {
        let result: isize;
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the kernel's convention; the caller vouches for what the call does.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
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
