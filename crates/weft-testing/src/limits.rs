//! Limits of generated inputs.

/// Most bytes that are changed in one input.
pub(crate) const CHANGES_MAX: usize = 16;
/// Length of an input of random bytes.
pub(crate) const NOISE_LEN_MAX: usize = 100;
