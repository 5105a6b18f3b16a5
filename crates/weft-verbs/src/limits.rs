//! Every bound of this crate beside the engine's.

use weft_engine::limits::SGE_MAX;

/// The largest alignment of device memory that can be asked for, as a power of two: a page.
pub(crate) const DM_LOG_ALIGN_MAX: u32 = 12;
/// Pieces of one request's inline data.
pub(crate) const INLINE_PIECES_MAX: usize = SGE_MAX as usize;
