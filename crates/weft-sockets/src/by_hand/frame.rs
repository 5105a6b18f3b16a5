//! What stands on a stack while a call by hand is done.

/// A call by hand that a function of ours does. The first words are read and written by the code
/// below, in this order.
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
    /// Where the program goes on.
    pub(super) rip: usize,
    pub(super) rsp: usize,
    /// Parts of the thread's own stack that were in use before.
    pub(super) own_used: usize,
    /// Whether it is a call of another kind, whose numbers mean something else.
    pub(super) is_foreign: bool,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Frame, r15) == 96 && offset_of!(Frame, flags) == 104);
    assert!(offset_of!(Frame, rip) == 112 && offset_of!(Frame, rsp) == 120);
    assert!(offset_of!(Frame, own_used) == 128);
};

/// Bytes below the stack pointer that are the program's (System V ABI, "The Stack Frame").
pub(super) const RED_ZONE: usize = 128;

/// Bytes that a call has on the stack which the kernel does at the gate.
pub(super) const PASSED_LEN: usize = 16;
