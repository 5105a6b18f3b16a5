//! TCP sockets for connections: non-blocking, without Nagle's delay, and with detection of a dead
//! peer.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use weft_sys::calls::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getpeername, getsockname, ipproto,
    listen, socket_with, sockopt,
};
use weft_sys::interface_addresses;
use weft_wire::mpa::fpdu;

use crate::device::Device;
use crate::limits::TCP_BACKLOG;
use crate::{Errno, Result};

/// How long sent data may stay unacknowledged before TCP ends the connection.
const USER_TIMEOUT_MS: u32 = 20_000;
/// How soon and how often an idle connection is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;
/// Longest ULPDU between Weft peers: 32 KiB of payload and the longer of the two DDP headers.
const WEFT_MULPDU: usize = (32 << 10) + weft_wire::ddp::UNTAGGED_LEN;

/// Starts to connect to `peer` from the address `local` and a port that the system chooses.
///
/// # Errors
/// The errors that the system reports at once; most failures show later.
pub(crate) fn dial(local: Option<IpAddr>, peer: SocketAddr) -> Result<OwnedFd> {
    let socket = stream_socket(&peer)?;
    tune(&socket)?;
    if let Some(local) = local {
        bind(&socket, &with_scope(local, 0, &peer))?;
    }
    match connect(&socket, &peer) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Listens on `port` (0: any) of every address, IPv4 and IPv6. Returns the socket and the port.
///
/// # Errors
/// `EADDRINUSE` and similar.
pub(crate) fn listen_everywhere(port: u16) -> Result<(OwnedFd, u16)> {
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let v4 = SocketAddr::from(([0, 0, 0, 0], port));
    // A machine without IPv6 has no sockets of that family.
    let socket = listen_on(v6).or_else(|_| listen_on(v4))?;
    let port = local_address(&socket)?.port();
    Ok((socket, port))
}

fn listen_on(address: SocketAddr) -> Result<OwnedFd> {
    let socket = stream_socket(&address)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, TCP_BACKLOG)?;
    Ok(socket)
}

fn stream_socket(address: &SocketAddr) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Sets the socket options of every connection.
///
/// # Errors
/// The errors of `setsockopt(2)`.
pub(crate) fn tune(socket: &OwnedFd) -> Result<()> {
    //= rfc5044#section-5.1
    //# For example, passing FPDU buffers sized to the current EMSS to the TCP socket and using the
    //# TCP_NODELAY socket option to disable the Nagle [RFC896] algorithm will usually result in
    //# many of the segments starting with an FPDU.
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    match congestion_wanted() {
        Some(name) => sockopt::set_tcp_congestion(socket, name),
        None => Ok(()),
    }
}

/// The congestion control that `WEFT_CONGESTION` names; `None` for the system's default.
fn congestion_wanted() -> Option<&'static str> {
    static CHOICE: OnceLock<Option<String>> = OnceLock::new();
    let choice = CHOICE.get_or_init(|| std::env::var("WEFT_CONGESTION").ok());
    choice.as_deref().filter(|name| !name.is_empty())
}

/// Our address of a connection; an IPv4-mapped address is converted to IPv4.
///
/// # Errors
/// `ENOTCONN` and similar.
pub(crate) fn local_address(socket: &OwnedFd) -> Result<SocketAddr> {
    Ok(plain(getsockname(socket)?.try_into()?))
}

/// The peer's address of a connection; an IPv4-mapped address is converted to IPv4.
///
/// # Errors
/// `ENOTCONN` and similar.
pub(crate) fn peer_address(socket: impl AsFd) -> Result<SocketAddr> {
    Ok(plain(getpeername(socket)?.ok_or(Errno::NOTCONN)?.try_into()?))
}

/// The longest ULPDU to send. A foreign peer gets FPDUs that fit its TCP segments.
//= rfc5041#section-3
//# LLPs MUST expose MULPDU and MULPDU changes.
pub(crate) fn mulpdu(socket: &OwnedFd, weft_peer: bool, markers: bool) -> usize {
    if weft_peer {
        return WEFT_MULPDU;
    }
    let emss = tcp_maxseg(socket).unwrap_or(536);
    fpdu::mulpdu(emss, markers)
}

/// Whether we want CRCs on a connection between two addresses: not inside one host, where there is
/// no wire. `WEFT_CRC` 0 or 1 decides for all connections. The peer may still require them.
pub(crate) fn crc_wanted(local: IpAddr, peer: IpAddr) -> bool {
    static CHOICE: OnceLock<Option<bool>> = OnceLock::new();
    let choice = CHOICE.get_or_init(|| match std::env::var("WEFT_CRC").as_deref() {
        Ok("0") => Some(false),
        Ok("1") => Some(true),
        _ => None,
    });
    choice.unwrap_or_else(|| !is_local(local, peer))
}

/// Whether we want markers in what we receive: only with `WEFT_MARKERS` 1, because a stream that is
/// read in order needs none.
pub(crate) fn markers_wanted() -> bool {
    static CHOICE: OnceLock<bool> = OnceLock::new();
    *CHOICE.get_or_init(|| std::env::var("WEFT_MARKERS").is_ok_and(|value| value == "1"))
}

/// Whether `peer`, connected from `local`, is on this host.
pub(crate) fn is_local(local: IpAddr, peer: IpAddr) -> bool {
    local == peer
        || peer.is_loopback()
        || interface_addresses().is_ok_and(|all| all.iter().any(|own| own.address == peer))
}

fn tcp_maxseg(socket: &OwnedFd) -> Option<usize> {
    weft_sys::tcp_maxseg(socket.as_fd()).ok()
}

/// The socket address of `address` and `port`; with the device's scope if it is link-local.
pub(crate) fn address_on(device: &Device, address: IpAddr, port: u16) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, device.index).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

fn with_scope(address: IpAddr, port: u16, like: &SocketAddr) -> SocketAddr {
    match (address, like) {
        (IpAddr::V6(v6), SocketAddr::V6(peer)) => {
            SocketAddrV6::new(v6, port, 0, peer.scope_id()).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_address_is_local() {
        assert!(is_local("127.0.0.1".parse().unwrap(), "127.0.0.9".parse().unwrap()));
        assert!(!is_local("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap()));
    }
}
