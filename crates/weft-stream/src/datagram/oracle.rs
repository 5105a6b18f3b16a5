//! Finds the socket that a datagram would reach, by the kernel's own lookup (`sock_diag(7)`).
//!
//! Several sockets may have a port, with different addresses or peers or by `SO_REUSEADDR`, and
//! some of them may belong to programs without Weft. Only the kernel knows which one it would
//! choose (`udp_dump_one`, `net/ipv4/udp_diag.c`).

use std::collections::HashSet;
use std::net::SocketAddr;

use weft_sys::Uncancelled;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::RecvFlags;
use weft_sys::calls::recv_bytes;

use crate::sock_diag::{
    AF_INET, AF_INET6, HEADER_LEN, LOOPBACK_INDEX, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, Protocol,
    ask, code, cookie, exact, message, request,
};

/// Length of the buffer for answers: as much as the kernel sends at once.
const ANSWER_LEN: usize = 32 << 10;

/// The cookie (`SO_COOKIE`) of the socket of this network namespace that a datagram from `source`
/// to `target` would reach. Both addresses are local. `None` if there is no such socket.
///
/// # Errors
/// The kernel cannot say: an error of `socket(2)`, or it has no `udp_diag`.
pub fn receiver_of(source: SocketAddr, target: SocketAddr) -> Result<Option<u64>, Errno> {
    match exact(Protocol::Udp, source, target, LOOPBACK_INDEX)? {
        Some(answer) => cookie(&answer).map(Some).ok_or(Errno::PROTO),
        None => Ok(None),
    }
}

/// The cookies of all UDP sockets of the network namespace.
pub(crate) fn all() -> Result<HashSet<u64>, Errno> {
    // `getrandom`, which a thread's first hash table calls, is a cancellation point.
    let _uncancelled = Uncancelled::begin();
    let mut found = HashSet::new();
    for family in [AF_INET, AF_INET6] {
        let mut request = request(Protocol::Udp, None, NLM_F_DUMP);
        request[HEADER_LEN] = family;
        let socket = ask(&request)?;
        let mut answer = vec![0; ANSWER_LEN];
        'answers: loop {
            let len = recv_bytes(&socket, &mut answer[..], RecvFlags::empty())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::socket_cookie;
    use std::net::UdpSocket;

    #[test]
    fn receiver_is_the_socket_that_the_kernel_would_choose() {
        let bind = |address: &str| UdpSocket::bind(address).expect("a port");
        let (receiver, sender, other) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"), bind("[::1]:0"));
        let [target, source, v6] =
            [&receiver, &sender, &other].map(|socket| socket.local_addr().expect("bound"));
        let cookie = socket_cookie(&receiver).expect("a number");
        assert_eq!(receiver_of(source, target), Ok(Some(cookie)));
        // Connected to another address, the socket receives from that one alone.
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
    fn dual_stack_socket_receives_from_ipv4() {
        let both = UdpSocket::bind("[::]:0").expect("a port");
        let port = both.local_addr().expect("bound").port();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let cookie = socket_cookie(&both).expect("a number");
        assert_eq!(receiver_of(address(9), address(port)), Ok(Some(cookie)));
    }
}
