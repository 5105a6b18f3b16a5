//! Limits of the house rules.

/// The longest line of a file, in characters.
pub(crate) const LINE_LEN_MAX: usize = 100;
/// The longest source file, in lines.
pub(crate) const FILE_LINES_MAX: usize = 1_000;
/// The longest function, in statements, of a file that only declares and assembles.
pub(crate) const ASSEMBLY_STATEMENTS_MAX: usize = 10;
