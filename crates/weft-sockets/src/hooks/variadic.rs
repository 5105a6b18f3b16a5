//! Variadic C functions, which stable Rust cannot define.
//!
//! They lay out their argument list as the ABI says (System V, AMD64, 3.5.7), and pass its address
//! to a function that is not variadic, as C does.

/// Defines the body of a variadic function that passes a `va_list` to another function. It saves
/// the argument registers in the list's layout; the bytes of named arguments count as used.
macro_rules! variadic {
    ($used:literal, $list:literal, $target:path) => {
        naked_asm!(
            "sub rsp, 216",
            "mov [rsp + 32], rdi",
            "mov [rsp + 40], rsi",
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            concat!("mov dword ptr [rsp], ", $used),
            "mov dword ptr [rsp + 4], 48",
            "lea rax, [rsp + 224]",
            "mov [rsp + 8], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 16], rax",
            concat!("mov ", $list, ", rsp"),
            "call {target}",
            "add rsp, 216",
            "ret",
            target = sym $target,
        )
    };
}
pub(super) use variadic;
