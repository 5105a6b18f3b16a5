//! The structures and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, and how they are
//! filled.

mod text;
mod zeroed;

pub(crate) use text::fill;
pub use weft_abi::*;
pub(crate) use zeroed::zeroed;

/// `__VERBS_ABI_IS_EXTENDED`: marks an `ibv_context` as the last field of a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;
