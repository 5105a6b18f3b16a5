//! Retries calls that fail because Weft's verbs library holds the port.
//!
//! An RDMA listener on port P keeps TCP port P open for foreign iWARP peers. The verbs library
//! registers here the function that releases it; `bind` and `listen` call it when they would fail
//! otherwise.
//!
//! # Safety
//! The stored address is that of a function of type [`Release`], because only
//! `weft_preload_ask_for_ports` stores it.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Releases a TCP port; returns whether it was held.
type Release = extern "C" fn(port: u16) -> bool;

static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Registers the function that releases TCP ports. The caller is the verbs library, which is never
/// unloaded.
#[unsafe(no_mangle)]
extern "C" fn weft_preload_ask_for_ports(release: Release) {
    RELEASE.store(release as *mut c_void, Ordering::Release);
}

/// Returns whether a `bind` or `listen` that has just failed for this address should be retried,
/// after asking the verbs library for the port. Preserves `errno`.
///
/// # Safety
/// `address` is NULL or readable for `len` bytes.
pub(crate) unsafe fn is_free_now(address: *const sockaddr, len: socklen_t) -> bool {
    if !is_port_taken() {
        return false;
    }
    let release = RELEASE.load(Ordering::Acquire);
    // SAFETY: the caller guarantees NULL or `len` readable bytes.
    let Some(port) = (unsafe { port_of(address, len) }).filter(|_| !release.is_null()) else {
        return false;
    };
    // SAFETY: not NULL, so `weft_preload_ask_for_ports` has stored it, with this type.
    let release = unsafe { transmute::<*mut c_void, Release>(release) };
    let released = release(port);
    // The library may have changed `errno`.
    // SAFETY: `__errno_location` has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is to the calling thread's `errno`.
    unsafe { *errno = libc::EADDRINUSE };
    released
}

/// Returns whether the last call has failed with `EADDRINUSE`.
fn is_port_taken() -> bool {
    // SAFETY: `__errno_location` has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is to the calling thread's `errno`.
    let errno = unsafe { *errno };
    errno == libc::EADDRINUSE
}

/// Returns the same for the address that a socket is bound to.
pub(crate) fn is_socket_free_now(fd: c_int) -> bool {
    if !is_port_taken() {
        return false;
    }
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut address: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let place = (&raw mut address).cast::<sockaddr>();
    // SAFETY: `address` has room for `len` bytes.
    if unsafe { libc::getsockname(fd, place, &raw mut len) } != 0 {
        return false;
    }
    // SAFETY: `address` has at least `len` bytes.
    unsafe { is_free_now(place, len) }
}

/// # Safety
/// `address` is NULL or readable for `len` bytes.
unsafe fn port_of(address: *const sockaddr, len: socklen_t) -> Option<u16> {
    // The port has the same offset in both structures.
    const _: () = assert!(
        std::mem::offset_of!(sockaddr_in, sin_port)
            == std::mem::offset_of!(sockaddr_in6, sin6_port)
    );
    if address.is_null() || (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller guarantees `len` readable bytes, and `len` covers a `sockaddr_in`.
    let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    let is_internet = matches!(c_int::from(address.sin_family), libc::AF_INET | libc::AF_INET6);
    (is_internet && address.sin_port != 0).then(|| u16::from_be(address.sin_port))
}
