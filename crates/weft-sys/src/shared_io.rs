//! System calls on shared memory. The kernel reads and writes the bytes, so that this process never
//! has a Rust reference to them.
//!
//! # Safety
//! [`SharedMemory::range`](crate::SharedMemory) checks that each range lies inside the mapping,
//! which stays mapped while the memory is borrowed. The other process may change the bytes during
//! the call; the kernel copies them once and does not interpret them.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::calls::call;
use crate::calls::io::Errno;
use crate::shared::SharedMemory;

impl SharedMemory {
    /// Reads up to `len` bytes of a file, from its offset `from`, to `offset` (`pread64(2)`).
    /// Returns how many; 0 at the end of the file.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If they would not lie inside.
    pub fn read_file(
        &self,
        offset: usize,
        len: usize,
        file: BorrowedFd<'_>,
        from: u64,
    ) -> Result<usize, Errno> {
        let at = self.range(offset, len) as usize;
        let from = usize::try_from(from).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel writes at most `len` bytes at `at`, which lie inside the mapping.
        unsafe { call(libc::SYS_pread64, [file.as_raw_fd() as usize, at, len, from, 0, 0]) }
    }

    /// Writes `len` bytes from `offset` to a file, at its offset `to` (`pwrite64(2)`). Returns how
    /// many.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn write_file(
        &self,
        offset: usize,
        len: usize,
        file: BorrowedFd<'_>,
        to: u64,
    ) -> Result<usize, Errno> {
        let at = self.range(offset, len) as usize;
        let to = usize::try_from(to).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel reads `len` bytes at `at`, which lie inside the mapping.
        unsafe { call(libc::SYS_pwrite64, [file.as_raw_fd() as usize, at, len, to, 0, 0]) }
    }

    /// Receives up to `len` bytes of a stream to `offset` (`recvfrom(2)`). Returns how many; 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If they would not lie inside.
    pub fn recv_stream(
        &self,
        offset: usize,
        len: usize,
        socket: BorrowedFd<'_>,
        flags: libc::c_int,
    ) -> Result<usize, Errno> {
        let at = self.range(offset, len) as usize;
        let arguments = [socket.as_raw_fd() as usize, at, len, flags as usize, 0, 0];
        // SAFETY: the kernel writes at most `len` bytes at `at`, which lie inside the mapping.
        unsafe { call(libc::SYS_recvfrom, arguments) }
    }

    /// Sends `head`, followed by `len` bytes from `offset`, to a stream (`sendmsg(2)`). Returns how
    /// many bytes of both together were sent.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn send_stream(
        &self,
        head: &[u8],
        offset: usize,
        len: usize,
        socket: BorrowedFd<'_>,
        flags: libc::c_int,
    ) -> Result<usize, Errno> {
        let at = self.range(offset, len);
        let mut list = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: at.cast(), iov_len: len },
        ];
        // SAFETY: `msghdr` consists of integers and pointers, for which zero is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = list.as_mut_ptr();
        message.msg_iovlen = list.len();
        let message = (&raw const message) as usize;
        let arguments = [socket.as_raw_fd() as usize, message, flags as usize, 0, 0, 0];
        // SAFETY: the kernel reads the message, `head`, and `len` bytes at `at`, which lie inside
        // the mapping. All of them outlive the call.
        unsafe { call(libc::SYS_sendmsg, arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn file_is_read_and_written() {
        let fd = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let mut file = std::fs::File::from(fd);
        file.write_all(b"0123456789").expect("room");
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        assert_eq!(memory.read_file(100, 50, file.as_fd(), 4), Ok(6));
        let mut bytes = [0; 7];
        memory.copy_out(100, &mut bytes);
        assert_eq!(&bytes, b"456789\0");
        assert_eq!(memory.write_file(102, 3, file.as_fd(), 1), Ok(3));
        file.rewind().expect("a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("text");
        assert_eq!(text, "0678456789");
        assert_eq!(memory.read_file(0, 1, file.as_fd(), u64::MAX), Err(Errno::INVAL));
    }

    #[test]
    fn stream_is_sent_and_received() {
        let (left, right) = UnixStream::pair().expect("a pair");
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        memory.copy_in(8, b"payload");
        assert_eq!(memory.send_stream(b"head ", 8, 7, left.as_fd(), 0), Ok(12));
        assert_eq!(memory.recv_stream(1_000, 100, right.as_fd(), 0), Ok(12));
        let mut bytes = [0; 12];
        memory.copy_out(1_000, &mut bytes);
        assert_eq!(&bytes, b"head payload");
        let nothing = memory.recv_stream(0, 1, right.as_fd(), libc::MSG_DONTWAIT);
        assert_eq!(nothing, Err(Errno::AGAIN));
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn no_call_names_bytes_past_the_end() {
        let (left, _right) = UnixStream::pair().expect("a pair");
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        let _ = memory.send_stream(b"", 4_090, 7, left.as_fd(), 0);
    }
}
