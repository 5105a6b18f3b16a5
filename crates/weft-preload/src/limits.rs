//! Limits of this library.

/// Longest name of a network interface (`IFNAMSIZ` minus the NUL), after which a device is named.
pub(crate) const NAME_MAX: usize = 15;
/// Longest decimal index into a GID table.
pub(crate) const DIGITS_MAX: usize = 3;
/// Streams on emulated directories that may be open at a time. For further ones the directory does
/// not exist; a program opens one at a time.
#[cfg(not(test))]
pub(crate) const STREAMS_MAX: usize = 8;
