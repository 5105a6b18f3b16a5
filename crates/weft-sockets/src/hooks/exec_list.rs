//! The variadic `exec` functions, which the C library executes without a call that can be hooked.
//! Their arguments become lists, and the list functions do the rest.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes. Callers guarantee
//! that the arguments end with NULL.
#![allow(unsafe_code)]

use std::arch::naked_asm;

use libc::{c_char, c_int};
use smallvec::SmallVec;

use super::exec::{List, execv, execve, execvp};
use super::variadic::variadic;

/// A `va_list` of the x86-64 ABI, all of whose arguments are words.
#[repr(C)]
struct Arguments {
    used: u32,
    _used_by_vectors: u32,
    on_stack: *const usize,
    registers: *const u8,
}

/// Bytes of the general registers that may hold arguments.
const REGISTERS_LEN: u32 = 48;

impl Arguments {
    /// Returns the next argument.
    ///
    /// # Safety
    /// There is a next argument.
    unsafe fn next(&mut self) -> usize {
        if self.used < REGISTERS_LEN {
            // SAFETY: `used` is below the size of the saved registers.
            let place = unsafe { self.registers.add(self.used as usize) };
            self.used += 8;
            // SAFETY: inside the saved registers, at a multiple of 8.
            return unsafe { place.cast::<usize>().read() };
        }
        let place = self.on_stack;
        // SAFETY: the caller guarantees another argument, which is on the stack.
        self.on_stack = unsafe { place.add(1) };
        // SAFETY: the caller guarantees another argument, which is on the stack.
        unsafe { place.read() }
    }

    /// Returns all arguments up to NULL, and the NULL.
    ///
    /// # Safety
    /// There is a NULL.
    unsafe fn list(&mut self) -> SmallVec<[*const c_char; 64]> {
        let mut list = SmallVec::new();
        loop {
            // SAFETY: no NULL has come yet, so the caller guarantees another argument.
            let word = unsafe { self.next() };
            list.push(word as *const c_char);
            if word == 0 {
                return list;
            }
        }
    }
}

unsafe extern "C" fn execl_list(path: *const c_char, arguments: &mut Arguments) -> c_int {
    // SAFETY: the program's arguments end with NULL.
    let list = unsafe { arguments.list() };
    // SAFETY: the program's own arguments.
    unsafe { execv(path, list.as_ptr()) }
}

unsafe extern "C" fn execlp_list(path: *const c_char, arguments: &mut Arguments) -> c_int {
    // SAFETY: the program's arguments end with NULL.
    let list = unsafe { arguments.list() };
    // SAFETY: the program's own arguments.
    unsafe { execvp(path, list.as_ptr()) }
}

unsafe extern "C" fn execle_list(path: *const c_char, arguments: &mut Arguments) -> c_int {
    // SAFETY: the program's arguments end with NULL.
    let list = unsafe { arguments.list() };
    // SAFETY: `execle` takes the environment behind the NULL.
    let environment = unsafe { arguments.next() } as List;
    // SAFETY: the program's own arguments.
    unsafe { execve(path, list.as_ptr(), environment) }
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn execl() {
    variadic!("8", "rsi", execl_list)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn execlp() {
    variadic!("8", "rsi", execlp_list)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn execle() {
    variadic!("8", "rsi", execle_list)
}
