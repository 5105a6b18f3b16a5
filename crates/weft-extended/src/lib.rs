//! Extended sockets: one-sided operations in addition to the stream of a connected TCP socket.
//!
//! A socket can be switched to extended mode ([`Extended::new`]) if its two ends are on one host,
//! and both run under `weft run`. One side allocates [`Memory`], registers a part of it for the
//! connection ([`Extended::register`]) and sends the [`Key`] over the stream. The other side then
//! reads, writes and changes words there without involving the owner's process. Without Weft the
//! switch fails, and the socket stays as it is.
//!
//! `weft_socket.h` is the C interface, and documents ordering, forks and errors. The asynchronous
//! calls, which keep the program's buffers, are available in C only.
//!
//! ```no_run
//! # use std::io::Read as _;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weft_extended::{Extended, Key};
//!
//! let mut stream = std::net::TcpStream::connect("127.0.0.1:7000")?;
//! let mut key = [0; Key::LEN];
//! stream.read_exact(&mut key)?;
//! let peer = Extended::new(&stream)?;
//! let before = peer.fetch_add(&Key::from_bytes(key), 0, 1)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Safety
//! The calls belong to a library that has answered an option which no kernel knows, so it is
//! loaded, and it is never unloaded. Pointers that they get are valid during the call.
//!
//! # Layers
//!
//! A module uses the modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! abi
//! limits
//! ```
#![allow(unsafe_code)]

pub mod abi;
mod limits;

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;

pub use abi::Key;
use abi::{Calls, SOL_WEFT, WEFT_CALLS, WEFT_MODE, WEFT_VERSION};

/// The peer's rights to registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The peer may read it.
    pub read: bool,
    /// The peer may write to it.
    pub write: bool,
    /// The peer may change its words atomically.
    pub atomic: bool,
}

impl Rights {
    /// All rights.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };

    fn bits(self) -> u32 {
        let bit = |right, bit| if right { bit } else { 0 };
        bit(self.read, abi::WEFT_READ)
            | bit(self.write, abi::WEFT_WRITE)
            | bit(self.atomic, abi::WEFT_ATOMIC)
    }
}

/// A connected socket in extended mode.
#[derive(Clone, Copy, Debug)]
pub struct Extended<'socket> {
    socket: BorrowedFd<'socket>,
    calls: &'static Calls,
}

impl<'socket> Extended<'socket> {
    /// Switches a connected socket to extended mode. Blocks until the peer has done the same,
    /// unless the socket is non-blocking.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: Weft is not loaded, or the socket is not a TCP socket. `EOPNOTSUPP`: the
    /// connection stays on TCP. `ETIMEDOUT`: the peer has not switched within 5 seconds, or within
    /// the socket's receive timeout. `EAGAIN`, `ENOTCONN`, `ECONNRESET`.
    pub fn new<S: AsFd + ?Sized>(socket: &'socket S) -> Result<Self, Errno> {
        let socket = socket.as_fd();
        let on: libc::c_int = 1;
        let fd = socket.as_raw_fd();
        let place = (&raw const on).cast();
        // SAFETY: the value is a local integer of the given length.
        let switched = unsafe { libc::setsockopt(fd, SOL_WEFT, WEFT_MODE, place, 4) };
        if switched != 0 {
            return Err(last());
        }
        let mut calls: *const Calls = std::ptr::null();
        let mut len = 8;
        let place = (&raw mut calls).cast();
        // SAFETY: the answer goes to a local pointer of the given length.
        let found = unsafe { libc::getsockopt(fd, SOL_WEFT, WEFT_CALLS, place, &raw mut len) };
        if found != 0 {
            return Err(last());
        }
        // SAFETY: the pointer is NULL or to the library's constant table, and the library is never
        // unloaded.
        let calls = unsafe { calls.as_ref() }.ok_or(Errno::OPNOTSUPP)?;
        if calls.version < WEFT_VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self { socket, calls })
    }

    /// Allocates zeroed memory in whole pages that can be registered for any connection. Forked
    /// children share it.
    ///
    /// # Errors
    /// `EINVAL` if the length is 0; `ENOMEM`, `EMFILE`.
    pub fn allocate(&self, len: usize) -> Result<Memory, Errno> {
        let mut start = std::ptr::null_mut();
        // SAFETY: the address goes to a local variable.
        done(unsafe { (self.calls.allocate)(len, &raw mut start) })?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Memory { start, len, calls: self.calls })
    }

    /// Lets the peer of this connection use `len` bytes of `memory` from `offset` on. The
    /// registration lasts until [`Extended::deregister`], or until the socket is closed.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside `memory`, or no right is given; `ENOSPC` if there are 8
    /// registrations already.
    pub fn register(
        &self,
        memory: &Memory,
        offset: usize,
        len: usize,
        rights: Rights,
    ) -> Result<Key, Errno> {
        if offset.checked_add(len).is_none_or(|end| end > memory.len) {
            return Err(Errno::INVAL);
        }
        let start = memory.start.as_ptr().wrapping_byte_add(offset);
        let mut key = Key::default();
        let (fd, rights) = (self.socket.as_raw_fd(), rights.bits());
        // SAFETY: the key goes to a local variable; the library checks the other arguments.
        let made = unsafe { (self.calls.register_memory)(fd, start, len, rights, &raw mut key) };
        done(made).map(|()| key)
    }

    /// Revokes a key. If it succeeds no operation on the memory is in progress any more.
    ///
    /// # Errors
    /// `ENOKEY`; `ETIMEDOUT`: the key is revoked, but the peer has stopped in the middle of an
    /// operation.
    pub fn deregister(&self, key: &Key) -> Result<(), Errno> {
        // SAFETY: the key is borrowed during the call.
        done(unsafe { (self.calls.deregister)(self.socket.as_raw_fd(), key) })
    }

    /// Copies bytes to the peer's memory, at `offset` from the beginning of the key's range.
    ///
    /// # Errors
    /// `ENOKEY`, `EACCES`: the key is wrong, revoked, or lacks the right; `ERANGE`: past the end of
    /// its range; `EINVAL`: no bytes; `ESTALE`, `EPERM`: the memory cannot be mapped; `ECONNRESET`:
    /// the peer is gone.
    pub fn put(&self, key: &Key, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the bytes are borrowed during the call, which only reads them.
        done(unsafe { (self.calls.put)(self.socket.as_raw_fd(), key, offset, from, len) })
    }

    /// Fills `bytes` from the peer's memory.
    ///
    /// # Errors
    /// As [`Extended::put`].
    pub fn get(&self, key: &Key, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let (to, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the bytes are borrowed mutably during the call.
        done(unsafe { (self.calls.get)(self.socket.as_raw_fd(), key, offset, to, len) })
    }

    /// Adds to an aligned word of the peer's memory, and returns its old value.
    ///
    /// # Errors
    /// As [`Extended::put`]; `EINVAL` if the word is not aligned.
    pub fn fetch_add(&self, key: &Key, offset: u64, add: u64) -> Result<u64, Errno> {
        let (fd, mut before) = (self.socket.as_raw_fd(), 0);
        // SAFETY: the key is borrowed, and the answer goes to a local variable.
        done(unsafe { (self.calls.fetch_add)(fd, key, offset, add, &raw mut before) })?;
        Ok(before)
    }

    /// Replaces an aligned word of the peer's memory by `value` if it is `expected`, and returns
    /// its old value.
    ///
    /// # Errors
    /// As [`Extended::fetch_add`].
    pub fn compare_swap(
        &self,
        key: &Key,
        offset: u64,
        expected: u64,
        value: u64,
    ) -> Result<u64, Errno> {
        let (fd, mut before) = (self.socket.as_raw_fd(), 0);
        let place = &raw mut before;
        // SAFETY: the key is borrowed, and the answer goes to a local variable.
        done(unsafe { (self.calls.compare_swap)(fd, key, offset, expected, value, place) })?;
        Ok(before)
    }
}

/// Memory that peers can get rights to. They may change it at any time, so it is accessed as atomic
/// words.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<c_void>,
    len: usize,
    calls: &'static Calls,
}

// SAFETY: the memory belongs to the process, not to a thread, and is only accessed through atomics.
unsafe impl Send for Memory {}
// SAFETY: the memory is only accessed through atomics.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the memory as words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory has `len` bytes, is page-aligned, and stays mapped until `self` is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `allocate` has returned this address, and no borrow of the words outlives `self`.
        let _ = unsafe { (self.calls.release)(self.start.as_ptr()) };
    }
}

/// Converts a call's result to a `Result`: a negative number is an errno.
fn done(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn key_survives_a_round_trip_through_bytes() {
        let key = Key { secret: u64::MAX - 1, length: 1 << 40, index: 7, rights: 3 };
        assert_eq!(Key::from_bytes(key.to_bytes()), key);
    }

    #[test]
    fn without_weft_the_switch_is_enoprotoopt() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("a connection");
        assert_eq!(Extended::new(&stream).map(drop), Err(Errno::NOPROTOOPT));
    }
}
