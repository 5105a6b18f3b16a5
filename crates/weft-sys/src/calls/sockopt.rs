//! Options of sockets.

use std::os::fd::AsFd;
use std::time::Duration;

use libc::c_int;
use rustix::io::Errno;
pub use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketType};

pub use super::data::{set_tcp_cork, set_tcp_nodelay, socket_cookie, socket_timeout};
use super::raw::{option_of, set_option, set_option_bytes};

fn ask(socket: impl AsFd, option: c_int) -> Result<c_int, Errno> {
    option_of(socket, libc::SOL_SOCKET, option)
}

/// A time in seconds, rounded up.
fn seconds(time: Duration) -> Result<c_int, Errno> {
    let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() != 0));
    c_int::try_from(whole).map_err(|_| Errno::INVAL)
}

/// The type of a socket (`SO_TYPE`).
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_type(socket: impl AsFd) -> Result<SocketType, Errno> {
    ask(socket, libc::SO_TYPE).map(|kind| SocketType::from_raw(kind.cast_unsigned()))
}

/// The family of a socket's addresses (`SO_DOMAIN`).
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_domain(socket: impl AsFd) -> Result<AddressFamily, Errno> {
    let family = ask(socket, libc::SO_DOMAIN)?;
    u16::try_from(family).map(AddressFamily::from_raw).map_err(|_| Errno::OPNOTSUPP)
}

/// Takes the pending error of a socket (`SO_ERROR`).
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_error(socket: impl AsFd) -> Result<Result<(), Errno>, Errno> {
    let code = ask(socket, libc::SO_ERROR)?;
    Ok(if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code)) })
}

/// Whether a socket accepts connections (`SO_ACCEPTCONN`).
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_acceptconn(socket: impl AsFd) -> Result<bool, Errno> {
    ask(socket, libc::SO_ACCEPTCONN).map(|on| on != 0)
}

/// The size of the send buffer, in bytes (`SO_SNDBUF`).
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_send_buffer_size(socket: impl AsFd) -> Result<usize, Errno> {
    ask(socket, libc::SO_SNDBUF).map(|size| usize::try_from(size).unwrap_or(0))
}

/// How long `close` waits for data to be sent (`SO_LINGER`); `None`: it does not.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn socket_linger(socket: impl AsFd) -> Result<Option<Duration>, Errno> {
    let [is_on, time] = option_of::<[c_int; 2]>(socket, libc::SOL_SOCKET, libc::SO_LINGER)?;
    Ok((is_on != 0).then(|| Duration::from_secs(u64::try_from(time).unwrap_or(0))))
}

/// Sets `SO_LINGER`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_socket_linger(socket: impl AsFd, time: Option<Duration>) -> Result<(), Errno> {
    let value = [c_int::from(time.is_some()), time.map_or(Ok(0), seconds)?];
    set_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &value)
}

/// Sets `SO_REUSEADDR`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_socket_reuseaddr(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &c_int::from(on))
}

/// Sets `SO_KEEPALIVE`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_socket_keepalive(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &c_int::from(on))
}

/// Sets `IP_TOS`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_ip_tos(socket: impl AsFd, tos: u8) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, &c_int::from(tos))
}

/// Sets `IPV6_TCLASS`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_ipv6_tclass(socket: impl AsFd, class: u32) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)
}

/// Sets `IPV6_V6ONLY`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_ipv6_v6only(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &c_int::from(on))
}

/// Sets `TCP_USER_TIMEOUT`, in milliseconds.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_tcp_user_timeout(socket: impl AsFd, milliseconds: u32) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &milliseconds)
}

/// Sets how long a connection is idle before it is probed (`TCP_KEEPIDLE`), in whole seconds.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_tcp_keepidle(socket: impl AsFd, time: Duration) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &seconds(time)?)
}

/// Sets the time between probes (`TCP_KEEPINTVL`), in whole seconds.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_tcp_keepintvl(socket: impl AsFd, time: Duration) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &seconds(time)?)
}

/// Sets after how many unanswered probes a connection ends (`TCP_KEEPCNT`).
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_tcp_keepcnt(socket: impl AsFd, count: u32) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &count)
}

/// Sets the congestion control (`TCP_CONGESTION`).
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_tcp_congestion(socket: impl AsFd, name: &str) -> Result<(), Errno> {
    set_option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;

    #[test]
    fn options_are_those_that_rustix_reads() {
        let socket = std::net::TcpListener::bind("[::]:0").or_else(|_| {
            // A machine without IPv6.
            std::net::TcpListener::bind("127.0.0.1:0")
        });
        let socket = socket.expect("a socket");
        assert_eq!(socket_type(&socket), Ok(SocketType::STREAM));
        assert_eq!(socket_domain(&socket), sockopt::socket_domain(&socket));
        assert_eq!(socket_error(&socket), Ok(Ok(())));
        assert_eq!(socket_acceptconn(&socket), Ok(true));
        assert_eq!(socket_send_buffer_size(&socket), sockopt::socket_send_buffer_size(&socket));
        for on in [true, false] {
            assert_eq!(set_socket_reuseaddr(&socket, on), Ok(()));
            assert_eq!(sockopt::socket_reuseaddr(&socket), Ok(on));
            assert_eq!(set_socket_keepalive(&socket, on), Ok(()));
            assert_eq!(sockopt::socket_keepalive(&socket), Ok(on));
        }
        for time in [None, Some(Duration::ZERO), Some(Duration::from_secs(3))] {
            assert_eq!(set_socket_linger(&socket, time), Ok(()));
            assert_eq!(
                (socket_linger(&socket), sockopt::socket_linger(&socket)),
                (Ok(time), Ok(time))
            );
        }
        assert_eq!(set_socket_linger(&socket, Some(Duration::from_millis(1_001))), Ok(()));
        assert_eq!(socket_linger(&socket), Ok(Some(Duration::from_secs(2))));
        assert_eq!(set_socket_linger(&socket, Some(Duration::MAX)), Err(Errno::INVAL));
        let time = Duration::from_secs(7);
        assert_eq!(set_tcp_keepidle(&socket, time), Ok(()));
        assert_eq!(set_tcp_keepintvl(&socket, time), Ok(()));
        assert_eq!(set_tcp_keepcnt(&socket, 7), Ok(()));
        assert_eq!(set_tcp_user_timeout(&socket, 7), Ok(()));
        let read = (sockopt::tcp_keepidle(&socket), sockopt::tcp_keepintvl(&socket));
        assert_eq!(read, (Ok(time), Ok(time)));
        let read = (sockopt::tcp_keepcnt(&socket), sockopt::tcp_user_timeout(&socket));
        assert_eq!(read, (Ok(7), Ok(7)));
        assert_eq!(set_ip_tos(&socket, 8), Ok(()));
        assert_eq!(set_tcp_congestion(&socket, "reno"), Ok(()));
        assert_eq!(set_tcp_congestion(&socket, "no such control"), Err(Errno::NOENT));
    }
}
