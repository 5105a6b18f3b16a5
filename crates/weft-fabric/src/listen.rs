//! Listening for connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weft_engine::Errno;

use crate::blocking;
use crate::carrier::{Caller, Event, Room};
use crate::common::Common;
use crate::connect::{never, private_data as whole_private_data};
use crate::core::Core;
use crate::door::Door;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::inbox::{Inbox, Source};
use crate::options::Carrier;

/// The reason for peers whose hello is not understood.
const STRANGE: &[u8] = b"this listener speaks another protocol or version";

/// Listens for connections at an address: [`Fabric::listen`](crate::Fabric::listen). Dropping it
/// stops that; connections that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    common: Arc<Common>,
    inbox: Arc<Inbox>,
    address: SocketAddr,
    /// The socket at the path, for a listener at one.
    door: Option<Arc<Door>>,
}

impl Listener {
    pub(crate) fn new(common: &Arc<Common>, address: SocketAddr) -> Result<Self> {
        let listening = common.domain.listen(address);
        let listening =
            listening.map_err(|errno| Error::system("listen at this address", errno))?;
        let address = listening.address();
        let inbox = Inbox::new(common, Source::Listening(listening));
        Ok(Self { common: Arc::clone(common), inbox, address, door: None })
    }

    pub(crate) fn at_path(common: &Arc<Common>, path: &Path) -> Result<Self> {
        let failed = |errno| Error::system("listen at this path", errno);
        if common.domain.carrier() == Carrier::Simulated {
            return Err(failed(Errno::OPNOTSUPP));
        }
        let mut listener = Self::new(common, (Ipv4Addr::LOCALHOST, 0).into())?;
        let door = Arc::new(Door::new(path, listener.address.port()).map_err(failed)?);
        common.watch(&door).map_err(failed)?;
        listener.door = Some(door);
        Ok(listener)
    }

    /// The address, with the port that was chosen if none was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path, for a listener at one ([`Fabric::listen_path`](crate::Fabric::listen_path)).
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.door.as_ref().map(|door| door.path())
    }

    /// Waits for the next peer that wants to connect, when it is awaited or waited for.
    pub fn accept(&self) -> Accept<'_> {
        Accept { listener: self, waker: None }
    }

    /// The request of an event, if it is one. Strangers are refused.
    fn take(&self, event: Event) -> Option<Incoming> {
        let Event::Called(caller, private_data) = event else { return None };
        let peer = caller.peer();
        let said = peer.zip(Hello::decode(&private_data)).and_then(|(peer, (hello, program))| {
            let program = match &self.door {
                Some(door) => door.known(program)?,
                None => program,
            };
            Some((peer, hello, program))
        });
        let Some((peer, hello, program)) = said else {
            caller.refuse(STRANGE);
            return None;
        };
        let (common, caller) = (Arc::clone(&self.common), Some(caller));
        Some(Incoming { common, caller, peer, hello, private_data: program.to_vec() })
    }
}

/// The wait for the next peer: [`Listener::accept`].
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Accept<'a> {
    listener: &'a Listener,
    /// Who is to be called when a peer comes.
    waker: Option<Waker>,
}

impl Accept<'_> {
    /// Blocks the thread until a peer wants to connect.
    ///
    /// # Errors
    /// [`Error::System`] if nobody can be waited for.
    pub fn wait(self) -> Result<Incoming> {
        blocking::wait(&self.listener.common, self, None).unwrap_or_else(never)
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.take() {
            self.listener.inbox.forget(&waker);
            // Another future of its task may wait for the same, and then has to say so again.
            waker.wake();
        }
    }
}

impl Future for Accept<'_> {
    type Output = Result<Incoming>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.waker = None;
        let waker = cx.waker().clone();
        loop {
            match self.listener.inbox.poll(&Context::from_waker(&waker)) {
                Poll::Pending => {
                    self.waker = Some(waker);
                    return Poll::Pending;
                }
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
    caller: Option<Caller>,
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
    /// [`Fabric::private_data_max`](crate::Fabric::private_data_max) bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Memory`]; [`Error::Unreachable`] if the peer has given up.
    pub fn accept(mut self, private_data: &[u8]) -> Result<Endpoint> {
        let peer = self.peer;
        let unreachable = |cause| Error::Unreachable { peer, cause };
        let answer = whole_private_data(&self.common, private_data)?;
        let Some(caller) = self.caller.take() else { return Err(Error::Closed { peer }) };
        let link = |room: &Room| caller.link(&self.common.domain, room).map_err(unreachable);
        let core = Core::new(&self.common, link, peer, Some(self.hello))?;
        core.parts.link.accept(&answer).map_err(unreachable)?;
        core.follow()?;
        Ok(Endpoint::new(core))
    }

    /// Refuses the connection. The peer's program learns the reason, of up to
    /// [`Fabric::private_data_max`](crate::Fabric::private_data_max) bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn refuse(mut self, reason: &[u8]) -> Result<()> {
        let answer = whole_private_data(&self.common, reason)?;
        if let Some(caller) = self.caller.take() {
            caller.refuse(&answer);
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take()
            && let Ok(answer) = whole_private_data(&self.common, &[])
        {
            caller.refuse(&answer);
        }
    }
}
