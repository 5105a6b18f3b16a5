//! Bodies of the fuzz targets: what a log on disk may say, and what peers may. `fuzz/` runs them
//! with libFuzzer, `tests/fuzz.rs` without.
//!
//! # Layers
//!
//! ```text
//! log
//! peers
//! ```

mod log;
mod peers;

pub use log::{effects, log};
pub use peers::{native, redis, tls};
