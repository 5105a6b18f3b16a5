//! A target that serves block storage over iSCSI (RFC 7143) and iSER (RFC 7145).
//!
//! How it is built and why is in `docs/internals/target.md`.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! server
//! session
//! security
//! iser scsi
//! store
//! cache wire
//! aligned bytes locks workers
//! limits
//! ```

mod aligned;
mod bytes;
pub mod cache;
pub mod iser;
pub mod limits;
mod locks;
pub mod scsi;
pub mod security;
pub mod server;
pub mod session;
pub mod store;
pub mod wire;
pub mod workers;
