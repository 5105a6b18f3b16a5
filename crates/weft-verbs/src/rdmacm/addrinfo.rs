//! Resolves names and services to addresses.
//!
//! # Safety
//! A program passes valid strings, hints and lists. The C library allocates the results, and the
//! program passes them to `rdma_freeaddrinfo`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use libc::{
    AF_INET, AF_INET6, AI_NUMERICHOST, AI_PASSIVE, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM,
    SOCK_STREAM, addrinfo, sockaddr, socklen_t,
};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RAI_NUMERICHOST,
    RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
};
use crate::errno;

/// The reason why a lookup failed.
enum Failure {
    /// An `errno`.
    System(Errno),
    /// A code of `getaddrinfo(3)`, which librdmacm also stores in `errno`.
    Lookup(c_int),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

fn empty_hints() -> addrinfo {
    // SAFETY: the structure consists of integers and pointers, for which zero is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn empty() -> rdma_addrinfo {
    // SAFETY: the structure consists of integers and pointers, for which zero is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Converts hints of librdmacm to hints for `getaddrinfo(3)`.
fn hints_of(hints: &rdma_addrinfo) -> addrinfo {
    let flags = hints.ai_flags.cast_unsigned();
    let mut ai = empty_hints();
    ai.ai_flags = if flags & RAI_PASSIVE != 0 { AI_PASSIVE } else { 0 }
        | if flags & RAI_NUMERICHOST != 0 { AI_NUMERICHOST } else { 0 };
    // For other families, such as InfiniBand's own, the result is an IP address as well.
    if matches!(hints.ai_family, AF_INET | AF_INET6) {
        ai.ai_family = hints.ai_family;
    }
    ai.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => SOCK_STREAM,
        IBV_QPT_UD => SOCK_DGRAM,
        _ => 0,
    };
    ai.ai_protocol = match (hints.ai_port_space.cast_unsigned(), ai.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, SOCK_STREAM) => IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, SOCK_DGRAM) => IPPROTO_UDP,
        _ => 0,
    };
    ai
}

/// Copies an address to new memory of the C library.
///
/// # Safety
/// `from` must be readable for `length` bytes.
unsafe fn copy(from: *const sockaddr, length: socklen_t) -> Result<*mut sockaddr> {
    // SAFETY: `malloc` has no preconditions.
    let to = unsafe { libc::malloc(length as usize) };
    if to.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the caller guarantees `length` bytes at `from`, and `to` is a new allocation of this
    // length.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), length as usize) };
    Ok(to.cast())
}

/// Calls `getaddrinfo(3)` and uses its first result.
///
/// # Safety
/// The strings must be NULL or valid.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> std::result::Result<(), Failure> {
    let ai_hints = hints_of(hints);
    let mut list = ptr::null_mut();
    // SAFETY: the caller guarantees that the strings are NULL or valid; the hints and the result
    // are local variables.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const ai_hints, &raw mut list) };
    if code != 0 {
        return Err(Failure::Lookup(code));
    }
    // SAFETY: a successful `getaddrinfo` returns at least one element.
    let ai = unsafe { &*list };
    let default = |given: c_int, found: u32| if given != 0 { given } else { found.cast_signed() };
    let datagram = ai.ai_socktype == SOCK_DGRAM;
    info.ai_family = ai.ai_family;
    info.ai_qp_type = default(hints.ai_qp_type, if datagram { IBV_QPT_UD } else { IBV_QPT_RC });
    let space = if ai.ai_protocol == IPPROTO_UDP { RDMA_PS_UDP } else { RDMA_PS_TCP };
    info.ai_port_space = default(hints.ai_port_space, space);
    // SAFETY: the element's address has the length that the element states.
    let copied = unsafe { copy(ai.ai_addr, ai.ai_addrlen) }.map(|address| {
        if ai_hints.ai_flags & AI_PASSIVE != 0 {
            info.ai_flags = RAI_PASSIVE.cast_signed();
            (info.ai_src_addr, info.ai_src_len) = (address, ai.ai_addrlen);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (address, ai.ai_addrlen);
        }
    });
    // SAFETY: the list came from `getaddrinfo`, and its address has been copied.
    unsafe { libc::freeaddrinfo(list) };
    Ok(copied?)
}

/// # Safety
/// The strings must be NULL or valid, and the hints' addresses NULL or of their length.
unsafe fn fill(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> std::result::Result<(), Failure> {
    if node.is_null() && service.is_null() {
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len != 0 {
            // SAFETY: the caller guarantees that the hint's address has the length that it states.
            info.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
            info.ai_dst_len = hints.ai_dst_len;
        }
    } else {
        // SAFETY: the caller guarantees what `look_up` requires.
        unsafe { look_up(node, service, hints, info) }?;
    }
    if info.ai_src_len == 0 && hints.ai_src_len != 0 {
        // SAFETY: the caller guarantees that the hint's address has the length that it states.
        info.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
        info.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// # Safety
/// The strings must be NULL or valid, `hints` NULL or valid, and their addresses NULL or of their
/// length.
unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> std::result::Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(Errno::INVAL.into());
    }
    // SAFETY: `malloc` has no preconditions.
    let info = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
    if info.is_null() {
        return Err(Errno::NOMEM.into());
    }
    // SAFETY: `info` is a new allocation of this size.
    unsafe { info.write(empty()) };
    let none = empty();
    // SAFETY: the caller guarantees that `hints` is NULL or valid.
    let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
    // SAFETY: `info` is initialised, and nothing else refers to it.
    let result = unsafe { &mut *info };
    // SAFETY: the caller guarantees what `fill` requires of the strings and hints.
    let filled = unsafe { fill(node, service, hints, result) };
    if let Err(failure) = filled {
        // SAFETY: `info` was allocated above, and the program does not have it yet.
        unsafe { rdma_freeaddrinfo(info) };
        return Err(failure);
    }
    Ok(info)
}

/// Resolves a name and a service. IP routing finds the route, so that `RAI_NOROUTE` has no effect.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the program passes valid strings and hints, or NULL.
    match unsafe { get(node, service, hints) } {
        Ok(info) => {
            // SAFETY: the program passes `result` as a valid pointer for the result.
            unsafe { *result = info };
            0
        }
        Err(Failure::System(error)) => errno::minus_one(Err(error)),
        Err(Failure::Lookup(code)) => {
            // SAFETY: `__errno_location` has no preconditions; it returns the address of this
            // thread's `errno`.
            let location = unsafe { libc::__errno_location() };
            // SAFETY: the address is valid and belongs to this thread alone.
            unsafe { *location = code };
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    let mut next = list;
    while !next.is_null() {
        let current = next;
        // SAFETY: `current` is an element of a list from `rdma_getaddrinfo`, which the program does
        // not use after this call.
        let info = unsafe { &*current };
        next = info.ai_next;
        let parts = [
            info.ai_connect,
            info.ai_route,
            info.ai_src_canonname.cast(),
            info.ai_dst_canonname.cast(),
            info.ai_src_addr.cast(),
            info.ai_dst_addr.cast(),
        ];
        for part in parts {
            // SAFETY: the pointer is NULL or came from `malloc`.
            unsafe { libc::free(part) };
        }
        // SAFETY: the element came from `malloc`, and its fields are no longer used.
        unsafe { libc::free(current.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdmacm::address;

    #[test]
    fn a_name_and_a_service_resolve_to_an_address() {
        let mut hints = empty();
        hints.ai_port_space = RDMA_PS_TCP.cast_signed();
        for (flags, text) in [(0, "127.0.0.1:7471"), (RAI_PASSIVE, "127.0.0.1:7471")] {
            hints.ai_flags = (flags | RAI_NUMERICHOST).cast_signed();
            let mut info = ptr::null_mut();
            let (node, service) = (c"127.0.0.1".as_ptr(), c"7471".as_ptr());
            // SAFETY: the strings and hints are valid, and the result is a local variable.
            let code = unsafe { rdma_getaddrinfo(node, service, &raw const hints, &raw mut info) };
            assert_eq!(code, 0);
            // SAFETY: the call has succeeded, so that `info` is a valid element.
            let found = unsafe { &*info };
            let own = if flags == 0 { found.ai_dst_addr } else { found.ai_src_addr };
            // SAFETY: the address is part of the live list.
            assert_eq!(unsafe { address::read(own) }, Ok(text.parse().expect("an address")));
            assert_eq!(found.ai_qp_type.cast_unsigned(), IBV_QPT_RC);
            // SAFETY: the list is valid, and not used after this call.
            unsafe { rdma_freeaddrinfo(info) };
        }
    }

    #[test]
    fn hints_alone_are_copied() {
        let mut room = [0_u64; 16];
        let c = room.as_mut_ptr().cast::<sockaddr>();
        let there = "[2001:db8::1]:5".parse().expect("an address");
        // SAFETY: `room` has 128 bytes, the size of a `sockaddr_storage`.
        unsafe { address::write(c, there) };
        let mut hints = empty();
        (hints.ai_dst_addr, hints.ai_dst_len) = (c, 28);
        (hints.ai_src_addr, hints.ai_src_len) = (c, 28);
        let mut info = ptr::null_mut();
        let none = ptr::null();
        // SAFETY: the hints are valid, and the result is a local variable.
        let code = unsafe { rdma_getaddrinfo(none, none, &raw const hints, &raw mut info) };
        assert_eq!(code, 0);
        // SAFETY: the call has succeeded, so that `info` is a valid element.
        let found = unsafe { &*info };
        assert_ne!(found.ai_dst_addr, c);
        for copied in [found.ai_dst_addr, found.ai_src_addr] {
            // SAFETY: the address is part of the live list.
            assert_eq!(unsafe { address::read(copied) }, Ok(there));
        }
        // SAFETY: the list is valid, and not used after this call.
        unsafe { rdma_freeaddrinfo(info) };
        // SAFETY: `rdma_getaddrinfo` accepts NULL for the strings and hints, and the result is a
        // local variable.
        assert_eq!(unsafe { rdma_getaddrinfo(none, none, ptr::null(), &raw mut info) }, -1);
    }
}
