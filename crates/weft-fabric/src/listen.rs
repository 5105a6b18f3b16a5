//! Listening for connections.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_engine::Errno;
use weft_engine::cm::{ConnectParam, Event, EventKind, Id, PortSpace};

use crate::common::Common;
use crate::connect::private_data;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::inbox::Inbox;
use crate::limits::PRIVATE_DATA_MAX;

/// The reason for peers whose hello is not understood.
const STRANGE: &[u8] = b"this listener speaks another protocol or version";

/// Listens for connections at an address: [`Fabric::listen`](crate::Fabric::listen). Dropping it
/// stops that; connections that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    common: Arc<Common>,
    inbox: Arc<Inbox>,
    id: Arc<Id>,
    address: SocketAddr,
}

impl Listener {
    pub(crate) fn new(common: &Arc<Common>, address: SocketAddr) -> Result<Self> {
        let inbox = Inbox::new(common)?;
        let id = Id::new(&inbox.channel, PortSpace::Connected);
        let bound = id.bind(address).and_then(|()| id.listen(0));
        let address = bound.and_then(|()| id.local().ok_or(Errno::INVAL));
        match address {
            Ok(address) => Ok(Self { common: Arc::clone(common), inbox, id, address }),
            Err(errno) => {
                id.destroy();
                Err(Error::system("listen at this address", errno))
            }
        }
    }

    /// The address, with the port that was chosen if none was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next peer that wants to connect, when it is awaited or waited for.
    pub fn accept(&self) -> Accept<'_> {
        Accept { listener: self }
    }

    /// The request of an event, if it is one. Strangers are refused.
    fn take(&self, event: Event) -> Option<Incoming> {
        if event.kind != EventKind::ConnectRequest {
            return None;
        }
        let Event { id, param, .. } = event;
        let peer = id.peer();
        let Some((peer, (hello, program))) = peer.zip(Hello::decode(&param.private_data)) else {
            // It fails if the peer has gone, which is as well.
            let _ = id.reject(STRANGE);
            id.destroy();
            return None;
        };
        let common = Arc::clone(&self.common);
        Some(Incoming { common, id: Some(id), peer, hello, private_data: program.to_vec() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

/// The wait for the next peer: [`Listener::accept`].
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Accept<'a> {
    listener: &'a Listener,
}

impl Accept<'_> {
    /// Blocks the thread until a peer wants to connect.
    ///
    /// # Errors
    /// [`Error::System`] if nobody can be waited for.
    pub fn wait(self) -> Result<Incoming> {
        loop {
            if let Some(incoming) = self.listener.take(self.listener.inbox.wait()?) {
                return Ok(incoming);
            }
        }
    }
}

impl Future for Accept<'_> {
    type Output = Result<Incoming>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.listener.inbox.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(event)) => {
                    if let Some(incoming) = self.listener.take(event) {
                        return Poll::Ready(Ok(incoming));
                    }
                }
            }
        }
    }
}

/// A peer that wants to connect. Dropping it refuses the connection.
#[derive(Debug)]
pub struct Incoming {
    common: Arc<Common>,
    /// `None` once it has been answered.
    id: Option<Arc<Id>>,
    peer: SocketAddr,
    hello: Hello,
    private_data: Vec<u8>,
}

impl Incoming {
    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the peer's program said. Anybody may have written it.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the connection, and gives the peer's program `private_data`, of up to
    /// [`PRIVATE_DATA_MAX`](crate::limits::PRIVATE_DATA_MAX) bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Memory`]; [`Error::Unreachable`] if the peer has given up.
    pub fn accept(mut self, private_data: &[u8]) -> Result<Endpoint> {
        let peer = self.peer;
        let answer = self::private_data(&self.common, private_data)?;
        let Some(id) = self.id.take() else { return Err(Error::Closed { peer }) };
        let core = Inbox::new(&self.common).and_then(|inbox| {
            // The listener's channel is for requests only.
            id.migrate(&inbox.channel);
            Core::new(&self.common, &id, &inbox, peer, Some(self.hello))
        });
        let core = match core {
            Ok(core) => core,
            Err(error) => {
                refuse(&id, b"");
                return Err(error);
            }
        };
        let param = ConnectParam { private_data: answer, ..ConnectParam::default() };
        id.accept(&core.via(), &param).map_err(|cause| Error::Unreachable { peer, cause })?;
        core.follow()?;
        Ok(Endpoint::new(core))
    }

    /// Refuses the connection. The peer's program learns the reason, of up to
    /// [`PRIVATE_DATA_MAX`](crate::limits::PRIVATE_DATA_MAX) bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn refuse(mut self, reason: &[u8]) -> Result<()> {
        if reason.len() > PRIVATE_DATA_MAX {
            return Err(Error::TooLong { len: reason.len(), max: PRIVATE_DATA_MAX });
        }
        if let Some(id) = self.id.take() {
            refuse(&id, reason);
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            refuse(&id, b"");
        }
    }
}

fn refuse(id: &Id, reason: &[u8]) {
    // It fails if the peer has gone, which is as well.
    let _ = id.reject(reason);
    id.destroy();
}
