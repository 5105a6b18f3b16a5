//! The RDMA port space, laid over the host's TCP and UDP ports.
//!
//! RDMA ports and TCP ports are different spaces to a program: tgtd listens on TCP port 3260 and on
//! RDMA port 3260 at once. A foreign iWARP peer, on the other hand, looks for RDMA port P at TCP
//! port P. So a listener on RDMA port P takes up to three ports of the host:
//!
//! * **UDP port P**, always when it is free. It makes the RDMA port ours (a second listener gets
//!   `EADDRINUSE`), and Weft peers ask there for the TCP port ([`super::query`]).
//! * **a TCP port of the kernel's choice**, which Weft peers connect to.
//! * **TCP port P**, for foreign peers, when the program does not use it itself. A program that
//!   wants it later gets it ([`super::claim`]), if it asks by the C library's `bind` and `listen`,
//!   in front of which `weft run` puts hooks.
//!
//! Without the hooks TCP port P is bound at once but listens only
//! [`PORT_GRACE`](super::limits::PORT_GRACE) later, because two sockets cannot listen on one port:
//! a program that opens both of its listeners when it starts gets TCP port P in either order, if it
//! sets `SO_REUSEADDR` as servers do. One that opens its TCP listener on P later than that finds
//! the port taken, and so does one without `SO_REUSEADDR` that comes second. It should open it
//! first.
//!
//! When a foreign program has UDP port P, TCP port P is the only way in and is taken at once,
//! alone. A port of our own choice (the program bound port 0) is taken in both spaces at once, too.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::limits::{BACKLOG_MAX, PORT_TRIES_MAX};
use super::option::Options;
use super::socket;
use crate::{Errno, Result};

/// A bound RDMA port, on which nobody listens yet.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    options: Options,
    /// We chose the number, so no program means the TCP port when it names it.
    chosen: bool,
    datagram: Option<OwnedFd>,
    stream: Option<OwnedFd>,
}

/// What a listener works with.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Takes port queries.
    pub(super) datagram: Option<OwnedFd>,
    /// Listens.
    pub(super) stream: OwnedFd,
    /// Bound to the RDMA port itself; to listen later.
    pub(super) foreign: Option<OwnedFd>,
}

impl Port {
    /// Binds a port to listen on, or to connect from; port 0 is any.
    ///
    /// # Errors
    /// `EADDRINUSE` when the RDMA port is taken, `EACCES` for a port that needs privilege.
    pub(super) fn bind(address: SocketAddr, options: &Options) -> Result<Self> {
        if address.port() == 0 {
            Self::choose(address, options)
        } else {
            Self::take(address, options)
        }
    }

    /// Binds a port that is only connected from.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when the address is not one of this host, or all ports are in use.
    pub(super) fn bind_source(address: SocketAddr, options: &Options) -> Result<Self> {
        let stream = bind(socket::stream(&address, options)?, &address)?;
        let address = socket::local_address(&stream)?;
        let stream = Some(stream);
        Ok(Self { address, options: *options, chosen: true, datagram: None, stream })
    }

    fn choose(mut address: SocketAddr, options: &Options) -> Result<Self> {
        let scope = address;
        for _ in 0..PORT_TRIES_MAX {
            address = scope;
            let datagram = bind(socket::datagram(&address, options)?, &address)?;
            address.set_port(socket::local_address(&datagram)?.port());
            match bind(socket::exclusive_stream(&address, options)?, &address) {
                Ok(stream) => {
                    let (datagram, stream) = (Some(datagram), Some(stream));
                    return Ok(Self { address, options: *options, chosen: true, datagram, stream });
                }
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::ADDRINUSE)
    }

    fn take(address: SocketAddr, options: &Options) -> Result<Self> {
        let (datagram, stream) = match bind(socket::datagram(&address, options)?, &address) {
            Ok(datagram) => {
                let stream = bind(socket::stream(&address, options)?, &address);
                (Some(datagram), stream.ok())
            }
            // Another listener of ours has the TCP port bound, too, and then this fails; a foreign
            // program that has only the UDP port does not stop us.
            Err(Errno::ADDRINUSE) => {
                (None, Some(bind(socket::exclusive_stream(&address, options)?, &address)?))
            }
            Err(error) => return Err(error),
        };
        Ok(Self { address, options: *options, chosen: false, datagram, stream })
    }

    /// The address, with the port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket to connect with, if the TCP port of this number is ours.
    pub(super) fn into_stream(self) -> Option<OwnedFd> {
        self.stream
    }

    /// Starts listening.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody has started to listen on the port since it was bound.
    pub(super) fn open(self) -> Result<Sockets> {
        let (stream, foreign) = match (self.stream, &self.datagram) {
            (Some(stream), None) => (stream, None),
            (Some(stream), Some(_)) if self.chosen => (stream, None),
            (foreign, _) => {
                let mut any = self.address;
                any.set_port(0);
                (bind(socket::stream(&any, &self.options)?, &any)?, foreign)
            }
        };
        listen(&stream)?;
        Ok(Sockets { datagram: self.datagram, stream, foreign })
    }
}

/// Lets a bound socket listen.
///
/// # Errors
/// `EADDRINUSE` when another socket listens on the port.
pub(super) fn listen(stream: &OwnedFd) -> Result<()> {
    rustix::net::listen(stream, BACKLOG_MAX.cast_signed())
}

fn bind(socket: OwnedFd, address: &SocketAddr) -> Result<OwnedFd> {
    rustix::net::bind(&socket, address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    const OPTIONS: Options =
        Options { tos: None, reuse_address: false, af_only: None, ack_timeout: None };

    fn any() -> SocketAddr {
        "127.0.0.1:0".parse().expect("an address")
    }

    fn free() -> SocketAddr {
        Port::bind(any(), &OPTIONS).expect("a port").address()
    }

    #[test]
    fn an_rdma_port_is_taken_once() {
        let first = Port::bind(free(), &OPTIONS).expect("a free port");
        assert_eq!(Port::bind(first.address(), &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
        let address = first.address();
        let sockets = first.open().expect("sockets");
        assert_eq!(Port::bind(address, &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
        drop(sockets);
        Port::bind(address, &OPTIONS).expect("free again");
    }

    #[test]
    fn the_program_may_listen_on_the_same_tcp_port_before_or_after() {
        let address = free();
        let before = TcpListener::bind(address).expect("TCP is free");
        let port = Port::bind(address, &OPTIONS).expect("RDMA is free");
        let sockets = port.open().expect("sockets");
        assert!(sockets.foreign.is_none());
        let other = socket::local_address(&sockets.stream).expect("an address");
        assert_ne!(other.port(), address.port());
        drop((before, sockets));

        let sockets = Port::bind(address, &OPTIONS).expect("free").open().expect("sockets");
        let after = TcpListener::bind(address).expect("TCP is still free");
        let foreign = sockets.foreign.expect("bound");
        assert_eq!(listen(&foreign).unwrap_err(), Errno::ADDRINUSE);
        drop(after);
        listen(&foreign).expect("free now");
    }

    #[test]
    fn a_foreign_udp_port_does_not_stop_a_listener() {
        let address = free();
        let _udp = UdpSocket::bind(address).expect("UDP is free");
        let sockets = Port::bind(address, &OPTIONS).expect("TCP is free").open().expect("sockets");
        assert_eq!(socket::local_address(&sockets.stream).expect("an address"), address);
        assert!(sockets.datagram.is_none());
        assert_eq!(Port::bind(address, &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
    }

    #[test]
    fn wildcards_of_both_families_live_together_with_af_only() {
        let only = Options { af_only: Some(true), ..OPTIONS };
        let four = Port::bind("0.0.0.0:0".parse().unwrap(), &OPTIONS).expect("a port");
        let mut six: SocketAddr = "[::]:0".parse().expect("an address");
        six.set_port(four.address().port());
        let both = Port::bind(six, &Options { af_only: Some(false), ..OPTIONS });
        assert_eq!(both.unwrap_err(), Errno::ADDRINUSE);
        Port::bind(six, &only).expect("another family");
    }
}
