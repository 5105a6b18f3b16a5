//! Helpers that the tests of several crates share: simulation seeds, fuzz inputs and mutation
//! tests.
//!
//! # Layers
//!
//! Modules use modules of their own line and of the lines below. `cargo xtask tidy` checks this.
//!
//! ```text
//! inputs mutations seeds
//! limits variables
//! ```

pub mod inputs;
mod limits;
pub mod mutations;
pub mod seeds;
mod variables;
