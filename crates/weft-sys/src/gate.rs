//! The gate in the C library: its instructions `syscall; ret`. Where the kernel reports the system
//! calls of a process (Syscall User Dispatch), those from there are not reported.
//!
//! # Safety
//! The gate is found by its bytes in the C library's code, which is never unloaded.
#![allow(unsafe_code)]

use std::ffi::CStr;

use crate::by_hand::set_system_call_gate;

/// Finds the gate. `None` if the C library is not loaded, or its code is not as it is known.
#[must_use]
pub fn gate_of_the_c_library() -> Option<usize> {
    // SAFETY: the name is a C string; with RTLD_NOLOAD no initialiser runs.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    [c"getuid", c"getgid", c"getpid"].into_iter().find_map(|name: &CStr| {
        // SAFETY: the handle is that of a loaded library, and the name is a C string.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        find_gate(function.cast())
    })
}

/// Has [`system_call`](crate::system_call) and the calls of the data path use the C library's gate
/// from here on, if it is found.
pub fn use_gate_of_the_c_library() {
    if let Some(gate) = gate_of_the_c_library() {
        // SAFETY: `find_gate` has found the bytes `syscall; ret` there, in code that stays loaded.
        unsafe { set_system_call_gate(gate as *const ()) };
    }
}

/// Finds `syscall; ret` in a function whose only other instruction is `mov eax, NUMBER`.
fn find_gate(function: *const u8) -> Option<usize> {
    if function.is_null() {
        return None;
    }
    // SAFETY: `function` is the code of a function. Code is mapped in whole pages and functions
    // begin at multiples of 16, so 12 bytes are readable.
    let code = unsafe { std::slice::from_raw_parts(function, 12) };
    gate_in(code).map(|at| function as usize + at)
}

/// Finds `syscall; ret` in a function that makes one call without arguments, perhaps behind an
/// `endbr64`.
fn gate_in(code: &[u8]) -> Option<usize> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const MOV_EAX_LEN: usize = 5;
    const GATE: &[u8] = &[0x0f, 0x05, 0xc3];
    let skipped = if code.starts_with(ENDBR64) { ENDBR64.len() } else { 0 };
    let rest = code.get(skipped..)?;
    let is_known = rest.first() == Some(&0xb8) && rest.get(MOV_EAX_LEN..)?.starts_with(GATE);
    is_known.then_some(skipped + MOV_EAX_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_is_found_only_in_calls_without_arguments() {
        let plain = [0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x0f, 0x1f, 0x84, 0];
        assert_eq!(gate_in(&plain), Some(5));
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert_eq!(gate_in(&marked), Some(9));
        // One function also sets `errno`; one loads its number from elsewhere.
        assert_eq!(gate_in(&[0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0, 0, 0]), None);
        assert_eq!(gate_in(&[0x64, 0x8b, 0x04, 0x25, 0, 0, 0x0f, 0x05, 0xc3, 0, 0, 0]), None);
        assert_eq!(gate_in(&plain[..6]), None);
    }

    #[test]
    fn calls_at_the_gate_have_their_results() {
        use_gate_of_the_c_library();
        // SAFETY: `getpid` accesses no memory.
        let pid = unsafe { crate::system_call(libc::SYS_getpid, [0; 6]) };
        assert_eq!(pid, libc::c_long::from(std::process::id().cast_signed()));
    }
}
