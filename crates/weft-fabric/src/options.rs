//! The settings of a fabric.

use crate::error::{Error, Result};
use crate::limits::{DEPTH_MAX, MESSAGE_MAX, WINDOW_MAX};

/// What carries the connections of a fabric. Both ends of a connection need the same, except that
/// Weft's engine and iWARP devices understand each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// Weft's own engine: shared memory on one host, iWARP over TCP between hosts. It needs no
    /// device.
    #[default]
    Engine,
    /// Weft's own engine by reliable datagrams over UDP: for many peers, since all connections that
    /// a fabric makes go by one socket, as do all that a listener accepts; and for a path that
    /// loses datagrams, since losses do not slow it down. Peers of the same host do not share
    /// memory. A process that is gone is noticed within seconds if its host says so, and otherwise
    /// after 30 to 45.
    Datagrams,
    /// An RDMA device, by the system's `libibverbs` and `librdmacm`, which are loaded when the
    /// fabric is opened.
    System,
    /// An RDMA device if the interface has one, otherwise the engine;
    /// [`Fabric::carrier`](crate::Fabric::carrier) says which.
    Automatic,
    /// A simulation: [`Host::open`](crate::sim::Host::open) selects it, and nothing else can.
    Simulated,
}

/// How a [`Fabric`](crate::Fabric) is opened. The default fits most programs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network interface to use, such as `eth0`. Without one, the first that is up: it reaches
    /// the hosts behind the others, too, because connections follow the routes of the host. With
    /// [`Carrier::System`], the first that has an RDMA device, and all connections are over that
    /// device.
    pub interface: Option<String>,
    /// What carries the connections. Default: the engine.
    pub carrier: Carrier,
    /// Messages that each endpoint is ready to receive, from 1 to 4,096. A peer that has sent so
    /// many waits until the program has dropped some. Default: 64.
    pub window: usize,
    /// Bytes of the longest message that an endpoint receives, up to 1 MiB. Each endpoint has
    /// memory for `window` such messages. Default: 8,192.
    pub message_max: usize,
    /// Operations of an endpoint that may be under way at a time, from 1 to 8,192; more of them
    /// wait in the process. Default: 128.
    pub depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interface: None,
            carrier: Carrier::Engine,
            window: 64,
            message_max: 8_192,
            depth: 128,
        }
    }
}

impl Options {
    /// The window as a hello has it.
    pub(crate) fn window_in_hello(&self) -> u16 {
        // It fits, as `Options::check` has seen.
        u16::try_from(self.window).unwrap_or(u16::MAX)
    }

    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<()> {
        let all = [
            ("window", self.window, 1, WINDOW_MAX),
            ("message_max", self.message_max, 0, MESSAGE_MAX),
            ("depth", self.depth, 1, DEPTH_MAX),
        ];
        match all.into_iter().find(|&(_, value, min, max)| value < min || value > max) {
            Some((option, value, min, max)) => Err(Error::Option { option, value, min, max }),
            None => Ok(()),
        }
    }
}
