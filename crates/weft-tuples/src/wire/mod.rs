//! The protocol of Weft's own clients: its bytes. `docs/tuples-protocol.md` describes them.
//!
//! # Layers
//!
//! ```text
//! message
//! parts
//! bytes
//! ```

mod bytes;
mod message;
mod parts;
#[cfg(test)]
mod tests;

pub use bytes::Malformed;
pub(crate) use bytes::{Reader, Writer};
pub use message::{Action, Answer, Hello, Leader, RequestFrame, TailPlace, Welcome, frame, split};

/// The first byte of a connection of this protocol. No command of the Redis protocol begins with
/// it.
pub const FIRST: u8 = 0xf7;
/// The version of the protocol.
pub const VERSION: u8 = 1;
