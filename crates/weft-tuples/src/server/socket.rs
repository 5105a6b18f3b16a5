//! Sockets of both families, and connections by the fabric.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::task::Waker;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

use super::tls::TlsStream;
use crate::access::{TlsServer, Users};
use crate::fabric::{FabricListener, FabricStream};
use crate::limits::KEEPALIVE_IDLE;
use crate::resp::Addresses;

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// Over TCP, within TLS.
    Tls(TcpListener, TlsServer),
    /// Within the host, for these users.
    Unix(UnixListener, Users),
    /// By the fabric.
    Fabric(FabricListener),
}

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixStream),
    Fabric(Box<FabricStream>),
}

impl Listener {
    /// A listener that does not block.
    #[must_use]
    pub fn of_tcp(listener: std::net::TcpListener) -> Self {
        Self::Tcp(TcpListener::from_std(listener))
    }

    /// A listener that does not block, for connections within TLS.
    #[must_use]
    pub fn of_tls(listener: std::net::TcpListener, server: TlsServer) -> Self {
        Self::Tls(TcpListener::from_std(listener), server)
    }

    /// A listener that does not block.
    #[must_use]
    pub fn of_unix(listener: std::os::unix::net::UnixListener, users: Users) -> Self {
        Self::Unix(UnixListener::from_std(listener), users)
    }

    /// Has events with the token come, or the waker be called, when there are connections to
    /// accept.
    pub(super) fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        waker: Waker,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => {
                listener.register(registry, token, Interest::READABLE)
            }
            Self::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
            Self::Fabric(listener) => {
                listener.call(waker);
                Ok(())
            }
        }
    }

    /// Accepts a connection. One by the fabric is refused if there is no place for it, and one of a
    /// user that may not connect is closed: that is [`ErrorKind::ConnectionAborted`].
    pub(super) fn accept(&self, has_fabric_place: bool) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(accept_tcp(listener)?)),
            Self::Tls(listener, server) => {
                Ok(Socket::Tls(Box::new(TlsStream::new(accept_tcp(listener)?, server)?)))
            }
            Self::Unix(listener, users) => {
                let (socket, _) = listener.accept()?;
                match users.admit(&socket) {
                    true => Ok(Socket::Unix(socket)),
                    false => Err(ErrorKind::ConnectionAborted.into()),
                }
            }
            Self::Fabric(listener) => {
                Ok(Socket::Fabric(Box::new(listener.accept(has_fabric_place)?)))
            }
        }
    }
}

fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    // So that the kernel finds peers that are gone without a word.
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    Ok(socket)
}

impl Socket {
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(socket) => socket.register(registry, token, both),
            Self::Tls(stream) => stream.socket_mut().register(registry, token, both),
            Self::Unix(socket) => socket.register(registry, token, both),
            Self::Fabric(stream) => {
                let fd = stream.as_fd().as_raw_fd();
                SourceFd(&fd).register(registry, token, Interest::READABLE)
            }
        }
    }

    /// Has no more events come. Sockets do so when they are closed.
    pub(super) fn deregister(&self, registry: &Registry) {
        if let Self::Fabric(stream) = self {
            let fd = stream.as_fd().as_raw_fd();
            // It was registered; and an event of nobody does no harm.
            let _ = SourceFd(&fd).deregister(registry);
        }
    }

    /// Whether it has to agree on keys with its peer first.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_handshaking())
    }

    /// The addresses of both ends, as far as they have any.
    pub(super) fn addresses(&self) -> Addresses {
        let text = |address: io::Result<std::net::SocketAddr>| {
            address.map_or_else(|_| String::new(), |address| address.to_string())
        };
        let socket = match self {
            Self::Tcp(socket) => socket,
            Self::Tls(stream) => stream.socket(),
            Self::Unix(_) | Self::Fabric(_) => return Addresses::default(),
        };
        Addresses { peer: text(socket.peer_addr()), local: text(socket.local_addr()) }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
            Self::Unix(socket) => socket.read(bytes),
            Self::Fabric(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
            Self::Fabric(stream) => stream.write(bytes),
        }
    }

    /// Sends what was written. Only TLS keeps some of it.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => stream.flush(),
            Self::Tcp(_) | Self::Unix(_) | Self::Fabric(_) => Ok(()),
        }
    }
}
