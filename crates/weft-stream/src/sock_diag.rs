//! Queries about the internet sockets of this network namespace: `sock_diag(7)`.

use std::net::{IpAddr, SocketAddr};

use std::os::fd::OwnedFd;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;
const ALL_STATES: u32 = u32::MAX;
/// Index of `lo`, the first interface of every network namespace.
pub(crate) const LOOPBACK_INDEX: u32 = 1;
/// Matches any interface.
const ANY_INTERFACE: u32 = 0;
/// Length of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;
/// Length of a request: the header and `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = HEADER_LEN + 56;
// Offsets in an answer, `struct inet_diag_msg`.
const STATE_AT: usize = HEADER_LEN + 1;
const COOKIE_AT: usize = HEADER_LEN + 4 + 40;
const UID_AT: usize = HEADER_LEN + 64;
const INODE_AT: usize = HEADER_LEN + 68;
/// State of a listening socket (`net/tcp_states.h`).
const TCP_LISTEN: u8 = 10;

/// Protocols whose sockets can be queried.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Tcp = 6,
    Udp = 17,
}

/// A TCP socket that some process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The inode's number, by which `/proc/PID/fd` names the socket.
    pub inode: u32,
    /// The user who owns the socket.
    pub user: u32,
}

/// Finds the TCP socket with the address `own` and the peer address `peer`. `None` if there is
/// none, or no process has it open.
///
/// # Errors
/// The kernel cannot say: an error of `socket(2)`, or it has no `tcp_diag`.
pub(crate) fn holder_of(own: SocketAddr, peer: SocketAddr) -> Result<Option<Holder>, Errno> {
    let interface = if own.ip().is_loopback() { LOOPBACK_INDEX } else { ANY_INTERFACE };
    let Some(answer) = exact(Protocol::Tcp, own, peer, interface)? else { return Ok(None) };
    let byte = answer.get(STATE_AT).ok_or(Errno::PROTO)?;
    let inode = word(&answer, INODE_AT).ok_or(Errno::PROTO)?;
    let user = word(&answer, UID_AT).ok_or(Errno::PROTO)?;
    // If there is no such connection the kernel returns the listening socket that would accept it.
    Ok((inode != 0 && *byte != TCP_LISTEN).then_some(Holder { inode, user }))
}

/// Queries one socket, and returns the kernel's answer. `None` if there is no such socket.
pub(crate) fn exact(
    protocol: Protocol,
    first: SocketAddr,
    second: SocketAddr,
    interface: u32,
) -> Result<Option<Vec<u8>>, Errno> {
    let socket = ask(&request(protocol, Some((first, second, interface)), 0))?;
    let mut answer = vec![0; 512];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    match message(&answer).ok_or(Errno::PROTO)? {
        (NLMSG_ERROR, body, _) => match code(body) {
            Some(Errno::NOENT) => Ok(None),
            other => Err(other.unwrap_or(Errno::PROTO)),
        },
        _ => Ok(Some(answer)),
    }
}

pub(crate) fn ask(request: &[u8]) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG))?;
    send(&socket, request, SendFlags::empty())?;
    Ok(socket)
}

/// A query for one socket, by two addresses and an interface, or for all sockets.
pub(crate) fn request(
    protocol: Protocol,
    ends: Option<(SocketAddr, SocketAddr, u32)>,
    flags: u16,
) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &u32::try_from(REQUEST_LEN).unwrap_or(0).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &(NLM_F_REQUEST | flags).to_ne_bytes());
    put(17, &[protocol as u8]);
    put(20, &ALL_STATES.to_ne_bytes());
    if let Some((source, target, interface)) = ends {
        put(24, &source.port().to_be_bytes());
        put(26, &target.port().to_be_bytes());
        for (at, ip) in [(28, source.ip()), (44, target.ip())] {
            match ip {
                IpAddr::V4(ip) => put(at, &ip.octets()),
                IpAddr::V6(ip) => put(at, &ip.octets()),
            }
        }
        put(16, &[if target.is_ipv4() { AF_INET } else { AF_INET6 }]);
        put(60, &interface.to_ne_bytes());
        put(64, &[0xff; 8]); // INET_DIAG_NOCOOKIE: with any cookie.
    }
    bytes
}

/// The first message: its type, its body, and the bytes behind it.
pub(crate) fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER_LEN..len)?;
    let behind = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, behind))
}

/// The error in the body of an error message.
pub(crate) fn code(body: &[u8]) -> Option<Errno> {
    let code = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    (code < 0).then(|| Errno::from_raw_os_error(-code))
}

/// The cookie (`SO_COOKIE`) of the socket that an answer describes.
pub(crate) fn cookie(message: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(u64::from(word(message, at)?));
    Some(half(COOKIE_AT)? | half(COOKIE_AT + 4)? << 32)
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn holder_is_found_only_while_the_socket_is_open() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("a port");
            let address = listener.local_addr().expect("bound");
            let client = TcpStream::connect(address).expect("connected");
            let own = client.local_addr().expect("connected");
            // No process has accepted the connection, and the listener is not reported for it.
            assert_eq!(holder_of(address, own), Ok(None));
            assert!(holder_of(own, address).expect("an answer").is_some());
            let (server, _) = listener.accept().expect("accepted");
            let held = holder_of(address, own).expect("an answer").expect("a socket");
            let name = format!("socket:[{}]", held.inode);
            let mut fds = std::fs::read_dir("/proc/self/fd").expect("a list");
            assert!(fds.any(|fd| {
                std::fs::read_link(fd.expect("one").path())
                    .is_ok_and(|link| link.to_str() == Some(&name))
            }));
            drop((server, client));
            assert_eq!(holder_of(own, address), Ok(None));
            assert_eq!(holder_of(address, own), Ok(None));
        }
    }
}
