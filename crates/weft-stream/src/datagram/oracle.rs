//! Which socket a datagram would reach: the kernel's own look-up, asked by `sock_diag(7)`.
//!
//! More than one socket may have a port: by address, by peer, by `SO_REUSEADDR`, some of them of
//! programs without us. The kernel chooses, and is asked (`udp_dump_one`, net/ipv4/udp_diag.c).

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const IPPROTO_UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const ALL_STATES: u32 = u32::MAX;
/// `lo` is the first interface of every network namespace.
const LOOPBACK_INDEX: u32 = 1;
const NLMSG_HDR_LEN: usize = 16;
/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = NLMSG_HDR_LEN + 56;
/// Where `struct inet_diag_msg` has `id.idiag_cookie`.
const COOKIE_AT: usize = NLMSG_HDR_LEN + 4 + 40;
/// Room for answers, as much as the kernel sends at once.
const ANSWER_LEN: usize = 32 << 10;

/// The number (`SO_COOKIE`) of the socket of this network namespace that a datagram from `source`
/// to `target`, both local addresses, would reach. `None` if there is none.
///
/// # Errors
/// The kernel cannot say: what `socket(2)` reports, or that it has no `udp_diag`.
pub fn receiver_of(source: SocketAddr, target: SocketAddr) -> Result<Option<u64>, Errno> {
    let socket = ask(&request(Some((source, target)), 0))?;
    let mut answer = [0; 512];
    let (len, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let answer = answer.get(..len).ok_or(Errno::PROTO)?;
    match message(answer).ok_or(Errno::PROTO)? {
        (NLMSG_ERROR, body, _) => match code(body) {
            Some(Errno::NOENT) => Ok(None),
            other => Err(other.unwrap_or(Errno::PROTO)),
        },
        _ => cookie(answer).map(Some).ok_or(Errno::PROTO),
    }
}

/// The numbers of all UDP sockets of the network namespace.
pub(crate) fn all() -> Result<HashSet<u64>, Errno> {
    let mut found = HashSet::new();
    for family in [AF_INET, AF_INET6] {
        let mut request = request(None, NLM_F_DUMP);
        request[NLMSG_HDR_LEN] = family;
        let socket = ask(&request)?;
        let mut answer = vec![0; ANSWER_LEN];
        'answers: loop {
            let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
            let mut rest = answer.get(..len).ok_or(Errno::PROTO)?;
            while let Some((kind, body, behind)) = message(rest) {
                match kind {
                    NLMSG_DONE => break 'answers,
                    NLMSG_ERROR => return Err(code(body).unwrap_or(Errno::PROTO)),
                    _ => found.extend(cookie(rest)),
                }
                rest = behind;
            }
        }
    }
    Ok(found)
}

fn ask(request: &[u8]) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG))?;
    send(&socket, request, SendFlags::empty())?;
    Ok(socket)
}

fn request(ends: Option<(SocketAddr, SocketAddr)>, flags: u16) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &u32::try_from(REQUEST_LEN).unwrap_or(0).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &(NLM_F_REQUEST | flags).to_ne_bytes());
    put(17, &[IPPROTO_UDP]);
    put(20, &ALL_STATES.to_ne_bytes());
    if let Some((source, target)) = ends {
        put(24, &source.port().to_be_bytes());
        put(26, &target.port().to_be_bytes());
        for (at, ip) in [(28, source.ip()), (44, target.ip())] {
            match ip {
                IpAddr::V4(ip) => put(at, &ip.octets()),
                IpAddr::V6(ip) => put(at, &ip.octets()),
            }
        }
        put(16, &[if target.is_ipv4() { AF_INET } else { AF_INET6 }]);
        put(60, &LOOPBACK_INDEX.to_ne_bytes());
        put(64, &[0xff; 8]); // INET_DIAG_NOCOOKIE: whichever it is.
    }
    bytes
}

/// The first message: its kind, its body, and what lies behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(NLMSG_HDR_LEN..len)?;
    let behind = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, behind))
}

/// The reason in a message of an error.
fn code(body: &[u8]) -> Option<Errno> {
    let code = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    (code < 0).then(|| Errno::from_raw_os_error(-code))
}

fn cookie(message: &[u8]) -> Option<u64> {
    let half = |at: usize| {
        let bytes = message.get(at..at + 4)?.try_into().ok()?;
        Some(u64::from(u32::from_ne_bytes(bytes)))
    };
    Some(half(COOKIE_AT)? | half(COOKIE_AT + 4)? << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::socket_cookie;
    use std::net::UdpSocket;

    #[test]
    fn the_kernel_says_who_receives() {
        let bind = |address: &str| UdpSocket::bind(address).expect("a port");
        let (receiver, sender, other) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"), bind("[::1]:0"));
        let [target, source, v6] =
            [&receiver, &sender, &other].map(|socket| socket.local_addr().expect("bound"));
        let cookie = socket_cookie(&receiver).expect("a number");
        assert_eq!(receiver_of(source, target), Ok(Some(cookie)));
        // Connected to somebody else, it receives from him alone.
        receiver.connect("127.0.0.1:9").expect("connected");
        assert_eq!(receiver_of(source, target), Ok(None));
        receiver.connect(source).expect("connected");
        assert_eq!(receiver_of(source, target), Ok(Some(cookie)));
        let cookie = socket_cookie(&other).expect("a number");
        assert_eq!(receiver_of(v6, v6), Ok(Some(cookie)));
        assert!(all().expect("a list").contains(&cookie));
        drop(receiver);
        assert_eq!(receiver_of(source, target), Ok(None));
    }

    #[test]
    fn a_socket_of_both_families_receives_from_ipv4() {
        let both = UdpSocket::bind("[::]:0").expect("a port");
        let port = both.local_addr().expect("bound").port();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let cookie = socket_cookie(&both).expect("a number");
        assert_eq!(receiver_of(address(9), address(port)), Ok(Some(cookie)));
    }
}
