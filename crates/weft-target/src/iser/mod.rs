//! iSER: iSCSI over RDMA (RFC 7145), as initiators speak it that begin with RDMA.
//!
//! PDUs travel as messages, each behind a header of its own. Data travels as writes to, and reads
//! of, the initiator's memory: a [`Datamover`] turns the Data-In and R2T PDUs of a
//! [`Connection`](crate::session::Connection) into these, and what was read into Data-Out PDUs.
//! Hello messages are not exchanged.

mod datamover;
mod header;

pub use datamover::{Action, Datamover, Message};
pub use header::{Broken, Buffer, HEADER_LEN};
