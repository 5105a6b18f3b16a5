//! Sets of signals.

/// A set of signals in the kernel's layout: bit 0 is signal 1.
pub(crate) type Mask = u64;

/// `SIGSYS` in a set.
pub(crate) const SIGSYS_BIT: Mask = 1 << (31 - 1);

/// Returns the set to pass to the kernel, and whether the program then blocks `SIGSYS`. `how` is
/// that of sigprocmask(2); `blocks_sigsys` says whether it has blocked `SIGSYS` before.
pub(crate) fn changed(how: i32, set: Mask, blocks_sigsys: bool) -> (Mask, bool) {
    /// `SIG_BLOCK`, `SIG_UNBLOCK`, `SIG_SETMASK`.
    const BLOCK: i32 = 0;
    const UNBLOCK: i32 = 1;
    const SET: i32 = 2;
    let names_it = set & SIGSYS_BIT != 0;
    match how {
        BLOCK => (set & !SIGSYS_BIT, blocks_sigsys || names_it),
        UNBLOCK => (set, blocks_sigsys && !names_it),
        SET => (set & !SIGSYS_BIT, names_it),
        _ => (set, blocks_sigsys), // The kernel refuses this `how`.
    }
}

/// Returns a set as the program should see it.
pub(crate) fn seen(set: Mask, blocks_sigsys: bool) -> Mask {
    if blocks_sigsys { set | SIGSYS_BIT } else { set & !SIGSYS_BIT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigsys_stays_unblocked_and_the_program_sees_its_own_mask() {
        const USR1: Mask = 1 << 9;
        for (how, set, before, after) in [
            (0, USR1, (USR1, false), false),
            (0, USR1 | SIGSYS_BIT, (USR1, true), false),
            (0, USR1, (USR1, true), true),
            (1, USR1 | SIGSYS_BIT, (USR1 | SIGSYS_BIT, false), true),
            (1, USR1, (USR1, true), true),
            (2, Mask::MAX, (!SIGSYS_BIT, true), false),
            (2, 0, (0, false), true),
        ] {
            assert_eq!(changed(how, set, after), before, "{how} {set:x}");
        }
        assert_eq!(seen(USR1, true), USR1 | SIGSYS_BIT);
        assert_eq!(seen(USR1 | SIGSYS_BIT, false), USR1);
    }
}
