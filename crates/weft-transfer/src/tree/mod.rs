//! What a tree of files is as records in blocks, and walking it.
//!
//! [`source::Source`] walks and plans blocks, each a [`job::Job`] that any thread may fill.
//! What the sink wants of what the source offers is a [`crate::wire::record_wants::Wants`], which
//! goes back to the source. What applies the records at the sink does not exist yet.

pub mod beneath;
pub mod dirs;
pub mod hash;
pub mod job;
mod large;
mod listing;
pub mod metadata;
pub mod owners;
pub mod ranges;
pub mod rules;
pub mod source;
