//! Tells whose code makes a call: the C library's, which the kernel does not report, Weft's, or the
//! program's.
//!
//! # Safety
//! The gate lies in the C library's code, which is never unloaded. The loader's description of
//! objects is read only inside the callback that it is passed to.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;
use weft_sys::{gate_of_the_c_library, set_system_call_gate};

/// Start and length of the C library's code.
pub(super) static ALLOWED_START: AtomicUsize = AtomicUsize::new(0);
pub(super) static ALLOWED_LEN: AtomicUsize = AtomicUsize::new(0);
static GATE: AtomicUsize = AtomicUsize::new(0);

/// Code whose calls are never the program's: Weft's, the loader's, the kernel's (vdso), and Weft's
/// verbs library's.
static OWN_CODE: [[AtomicUsize; 2]; 4] = [const { [const { AtomicUsize::new(0) }; 2] }; 4];

pub(super) fn gate() -> usize {
    GATE.load(Ordering::Relaxed)
}

/// Returns whether an instruction is Weft's, the loader's or the kernel's.
pub(crate) fn is_own(address: usize) -> bool {
    OWN_CODE.iter().any(|[start, len]| {
        let len = len.load(Ordering::Acquire);
        address.wrapping_sub(start.load(Ordering::Relaxed)) < len
    })
}

/// Finds the C library's code, a gate in it, and Weft's own code.
pub(super) fn find() -> Option<()> {
    let gate = gate_of_the_c_library()?;
    let own_code = find_own as *const () as usize;
    let mut found = Found { addresses: [gate, own_code, loader(), vdso()], code: [[0; 2]; 4] };
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_object), (&raw mut found).cast()) };
    let [[start, len], own @ ..] = found.code;
    if len == 0 || own[0][1] == 0 {
        return None;
    }
    ALLOWED_START.store(start, Ordering::Relaxed);
    ALLOWED_LEN.store(len, Ordering::Relaxed);
    for (place, code) in OWN_CODE.iter().zip(own) {
        note(place, code);
    }
    GATE.store(gate, Ordering::Relaxed);
    // SAFETY: the instructions `syscall; ret` were found there, in code that stays loaded.
    unsafe { set_system_call_gate(gate as *const ()) };
    Some(())
}

/// Finds Weft's own code, when the process begins.
pub(super) fn find_own() {
    let [place, ..] = &OWN_CODE;
    note(place, code_at(find_own as *const () as usize));
}

/// Notes the code of Weft's verbs library, in which `address` lies: its calls are not the
/// program's.
pub(crate) fn note_verbs(address: usize) {
    let [.., place] = &OWN_CODE;
    note(place, code_at(address));
}

/// Returns the start and length of the code to which an address belongs; 0 if it is not known.
fn code_at(address: usize) -> [usize; 2] {
    let mut found = Found { addresses: [address, 0, 0, 0], code: [[0; 2]; 4] };
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_object), (&raw mut found).cast()) };
    found.code[0]
}

fn note([own_start, own_len]: &[AtomicUsize; 2], [start, len]: [usize; 2]) {
    own_start.store(start, Ordering::Relaxed);
    own_len.store(len, Ordering::Release);
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
