//! Encodes trees of files as records in blocks: reads a tree, and applies it to a directory.
//!
//! [`source::Source`] walks the tree and plans blocks, each a [`job::Job`] that any thread may
//! fill. [`apply::Applier`] parses the blocks in order, and returns for each the [`apply::Task`]s
//! that any thread may run. The sink answers the source's offers with
//! [`crate::wire::record_wants::Wants`].

mod answer_error;
pub mod apply;
pub mod beneath;
mod checking;
mod content;
pub(crate) mod delta;
mod digest;
pub mod direct;
pub mod dirs;
pub(crate) mod extent;
pub mod hash;
pub mod input;
pub mod job;
pub mod journal;
pub mod kernel_copy;
mod large;
mod large_in_work;
mod listing;
mod merged;
pub mod metadata;
pub mod modes;
pub mod output;
pub mod owners;
mod pattern;
pub mod ranges;
pub mod reach;
mod reading;
pub mod removal;
pub mod rules;
pub mod selection;
pub mod source;
mod source_options;
pub mod temporary;
mod write;
