//! Moves trees of files between hosts, and within one.
//!
//! How it is built and why, and what of it does not exist yet, is in `docs/internals/transfer.md`.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! transport
//! pipeline secure
//! tree
//! wire
//! limits
//! ```

pub mod limits;
pub mod pipeline;
pub mod secure;
pub mod transport;
pub mod tree;
pub mod wire;
