//! Socket addresses in the form of the C library.
//!
//! # Safety
//! The caller of the only unsafe function guarantees what it points to.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{in_addr, in6_addr, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6};

/// A socket address in the form of the C library.
#[derive(Clone, Copy)]
pub(crate) enum CAddress {
    V4(sockaddr_in),
    V6(sockaddr_in6),
}

impl CAddress {
    /// Converts an address. An IPv4 address that is mapped into IPv6 becomes IPv4.
    pub(crate) fn new(ip: IpAddr, port: u16) -> Self {
        let port = port.to_be();
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: port,
                sin_addr: in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                sin_zero: [0; 8],
            }),
            IpAddr::V6(ip) => Self::V6(sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: port,
                sin6_flowinfo: 0,
                sin6_addr: in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            }),
        }
    }

    /// Converts an address with its scope.
    pub(crate) fn of(address: SocketAddr) -> Self {
        let mut c = Self::new(address.ip(), address.port());
        if let (Self::V6(c), SocketAddr::V6(address)) = (&mut c, address) {
            c.sin6_scope_id = address.scope_id();
        }
        c
    }

    /// Reads an address of the C library. `None` if its family is not one of IP.
    ///
    /// # Safety
    /// The memory is initialised and readable, as much as the address of the family needs.
    pub(crate) unsafe fn read(from: *const sockaddr) -> Option<SocketAddr> {
        // SAFETY: the caller guarantees the part that all families have.
        let family = unsafe { (*from).sa_family };
        match i32::from(family) {
            libc::AF_INET => {
                // SAFETY: the caller guarantees the whole address of this family.
                let c = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::from((ip, u16::from_be(c.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: the caller guarantees the whole address of this family.
                let c = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
                let (ip, port) = (Ipv6Addr::from(c.sin6_addr.s6_addr), u16::from_be(c.sin6_port));
                Some(SocketAddrV6::new(ip, port, 0, c.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// Returns a pointer to the address, which is valid as long as `self`.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        match self {
            Self::V4(c) => std::ptr::from_mut(c).cast(),
            Self::V6(c) => std::ptr::from_mut(c).cast(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["1.2.3.4:5", "[fe80::1%7]:258"] {
            let address: SocketAddr = text.parse().expect("an address");
            let mut c = CAddress::of(address);
            // SAFETY: the pointer is to a whole address.
            assert_eq!(unsafe { CAddress::read(c.as_mut_ptr()) }, Some(address));
        }
        let none = sockaddr { sa_family: libc::AF_UNIX as sa_family_t, sa_data: [0; 14] };
        // SAFETY: the pointer is to an address.
        assert_eq!(unsafe { CAddress::read(&raw const none) }, None);
    }

    #[test]
    fn addresses_are_in_network_byte_order() {
        let CAddress::V4(c) = CAddress::of("[::ffff:1.2.3.4]:258".parse().expect("an address"))
        else {
            panic!("a mapped address stays IPv6");
        };
        assert_eq!(c.sin_addr.s_addr.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(c.sin_port.to_ne_bytes(), [1, 2]);
        let CAddress::V6(c) = CAddress::of("[fe80::1%7]:258".parse().expect("an address")) else {
            panic!("an IPv6 address");
        };
        assert_eq!((c.sin6_addr.s6_addr[..2].to_vec(), c.sin6_scope_id), (vec![0xfe, 0x80], 7));
        assert_eq!(c.sin6_port.to_ne_bytes(), [1, 2]);
    }
}
