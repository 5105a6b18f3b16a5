//! How much there is of everything.

/// The TCP port of `weft serve` unless another is named.
pub const PORT: u16 = 29_338;
