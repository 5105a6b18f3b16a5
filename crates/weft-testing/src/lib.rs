//! What the tests of several crates share: seeds of simulations, and inputs of fuzz targets.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
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
