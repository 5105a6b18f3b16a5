//! A shared tuple space: ordered elements of tuples, with operations that wait.
//!
//! [`model`] is a state machine without input or output, and so are the connections. The time is an
//! argument. [`log`] keeps the state machine's effects on disk.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! fuzzing server
//! log native resp
//! tail
//! wire
//! model
//! access fabric input
//! limits
//! ```

pub mod access;
pub mod fabric;
#[doc(hidden)]
pub mod fuzzing;
pub mod input;
pub mod limits;
pub mod log;
pub mod model;
pub mod native;
pub mod resp;
pub mod server;
pub mod tail;
pub mod wire;
