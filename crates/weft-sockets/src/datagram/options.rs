//! The effect of socket options on datagrams through memory.

use libc::c_int;

/// `SO_RCVTIMEO` with a time of 64 bits (asm-generic/socket.h).
const SO_RCVTIMEO_NEW: c_int = 66;

/// The effect of an option on datagrams through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// None.
    Harmless,
    /// Other sockets may bind the same address.
    Shares,
    V6Only,
    /// The receive buffer's size.
    Limits,
    /// The time limit of a receive.
    Timeout,
    /// Only the kernel implements it, or Weft does not know it.
    Kernels,
}

impl Meaning {
    pub(super) fn of(level: c_int, name: c_int) -> Self {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Self::Shares,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => Self::Timeout,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Self::V6Only,
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => Self::Limits,
            (
                libc::SOL_SOCKET,
                libc::SO_SNDBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_SNDTIMEO
                | libc::SO_BROADCAST
                | libc::SO_PRIORITY
                | libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_BUSY_POLL,
            )
            | (
                libc::IPPROTO_IP,
                libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_RECVERR
                | libc::IP_MULTICAST_IF
                | libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
                | libc::IP_MULTICAST_ALL
                | libc::IP_ADD_MEMBERSHIP
                | libc::IP_DROP_MEMBERSHIP,
            )
            | (
                libc::IPPROTO_IPV6,
                libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_RECVERR
                | libc::IPV6_MULTICAST_IF
                | libc::IPV6_MULTICAST_HOPS
                | libc::IPV6_MULTICAST_LOOP
                | libc::IPV6_ADD_MEMBERSHIP
                | libc::IPV6_DROP_MEMBERSHIP,
            ) => Self::Harmless,
            _ => Self::Kernels,
        }
    }
}
