//! Data channels over the fabric: whether there are some, and how both ends connect them.
//!
//! The acceptor listens for one copy, and sends the port and a secret over the control channel. If
//! shared memory is asked for, the fabric is used only between two ends of one host and one user.
//! The ends are certainly on one host if the acceptor's answer has the proof for its secret, which
//! takes the kernel's boot identifier and the network namespace.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use weft_sys::lock;

use super::agree::ask_to_listen;
use super::rdma::Over;
use crate::end::{Carrier, EndError, SinkChannel, SourceChannel};
use crate::limits::{FABRIC_CHANNELS, FABRIC_TIME};
use crate::secure::PipeKeys;
use crate::secure::pipe::new_secret;
use crate::session::{Connection, RemoteBuffer};
use crate::transport::fabric::listener::{Channel, FabricListener};
use crate::transport::fabric::{Carried, FabricEnd, Initiator, Landing, open};
use crate::transport::{Control, StreamControl, TransportError};
use crate::wire::{ListenReply, PipeSecret, Refusal, Role, Terms};

/// Feature bit: data channels may go over the fabric.
pub(super) const FEATURE_FABRIC: u64 = 64;

/// Proves to an end of the same host and network namespace, and tells others nothing. `None` if
/// this cannot be known.
pub(super) fn proof(secret: &PipeSecret) -> Option<String> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = rustix::fs::stat("/proc/self/ns/net").ok()?;
    let (device, inode) = (namespace.st_dev.to_be_bytes(), namespace.st_ino.to_be_bytes());
    let host = [&boot[..], &device, &inode].concat();
    Some(blake3::keyed_hash(&secret.0, &host).to_hex().to_string())
}

/// What an initiator wants of the fabric.
#[derive(Clone, Copy, Debug)]
pub(super) struct FabricOptions {
    /// The address by which the acceptor was reached.
    server: IpAddr,
    /// Whether the copy fails without the fabric. Otherwise it has to be shared memory.
    is_required: bool,
}

impl FabricOptions {
    /// Returns what to try, for a server that may be on this host; `None` for nothing.
    pub(super) fn find(over: Over, is_another_host: bool, server: SocketAddr) -> Option<Self> {
        let (server, is_required) = (server.ip().to_canonical(), over == Over::Fabric);
        let is_tried = is_required || (over == Over::Memory && !is_another_host);
        is_tried.then_some(Self { server, is_required })
    }
}

/// The channels of one end, connected.
pub(super) struct FabricChannels {
    ends: VecDeque<FabricEnd>,
    landing: Option<Arc<Landing>>,
    carried: Carried,
}

impl FabricChannels {
    /// Asks the acceptor to listen, and connects data channels. Returns the reason if that is not
    /// possible and not required.
    ///
    /// # Errors
    /// If the control channel fails, the acceptor breaks the protocol, or the fabric is required
    /// and not possible.
    pub(super) fn connect(
        (control, connection): (&dyn Control, &mut Connection),
        epoch: Instant,
        terms: &Terms,
        options: FabricOptions,
        role: Role,
    ) -> Result<Result<Self, String>, EndError> {
        let listening = match terms.features & FEATURE_FABRIC {
            0 => Err("the server's weft does not offer it".into()),
            _ => match ask_to_listen(control, connection, epoch)? {
                ListenReply::Accepted { port, secret, address } => Ok((port, secret, address)),
                ListenReply::Refused { text, .. } => Err(text),
            },
        };
        let connected = listening.and_then(|(port, secret, address)| match options.is_required {
            false if proof(&secret).is_none_or(|own| own != address) => {
                Err("the server is on another host or in another network namespace".into())
            }
            _ => Self::open((options.server, port), &secret, terms, role)
                .map_err(|error| error.to_string()),
        });
        let connected = connected.and_then(|channels| match channels.carried {
            Carried::Network if !options.is_required => {
                Err("the two ends share no memory: they are not processes of one user".into())
            }
            _ => Ok(channels),
        });
        match connected {
            Err(why) if options.is_required => {
                Err(EndError::Here(format!("the fabric is not possible: {why}")))
            }
            Err(why) => Ok(Err(format!("shared memory is not possible: {why}"))),
            Ok(channels) => Ok(Ok(channels)),
        }
    }

    fn open(
        listener: (IpAddr, u16),
        secret: &PipeSecret,
        terms: &Terms,
        role: Role,
    ) -> Result<Self, TransportError> {
        let (fabric, keys) = (open()?, PipeKeys::new(secret));
        let block_len = terms.block_size as usize;
        let landing = match role {
            Role::Source => None,
            Role::Sink => Some(Landing::new(&fabric, block_len)?),
        };
        let (landing_of, time) = (landing.as_ref(), FABRIC_TIME);
        let (fabric, listener, keys) = (&fabric, listener.into(), &keys);
        let from = Initiator { fabric, listener, keys, block_len, landing: landing_of, time };
        let (mut ends, mut carried) = (VecDeque::new(), Carried::Memory);
        for channel in 0..terms.channels.min(FABRIC_CHANNELS) {
            let (end, by) = from.connect(channel)?;
            ends.push_back(end);
            if by == Carried::Network {
                carried = by;
            }
        }
        Ok(Self { ends, landing, carried })
    }

    /// The channels of an acceptor; `None` if none have connected.
    fn accepted((mut channels, landing): (Vec<Channel>, Option<Arc<Landing>>)) -> Option<Self> {
        channels.sort_by_key(|(number, ..)| *number);
        let is_memory = channels.iter().all(|(.., carried)| *carried == Carried::Memory);
        let carried = if is_memory { Carried::Memory } else { Carried::Network };
        // Their numbers have no gap, as they were connected one after the other.
        let ends: VecDeque<_> = channels.into_iter().map(|(_, end, _)| end).collect();
        (!ends.is_empty()).then_some(Self { ends, landing, carried })
    }

    /// The number of channels.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.ends.len()).unwrap_or(u16::MAX)
    }

    /// Whether the bytes stay in memory of both ends, so that they need no seal.
    pub(super) fn is_memory(&self) -> bool {
        self.carried == Carried::Memory
    }

    /// What carries the blocks.
    pub(super) fn carrier(&self) -> Carrier {
        if self.is_memory() { Carrier::Memory } else { Carrier::Fabric }
    }

    /// What the credits of this end say, if it is the sink.
    pub(super) fn buffers(&self) -> Option<Vec<RemoteBuffer>> {
        self.landing.as_ref().map(|landing| landing.buffers())
    }

    /// Returns the next channel as the source's end.
    pub(super) fn source(&mut self) -> Result<SourceChannel, TransportError> {
        match self.ends.pop_front() {
            Some(FabricEnd::Source(source)) => Ok(Box::new(source)),
            _ => Err(TransportError::Closed),
        }
    }

    /// Returns the next channel as the sink's end.
    pub(super) fn sink(&mut self) -> Result<SinkChannel, TransportError> {
        match self.ends.pop_front() {
            Some(FabricEnd::Sink(sink)) => Ok(Box::new(sink)),
            _ => Err(TransportError::Closed),
        }
    }
}

/// The acceptor's side of it.
#[derive(Debug)]
pub(super) struct FabricAcceptor {
    /// The address of this host by which the initiator came.
    address: IpAddr,
    listener: Mutex<Option<FabricListener>>,
}

impl FabricAcceptor {
    /// Offers the fabric to the initiator of a control channel.
    pub(super) fn new(control: &StreamControl) -> Option<Self> {
        let address = control.local_address()?.ip().to_canonical();
        Some(Self { address, listener: Mutex::default() })
    }

    /// Begins to listen, and returns the answer for the initiator.
    pub(super) fn listen(&self, terms: &Terms) -> ListenReply {
        let open = || {
            let secret = new_secret()?;
            let (keys, block_len) = (PipeKeys::new(&secret), terms.block_size as usize);
            let listener = FabricListener::open(self.address, keys, block_len, FABRIC_TIME)?;
            Ok::<_, TransportError>((secret, listener))
        };
        match open() {
            Ok((secret, listener)) => {
                let (port, address) = (listener.port(), proof(&secret).unwrap_or_default());
                *lock(&self.listener) = Some(listener);
                ListenReply::Accepted { port, secret, address }
            }
            Err(error) => ListenReply::Refused {
                refusal: Refusal::System,
                text: format!("the server cannot listen: {error}"),
            },
        }
    }

    /// Closes the listener, and returns the channels that have connected.
    pub(super) fn close(&self) -> Option<FabricChannels> {
        let listener = lock(&self.listener).take();
        FabricChannels::accepted(listener?.close())
    }
}
