//! What is known to differ, and is left out of the random programs of `make test`.

/// A word that is taken out of all steps.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The word.
    pub word: &'static str,
    /// What differs with it, and why that is left.
    pub reason: &'static str,
}

/// All of them. `make differ` leaves out nothing by itself: `--without` does.
pub const KNOWN: &[Known] = &[Known {
    word: "way=asm",
    reason: "a system call by an instruction in the program itself passes by every library",
}];
