//! Linux's asynchronous input and output (`io_submit(2)`). The kernel executes the operations, so
//! connections fall back to TCP first.
//!
//! The kernel does not know the bytes that stay in memory: it would wait for ever, or report the
//! end of the stream. So a read of such a connection reads from a pipe with these bytes, and a poll
//! polls that pipe. The kernel reports the operation to the program as usual. Reads of pipes and
//! sockets are complete when `io_submit` returns; as many bytes as the kernel has read from the
//! pipe then leave the connection.
//!
//! # Safety
//! The program guarantees that its list and control blocks are valid.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use libc::c_long;
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::{Errno, ioctl_fionread, write};
use weft_sys::calls::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use weft_sys::system_call;

use super::fallback;
use crate::arguments::{Arguments, is_nowhere};
use crate::descriptor::is_ready;
use crate::limits::{AIO_BLOCKS_MAX, AIO_READ_MAX};
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::{errno, mode};

/// The head of a control block (`struct iocb` of linux/aio_abi.h on little-endian targets).
#[repr(C)]
#[derive(Clone, Copy)]
struct Block {
    data: u64,
    /// The kernel writes this field.
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    fd: u32,
    /// Of a poll: the events.
    buffer: u64,
    len: u64,
    offset: i64,
}

impl Block {
    const READ: u16 = 0;
    const READ_LIST: u16 = 7;
    const POLL: u16 = 5;

    fn fd(&self) -> RawFd {
        self.fd.cast_signed()
    }

    fn is_poll(&self) -> bool {
        self.operation == Self::POLL
    }

    /// Returns how many unread bytes at most the operation waits for. The kernel refuses a read of
    /// a socket at an offset.
    fn wanted(&self) -> usize {
        const READABLE: u64 = (libc::POLLIN | libc::POLLRDNORM) as u64;
        match self.operation {
            Self::READ if self.offset == 0 => {
                usize::try_from(self.len).unwrap_or(AIO_READ_MAX).min(AIO_READ_MAX)
            }
            Self::READ_LIST if self.offset == 0 => AIO_READ_MAX,
            Self::POLL if self.buffer & READABLE != 0 => 1,
            _ => 0,
        }
    }
}

/// Executes `io_submit(2)`. `None`: the kernel is to do it, with the same arguments.
///
/// # Safety
/// The arguments are those of the program's call.
pub(super) unsafe fn submit(a: Arguments) -> Option<c_long> {
    let list = a[2] as *const *mut Block;
    if is_nowhere(list) {
        return None;
    }
    let count = usize::try_from(a[1].cast_signed()).unwrap_or(0).min(AIO_BLOCKS_MAX);
    let mut has_unread = false;
    for at in 0..count {
        // SAFETY: the caller guarantees `count` entries, and `at` is below that.
        let place = unsafe { list.add(at) };
        // SAFETY: the caller guarantees `count` readable entries.
        let Some(block) = (unsafe { block(place) }) else { break };
        has_unread |= fallback::one(block.fd(), Reason::ByHand);
    }
    if !has_unread {
        return None;
    }
    for at in 0..count {
        // SAFETY: the caller guarantees `count` readable entries.
        let place = unsafe { list.add(at) };
        // SAFETY: the entry is the program's, and so is the context.
        if unsafe { submit_one(a[0], place) } != 1 {
            return Some(if at == 0 { -1 } else { at as c_long });
        }
    }
    Some(count as c_long)
}

/// Reads the control block that an entry of the list names; `None` if its address is impossible.
///
/// # Safety
/// The entry is readable, and names a control block unless its address is impossible.
unsafe fn block(entry: *const *mut Block) -> Option<Block> {
    // SAFETY: the caller guarantees a readable entry.
    let place = unsafe { entry.read() };
    // SAFETY: not an impossible address, so it is the program's control block.
    (!is_nowhere(place)).then(|| unsafe { place.read_unaligned() })
}

/// Submits one control block, and returns the kernel's result.
///
/// # Safety
/// As for [`block`].
unsafe fn submit_one(context: usize, entry: *const *mut Block) -> c_long {
    let by_kernel = || {
        let arguments = [context, 1, entry as usize, 0, 0, 0];
        // SAFETY: the program's own context, and an entry of its list.
        unsafe { system_call(libc::SYS_io_submit, arguments) }
    };
    // SAFETY: passes on what the caller guarantees.
    let Some(asked) = (unsafe { block(entry) }) else { return by_kernel() };
    if asked.wanted() == 0 || !fallback::one(asked.fd(), Reason::ByHand) {
        return by_kernel();
    }
    if mode::may_not_call() {
        return c_long::from(errno::fail(Errno::AGAIN)); // There can be no pipe.
    }
    if asked.is_poll() && is_ready(asked.fd(), PollFlags::IN) {
        return by_kernel(); // Bytes of TCP or the end are there, too.
    }
    let Some(held) = sockets::find(asked.fd()) else { return by_kernel() };
    let Kind::Stream(stream) = &*held else { return by_kernel() };
    let mut bytes = vec![0; asked.wanted()];
    let mut result = None;
    let received = stream.recv_delivered(asked.fd(), &mut bytes, &mut |bytes| {
        if bytes.is_empty() {
            return 0;
        }
        let Some(Pipe { reader, writer: _writer, len }) = Pipe::with(bytes) else {
            result = Some(Err(Errno::AGAIN));
            return 0;
        };
        let other = Block { fd: reader.as_raw_fd().cast_unsigned(), flags: 0, ..asked };
        // SAFETY: the entry names the program's control block, as `block` has found.
        let place = unsafe { entry.read() };
        // SAFETY: the program's control block, which the kernel writes to as well.
        unsafe { place.write_unaligned(other) };
        let submitted = by_kernel();
        result = Some(if submitted < 0 { Err(errno::last()) } else { Ok(submitted) });
        // SAFETY: the program's control block.
        let key = unsafe { place.read_unaligned() }.key;
        // SAFETY: the program's control block. A thread that has its completion already finds at
        // most the pipe's number in it.
        unsafe { place.write_unaligned(Block { key, ..asked }) };
        if submitted != 1 || asked.is_poll() {
            return 0;
        }
        let left = ioctl_fionread(&reader).map_or(0, |left| usize::try_from(left).unwrap_or(0));
        len.saturating_sub(left)
    });
    match (result, received) {
        (Some(Ok(submitted)), _) => submitted,
        (Some(Err(error)), _) => c_long::from(errno::fail(error)),
        (None, Some(Err(Errno::DEADLK))) => c_long::from(errno::fail(Errno::AGAIN)),
        // The bytes have gone meanwhile, or the connection was reset.
        (None, _) => by_kernel(),
    }
}

/// A pipe that holds bytes.
struct Pipe {
    reader: OwnedFd,
    /// While it is open the reader's end is not reported.
    writer: OwnedFd,
    /// How many bytes it holds.
    len: usize,
}

impl Pipe {
    /// Makes a pipe with as many of the bytes as fit. `None`: there is no descriptor for it.
    fn with(bytes: &[u8]) -> Option<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Otherwise the read gets fewer bytes.
        let _ = fcntl_setpipe_size(&writer, bytes.len());
        let len = write(&writer, bytes).ok()?;
        Some(Self { reader, writer, len })
    }
}
