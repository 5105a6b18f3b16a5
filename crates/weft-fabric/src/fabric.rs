//! The fabric of a process: where buffers, listeners and connections come from.

use std::net::SocketAddr;
use std::sync::Arc;

use weft_engine::pd::Pd;
use weft_engine::{Context, device};

use crate::common::Common;
use crate::connect::Connecting;
use crate::error::{Error, Result};
use crate::listen::Listener;
use crate::memory::Buffer;
use crate::options::Options;
use crate::watcher::Watcher;

/// Access to the fabric. Clones are handles of the same one, whose buffers fit the endpoints of
/// all.
///
/// An idle fabric uses no processor time. A thread of its own sleeps on behalf of futures, once
/// there is one that sleeps.
#[derive(Clone, Debug)]
pub struct Fabric {
    common: Arc<Common>,
}

impl Fabric {
    /// Opens the fabric.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Option`]; [`Error::System`] if the network interfaces cannot
    /// be listed.
    pub fn open(options: Options) -> Result<Self> {
        options.check()?;
        let devices =
            device::list().map_err(|errno| Error::system("list the network interfaces", errno))?;
        let is_chosen = |device: &&device::Device| match &options.interface {
            Some(name) => device.interface == *name,
            None => true,
        };
        let found = devices.iter().find(is_chosen);
        let found = found.ok_or_else(|| Error::NoDevice { name: options.interface.clone() })?;
        let context =
            Context::open(found).map_err(|errno| Error::system("open the device", errno))?;
        let (pd, watcher) = (Pd::new(&context), Watcher::new());
        Ok(Self { common: Arc::new(Common { options, context, pd, watcher }) })
    }

    /// Listens for connections at an IP address and a port; port 0 takes a free one
    /// ([`Listener::address`]).
    ///
    /// # Errors
    /// [`Error::System`] if the address is not one of this host, or the port is in use.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener> {
        Listener::new(&self.common, address)
    }

    /// Connects to a listener, and gives its program `private_data`, of up to
    /// [`PRIVATE_DATA_MAX`](crate::limits::PRIVATE_DATA_MAX) bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Memory`]; [`Error::Unreachable`] if there is no route.
    pub fn connect(&self, peer: SocketAddr, private_data: &[u8]) -> Result<Connecting> {
        Connecting::new(&self.common, peer, private_data)
    }

    /// Allocates a buffer of `len` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::System`] if no more memory can be registered.
    pub fn alloc(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.common.pd, len, false)
    }

    /// Allocates a buffer in huge pages where the system has some; otherwise it is like one of
    /// [`Fabric::alloc`].
    ///
    /// # Errors
    /// Those of [`Fabric::alloc`].
    pub fn alloc_huge(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.common.pd, len, true)
    }
}
