//! Connecting to a listener.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_engine::Errno;

use crate::blocking;
use crate::carrier::{Event, Room};
use crate::common::Common;
use crate::core::Core;
use crate::door::{self, SECRET_LEN};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::limits::HELLO_LEN;
use crate::options::Carrier;

/// A connection that is being made: [`Fabric::connect`](crate::Fabric::connect). Dropping it gives
/// it up.
#[derive(Debug)]
#[must_use = "the connection is made when this is awaited or waited for"]
pub struct Connecting {
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
    Hello {
        window: common.options.window_in_hello(),
        // It fits, as `Options::check` has seen.
        message_max: u32::try_from(common.options.message_max).unwrap_or(u32::MAX),
    }
}

/// Bytes of private data of the program.
pub(crate) fn private_data_max(common: &Common) -> usize {
    common.domain.private_data_max() - HELLO_LEN
}

/// The whole private data of this end.
///
/// # Errors
/// [`Error::TooLong`].
pub(crate) fn private_data(common: &Common, program: &[u8]) -> Result<Vec<u8>> {
    let max = private_data_max(common);
    if program.len() > max {
        return Err(Error::TooLong { len: program.len(), max });
    }
    Ok(own_hello(common).encode(program))
}

/// The result of a wait for what never comes, which only a simulation can tell.
pub(crate) fn never<T>() -> Result<T> {
    Err(Error::system("wait", Errno::DEADLK))
}

impl Connecting {
    pub(crate) fn new(common: &Arc<Common>, peer: SocketAddr, program: &[u8]) -> Result<Self> {
        let private_data = private_data(common, program)?;
        let unreachable = |cause| Error::Unreachable { peer, cause };
        let link = |room: &Room| common.domain.link(peer, room).map_err(unreachable);
        let core = Core::new(common, link, peer, None)?;
        core.parts.link.connect(&private_data).map_err(unreachable)?;
        Ok(Self { core })
    }

    pub(crate) fn to_path(common: &Arc<Common>, path: &Path, program: &[u8]) -> Result<Self> {
        let max = private_data_max(common) - SECRET_LEN;
        if program.len() > max {
            return Err(Error::TooLong { len: program.len(), max });
        }
        let failed = |errno| Error::system("connect to this path", errno);
        if common.domain.carrier() == Carrier::Simulated {
            return Err(failed(Errno::OPNOTSUPP));
        }
        let (peer, secret) = door::ask(path).map_err(failed)?;
        Self::new(common, peer, &[&secret, program].concat())
    }

    /// Blocks the thread until the connection is made, or cannot be made.
    ///
    /// # Errors
    /// [`Error::NotListening`], [`Error::Refused`], [`Error::Unreachable`], [`Error::Protocol`].
    pub fn wait(self) -> Result<Connected> {
        let common = Arc::clone(&self.core.common);
        blocking::wait(&common, self, None).unwrap_or_else(never)
    }

    /// What an event means; `None` for one that is only on the way.
    fn take(&self, event: &Event) -> Option<Result<Connected>> {
        let peer = self.core.peer;
        match event {
            Event::Established(private_data) => Some(self.established(private_data)),
            Event::Refused { by_program, private_data } => {
                Some(Err(match Hello::decode(private_data) {
                    Some((_, reason)) => Error::Refused { peer, reason: reason.to_vec() },
                    None if *by_program => Error::Refused { peer, reason: private_data.clone() },
                    None => Error::NotListening { peer },
                }))
            }
            &Event::Failed(cause) => Some(Err(match cause {
                Errno::CONNREFUSED => Error::NotListening { peer },
                cause => Error::Unreachable { peer, cause },
            })),
            Event::Disconnected => Some(Err(Error::Closed { peer })),
            Event::Called(..) => None,
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
            match self.core.inbox.poll(cx) {
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
