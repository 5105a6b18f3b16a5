//! Lets the sockets preload know this library's code. Where the kernel reports the system calls of
//! a process to that preload (Syscall User Dispatch), those of this library are not the program's;
//! the calls of the data path are made where the kernel reports none.
//!
//! # Safety
//! Only the sockets preload defines the symbol that is looked up, with the type declared here.
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::preloads;

type NoteFn = unsafe extern "C" fn(address: *const c_void);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    weft_sys::calls::time::find_clock();
    #[cfg(target_arch = "x86_64")]
    weft_sys::use_gate_of_the_c_library();
    // SAFETY: only the sockets preload defines the symbol, with this type.
    if let Some(note) = unsafe { preloads::function::<NoteFn>(c"weft_sockets_note_verbs_library") }
    {
        // SAFETY: the function only looks for the library that has this address.
        unsafe { note(begin as *const c_void) };
    }
}
