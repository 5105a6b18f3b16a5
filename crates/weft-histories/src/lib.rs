//! Histories of concurrent clients of a tuple space, and a search that checks them.
//!
//! [`Session`] is a client that makes random calls, several at a time, and notes what it sees.
//! [`check`] looks for one order of all calls that explains everything that all clients saw: each
//! call takes effect at one instant between its beginning and its answer, as a plain model says.
//! That is linearizability, which includes sequential consistency. The order in which calls came is
//! part of it, so that "first come, first served" is checked, too.
//!
//! # Layers
//!
//! ```text
//! search session
//! spec wire
//! history
//! limits
//! ```

mod history;
mod limits;
mod search;
mod session;
#[cfg(test)]
mod sim;
mod spec;
mod wire;

pub use history::{Call, ClientHistory, Clock, Element, Operation, Outcome, Span, Value};
pub use search::{Verdict, check};
pub use session::{Plan, Session, Unexpected};
