//! The limits of this crate; those of devices are the engine's.

use weft_engine::limits::SGE_MAX;

/// The largest alignment of device memory that a program can request, as a power of two: a page.
pub(crate) const DM_LOG_ALIGN_MAX: u32 = 12;
/// The maximum number of pieces of one request's inline data.
pub(crate) const INLINE_PIECES_MAX: usize = SGE_MAX as usize;
