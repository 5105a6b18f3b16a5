//! The bytes of prefaces, block headers, control messages and records. All numbers are big-endian.
//!
//! Parsing never panics, whatever the bytes are, and allocates no more than their own length. A
//! parsed value is valid in itself: [`WireError`] says what is not. Whether it is allowed at that
//! moment is for `session` to say. Emitting a value and parsing it gives the value again.
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
    Body, Cancel, Complete, ControlHeader, Credit, Credits, Hello, HelloReply, Message, Notice,
    Open, OpenReply, Range, Role, Terms,
};
pub use error::WireError;
pub use preface::{Kind, Mode, Preface, Token};
