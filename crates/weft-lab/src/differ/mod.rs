//! Differential fuzzing of sockets: random programs run on the kernel and on Weft, and must observe
//! the same.
//!
//! [`generate`] makes a program from a seed, `programs/differ/` executes it, [`Oracle`] runs it on
//! both and compares the observations, and [`shrink`] removes steps of a failing program.

mod campaign;
#[cfg(test)]
mod coverage;
mod datagrams;
mod descriptors;
mod executor;
mod generate;
mod known;
mod odd;
mod openings;
mod oracle;
mod programs;
mod scene;
mod shrink;
mod signalled;
mod streams;
mod templates;
mod traffic;

pub use campaign::{Campaign, Summary};
pub use executor::{Executor, Observed, read_program};
pub use generate::generate;
pub use known::{KNOWN, Known};
pub use oracle::{Class, Failure, Oracle, Verdict};
pub use shrink::shrink;
