//! `sendfile(2)` and `splice(2)`: the kernel cannot reach the rings, so the bytes are copied.
//!
//! # Safety
//! As for the other hooks; places for offsets are the program's.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, loff_t, off_t, size_t, ssize_t};
use rustix::io::Errno;
use weft_stream::Carrier;
use weft_sys::Buffers;

use crate::errno;
use crate::next::next;
use crate::stream::{Stream, borrow, is_nonblocking};
use crate::table::{self, Kind};

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// Whether bytes to be sent on the socket go through the rings, or are to be counted.
fn is_ours_out(stream: &Stream, fd: c_int) -> bool {
    match stream.by(fd) {
        crate::stream::By::Kernel => false,
        crate::stream::By::Counted | crate::stream::By::End(_) | crate::stream::By::Far(_) => true,
    }
}

/// Sends up to `len` bytes of a file, from its own offset or from the one given.
fn send_file(
    stream: &Stream,
    out: c_int,
    file: c_int,
    offset: Option<&mut off_t>,
    len: size_t,
) -> Result<usize, Errno> {
    let mut at = match &offset {
        Some(offset) => u64::try_from(**offset).map_err(|_| Errno::INVAL)?,
        None => rustix::fs::tell(borrow(file)).map_err(|_| Errno::INVAL)?,
    };
    let mut piece = vec![0_u8; PIECE.min(len)];
    let mut done = 0;
    while done < len {
        let wanted = piece.len().min(len - done);
        let read = match rustix::io::pread(borrow(file), &mut piece[..wanted], at) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if done > 0 => break,
            Err(Errno::SPIPE) => return Err(Errno::INVAL),
            Err(errno) => return Err(errno),
        };
        let list = [libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: read }];
        // SAFETY: the list and its buffer are ours.
        let Some(buffers) = (unsafe { Buffers::new(list.as_ptr(), 1) }) else { break };
        let sent =
            stream.send_copy(out, buffers, 0).unwrap_or_else(|| buffers.send(borrow(out), 0));
        match sent {
            Ok(sent) => {
                done += sent;
                at += sent as u64;
                if sent < read {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    match offset {
        Some(offset) => *offset = at.cast_signed(),
        None => drop(rustix::fs::seek(borrow(file), rustix::fs::SeekFrom::Start(at))),
    }
    Ok(done)
}

/// `sendfile(2)` to a socket of ours. `None`: the kernel is to do it.
///
/// # Safety
/// `offset` is NULL or the program's place.
unsafe fn sendfile_to(out: c_int, file: c_int, offset: *mut off_t, len: size_t) -> Option<ssize_t> {
    let held = table::find(out)?;
    let Kind::Stream(stream) = &*held else { return None };
    if !is_ours_out(stream, out) {
        return None;
    }
    // SAFETY: the caller's promise.
    let offset = unsafe { offset.as_mut() };
    Some(errno::count(send_file(stream, out, file, offset, len)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    file: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let ours = unsafe { sendfile_to(out, file, offset, len) };
    ours.unwrap_or_else(
        || next!(sendfile(out: c_int, file: c_int, offset: *mut off_t, len: size_t) -> ssize_t),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    file: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let ours = unsafe { sendfile_to(out, file, offset, len) };
    ours.unwrap_or_else(
        || next!(sendfile64(out: c_int, file: c_int, offset: *mut off_t, len: size_t) -> ssize_t),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let ours = if !(table::knows(from) || table::knows(to)) {
        None
    } else if from_offset.is_null() && to_offset.is_null() {
        splice_copy(from, to, len, flags)
    } else {
        None // The kernel refuses an offset of a socket.
    };
    ours.map_or_else(
        || {
            next!(splice(
                from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t,
                len: size_t, flags: c_uint
            ) -> ssize_t)
        },
        errno::count,
    )
}

/// From a socket of ours into a pipe or from a pipe into one. `None`: the kernel is to do it.
fn splice_copy(from: c_int, to: c_int, len: size_t, flags: c_uint) -> Option<Result<usize, Errno>> {
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let dontwait = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
    if let Some(held) = table::find(from)
        && let Kind::Stream(stream) = &*held
    {
        let ours = matches!(stream.by(from), crate::stream::By::End(end)
            if end.carrier_in() == Carrier::Memory);
        let counted = !matches!(stream.by(from), crate::stream::By::Kernel);
        if !ours && !counted {
            return None;
        }
        return Some(splice_out(stream, from, to, len, dontwait, nonblocking));
    }
    let held = table::find(to)?;
    let Kind::Stream(stream) = &*held else { return None };
    is_ours_out(stream, to).then(|| splice_in(stream, from, to, len, dontwait, nonblocking))
}

/// Takes no more from the socket than the pipe has room for.
fn splice_out(
    stream: &Stream,
    socket: c_int,
    pipe: c_int,
    len: size_t,
    flags: c_int,
    nonblocking: bool,
) -> Result<usize, Errno> {
    use rustix::event::{PollFd, PollFlags, poll};
    if !is_pipe(pipe) {
        return Err(Errno::INVAL);
    }
    let mut set = [PollFd::from_borrowed_fd(borrow(pipe), PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let at_once = nonblocking || is_nonblocking(pipe, 0);
    if poll(&mut set, at_once.then_some(&now))? == 0 {
        return Err(Errno::AGAIN);
    }
    // A pipe that can be written to has room for a page at least, whatever its size.
    let mut piece = [0_u8; 4_096];
    let wanted = len.min(piece.len());
    let list = [libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: wanted }];
    // SAFETY: the list and its buffer are ours.
    let buffers = unsafe { Buffers::new(list.as_ptr(), 1) }.ok_or(Errno::INVAL)?;
    let received = stream
        .recv(socket, buffers, flags)
        .unwrap_or_else(|| buffers.recv(borrow(socket), flags))?;
    let mut written = 0;
    while written < received {
        match rustix::io::write(borrow(pipe), &piece[written..received]) {
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(poll(&mut set, None)),
            Err(errno) => return Err(errno),
        }
    }
    Ok(received)
}

/// Takes from the pipe only what the socket takes: `tee(2)` has no bytes to give back.
fn splice_in(
    stream: &Stream,
    pipe: c_int,
    socket: c_int,
    len: size_t,
    flags: c_int,
    nonblocking: bool,
) -> Result<usize, Errno> {
    use rustix::event::{PollFd, PollFlags, poll};
    if !is_pipe(pipe) {
        return Err(Errno::INVAL);
    }
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ready = [PollFd::from_borrowed_fd(borrow(pipe), PollFlags::IN)];
    let at_once = nonblocking || is_nonblocking(pipe, 0);
    if poll(&mut ready, at_once.then_some(&now))? == 0 {
        return Err(Errno::AGAIN);
    }
    if let crate::stream::By::End(end) = stream.by(socket)
        && end.carrier_out() == Carrier::Memory
        && end.room() == 0
        && (nonblocking || is_nonblocking(socket, flags))
    {
        return Err(Errno::AGAIN);
    }
    let mut piece = vec![0_u8; len.min(PIECE)];
    let read = rustix::io::read(borrow(pipe), &mut piece)?;
    let list = [libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: read }];
    // SAFETY: the list and its buffer are ours.
    let buffers = unsafe { Buffers::new(list.as_ptr(), 1) }.ok_or(Errno::INVAL)?;
    let mut done = 0;
    while done < read {
        let rest = buffers.after(done);
        let sent =
            stream.send_copy(socket, rest, 0).unwrap_or_else(|| rest.send(borrow(socket), 0));
        match sent {
            Ok(sent) => done += sent,
            Err(Errno::AGAIN) => std::thread::yield_now(), // Taken out of the pipe, it must go on.
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn is_pipe(fd: c_int) -> bool {
    let kind = rustix::fs::fstat(borrow(fd)).map(|status| status.st_mode);
    kind.is_ok_and(|mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Fifo)
}
