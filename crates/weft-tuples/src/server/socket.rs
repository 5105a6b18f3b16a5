//! Sockets of both families.

use std::io::{self, Read, Write};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

use crate::limits::KEEPALIVE_IDLE;
use crate::resp::Addresses;

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// Within the host.
    Unix(UnixListener),
}

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// A listener that does not block.
    #[must_use]
    pub fn of_tcp(listener: std::net::TcpListener) -> Self {
        Self::Tcp(TcpListener::from_std(listener))
    }

    /// A listener that does not block.
    #[must_use]
    pub fn of_unix(listener: std::os::unix::net::UnixListener) -> Self {
        Self::Unix(UnixListener::from_std(listener))
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Self::Unix(listener) => listener.register(registry, token, Interest::READABLE),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                // So that the kernel finds peers that are gone without a word.
                sockopt::set_socket_keepalive(&socket, true)?;
                sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept()?.0)),
        }
    }
}

impl Socket {
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(socket) => socket.register(registry, token, both),
            Self::Unix(socket) => socket.register(registry, token, both),
        }
    }
}

impl Socket {
    /// The addresses of both ends, as far as they have any.
    pub(super) fn addresses(&self) -> Addresses {
        let text = |address: io::Result<std::net::SocketAddr>| {
            address.map_or_else(|_| String::new(), |address| address.to_string())
        };
        match self {
            Self::Tcp(socket) => {
                Addresses { peer: text(socket.peer_addr()), local: text(socket.local_addr()) }
            }
            Self::Unix(_) => Addresses::default(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(bytes),
            Self::Unix(socket) => socket.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
