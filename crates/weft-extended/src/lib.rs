//! Extended sockets: one-sided operations beside the ordinary stream of a connected TCP socket.
//!
//! A socket whose two ends are on one host, and both under `weft run`, can be switched to extended
//! mode ([`Extended::new`]). One side allocates [`Memory`], registers a part of it for the
//! connection ([`Extended::register`]) and sends the [`Key`] over the stream; the other side then
//! gets, puts and changes words there without any work of the owner's process. Where Weft is not
//! loaded the switch fails, and the socket is what it was.
//!
//! `weft_socket.h` is the same for C, and says everything about order, forks and errors; the
//! asynchronous calls, which keep buffers, are for C alone.
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
//! The calls are those of a library that has shown, by answering an option that no kernel knows,
//! that it is there; it stays loaded. They get valid places, for the time of the call alone.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
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

/// What the peer may do with registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Get it.
    pub read: bool,
    /// Put to it.
    pub write: bool,
    /// Change its words atomically.
    pub atomic: bool,
}

impl Rights {
    /// All of them.
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
    /// Switches a connected socket to extended mode; its peer has to do the same. Waits for that,
    /// unless the socket is non-blocking.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: Weft is not loaded, or the socket is no TCP socket. `EOPNOTSUPP`: the
    /// connection stays on TCP. `ETIMEDOUT`: the peer has not switched within 5 seconds or the
    /// socket's receive timeout. `EAGAIN`, `ENOTCONN`, `ECONNRESET`.
    pub fn new<S: AsFd + ?Sized>(socket: &'socket S) -> Result<Self, Errno> {
        let socket = socket.as_fd();
        let on: libc::c_int = 1;
        let fd = socket.as_raw_fd();
        let place = (&raw const on).cast();
        // SAFETY: the value is an integer on the stack, of the length given.
        let switched = unsafe { libc::setsockopt(fd, SOL_WEFT, WEFT_MODE, place, 4) };
        if switched != 0 {
            return Err(last());
        }
        let mut calls: *const Calls = std::ptr::null();
        let mut len = 8;
        let place = (&raw mut calls).cast();
        // SAFETY: a place for a pointer on the stack, of the length given.
        let found = unsafe { libc::getsockopt(fd, SOL_WEFT, WEFT_CALLS, place, &raw mut len) };
        if found != 0 {
            return Err(last());
        }
        // SAFETY: NULL, or the library's table, which is constant and stays.
        let calls = unsafe { calls.as_ref() }.ok_or(Errno::OPNOTSUPP)?;
        if calls.version < WEFT_VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self { socket, calls })
    }

    /// Memory that can be registered for any connection: zeros, whole pages, shared with children.
    ///
    /// # Errors
    /// `EINVAL`: a length of 0; `ENOMEM`, `EMFILE`.
    pub fn allocate(&self, len: usize) -> Result<Memory, Errno> {
        let mut start = std::ptr::null_mut();
        // SAFETY: a place for a pointer on the stack.
        done(unsafe { (self.calls.allocate)(len, &raw mut start) })?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Memory { start, len, calls: self.calls })
    }

    /// Lets the peer of this connection use `len` bytes of `memory` from `offset`. The registration
    /// lasts until [`Extended::deregister`], or until the socket is closed.
    ///
    /// # Errors
    /// `EINVAL`: not inside, or no right; `ENOSPC`: 8 registrations are there.
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
        // SAFETY: the place for the key is on the stack; the rest is checked by the library.
        let made = unsafe { (self.calls.register_memory)(fd, start, len, rights, &raw mut key) };
        done(made).map(|()| key)
    }

    /// Revokes a key. When this returns without an error no operation is under way.
    ///
    /// # Errors
    /// `ENOKEY`; `ETIMEDOUT`: it is revoked, but the peer stands still in an operation.
    pub fn deregister(&self, key: &Key) -> Result<(), Errno> {
        // SAFETY: a key that is there during the call.
        done(unsafe { (self.calls.deregister)(self.socket.as_raw_fd(), key) })
    }

    /// Copies bytes to the peer's memory, `offset` bytes from the beginning of what the key names.
    ///
    /// # Errors
    /// `ENOKEY`, `EACCES`: the key is wrong, revoked, or lacks the right; `ERANGE`: past its end;
    /// `EINVAL`: no bytes; `ESTALE`, `EPERM`: the memory cannot be reached; `ECONNRESET`: the peer
    /// has gone.
    pub fn put(&self, key: &Key, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: bytes that are borrowed during the call, and only read.
        done(unsafe { (self.calls.put)(self.socket.as_raw_fd(), key, offset, from, len) })
    }

    /// Fills `bytes` from the peer's memory.
    ///
    /// # Errors
    /// As [`Extended::put`].
    pub fn get(&self, key: &Key, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let (to, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: bytes that are borrowed during the call.
        done(unsafe { (self.calls.get)(self.socket.as_raw_fd(), key, offset, to, len) })
    }

    /// Adds to an aligned word of the peer's memory, and returns what it was.
    ///
    /// # Errors
    /// As [`Extended::put`]; `EINVAL`: the word is not aligned.
    pub fn fetch_add(&self, key: &Key, offset: u64, add: u64) -> Result<u64, Errno> {
        let (fd, mut before) = (self.socket.as_raw_fd(), 0);
        // SAFETY: a key, and a place for the answer on the stack.
        done(unsafe { (self.calls.fetch_add)(fd, key, offset, add, &raw mut before) })?;
        Ok(before)
    }

    /// Makes an aligned word of the peer's memory `value` if it is `expected`, and returns what it
    /// was.
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
        // SAFETY: a key, and a place for the answer on the stack.
        done(unsafe { (self.calls.compare_swap)(fd, key, offset, expected, value, place) })?;
        Ok(before)
    }
}

/// Memory that peers can be allowed to use. They may change it at any time, so it is seen as words.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<c_void>,
    len: usize,
    calls: &'static Calls,
}

// SAFETY: a mapping of the process's, which is only reached through atomics.
unsafe impl Send for Memory {}
// SAFETY: a mapping of the process's, which is only reached through atomics.
unsafe impl Sync for Memory {}

impl Memory {
    /// Its words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until this is dropped, aligned to pages, and as long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `allocate` has returned; nobody borrows it.
        let _ = unsafe { (self.calls.release)(self.start.as_ptr()) };
    }
}

/// 0, or a negative errno.
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
    fn keys_travel_as_bytes() {
        let key = Key { secret: u64::MAX - 1, length: 1 << 40, index: 7, rights: 3 };
        assert_eq!(Key::from_bytes(key.to_bytes()), key);
    }

    #[test]
    fn without_weft_there_is_no_such_option() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("a connection");
        assert_eq!(Extended::new(&stream).map(drop), Err(Errno::NOPROTOOPT));
    }
}
