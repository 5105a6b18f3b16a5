//! Other names that the C library has for functions with a hook, which old programs and libraries
//! call.
//!
//! # Safety
//! Each jumps to the hook with all registers and the stack as they were.
#![allow(unsafe_code)]

use std::arch::naked_asm;

/// Makes a function that is another by its name.
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
