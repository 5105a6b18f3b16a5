//! What is known without the kernel: sets of signals, and instructions.

/// Signals as the kernel has a set of them: bit 0 is signal 1.
pub(crate) type Mask = u64;

/// `SIGSYS` in such a set.
pub(crate) const REPORT: Mask = 1 << (31 - 1);

/// What a thread's set becomes, and whether the program has `SIGSYS` in it: `how` is that of
/// sigprocmask(2), `holds_off` what was so before. `None` of how: nothing changes.
pub(crate) fn changed(how: i32, set: Mask, holds_off: bool) -> (Mask, bool) {
    /// `SIG_BLOCK`, `SIG_UNBLOCK`, `SIG_SETMASK`.
    const BLOCK: i32 = 0;
    const UNBLOCK: i32 = 1;
    const SET: i32 = 2;
    let names_it = set & REPORT != 0;
    match how {
        BLOCK => (set & !REPORT, holds_off || names_it),
        UNBLOCK => (set, holds_off && !names_it),
        SET => (set & !REPORT, names_it),
        _ => (set, holds_off), // The kernel refuses it.
    }
}

/// A set as the program is to see it.
pub(crate) fn seen(set: Mask, holds_off: bool) -> Mask {
    if holds_off { set | REPORT } else { set & !REPORT }
}

/// Where `syscall; ret` is in a function that makes one call without arguments; it may begin with
/// `endbr64`.
pub(crate) fn gate_in(code: &[u8]) -> Option<usize> {
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
    fn sigsys_is_never_held_off_and_the_program_sees_what_it_has_set() {
        const USR1: Mask = 1 << 9;
        for (how, set, before, after) in [
            (0, USR1, (USR1, false), false),
            (0, USR1 | REPORT, (USR1, true), false),
            (0, USR1, (USR1, true), true),
            (1, USR1 | REPORT, (USR1 | REPORT, false), true),
            (1, USR1, (USR1, true), true),
            (2, Mask::MAX, (!REPORT, true), false),
            (2, 0, (0, false), true),
        ] {
            assert_eq!(changed(how, set, after), before, "{how} {set:x}");
        }
        assert_eq!(seen(USR1, true), USR1 | REPORT);
        assert_eq!(seen(USR1 | REPORT, false), USR1);
    }

    #[test]
    fn gate_is_found_in_calls_without_arguments_alone() {
        let plain = [0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x0f, 0x1f, 0x84, 0];
        assert_eq!(gate_in(&plain), Some(5));
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert_eq!(gate_in(&marked), Some(9));
        // One that has an error to set, and one that keeps its number elsewhere.
        assert_eq!(gate_in(&[0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0, 0, 0]), None);
        assert_eq!(gate_in(&[0x64, 0x8b, 0x04, 0x25, 0, 0, 0x0f, 0x05, 0xc3, 0, 0, 0]), None);
        assert_eq!(gate_in(&plain[..6]), None);
    }
}
