//! Limits. What exceeds one is left to the tool, which has none.

/// Length of a path or a variable, with the null behind it: `PATH_MAX`.
pub(crate) const TEXT_LEN_MAX: usize = 4096;
/// Variables of a program, with the null behind them.
pub(crate) const VARIABLES_MAX: usize = 1024;
/// Links that lead from the name of the command to its file.
pub(crate) const LINKS_MAX: usize = 16;
