//! Calls that fail because a library of Weft's holds the port for others.
//!
//! An RDMA listener on port P keeps TCP port P open for foreign iWARP peers. The verbs library
//! registers here the function that releases it; `bind` and `listen` call it when they would fail
//! otherwise.
//!
//! # Safety
//! What is stored is the address of a function of the type that the only writer takes.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Gives up a TCP port; returns whether it was held.
type Release = extern "C" fn(port: u16) -> bool;

static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Registers the function that releases TCP ports. The caller is the verbs library, which is never
/// unloaded.
#[unsafe(no_mangle)]
extern "C" fn weft_preload_ask_for_ports(release: Release) {
    RELEASE.store(release as *mut c_void, Ordering::Release);
}

/// Whether `bind` or `listen`, which has just failed for this address, is worth another try.
/// `errno` stays as it is.
///
/// # Safety
/// `address` is NULL or readable for `len` bytes.
pub(crate) unsafe fn is_free_now(address: *const sockaddr, len: socklen_t) -> bool {
    if !is_port_taken() {
        return false;
    }
    let release = RELEASE.load(Ordering::Acquire);
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port_of(address, len) }).filter(|_| !release.is_null()) else {
        return false;
    };
    // SAFETY: not NULL, so it was stored above, where it had this type.
    let release = unsafe { transmute::<*mut c_void, Release>(release) };
    let released = release(port);
    // The library may have made calls of its own.
    // SAFETY: each thread has its own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's, at this address.
    unsafe { *errno = libc::EADDRINUSE };
    released
}

/// Whether the call that has just failed says so.
fn is_port_taken() -> bool {
    // SAFETY: each thread has its own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's, at this address.
    let errno = unsafe { *errno };
    errno == libc::EADDRINUSE
}

/// The same for the address that a socket is bound to.
pub(crate) fn is_socket_free_now(fd: c_int) -> bool {
    if !is_port_taken() {
        return false;
    }
    // SAFETY: plain numbers, for which zero is a value.
    let mut address: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let place = (&raw mut address).cast::<sockaddr>();
    // SAFETY: the place has this length.
    if unsafe { libc::getsockname(fd, place, &raw mut len) } != 0 {
        return false;
    }
    // SAFETY: `address` is that long.
    unsafe { is_free_now(place, len) }
}

/// # Safety
/// `address` is NULL or readable for `len` bytes.
unsafe fn port_of(address: *const sockaddr, len: socklen_t) -> Option<u16> {
    // The port has the same place in both.
    const _: () = assert!(
        std::mem::offset_of!(sockaddr_in, sin_port)
            == std::mem::offset_of!(sockaddr_in6, sin6_port)
    );
    if address.is_null() || (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: readable for as many bytes, by the caller's promise and the check.
    let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    let is_internet = matches!(c_int::from(address.sin_family), libc::AF_INET | libc::AF_INET6);
    (is_internet && address.sin_port != 0).then(|| u16::from_be(address.sin_port))
}
