//! The protocol of blocks, at both ends. It does no input or output and knows no clock.
//!
//! A [`Connection`] is one end of a control channel: it agrees on what holds, opens sessions, and
//! says which message is for which session. A [`Source`] and a [`Sink`] are the two ends of one
//! session. `docs/transfer-protocol.md` has the rules; this is how a program uses the machines.
//!
//! All three have methods of three kinds. `handle_…` and `channel_…` say what has happened.
//! Commands (`submit`, `release`, `finish`, `cancel`) say what is wanted. `poll_…` gives what is to
//! be done: call each of them until it gives `None` after any of the others. None of them blocks. A
//! machine is used by one thread at a time; put it behind a lock.
//!
//! | output | what to do |
//! | --- | --- |
//! | `poll_control` | send the message on the control channel, in this order |
//! | [`Source::poll_write`] | write the block; then [`Source::handle_written`] |
//! | [`Source::poll_free`] | the block is the caller's again |
//! | [`Sink::poll_ready`] | use the block; then [`Sink::release`] |
//! | `poll_close` | close the data channel; then `channel_down` |
//! | `poll_records` | records of the peer for the layer above |
//!
//! A fault of the peer ends the session, and no other: the machine returns the [`Fault`], and sends
//! `Cancel` by itself.

mod acks;
mod connection;
mod fault;
mod life;
mod records;
#[cfg(test)]
mod sim;
mod sink;
mod source;
mod states;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Event, Offer, Policy};
pub use fault::{Ending, Fault, Misuse};
pub use records::RecordsFull;
pub use sink::{BlockRefused, Ready, RemoteBuffer, Sink, SinkCounts, SinkSetup};
pub use source::{Freed, Source, SourceSetup, Write, WriteResult};
pub use states::{SinkEvent, SinkState, SourceEvent, SourceState};

/// Whether the sink sees that a block has arrived in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// It does: it reads the block itself. It acknowledges blocks, and the source keeps each of
    /// them until then.
    Seen,
    /// It does not: the source writes into its memory. The source sends notices, and a completed
    /// write is an acknowledgement.
    NotSeen,
}
