//! Sockets of the connection manager: non-blocking, closed on exec.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use weft_sys::calls;
use weft_sys::calls::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::option::Options;
use crate::{Errno, Result};

/// A port to connect a UDP socket to when only the route matters; connecting sends nothing.
const DISCARD_PORT: u16 = 9;

/// Creates a TCP socket that may share its port with old connections (`SO_REUSEADDR`).
pub(super) fn stream(like: &SocketAddr, options: &Options) -> Result<OwnedFd> {
    let socket = exclusive_stream(like, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

/// Creates a TCP socket that does not share its port.
pub(super) fn exclusive_stream(like: &SocketAddr, options: &Options) -> Result<OwnedFd> {
    let socket = open(like, SocketType::STREAM, options)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(socket)
}

/// Creates a UDP socket.
pub(super) fn datagram(like: &SocketAddr, options: &Options) -> Result<OwnedFd> {
    open(like, SocketType::DGRAM, options)
}

fn open(like: &SocketAddr, kind: SocketType, options: &Options) -> Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol = (kind == SocketType::STREAM).then_some(ipproto::TCP);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = calls::net::socket_with(family, kind, flags, protocol)?;
    if let Some(af_only) = options.af_only
        && like.is_ipv6()
    {
        sockopt::set_ipv6_v6only(&socket, af_only)?;
    }
    if let Some(tos) = options.tos {
        set_tos(&socket, like, tos)?;
    }
    Ok(socket)
}

/// Sets the type of service on a socket of `like`'s family.
pub(super) fn set_tos(socket: impl AsFd, like: &SocketAddr, tos: u8) -> Result<()> {
    if like.is_ipv4() {
        return sockopt::set_ip_tos(&socket, tos);
    }
    // Also for IPv4 peers of an IPv6 socket, if the system supports it.
    let _ = sockopt::set_ip_tos(&socket, tos);
    sockopt::set_ipv6_tclass(&socket, u32::from(tos))
}

/// The socket's local address.
pub(super) fn local_address(socket: impl AsFd) -> Result<SocketAddr> {
    let address = calls::net::getsockname(socket)?;
    SocketAddr::try_from(address).map(canonical).map_err(|_| Errno::AFNOSUPPORT)
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

/// Replaces a wildcard by the loopback address, to connect to this host.
pub(super) fn concrete(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The source address that the routing tables choose for `destination`.
pub(super) fn source_for(destination: SocketAddr) -> Result<SocketAddr> {
    let socket = datagram(&destination, &Options::default())?;
    let mut target = destination;
    if target.port() == 0 {
        target.set_port(DISCARD_PORT);
    }
    calls::net::connect(&socket, &target)?;
    let mut source = local_address(&socket)?;
    source.set_port(0);
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_for_loopback_is_loopback() {
        let there: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        assert_eq!(source_for(there).expect("a route"), there);
    }

    #[test]
    fn mapped_address_becomes_ipv4() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:7".parse().expect("an address");
        assert_eq!(canonical(mapped), "10.0.0.1:7".parse().expect("an address"));
        assert_eq!(concrete("[::]:7".parse().unwrap()), "[::1]:7".parse().unwrap());
    }
}
