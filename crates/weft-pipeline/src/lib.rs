//! Filter-stream programs: filters that are connected by streams of buffers, over several
//! processes and hosts.
//!
//! A file describes the filters, their copies and the units of work ([`Pipeline`]). [`run()`]
//! starts one process for each copy, which calls [`worker::serve`], and reports what the copies
//! have done. `docs/pipelines.md` has the format of the file and of the streams.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! fuzzing run
//! worker
//! builtin child
//! filter
//! inputs links outputs
//! control
//! description
//! builtin_table counters frames merge parameters schedule
//! failure wire
//! limits
//! ```

mod builtin;
mod builtin_table;
mod child;
mod control;
mod counters;
mod description;
mod failure;
mod filter;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod inputs;
pub mod limits;
mod links;
mod merge;
mod outputs;
mod parameters;
mod run;
mod schedule;
mod wire;
pub mod worker;

pub use counters::Counts;
pub use description::{Changes, FilterPlan, Invalid, LOCAL, Pipeline, Size};
pub use run::{CopyReport, Launch, Report, RunError, run};
pub use schedule::Policy;
