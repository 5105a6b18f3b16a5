//! The buffers of a program's call: the `iovec`s of `readv(2)` and `sendmsg(2)`.
//!
//! # Safety
//! The caller of [`Buffers::new`] guarantees that the list is valid. This module only reads the
//! list, and passes the buffers to the kernel. [`Buffers::of`] borrows a list of `IoSliceMut`,
//! which has the layout of `iovec`s by the standard library's guarantee.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::by_hand::system_call;
use crate::calls::io::Errno;
use crate::region::Region;

/// Maximum number of buffers in one of Weft's system calls. Longer lists take several calls.
const AT_ONCE: usize = 16;

/// The arguments of `sendmsg(2)` and `recvmsg(2)`.
fn arguments(socket: BorrowedFd<'_>, message: *mut libc::msghdr, flags: libc::c_int) -> [usize; 6] {
    [socket.as_raw_fd() as usize, message as usize, flags as usize, 0, 0, 0]
}

/// A list of buffers, of which a number of bytes may have been processed already.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    list: *const libc::iovec,
    count: usize,
    skip: usize,
    lives: PhantomData<&'a libc::iovec>,
}

impl<'a> Buffers<'a> {
    /// The buffers of a list of `count`. `None` if their total length exceeds `isize::MAX`.
    ///
    /// # Safety
    /// The list is readable during `'a`. Each buffer is memory of the program that may be read or
    /// written as the calls made with this require, and the program accepts races with its own
    /// accesses.
    #[must_use]
    pub unsafe fn new(list: *const libc::iovec, count: usize) -> Option<Self> {
        let buffers = Self { list, count, skip: 0, lives: PhantomData };
        let mut total = 0_usize;
        for at in 0..count {
            total = total.checked_add(buffers.iovec(at).iov_len)?;
        }
        isize::try_from(total).ok()?;
        Some(buffers)
    }

    /// The buffers of an exclusive borrow, for reading or writing.
    #[must_use]
    pub fn of(slices: &'a mut [IoSliceMut<'_>]) -> Self {
        // The slices do not overlap, so their total length cannot be too large.
        Self { list: slices.as_ptr().cast(), count: slices.len(), skip: 0, lives: PhantomData }
    }

    /// The buffers behind the first `bytes`.
    #[must_use]
    pub fn after(self, bytes: usize) -> Self {
        Self { skip: self.skip + bytes, ..self }
    }

    /// Total number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions().map(|region| region.len()).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions().all(|region| region.is_empty())
    }

    /// The regions of memory of the buffers.
    pub fn regions(&self) -> impl Iterator<Item = Region> + Clone + use<'a> {
        let this = *self;
        let mut skip = self.skip;
        (0..this.count).filter_map(move |at| {
            let buffer = this.iovec(at);
            let passed = skip.min(buffer.iov_len);
            skip -= passed;
            let start = (buffer.iov_base as usize).checked_add(passed)?;
            // SAFETY: the caller of `new` guarantees that the buffer is valid, and this region is a
            // part of it.
            unsafe { Region::new(start, buffer.iov_len - passed) }
        })
    }

    fn iovec(&self, at: usize) -> libc::iovec {
        // SAFETY: `at` is below `count`, so the element lies in the list that the caller of `new`
        // guarantees to be valid.
        let place = unsafe { self.list.add(at) };
        // SAFETY: the caller of `new` guarantees that the list is readable during `'a`.
        unsafe { place.read() }
    }

    /// Fills the buffers from a socket (`recvmsg(2)`), and returns how many bytes came.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn recv(&self, socket: BorrowedFd<'_>, flags: libc::c_int) -> Result<usize, Errno> {
        self.recv_most(socket, usize::MAX, flags)
    }

    /// Does the same for at most `most` bytes.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn recv_most(
        &self,
        socket: BorrowedFd<'_>,
        most: usize,
        flags: libc::c_int,
    ) -> Result<usize, Errno> {
        self.with_message(most, |message| {
            // SAFETY: the message and its `iovec`s live during the call, and the caller of `new`
            // guarantees that the buffers may be written.
            unsafe { system_call(libc::SYS_recvmsg, arguments(socket, message, flags)) }
        })
    }

    /// Sends the buffers over a socket (`sendmsg(2)`), and returns how many bytes it took.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn send(&self, socket: BorrowedFd<'_>, flags: libc::c_int) -> Result<usize, Errno> {
        self.with_message(usize::MAX, |message| {
            // SAFETY: the message and its `iovec`s live during the call, and the caller of `new`
            // guarantees that the buffers may be read. The kernel only reads them.
            unsafe { system_call(libc::SYS_sendmsg, arguments(socket, message, flags)) }
        })
    }

    fn with_message(
        &self,
        most: usize,
        call: impl FnOnce(*mut libc::msghdr) -> libc::c_long,
    ) -> Result<usize, Errno> {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut list = [nothing; AT_ONCE];
        let mut count = 0;
        let mut left = most;
        for (place, region) in list.iter_mut().zip(self.regions().filter(|r| !r.is_empty())) {
            let len = region.len().min(left);
            *place = libc::iovec { iov_base: region.addr() as *mut _, iov_len: len };
            left -= len;
            count += 1;
        }
        // SAFETY: `msghdr` consists of integers and pointers, for which zero is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = list.as_mut_ptr();
        message.msg_iovlen = count;
        usize::try_from(call(&raw mut message)).map_err(|_| last_error())
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn buffers_can_start_at_any_byte_of_a_list() {
        let (mut one, mut two) = (*b"abc", *b"defg");
        let list = [(one.as_mut_ptr(), 3), (two.as_mut_ptr(), 0), (two.as_mut_ptr(), 4)]
            .map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len });
        // SAFETY: the list and its buffers live to the end of the test.
        let all = unsafe { Buffers::new(list.as_ptr(), 3) }.expect("few bytes");
        assert_eq!(all.len(), 7);
        let rest: Vec<_> = all.after(4).regions().map(|region| region.len()).collect();
        assert_eq!(rest, [0, 0, 3]);
        let (left, right) = UnixStream::pair().expect("a pair");
        assert_eq!(all.after(1).send(left.as_fd(), 0), Ok(6));
        let mut room = [0_u8; 8];
        let into = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: 8 }];
        // SAFETY: the list and its buffers live to the end of the test.
        let into = unsafe { Buffers::new(into.as_ptr(), 1) }.expect("few bytes");
        assert_eq!(into.recv(right.as_fd(), 0), Ok(6));
        assert_eq!(&room[..6], b"bcdefg");
        assert_eq!(into.recv(right.as_fd(), libc::MSG_DONTWAIT), Err(Errno::AGAIN));
    }
}
