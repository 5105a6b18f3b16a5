//! Where a thread goes on that has made a call by hand.
//!
//! # Safety
//! The code here goes between the program's instruction and the next one. It leaves all registers
//! as they were but those that a system call changes (rax, rcx, r11), the bytes below the program's
//! stack pointer that the ABI reserves (128), and the stack.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::calls;
use super::frame::{Frame, PASSED_LEN, RED_ZONE};
use super::place::Place;

/// Bytes of the processor's extended state that functions of ours may change.
static STATE_LEN: AtomicUsize = AtomicUsize::new(0);
/// Which parts of that state these are.
static STATE_MASK: AtomicU32 = AtomicU32::new(0);

/// x87, SSE, AVX and AVX-512: what code that a compiler has made may use. Tiles (AMX) and keys of
/// memory are not for us.
const PARTS: u64 = 0b1110_0111;
/// Bytes of the state's beginning, which x87 and SSE have, and its header.
const HEADER_AT: usize = 512;
const HEADER_END: usize = 576;

/// Finds out what the processor's state is. Whether that is known how to be kept.
pub(super) fn prepare() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const OSXSAVE: u32 = 1 << 27;
    /// The leaf of the extended state.
    const STATE: u32 = 0xd;
    let (most, features) = (__cpuid(0).eax, __cpuid(1).ecx);
    if most < STATE || features & OSXSAVE == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: register 0 is there with XSAVE.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the processor has it, and the system uses it.
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

/// A call that a function of ours does. The stack pointer is at the [`Frame`].
#[unsafe(naked)]
pub(super) extern "C" fn land() {
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
        // The stack that this is on may be used again from the next store on; what follows needs
        // registers alone, but for two words.
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
        own_used = const std::mem::offset_of!(Place, own_used),
    )
}

extern "C" fn run(frame: &mut Frame) {
    calls::landed(frame);
}

/// Where a call goes on that the kernel has done at the gate: this code's address, and the
/// program's, are all that it has had on the stack, below the reserved bytes.
#[unsafe(naked)]
pub(super) extern "C" fn passed() {
    naked_asm!(
        "mov rcx, [rsp]",
        "lea rsp, [rsp + {back}]",
        "jmp rcx",
        back = const PASSED_LEN - 8 + RED_ZONE,
    )
}
