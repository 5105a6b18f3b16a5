//! The stack frame of a call by hand.

/// The registers of a call by hand that Weft executes. The assembly in `trampoline` reads and
/// writes the fields at these offsets.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Frame {
    /// The call's number, and then its result.
    pub(super) rax: usize,
    pub(super) rbx: usize,
    pub(super) rdx: usize,
    pub(super) rsi: usize,
    pub(super) rdi: usize,
    pub(super) rbp: usize,
    pub(super) r8: usize,
    pub(super) r9: usize,
    pub(super) r10: usize,
    pub(super) r12: usize,
    pub(super) r13: usize,
    pub(super) r14: usize,
    pub(super) r15: usize,
    pub(super) flags: usize,
    /// The instruction at which the program resumes.
    pub(super) rip: usize,
    pub(super) rsp: usize,
    /// The value of `own_used` of the thread before this call.
    pub(super) own_used: usize,
    /// Whether it is a call of another ABI (32 bits, x32), with other numbers.
    pub(super) is_foreign: bool,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Frame, r15) == 96 && offset_of!(Frame, flags) == 104);
    assert!(offset_of!(Frame, rip) == 112 && offset_of!(Frame, rsp) == 120);
    assert!(offset_of!(Frame, own_used) == 128);
};

/// Bytes below the stack pointer that the ABI reserves for the program (System V ABI, "The Stack
/// Frame").
pub(super) const RED_ZONE: usize = 128;

/// Stack bytes of a call that the kernel executes at the gate.
pub(super) const PASSED_LEN: usize = 16;
