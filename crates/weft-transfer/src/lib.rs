//! Moves trees of files between hosts, and within one.
//!
//! How it is built and why is in `docs/internals/transfer.md`; what goes between the ends is in
//! `docs/transfer-protocol.md`.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! job
//! end
//! transport
//! pipeline secure
//! tree
//! session
//! wire
//! limits mutex
//! ```

pub mod end;
pub mod job;
pub mod limits;
mod mutex;
pub mod pipeline;
pub mod secure;
pub mod session;
pub mod transport;
pub mod tree;
pub mod wire;
