//! The code at which a thread resumes after the handler of a call by hand.
//!
//! # Safety
//! This code runs between the program's instruction and the next one. It preserves all registers
//! but those that a system call changes (rax, rcx, r11), the 128 bytes below the program's stack
//! pointer that the ABI reserves, and the stack.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::calls;
use super::frame::{Frame, PASSED_LEN, RED_ZONE};
use super::place::ThreadVariables;

/// Bytes of the processor's extended state that Weft's functions may change.
static STATE_LEN: AtomicUsize = AtomicUsize::new(0);
/// The state components that are saved (the mask of XSAVE).
static STATE_MASK: AtomicU32 = AtomicU32::new(0);

/// x87, SSE, AVX and AVX-512, which compiled code may use. AMX tiles and protection keys are left
/// alone.
const PARTS: u64 = 0b1110_0111;
/// Where the XSAVE header begins, behind the legacy region of x87 and SSE, and where it ends.
const HEADER_AT: usize = 512;
const HEADER_END: usize = 576;

/// Finds out the size of the processor's extended state. Returns whether XSAVE can save it.
pub(super) fn prepare() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const OSXSAVE: u32 = 1 << 27;
    /// The CPUID leaf of the extended state.
    const STATE: u32 = 0xd;
    let (most, features) = (__cpuid(0).eax, __cpuid(1).ecx);
    if most < STATE || features & OSXSAVE == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: `OSXSAVE` is set, so XCR0 is readable.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: `OSXSAVE` says that the processor has XSAVE and that the system enables it.
    let mask = unsafe { enabled() } & PARTS;
    let mut end = HEADER_END;
    for part in 2..8 {
        if mask & 1 << part != 0 {
            let found = __cpuid_count(STATE, part);
            end = end.max(found.eax as usize + found.ebx as usize);
        }
    }
    STATE_LEN.store(end.next_multiple_of(64), Ordering::Relaxed);
    STATE_MASK.store(mask as u32, Ordering::Relaxed);
    true
}

/// Executes a call by hand in Rust. The stack pointer is at the [`Frame`].
#[unsafe(naked)]
pub(super) extern "C" fn enter() {
    naked_asm!(
        "cld",
        "mov rbx, rsp",
        "mov rax, [rip + {len}]",
        "sub rsp, rax",
        "xor eax, eax",
        "mov rcx, rsp",
        "add rcx, {header_at}",
        "mov [rcx], rax",
        "mov [rcx + 8], rax",
        "mov [rcx + 16], rax",
        "mov [rcx + 24], rax",
        "mov [rcx + 32], rax",
        "mov [rcx + 40], rax",
        "mov [rcx + 48], rax",
        "mov [rcx + 56], rax",
        "mov eax, [rip + {mask}]",
        "xor edx, edx",
        "xsave64 [rsp]",
        "mov r12, rsp",
        "mov rdi, rbx",
        "call {run}",
        "mov rsp, r12",
        "mov eax, [rip + {mask}]",
        "xor edx, edx",
        "xrstor64 [rsp]",
        "mov rsp, rbx",
        "push qword ptr [rsp + 104]",
        "popfq",
        "mov rax, [rsp]",
        "mov rbx, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "mov rdi, [rsp + 32]",
        "mov rbp, [rsp + 40]",
        "mov r8, [rsp + 48]",
        "mov r9, [rsp + 56]",
        "mov r10, [rsp + 64]",
        "mov r12, [rsp + 72]",
        "mov r13, [rsp + 80]",
        "mov r14, [rsp + 88]",
        "mov r15, [rsp + 96]",
        // A signal handler may reuse this stack after the next store, so what follows uses
        // registers alone, except for two words.
        "mov r11, [rip + weft_place@GOTTPOFF]",
        "mov rcx, fs:[0]",
        "lea r11, [r11 + rcx + {own_used}]",
        "mov rcx, [rsp + 128]",
        "mov [r11], rcx",
        "mov rcx, [rsp + 112]",
        "mov rsp, [rsp + 120]",
        "jmp rcx",
        len = sym STATE_LEN,
        mask = sym STATE_MASK,
        header_at = const HEADER_AT,
        run = sym run,
        own_used = const std::mem::offset_of!(ThreadVariables, own_used),
    )
}

extern "C" fn run(frame: &mut Frame) {
    calls::execute_call(frame);
}

/// Resumes the program after a call that the kernel has executed at the gate. The stack holds only
/// this code's address and the program's, below the reserved bytes.
#[unsafe(naked)]
pub(super) extern "C" fn passed() {
    naked_asm!(
        "mov rcx, [rsp]",
        "lea rsp, [rsp + {back}]",
        "jmp rcx",
        back = const PASSED_LEN - 8 + RED_ZONE,
    )
}
