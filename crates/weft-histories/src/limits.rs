//! Limits of the whole crate.

/// The most states that one search looks at. A search that has not ended then has no verdict.
pub(crate) const STATES_MAX: usize = 400_000;
/// The most tuples of a call.
pub(crate) const TUPLES_MAX: usize = 3;
