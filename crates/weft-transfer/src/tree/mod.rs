//! What a tree of files is as records in blocks; walking it, and applying it beneath a directory.
//!
//! [`source::Source`] walks and plans blocks, each a [`job::Job`] that any thread may fill.
//! [`apply::Applier`] takes the blocks in the order of their numbers, and gives for each the
//! [`apply::Task`]s that any thread may run. What the sink wants of what the source offers is a
//! [`crate::wire::record_wants::Wants`], which goes back to the source.

pub mod apply;
pub mod beneath;
pub mod dirs;
pub mod hash;
pub mod job;
pub mod journal;
mod large;
mod listing;
pub mod metadata;
pub mod owners;
mod pattern;
pub mod ranges;
pub mod rules;
pub mod source;
mod temporary;
