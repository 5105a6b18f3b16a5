//! The structures and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, for the library
//! that offers them (`weft-verbs`) and for the code that uses the system's (`weft-rdma`).
//!
//! # Layers
//!
//! ```text
//! bindings
//! ```

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

pub use bindings::*;
