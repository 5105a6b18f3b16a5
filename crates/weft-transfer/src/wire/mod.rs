//! The formats of prefaces, block headers, control messages and records. All numbers are
//! big-endian.
//!
//! Parsing never panics, and allocates no more than the length of its input. It checks a value by
//! itself and returns a [`WireError`] if that is invalid; `session` checks whether the peer may
//! send the value at that moment. Parsing an emitted value returns the same value.
//!
//! `docs/transfer-protocol.md` has the formats byte for byte.

mod block;
mod codes;
mod control;
mod cursor;
mod error;
mod preface;
pub mod record;
pub mod record_bytes;
pub mod record_name;
pub mod record_table;
pub mod record_wants;

pub use block::{BlockFlags, BlockHeader};
pub use codes::{Code, Refusal};
pub use control::{
    Body, Cancel, Complete, ControlHeader, Credit, Credits, Hello, HelloReply, ListenReply,
    Message, Notice, Open, OpenReply, PipeSecret, Range, Role, Terms,
};
pub use error::WireError;
pub use preface::{Kind, Mode, Preface, Token};
