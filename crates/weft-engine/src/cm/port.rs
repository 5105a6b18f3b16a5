//! The RDMA port space, on top of the host's TCP and UDP ports.
//!
//! RDMA ports and TCP ports are separate spaces to a program: tgtd listens on TCP port 3260 and on
//! RDMA port 3260 at the same time. But a foreign iWARP peer connects to TCP port P to reach RDMA
//! port P. So a listener on RDMA port P uses up to three ports of the host:
//!
//! * **UDP port P**, if it is free. It reserves the RDMA port (a second listener gets
//!   `EADDRINUSE`), and Weft peers query it for the TCP port ([`super::query`]).
//! * **A TCP port of the kernel's choice**, which Weft peers connect to.
//! * **TCP port P**, for foreign peers, if the program does not use it itself. A program that wants
//!   it later gets it ([`super::claim`]), if it calls the C library's `bind` and `listen`, which
//!   `weft run` hooks.
//!
//! Without the hooks TCP port P is bound at once but listens only after
//! [`PORT_GRACE`](super::limits::PORT_GRACE), because two sockets cannot listen on one port: a
//! program that opens both of its listeners when it starts gets TCP port P in either order, if it
//! sets `SO_REUSEADDR` as servers do. A program that opens its TCP listener on P after the grace
//! time finds the port in use, and so does one without `SO_REUSEADDR` that opens it second. Such a
//! program should open its TCP listener first.
//!
//! If a foreign program has UDP port P, TCP port P alone serves all peers and is opened at once. A
//! port that we choose (the program bound port 0) is opened in both spaces at once, too.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use weft_sys::calls;

use super::limits::{BACKLOG_MAX, PORT_TRIES_MAX};
use super::option::Options;
use super::socket;
use crate::{Errno, Result};

/// A bound RDMA port that does not listen yet.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    options: Options,
    /// Whether we chose the number, so that the program does not want the TCP port of that number.
    chosen: bool,
    datagram: Option<OwnedFd>,
    stream: Option<OwnedFd>,
}

/// The sockets of a listener.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Receives port queries.
    pub(super) datagram: Option<OwnedFd>,
    /// Listens for connections.
    pub(super) stream: OwnedFd,
    /// Bound to the RDMA port itself, to listen later.
    pub(super) foreign: Option<OwnedFd>,
}

impl Port {
    /// Binds a port to listen on or to connect from; port 0 means any.
    ///
    /// # Errors
    /// `EADDRINUSE` if the RDMA port is in use, `EACCES` for a port that needs privilege.
    pub(super) fn bind(address: SocketAddr, options: &Options) -> Result<Self> {
        if address.port() == 0 {
            Self::choose(address, options)
        } else {
            Self::take(address, options)
        }
    }

    /// Binds a port that is only used to connect from.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not this host's, or all ports are in use.
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
            // Another RDMA listener has the TCP port bound, too, so that this fails; a foreign
            // program that has only the UDP port does not stop us.
            Err(Errno::ADDRINUSE) => {
                (None, Some(bind(socket::exclusive_stream(&address, options)?, &address)?))
            }
            Err(error) => return Err(error),
        };
        Ok(Self { address, options: *options, chosen: false, datagram, stream })
    }

    /// The bound address and port.
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
    /// `EADDRINUSE` if another socket has started to listen on the port since it was bound.
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

/// Makes a bound socket listen.
///
/// # Errors
/// `EADDRINUSE` if another socket listens on the port.
pub(super) fn listen(stream: &OwnedFd) -> Result<()> {
    calls::net::listen(stream, BACKLOG_MAX.cast_signed())
}

fn bind(socket: OwnedFd, address: &SocketAddr) -> Result<OwnedFd> {
    calls::net::bind(&socket, address)?;
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
    fn second_bind_of_an_rdma_port_is_eaddrinuse() {
        let first = Port::bind(free(), &OPTIONS).expect("a free port");
        assert_eq!(Port::bind(first.address(), &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
        let address = first.address();
        let sockets = first.open().expect("sockets");
        assert_eq!(Port::bind(address, &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
        drop(sockets);
        Port::bind(address, &OPTIONS).expect("free again");
    }

    #[test]
    fn program_may_listen_on_the_tcp_port_of_the_same_number() {
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
    fn listener_works_when_a_foreign_program_has_the_udp_port() {
        let address = free();
        let _udp = UdpSocket::bind(address).expect("UDP is free");
        let sockets = Port::bind(address, &OPTIONS).expect("TCP is free").open().expect("sockets");
        assert_eq!(socket::local_address(&sockets.stream).expect("an address"), address);
        assert!(sockets.datagram.is_none());
        assert_eq!(Port::bind(address, &OPTIONS).unwrap_err(), Errno::ADDRINUSE);
    }

    #[test]
    fn wildcards_of_both_families_bind_one_port_with_af_only() {
        let only = Options { af_only: Some(true), ..OPTIONS };
        let four = Port::bind("0.0.0.0:0".parse().unwrap(), &OPTIONS).expect("a port");
        let mut six: SocketAddr = "[::]:0".parse().expect("an address");
        six.set_port(four.address().port());
        let both = Port::bind(six, &Options { af_only: Some(false), ..OPTIONS });
        assert_eq!(both.unwrap_err(), Errno::ADDRINUSE);
        Port::bind(six, &only).expect("another family");
    }
}
