//! Other names of hooked functions in the C library, which old programs and libraries call.
//!
//! # Safety
//! Each function jumps to the hook with all registers and the stack unchanged.
#![allow(unsafe_code)]

use std::arch::naked_asm;

/// Defines an alias of a hooked function.
macro_rules! also {
    ($name:ident, $hook:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!("jmp {hook}@PLT", hook = sym $hook)
        }
    };
}

also!(__read, libc::read);
also!(__write, libc::write);
also!(__send, libc::send);
also!(__connect, libc::connect);
also!(__close, libc::close);
also!(__dup2, libc::dup2);
also!(__fcntl, libc::fcntl);
also!(__poll, libc::poll);
also!(__select, libc::select);
also!(__clone, libc::clone);
also!(__nanosleep, libc::nanosleep);
also!(__sigaction, libc::sigaction);
also!(__sigsuspend, libc::sigsuspend);
also!(_IO_fopen, libc::fopen);
also!(_IO_fdopen, libc::fdopen);
also!(_IO_fclose, libc::fclose);
