//! The command `weft` that is installed. A call `weft run PROGRAM ...` without options replaces the
//! process by the program itself. Everything else, and every doubt, is left to the tool, which lies
//! beside the libraries (`lib/weft/weft`).
//!
//! The tool alone would take longer to start than most short-lived programs: its file is large, and
//! the dynamic loader and the C library ask the processor for its properties dozens of times, which
//! on a virtual machine takes 10 us each time. So the executable has neither of them.
//!
//! # Layers
//!
//! ```text
//! run
//! arguments environment place
//! text
//! kernel
//! limits
//! ```
#![cfg(target_arch = "x86_64")]
#![no_std]

#[cfg(test)]
extern crate std;

mod arguments;
mod environment;
mod kernel;
mod limits;
mod place;
mod run;
mod text;

pub use kernel::{Strings, end};
pub use run::run;
