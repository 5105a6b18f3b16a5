//! Bounds of what the helpers make up.

/// Bytes of one input that are changed.
pub(crate) const CHANGES_MAX: usize = 16;
/// Length of an input that is noise.
pub(crate) const NOISE_LEN_MAX: usize = 100;
