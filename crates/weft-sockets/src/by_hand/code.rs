//! Tells whose code makes a call: the C library's, which the kernel does not report, Weft's, or the
//! program's.
//!
//! # Safety
//! The gate is found by its bytes in the C library's code, which is never unloaded. The loader's
//! description of objects is read only inside the callback that it is passed to.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;
use weft_sys::set_system_call_gate;

/// Start and length of the C library's code.
pub(super) static ALLOWED_START: AtomicUsize = AtomicUsize::new(0);
pub(super) static ALLOWED_LEN: AtomicUsize = AtomicUsize::new(0);
static GATE: AtomicUsize = AtomicUsize::new(0);

/// Code whose calls are never the program's: Weft's, the loader's, the kernel's (vdso).
static OWN_CODE: [[AtomicUsize; 2]; 3] = [const { [const { AtomicUsize::new(0) }; 2] }; 3];

pub(super) fn gate() -> usize {
    GATE.load(Ordering::Relaxed)
}

/// Returns whether an instruction is Weft's, the loader's or the kernel's.
pub(super) fn is_own(address: usize) -> bool {
    OWN_CODE.iter().any(|[start, len]| {
        address.wrapping_sub(start.load(Ordering::Relaxed)) < len.load(Ordering::Relaxed)
    })
}

/// Finds the C library's code, a gate in it, and Weft's own code.
pub(super) fn find() -> Option<()> {
    // SAFETY: the name is a C string; with RTLD_NOLOAD no initialiser runs.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let gate = [c"getuid", c"getgid", c"getpid"].into_iter().find_map(|name: &CStr| {
        // SAFETY: the handle is that of a loaded library, and the name is a C string.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        find_gate(function.cast())
    })?;
    let own_code = find_own_code as *const () as usize;
    let mut found = Found { addresses: [gate, own_code, loader(), vdso()], code: [[0; 2]; 4] };
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_object), (&raw mut found).cast()) };
    let [[start, len], own @ ..] = found.code;
    if len == 0 || own[0][1] == 0 {
        return None;
    }
    ALLOWED_START.store(start, Ordering::Relaxed);
    ALLOWED_LEN.store(len, Ordering::Relaxed);
    for (known, [start, len]) in OWN_CODE.iter().zip(own) {
        known[0].store(start, Ordering::Relaxed);
        known[1].store(len, Ordering::Relaxed);
    }
    GATE.store(gate, Ordering::Relaxed);
    // SAFETY: `find_gate` has found the bytes `syscall; ret` there.
    unsafe { set_system_call_gate(gate as *const ()) };
    Some(())
}

fn find_own_code() {}

/// Finds `syscall; ret` in a function whose only other instruction is `mov eax, NUMBER`.
fn find_gate(function: *const u8) -> Option<usize> {
    if function.is_null() {
        return None;
    }
    // SAFETY: `function` is the code of a function. Code is mapped in whole pages and functions
    // begin at multiples of 16, so 12 bytes are readable.
    let code = unsafe { std::slice::from_raw_parts(function, 12) };
    super::pure::gate_in(code).map(|at| function as usize + at)
}

/// Returns an address in the loader.
fn loader() -> usize {
    // SAFETY: `getauxval` takes no pointer.
    unsafe { libc::getauxval(libc::AT_BASE) as usize }
}

/// Returns an address in the vdso, the kernel's code in each process.
fn vdso() -> usize {
    // SAFETY: `getauxval` takes no pointer.
    unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) as usize }
}

/// Addresses to look for, and the start and length of the code that each belongs to.
struct Found {
    addresses: [usize; 4],
    code: [[usize; 2]; 4],
}

unsafe extern "C" fn look_at_object(
    info: *mut libc::dl_phdr_info,
    _: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: [`find`] has passed a `Found` that outlives the iteration.
    let found = unsafe { &mut *found.cast::<Found>() };
    // SAFETY: the loader gives the list's start and length.
    let parts = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let loaded = || parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
    let range = |part: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(part.p_vaddr as usize);
        (start, part.p_memsz as usize)
    };
    for (address, code) in found.addresses.iter().zip(&mut found.code) {
        let is_here = loaded().map(range).any(|(start, len)| address.wrapping_sub(start) < len);
        if *address != 0 && is_here {
            let part = loaded().filter(|part| part.p_flags & libc::PF_X != 0).map(range);
            if let Some((start, len)) = part.into_iter().next() {
                *code = [start, len];
            }
        }
    }
    0
}
