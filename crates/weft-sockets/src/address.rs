//! Reads and writes socket addresses in C's layout.
//!
//! # Safety
//! The caller guarantees that its pointer is valid for the length that it passes. Nothing beyond
//! that length is read or written.
#![allow(unsafe_code)]

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// Reads the address of `len` bytes at `place`. Returns `None` unless it is a complete IPv4 or IPv6
/// address.
///
/// # Safety
/// `len` bytes are readable at `place`.
pub(crate) unsafe fn read(place: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if place.is_null() || len < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller guarantees `len` readable bytes, and `len` covers a `sockaddr_in`.
    let family = unsafe { place.cast::<libc::sa_family_t>().read_unaligned() };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: `len` covers a `sockaddr_in`, as checked above.
            let given = unsafe { place.cast::<sockaddr_in>().read_unaligned() };
            let ip = given.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(given.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: the guard has checked that `len` covers a `sockaddr_in6`.
            let given = unsafe { place.cast::<sockaddr_in6>().read_unaligned() };
            let ip = given.sin6_addr.s6_addr.into();
            let (port, scope) = (u16::from_be(given.sin6_port), given.sin6_scope_id);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}

/// Writes an address to `place`, truncated to `room` bytes, in the form that an IPv6 (`is_v6`) or
/// IPv4 socket reports. Returns its full length.
///
/// # Safety
/// `place` is NULL, or `room` bytes are writable there.
pub(crate) unsafe fn write(
    address: SocketAddr,
    is_v6: bool,
    place: *mut sockaddr,
    room: socklen_t,
) -> socklen_t {
    if is_v6 {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let name = sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: address.port().to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
            sin6_scope_id: 0,
        };
        // SAFETY: the caller guarantees `room` writable bytes, or NULL.
        unsafe { put(&name, place, room) }
    } else {
        let IpAddr::V4(ip) = address.ip() else { return 0 };
        let name = sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
            sin_zero: [0; 8],
        };
        // SAFETY: the caller guarantees `room` writable bytes, or NULL.
        unsafe { put(&name, place, room) }
    }
}

/// # Safety
/// `place` is NULL, or `room` bytes are writable there.
unsafe fn put<T>(name: &T, place: *mut sockaddr, room: socklen_t) -> socklen_t {
    let len = size_of::<T>();
    if !place.is_null() {
        let from: *const u8 = std::ptr::from_ref(name).cast();
        // SAFETY: the length is at most that of `name` and at most `room`, which the caller
        // guarantees.
        unsafe { std::ptr::copy_nonoverlapping(from, place.cast(), len.min(room as usize)) };
    }
    socklen_t::try_from(len).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use libc::{sockaddr_storage, socklen_t};

    use super::{read, write};

    const ROOM: socklen_t = size_of::<sockaddr_storage>() as socklen_t;

    fn storage() -> sockaddr_storage {
        // SAFETY: a structure of integers, for which zero is valid.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn written_address_is_read_back() {
        for (address, is_v6) in
            [("10.1.2.3:80", false), ("10.1.2.3:80", true), ("[fe80::1]:9", true)]
        {
            let address: SocketAddr = address.parse().expect("an address");
            let mut place = storage();
            // SAFETY: a local variable of that length.
            let len = unsafe { write(address, is_v6, (&raw mut place).cast(), ROOM) };
            // SAFETY: that many bytes have been written.
            let again = unsafe { read((&raw const place).cast(), len) }.expect("an address");
            assert_eq!((again.ip().to_canonical(), again.port()), (address.ip(), address.port()));
        }
    }

    #[test]
    fn address_is_truncated_to_the_room() {
        let address: SocketAddr = "10.1.2.3:80".parse().expect("an address");
        let mut place = [0xff_u8; 16];
        // SAFETY: four bytes of a local variable.
        let len = unsafe { write(address, false, place.as_mut_ptr().cast(), 4) };
        assert_eq!(
            (len, &place[2..]),
            (16, &[0, 80, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255][..])
        );
        // SAFETY: NULL takes nothing.
        assert_eq!(unsafe { write(address, true, std::ptr::null_mut(), 0) }, 28);
    }

    #[test]
    fn addresses_of_other_families_are_refused() {
        let mut place = storage();
        place.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: a local variable of that length.
        assert!(unsafe { read((&raw const place).cast(), ROOM) }.is_none());
        place.ss_family = libc::AF_INET6 as libc::sa_family_t;
        // SAFETY: a part of a local variable.
        assert!(unsafe { read((&raw const place).cast(), 16) }.is_none(), "too short");
        // SAFETY: NULL is allowed.
        assert!(unsafe { read(std::ptr::null(), ROOM) }.is_none());
    }
}
