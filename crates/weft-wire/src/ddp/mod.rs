//! Direct Data Placement (RFC 5041): the header of a segment, and the checks of a receiver.
//!
//! A DDP segment is the ULPDU of one FPDU: a header, then payload. A *tagged* segment names the
//! memory that it goes to. An *untagged* segment belongs to a message of a queue, whose buffers the
//! receiver provides in order.
//!
//! [`Header::parse`] and [`UntaggedQueue::check`] never panic; [`Header::emit`] panics on a buffer
//! shorter than [`Header::len`].

mod header;
mod queue;
mod segment;

pub use header::{DdpError, FIRST_MSN, Header, TAGGED_LEN, UNTAGGED_LEN, VERSION};
pub use queue::{Placement, UntaggedQueue};
pub use segment::{Segment, Segments};
