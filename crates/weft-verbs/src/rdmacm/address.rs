//! Converts socket addresses between C and Rust.
//!
//! # Safety
//! A program passes a `sockaddr` that has the length of its family.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6};
use weft_engine::device::gid_of;
use weft_engine::{Errno, Result};

use crate::abi::ibv_gid;

/// Reads a program's address.
///
/// # Errors
/// `EINVAL` for NULL and for families other than IP.
///
/// # Safety
/// `address` must be NULL or a valid socket address.
pub(super) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees a valid socket address, which has a family.
    match i32::from(unsafe { (*address).sa_family }) {
        AF_INET => {
            // SAFETY: an AF_INET address is a `sockaddr_in`, which need not be aligned.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        AF_INET6 => {
            // SAFETY: an AF_INET6 address is a `sockaddr_in6`, which need not be aligned.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(Errno::INVAL),
    }
}

/// Writes an address to a C structure.
///
/// # Safety
/// `to` must have room for a `sockaddr_storage`.
pub(super) unsafe fn write(to: *mut sockaddr, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: AF_INET as sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the caller guarantees room for a `sockaddr_storage`, which is larger.
            unsafe { to.cast::<sockaddr_in>().write_unaligned(c) };
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: AF_INET6 as sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the caller guarantees room for a `sockaddr_storage`, which is larger.
            unsafe { to.cast::<sockaddr_in6>().write_unaligned(c) };
        }
    }
}

/// The GID of an address; all zero for a wildcard.
pub(super) fn gid(address: IpAddr) -> ibv_gid {
    let raw = if address.is_unspecified() { [0; 16] } else { gid_of(address) };
    ibv_gid { raw }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_c() {
        for text in ["10.1.2.3:4420", "[2001:db8::7%3]:18515", "[::]:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let mut room = [0_u64; 16];
            let c = room.as_mut_ptr().cast::<sockaddr>();
            // SAFETY: `room` has 128 bytes, the size of a `sockaddr_storage`.
            unsafe { write(c, address) };
            // SAFETY: `write` has just written an address to `c`.
            assert_eq!(unsafe { read(c) }, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        let mut room = [0_u64; 16];
        // SAFETY: `read` accepts NULL.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(Errno::INVAL));
        // SAFETY: the memory is a zeroed socket address of family 0.
        assert_eq!(unsafe { read(room.as_mut_ptr().cast()) }, Err(Errno::INVAL));
    }
}
