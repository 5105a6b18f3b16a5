//! The protocol of blocks at both ends. It does no input or output and reads no clock.
//!
//! A [`Connection`] is one end of a control channel: it agrees on the terms, opens sessions, and
//! passes each message to its session. A [`Source`] and a [`Sink`] are the two ends of one session.
//! `docs/transfer-protocol.md` has the rules; this page explains how a program uses the three
//! types.
//!
//! The types have three kinds of methods. `handle_…` and `channel_…` report events. Commands
//! (`submit`, `release`, `finish`, `cancel`) start something. `poll_…` returns the work that
//! results: after any other method, call each of them until it returns `None`. No method blocks.
//! Each method needs exclusive access, so threads share a value behind a lock.
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
//! A fault of the peer ends only the session in which it occurs: the method returns the [`Fault`],
//! and the session sends `Cancel` itself.

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

/// Whether the sink sees when a block has arrived in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The sink reads blocks itself and acknowledges them. The source keeps each block until its
    /// acknowledgement.
    Seen,
    /// The source writes into the sink's memory and sends notices. A completed write counts as an
    /// acknowledgement.
    NotSeen,
}
