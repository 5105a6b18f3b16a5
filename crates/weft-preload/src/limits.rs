//! The bounds of the names that this library reads.

/// Longest name of a network interface (`IFNAMSIZ` less the NUL), which names a device.
pub(crate) const NAME_MAX: usize = 15;
/// Longest index in a GID table.
pub(crate) const DIGITS_MAX: usize = 3;
