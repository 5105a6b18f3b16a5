//! Tails of elements in registered memory, which clients read without the server's help.
//! `docs/internals/tuples.md` has the design.
//!
//! # Layers
//!
//! ```text
//! client table
//! slot
//! ```

mod client;
mod slot;
mod table;
#[cfg(test)]
mod tests;

pub use client::{Tail, TailError};
pub use slot::{Last, Seen};
pub(crate) use table::Tails;
