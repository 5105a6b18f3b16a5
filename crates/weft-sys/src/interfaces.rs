//! The machine's network interfaces and their addresses.
//!
//! # Safety
//! `getifaddrs(3)` returns a list of C structures that lives until `freeifaddrs(3)`; it is read to
//! its end and freed in one function, and nothing in it leaves that function by reference.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::calls::io::Errno;

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_len: u8,
    /// The interface's index, which a link-local address needs as its scope.
    pub index: u32,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Whether the interface is up and has a link.
    pub up: bool,
}

/// Lists every IPv4 and IPv6 address of every interface, in the kernel's order.
///
/// # Errors
/// An error of `getifaddrs(3)`.
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>, Errno> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a local variable for the result.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // The kernel may take a second until it reports an interface that has come up as running
    // (`net/core/link_watch.c`); the carrier is reported at once.
    let has_link = libc::IFF_RUNNING | libc::IFF_LOWER_UP;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which is not freed yet.
        let element = unsafe { &*next };
        next = element.ifa_next;
        // SAFETY: the name is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        let Some(address) = address(element.ifa_addr) else { continue };
        found.push(InterfaceAddress {
            name: name.to_string_lossy().into_owned(),
            address,
            prefix_len: prefix_len(address, element.ifa_netmask),
            // SAFETY: `if_nametoindex` reads the C string and nothing else.
            index: unsafe { libc::if_nametoindex(element.ifa_name) },
            loopback: element.ifa_flags & libc::IFF_LOOPBACK.cast_unsigned() != 0,
            up: element.ifa_flags & libc::IFF_UP.cast_unsigned() != 0
                && element.ifa_flags & has_link.cast_unsigned() != 0,
        });
    }
    // SAFETY: the list came from `getifaddrs` and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn address(sockaddr: *const libc::sockaddr) -> Option<IpAddr> {
    if sockaddr.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null, so it is a socket address of the list, and each of those has
    // a family.
    let family = unsafe { (*sockaddr).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an AF_INET address is a `sockaddr_in`.
            let inet = unsafe { &*sockaddr.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an AF_INET6 address is a `sockaddr_in6`.
            let inet6 = unsafe { &*sockaddr.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(inet6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn prefix_len(of: IpAddr, netmask: *const libc::sockaddr) -> u8 {
    let ones = match address(netmask) {
        Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
        Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
        None if of.is_ipv4() => 32,
        None => 128,
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_is_listed() {
        let all = super::interface_addresses().expect("getifaddrs");
        assert!(all.iter().any(|a| a.loopback && a.address.is_loopback() && a.index != 0));
    }
}
