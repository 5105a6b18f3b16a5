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
//! blocks compress placement secure
//! tree
//! session
//! wire
//! clock limits
//! ```

pub mod blocks;
pub mod clock;
pub mod compress;
pub mod end;
pub mod job;
pub mod limits;
pub mod placement;
pub mod secure;
pub mod session;
pub mod transport;
pub mod tree;
pub mod wire;
