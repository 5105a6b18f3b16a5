//! Direct Data Placement (RFC 5041): the header of a segment, and what a receiver checks.
//!
//! A DDP segment is the ULPDU of one FPDU: a header, then payload. *Tagged* segments name the
//! memory they go to; *untagged* ones belong to a message of a queue, whose buffers the receiver
//! provides in order.
//!
//! [`Header::parse`] and [`UntaggedQueue::check`] never panic; [`Header::emit`] does on a buffer
//! shorter than [`Header::len`].

mod header;
mod queue;
mod segment;

pub use header::{DdpError, FIRST_MSN, Header, TAGGED_LEN, UNTAGGED_LEN, VERSION};
pub use queue::{Placement, UntaggedQueue};
pub use segment::{Segment, Segments};
