//! The fabric: data channels are endpoints of `weft-fabric`. Within one host the source writes
//! through memory that both ends share; between hosts the same operations go by iWARP. The control
//! channel is that of TCP.
//!
//! The sink has a *landing zone*: one buffer for each of its blocks, whose addresses and key are in
//! its credits. The source writes a block's payload into the granted buffer, and sends the header
//! behind it, which arrives after the payload. The end of a write would not tell that between
//! hosts, so the sink sees arrivals on both ways.
//!
//! A peer that has the key may write into the landing zone at any time, so the sink copies each
//! payload out of it once, and uses the copy.
//!
//! The acceptor listens for one copy ([`listener`]), and each end proves to the other one that it
//! has the secret that went over the control channel, as beside a pipe. Then the initiator sends a
//! message of one byte, which says which end it is: 1 the source, 2 the sink. Whether an endpoint
//! shares memory is decided before its first message, so the acceptor knows it then. Its answer is
//! a byte: 1 shared memory, 2 not, 3 refused, with a text.

mod end;
mod landing;
pub mod listener;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::{Endpoint, Fabric, Options, Stop};

pub use end::{FabricSink, FabricSource};
pub use landing::Landing;

use super::channel::TransportError;
use crate::limits::{FABRIC_MESSAGE_MAX, POOL_BLOCKS, VERSION};
use crate::secure::PipeKeys;
use crate::wire::{Kind, Mode, Preface, Role};

/// Opens the fabric for the data channels of one copy.
///
/// # Errors
/// If the host has no network interface, or the system refuses something.
pub fn open() -> Result<Fabric, TransportError> {
    // A header is behind each block that a credit allows, and there are no other messages.
    let window = POOL_BLOCKS as usize + 1;
    let options = Options { window, message_max: FABRIC_MESSAGE_MAX, ..Options::default() };
    Ok(Fabric::open(options)?)
}

/// What carries the operations of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Memory that two processes of one host share.
    Memory,
    /// A network.
    Network,
}

impl Carried {
    /// Returns what carries an endpoint that has sent or received something.
    fn of(endpoint: &Endpoint) -> Self {
        match endpoint.transport() {
            "shm" | "loopback" => Self::Memory,
            _ => Self::Network,
        }
    }
}

/// One end of a data channel, before it is in use.
#[derive(Debug)]
pub enum FabricEnd {
    /// The source's end.
    Source(FabricSource),
    /// The sink's end.
    Sink(FabricSink),
}

impl FabricEnd {
    /// Makes an end of an endpoint, with memory of its own or with that of the sink.
    fn new(
        fabric: &Fabric,
        endpoint: Endpoint,
        block_len: usize,
        landing: Option<&Arc<Landing>>,
    ) -> Result<Self, TransportError> {
        Ok(match landing {
            Some(landing) => Self::Sink(FabricSink::new(endpoint, Arc::clone(landing))),
            None => Self::Source(FabricSource::new(fabric, endpoint, block_len)?),
        })
    }
}

/// What a message says at the beginning of a channel.
const SOURCE: u8 = 1;
const SINK: u8 = 2;
const MEMORY: u8 = 1;
const NETWORK: u8 = 2;
const REFUSED: u8 = 3;

/// What the initiator's channels have in common.
#[derive(Debug)]
pub struct Initiator<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The address of the acceptor's listener.
    pub listener: SocketAddr,
    /// The keys of the copy.
    pub keys: &'a PipeKeys,
    /// The length of a block.
    pub block_len: usize,
    /// The sink's memory, if the initiator is the sink.
    pub landing: Option<&'a Arc<Landing>>,
    /// How long each step may take.
    pub time: Duration,
}

impl Initiator<'_> {
    /// Connects a data channel. Returns what carries it at both ends.
    ///
    /// # Errors
    /// If the acceptor cannot be reached, does not have the secret, or refuses.
    pub fn connect(&self, channel: u16) -> Result<(FabricEnd, Carried), TransportError> {
        let stalled = TransportError::Stalled(self.time);
        let kind = Kind::Data { token: self.keys.token(channel)?, channel };
        let (version_min, version_max, mode) = (VERSION, VERSION, Mode::Clear);
        let preface = Preface { version_min, version_max, kind, mode }.emit();
        let connecting = self.fabric.connect(self.listener, &preface)?;
        let in_time = Stop::new().at(Instant::now() + self.time);
        let connected = self.fabric.wait_until(connecting, &in_time);
        let connected = connected.ok_or(stalled)??;
        let answer = connected.private_data.first_chunk();
        if !answer.is_some_and(|answer| self.keys.is_answer(channel, answer)) {
            return Err(TransportError::Protocol("another program answers there"));
        }
        let endpoint = connected.endpoint;
        let role = if self.landing.is_some() { SINK } else { SOURCE };
        drop(endpoint.send(&[role])?);
        let said = endpoint.receive().wait_for(self.time);
        let said = said.ok_or(TransportError::Stalled(self.time))??;
        let theirs = match &said[..] {
            [MEMORY] => Carried::Memory,
            [NETWORK] => Carried::Network,
            [REFUSED, text @ ..] => {
                let text = String::from_utf8_lossy(text).into_owned();
                return Err(io::Error::other(text).into());
            }
            _ => return Err(TransportError::Protocol("no answer to a channel's first message")),
        };
        drop(said);
        let carried = match (Carried::of(&endpoint), theirs) {
            (Carried::Memory, Carried::Memory) => Carried::Memory,
            _ => Carried::Network,
        };
        let end = FabricEnd::new(self.fabric, endpoint, self.block_len, self.landing)?;
        Ok((end, carried))
    }
}

/// The role of the initiator that its first message names.
fn role(message: &[u8]) -> Result<Role, TransportError> {
    match message {
        [SOURCE] => Ok(Role::Source),
        [SINK] => Ok(Role::Sink),
        _ => Err(TransportError::Protocol("no role in a channel's first message")),
    }
}

#[cfg(test)]
mod tests;
