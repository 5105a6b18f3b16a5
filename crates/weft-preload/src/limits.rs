//! Limits of the names that this library reads.

/// Longest name of a network interface (`IFNAMSIZ` minus the NUL), after which a device is named.
pub(crate) const NAME_MAX: usize = 15;
/// Longest decimal index into a GID table.
pub(crate) const DIGITS_MAX: usize = 3;
