//! Connecting to a listener.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_engine::Errno;
use weft_engine::cm::{ConnectParam, Event, EventKind, Id, PortSpace, reject};

use crate::common::Common;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::inbox::Inbox;
use crate::limits::PRIVATE_DATA_MAX;

/// A connection that is being made: [`Fabric::connect`](crate::Fabric::connect). Dropping it gives
/// it up.
#[derive(Debug)]
#[must_use = "the connection is made when this is awaited or waited for"]
pub struct Connecting {
    inbox: Arc<Inbox>,
    core: Arc<Core>,
}

/// A new connection, and what the peer's program said when it accepted.
#[derive(Debug)]
pub struct Connected {
    /// This end.
    pub endpoint: Endpoint,
    /// The private data of the peer's program.
    pub private_data: Vec<u8>,
}

/// The hello of this end's options.
pub(crate) fn own_hello(common: &Common) -> Hello {
    // `Options::check` has seen that they fit.
    Hello {
        window: u16::try_from(common.options.window).unwrap_or(u16::MAX),
        message_max: u32::try_from(common.options.message_max).unwrap_or(u32::MAX),
    }
}

/// The whole private data of this end.
///
/// # Errors
/// [`Error::TooLong`].
pub(crate) fn private_data(common: &Common, program: &[u8]) -> Result<Vec<u8>> {
    if program.len() > PRIVATE_DATA_MAX {
        return Err(Error::TooLong { len: program.len(), max: PRIVATE_DATA_MAX });
    }
    Ok(own_hello(common).encode(program))
}

impl Connecting {
    pub(crate) fn new(common: &Arc<Common>, peer: SocketAddr, program: &[u8]) -> Result<Self> {
        let private_data = private_data(common, program)?;
        let inbox = Inbox::new(common)?;
        let id = Id::new(&inbox.channel, PortSpace::Connected);
        let unreachable = |cause| Error::Unreachable { peer, cause };
        let resolved = id.resolve_address(None, peer).and_then(|()| id.resolve_route());
        let core =
            resolved.map_err(unreachable).and_then(|()| Core::new(common, &id, &inbox, peer, None));
        let core = match core {
            Ok(core) => core,
            Err(error) => {
                id.destroy();
                return Err(error);
            }
        };
        let param = ConnectParam { private_data, ..ConnectParam::default() };
        id.connect(&core.via(), &param).map_err(unreachable)?;
        Ok(Self { inbox, core })
    }

    /// Blocks the thread until the connection is made, or cannot be made.
    ///
    /// # Errors
    /// [`Error::NotListening`], [`Error::Refused`], [`Error::Unreachable`], [`Error::Protocol`].
    pub fn wait(self) -> Result<Connected> {
        loop {
            if let Some(result) = self.take(&self.inbox.wait()?) {
                return result;
            }
        }
    }

    /// What an event means; `None` for one that is only on the way.
    fn take(&self, event: &Event) -> Option<Result<Connected>> {
        let peer = self.core.peer;
        let cause = || Errno::from_raw_os_error(event.status.saturating_abs());
        match event.kind {
            EventKind::Established => Some(self.established(&event.param.private_data)),
            EventKind::Rejected if event.status == reject::CONSUMER_DEFINED => {
                Some(Err(Error::Refused { peer, reason: event.param.private_data.clone() }))
            }
            EventKind::Rejected => Some(Err(Error::NotListening { peer })),
            EventKind::Unreachable | EventKind::ConnectError => Some(Err(match cause() {
                Errno::CONNREFUSED => Error::NotListening { peer },
                cause => Error::Unreachable { peer, cause },
            })),
            EventKind::Disconnected => Some(Err(Error::Closed { peer })),
            _ => None,
        }
    }

    fn established(&self, bytes: &[u8]) -> Result<Connected> {
        let peer = self.core.peer;
        let (hello, program) = Hello::decode(bytes).ok_or(Error::Protocol { peer })?;
        self.core.connected(hello);
        self.core.follow()?;
        let endpoint = Endpoint::new(Arc::clone(&self.core));
        Ok(Connected { endpoint, private_data: program.to_vec() })
    }
}

impl Future for Connecting {
    type Output = Result<Connected>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.inbox.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(event)) => {
                    if let Some(result) = self.take(&event) {
                        return Poll::Ready(result);
                    }
                }
            }
        }
    }
}
