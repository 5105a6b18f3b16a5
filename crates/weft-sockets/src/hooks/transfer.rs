//! Hooks of `sendfile(2)` and `splice(2)`. The kernel cannot access the rings, so the bytes are
//! copied.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. The program guarantees that places for offsets are valid.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_uint, loff_t, off_t, size_t, ssize_t};
use weft_stream::Carrier;
use weft_sys::calls;
use weft_sys::calls::event::{PollFd, PollFlags};
use weft_sys::calls::fs::{FileType, OFlags};
use weft_sys::calls::io::Errno;
use weft_sys::calls::pipe::{PipeFlags, SpliceFlags};
use weft_sys::calls::{file_flags, poll, read_at, read_cached_at, seek, type_and_size};
use weft_sys::{Buffers, Handled, Uncancelled, test_cancel};

use crate::arguments::is_nowhere;
use crate::descriptor::{Descriptor, is_nonblocking};
use crate::errno;
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::stream::{By, Stream};
use crate::ways::fallback;

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// Returns whether bytes to be sent on the socket go through the rings, or have to be counted. The
/// kernel refuses a socket with `O_APPEND` (do_splice_direct), which none in memory has.
fn is_ours_out(stream: &Stream, fd: c_int) -> bool {
    let appends =
        || file_flags(Descriptor::of(fd).as_fd()).is_ok_and(|it| it.contains(OFlags::APPEND));
    match stream.by(fd) {
        By::Kernel => false,
        By::End(end) if end.carrier_out() == Carrier::Memory => true,
        _ => !appends(),
    }
}

/// Returns the error of `sendfile(2)` for a file that cannot seek.
fn seekable(errno: Errno) -> Errno {
    if errno == Errno::BADF { errno } else { Errno::INVAL }
}

/// Sends up to `len` bytes of a file, from its own offset or from the given one. The file
/// [can be copied](can_be_copied), unless `begun` has the first bytes of it.
fn send_file(
    stream: &Stream,
    out: c_int,
    file: c_int,
    offset: Option<&mut off_t>,
    len: size_t,
    begun: Option<Piece>,
) -> Result<usize, Errno> {
    if file < 0 {
        return Err(Errno::BADF);
    }
    let mut at = match &offset {
        Some(offset) => {
            let at = u64::try_from(**offset);
            if at.is_err() || len == 0 {
                file_flags(Descriptor::of(file))?; // Fails unless the file is open, as reads do.
            }
            at.map_err(|_| Errno::INVAL)?
        }
        None => seek(Descriptor::of(file), 0, libc::SEEK_CUR).map_err(seekable)?,
    };
    let Piece { mut bytes, read: mut begun } = begun.unwrap_or_else(|| Piece::empty(len));
    let mut done = 0;
    while done < len {
        let wanted = bytes.len().min(len - done);
        let read = match std::mem::take(&mut begun) {
            0 => read_at(Descriptor::of(file), &mut bytes[..wanted], at),
            read => Ok(read),
        };
        let read = match read {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if done > 0 => break,
            Err(Errno::SPIPE) => return Err(Errno::INVAL),
            Err(errno) => return Err(errno),
        };
        let sent = send_some(stream, out, &mut bytes[..read]);
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
        None => {
            let _ = seek(Descriptor::of(file), at, libc::SEEK_SET);
        }
    }
    Ok(done)
}

/// Bytes of a file on their way to a socket.
struct Piece {
    bytes: Vec<u8>,
    read: usize,
}

impl Piece {
    fn empty(len: usize) -> Self {
        Self { bytes: vec![0; PIECE.min(len)], read: 0 }
    }

    /// Reads the first bytes of what a program sends from a file, if that takes no wait. Only
    /// regular files and block and memory devices are read so, from which the kernel sends, too
    /// (and network taps, from which it does not). So the question about the file's kind is spared.
    fn cached(file: c_int, at: off_t, len: usize) -> Option<Self> {
        /// Not after a file of a file system that cannot do this.
        static HELPS: AtomicBool = AtomicBool::new(true);
        let at = u64::try_from(at).ok()?;
        if file < 0 || len == 0 || !HELPS.load(Ordering::Relaxed) {
            return None;
        }
        let mut piece = Self::empty(len);
        match read_cached_at(Descriptor::of(file), &mut piece.bytes, at) {
            Ok(read) => piece.read = read,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                HELPS.store(false, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        (piece.read > 0).then_some(piece)
    }
}

/// Returns whether `read` and `sendfile` treat a file alike. They do not for devices and files of
/// `/proc`, some of which the kernel refuses to send.
fn can_be_copied(file: c_int) -> bool {
    if file < 0 {
        return true; // `send_file` reports the error before it copies anything.
    }
    let Ok((kind, size)) = type_and_size(Descriptor::of(file)) else { return true };
    kind == FileType::RegularFile && size > 0
}

/// Executes `sendfile(2)` to a known socket. `None`: the kernel is to do it.
///
/// # Safety
/// `offset` is NULL or the program's place.
unsafe fn sendfile_to(out: c_int, file: c_int, offset: *mut off_t, len: size_t) -> Option<ssize_t> {
    let held = sockets::find(out)?;
    let Kind::Stream(stream) = &*held else { return None };
    if !is_ours_out(stream, out) {
        return None;
    }
    if !offset.is_null() && is_nowhere(offset) {
        fallback::one(out, Reason::ByHand);
        return None;
    }
    // SAFETY: the caller guarantees NULL or a valid place.
    let offset = unsafe { offset.as_mut() };
    let begun = offset.as_ref().and_then(|offset| Piece::cached(file, **offset, len));
    if begun.is_none() && !can_be_copied(file) {
        fallback::one(out, Reason::ByHand);
        return None;
    }
    let _uncancelled = Uncancelled::begin(); // `sendfile` is no cancellation point.
    Some(errno::count(send_file(stream, out, file, offset, len, begun)))
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
    test_cancel();
    let ours = if len == 0 || !(sockets::knows(from) || sockets::knows(to)) {
        None // Nothing is to be moved.
    } else if from_offset.is_null() && to_offset.is_null() {
        splice_copy(from, to, len, flags)
    } else {
        None // The kernel refuses an offset here.
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

/// Moves bytes between a known socket and a pipe. `None`: the kernel is to do it.
///
/// `SPLICE_F_NONBLOCK` applies to the pipe; the socket's own flag decides whether the socket blocks
/// (tcp_splice_read, splice_to_socket).
fn splice_copy(from: c_int, to: c_int, len: size_t, flags: c_uint) -> Option<Result<usize, Errno>> {
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    if let Some(held) = sockets::find(from)
        && let Kind::Stream(stream) = &*held
    {
        let ours = matches!(stream.by(from), By::End(end) if end.carrier_in() == Carrier::Memory);
        let counted = !matches!(stream.by(from), By::Kernel);
        if !ours && !counted {
            return None;
        }
        return Some(splice_out(stream, from, to, len, nonblocking));
    }
    let held = sockets::find(to)?;
    let Kind::Stream(stream) = &*held else { return None };
    is_ours_out(stream, to).then(|| splice_in(stream, from, to, len, nonblocking))
}

/// Moves bytes from the socket into a pipe, no more than the pipe has room for.
fn splice_out(
    stream: &Stream,
    socket: c_int,
    pipe: c_int,
    len: size_t,
    nonblocking: bool,
) -> Result<usize, Errno> {
    check_pipe(pipe)?;
    let at_once = nonblocking || is_nonblocking(pipe, 0);
    let mut piece = vec![0_u8; len.min(PIECE)];
    let mut done = 0;
    let mut flags = 0;
    while done < len {
        // Bytes that have come are delivered before the call blocks.
        match wait_for_pipe(pipe, PollFlags::OUT, at_once || done > 0) {
            Err(_) if done > 0 => break,
            waited => waited?,
        }
        let wanted = piece.len().min(len - done).min(room_in(pipe));
        let mut slices = [IoSliceMut::new(&mut piece[..wanted])];
        let buffers = Buffers::of(&mut slices);
        let received = stream
            .recv(socket, buffers, flags)
            .unwrap_or_else(|| buffers.recv(Descriptor::of(socket).as_fd(), flags));
        let received = match received {
            Ok(0) => break,
            Err(_) if done > 0 => break,
            received => received?,
        };
        let mut written = 0;
        while written < received {
            match calls::io::write(Descriptor::of(pipe), &piece[written..received]) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                // Another writer has taken the pipe's room.
                Err(Errno::AGAIN) => drop(wait_for_pipe(pipe, PollFlags::OUT, false)),
                Err(errno) => return Err(errno),
            }
        }
        done += received;
        flags = libc::MSG_DONTWAIT;
    }
    Ok(done)
}

/// Returns how many bytes a writable pipe takes without blocking: its whole size if it is empty,
/// otherwise at least a page.
fn room_in(pipe: c_int) -> usize {
    const PAGE: usize = 4_096;
    match (
        calls::io::ioctl_fionread(Descriptor::of(pipe)),
        calls::pipe::fcntl_getpipe_size(Descriptor::of(pipe)),
    ) {
        (Ok(0), Ok(size)) => size.max(PAGE),
        _ => PAGE,
    }
}

/// Moves bytes from a pipe to the socket, and leaves in the pipe what the socket does not take.
fn splice_in(
    stream: &Stream,
    pipe: c_int,
    socket: c_int,
    len: size_t,
    nonblocking: bool,
) -> Result<usize, Errno> {
    check_pipe(pipe)?;
    let _uncancelled = Uncancelled::begin(); // Bytes may be out of the pipe already.
    let at_once = nonblocking || is_nonblocking(pipe, 0);
    let mut done = 0;
    while done < len {
        let moved = wait_for_pipe(pipe, PollFlags::IN, at_once || done > 0)
            .and_then(|()| splice_piece(stream, pipe, socket, PIECE.min(len - done)));
        match moved {
            Ok(Some(0)) => break,
            Ok(moved) => done += moved.unwrap_or(0),
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Moves bytes from a pipe that has some. `None`: there was no room in the ring, but there is now.
fn splice_piece(
    stream: &Stream,
    pipe: c_int,
    socket: c_int,
    len: usize,
) -> Result<Option<usize>, Errno> {
    // Errors of the socket come first, while the pipe still has its bytes.
    send_some(stream, socket, &mut [])?;
    let room = match stream.by(socket) {
        By::End(end) if end.carrier_out() == Carrier::Memory => end.room(),
        // How much the kernel's socket takes is only known afterwards.
        _ => return splice_peeked(stream, pipe, socket, len).map(Some),
    };
    if room == 0 {
        if is_nonblocking(socket, 0) {
            return if stream.be_full() { Ok(None) } else { Err(Errno::AGAIN) };
        }
        return stream.wait_for_room(socket, Handled::up_to_now()).map(|()| None);
    }
    let mut piece = vec![0_u8; len.min(room)];
    let read = calls::io::read(Descriptor::of(pipe), &mut piece)?;
    let mut sent = 0;
    while sent < read {
        match send_some(stream, socket, &mut piece[sent..read]) {
            Ok(more) => sent += more,
            // Another thread has taken the room. The bytes are out of the pipe, so wait for more
            // room.
            Err(Errno::AGAIN | Errno::INTR) => {
                let _ = stream.wait_for_room(socket, Handled::up_to_now());
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(Some(sent))
}

/// Sends bytes of the caller's own buffer.
fn send_some(stream: &Stream, socket: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut slices = [IoSliceMut::new(bytes)];
    let buffers = Buffers::of(&mut slices);
    stream
        .send_copy(socket, buffers, 0)
        .unwrap_or_else(|| buffers.send(Descriptor::of(socket).as_fd(), 0))
}

/// Sends a copy of the pipe's bytes (`tee(2)`), so that bytes which the socket does not take are
/// still in the pipe.
fn splice_peeked(stream: &Stream, pipe: c_int, socket: c_int, len: usize) -> Result<usize, Errno> {
    let copy = calls::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (from, to) = copy.map_err(|_| Errno::NOMEM)?;
    let copied = calls::pipe::tee(Descriptor::of(pipe), &to, len, SpliceFlags::NONBLOCK)?;
    let mut piece = vec![0_u8; copied];
    if copied == 0 {
        return Ok(0); // EOF: the pipe has no writer any more.
    }
    let read = calls::io::read(&from, &mut piece)?;
    let sent = send_some(stream, socket, &mut piece[..read])?;
    let mut gone = 0;
    while gone < sent {
        match calls::io::read(Descriptor::of(pipe), &mut piece[gone..sent]) {
            Ok(0) => break, // Another reader has taken the bytes.
            Ok(more) => gone += more,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// Waits until a pipe is ready, or only checks it if `at_once`.
fn wait_for_pipe(pipe: c_int, events: PollFlags, at_once: bool) -> Result<(), Errno> {
    let pipe = Descriptor::of(pipe);
    let mut set = [PollFd::new(&pipe, events)];
    let now = calls::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut set, at_once.then_some(&now))?;
    if ready == 0 { Err(Errno::AGAIN) } else { Ok(()) }
}

/// Returns the error of `splice(2)` if a descriptor is not a pipe.
fn check_pipe(fd: c_int) -> Result<(), Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    let mode = calls::fs::fstat(Descriptor::of(fd))?.st_mode;
    let is_pipe = FileType::from_raw_mode(mode) == FileType::Fifo;
    if is_pipe { Ok(()) } else { Err(Errno::INVAL) }
}
