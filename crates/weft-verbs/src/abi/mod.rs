//! The structures and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all,
    clippy::use_self,
    reason = "generated from C headers, which document these names"
)]
mod bindings;
mod text;
mod zeroed;

pub use bindings::*;
pub(crate) use text::fill;
pub(crate) use zeroed::zeroed;

/// `__VERBS_ABI_IS_EXTENDED`: marks an `ibv_context` as the last field of a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;
