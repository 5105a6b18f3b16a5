//! Programs that get this process's sockets: by exec, and by children that no handler of `fork`
//! sees (`posix_spawn`, `system`, `popen`, `vfork`).
//!
//! Such a program may be one without Weft, and nobody counts it. So before it starts, each
//! connection that it gets is on TCP. What the rings still hold then is for a program on Weft to
//! read, which is told of it by its environment ([`crate::hooks`], `exec`).

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::FdFlags;
use rustix::net::{SocketType, sockopt};
use weft_stream::End;
use weft_sys::calls::socket_cookie;

use crate::reason::Reason;
use crate::stream::{Stream, borrow};
use crate::table::{self, Kind};
use crate::{process, settings};

/// Bytes of a directory's entries that are looked at together.
const LIST_LEN: usize = 2_048;

/// Which sockets a program gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heir<'a> {
    /// This process becomes the program.
    Self_,
    /// A child of `vfork` becomes the program: its descriptors are its own, but not its memory.
    Borrower,
    /// A child of this process's becomes the program. Beside what stays open it gets copies of
    /// these.
    Child(&'a [RawFd]),
}

/// Prepares this process's connections for a program that is about to start. Returns whether it has
/// to be one on Weft: bytes that have not been read are in memory.
pub(crate) fn prepare(heir: Heir<'_>) -> bool {
    if settings::is_confined() {
        return false;
    }
    match heir {
        Heir::Self_ => prepare_self(),
        Heir::Borrower => prepare_borrower(),
        Heir::Child(copies) => {
            let gets = |fd: RawFd| stays_open(fd) || copies.contains(&fd);
            let fds = table::within(0, u32::MAX).filter(|&fd| gets(fd));
            let mut rests = false;
            for fd in fds {
                with_stream(fd, |stream| rests |= start_with(stream, fd));
            }
            rests
        }
    }
}

/// The program has not started: this process is what it was.
pub(crate) fn take_back() {
    let mut lost = Vec::new();
    for fd in table::within(0, u32::MAX) {
        with_stream(fd, |stream| {
            if !stream.hold_again() {
                lost.push(fd);
            }
        });
    }
    // Both ends had been given up: what the kernel has of the connection is all there is.
    lost.into_iter().for_each(|fd| table::install(fd, Kind::Stream(Stream::kernels())));
}

fn prepare_self() -> bool {
    let mut rests = false;
    // First those that stay: of a socket with several descriptors one may.
    for fd in table::within(0, u32::MAX).filter(|&fd| stays_open(fd)) {
        with_stream(fd, |stream| {
            stream.hand_on(fd, Reason::Started);
            rests |= rest_of(stream, fd);
            stream.hand_over();
        });
    }
    for fd in table::within(0, u32::MAX).filter(|&fd| !stays_open(fd)) {
        with_stream(fd, |stream| stream.closing_by_exec(fd));
    }
    rests
}

/// The descriptors that this child has are not those of the table, which is the parent's.
fn prepare_borrower() -> bool {
    let (mut rests, mut is_any_unknown) = (false, false);
    let listed = for_each_open(|fd| {
        if !stays_open(fd) || sockopt::socket_type(borrow(fd)) != Ok(SocketType::STREAM) {
            return;
        }
        let Ok(cookie) = socket_cookie(borrow(fd)) else { return };
        let mut is_known = false;
        process::for_each_stream(|_, stream| {
            if stream.end().is_some_and(|end| end.cookie() == cookie) {
                is_known = true;
                rests |= start_with(stream, fd);
            }
        });
        is_any_unknown |= !is_known && process::is_internet(fd);
    });
    // A socket that has no end yet is known by its descriptor alone, which may be another one here.
    process::for_each_stream(|fd, stream| {
        let by_doubt = is_any_unknown && stream.end().is_none();
        if (by_doubt || !listed) && !stream.is_tcp() {
            rests |= start_with(stream, fd);
        }
    });
    rests
}

/// A child that nobody counts gets the socket. Whether something is left to be read from memory.
fn start_with(stream: &Stream, fd: RawFd) -> bool {
    stream.leave(fd, Reason::Started);
    let rests = rest_of(stream, fd);
    if rests && let Some(end) = stream.link() {
        end.pass_on();
    }
    rests
}

/// Whether a new program has something to read from memory. What it could not find there, and
/// nobody else could read, must not be missing from the stream: the connection is reset.
fn rest_of(stream: &Stream, fd: RawFd) -> bool {
    // Between hosts the window is this process's, which may go on reading.
    if stream.end().is_none() || !stream.has_rest() {
        return false;
    }
    if let Some(link) = stream.link() {
        link.hush(borrow(fd));
    }
    let is_lost = |end: &End| !end.can_be_found() && end.is_sole_holder();
    if stream.has_rest() && stream.end().is_some_and(is_lost) {
        let _ = rustix::net::connect_unspec(borrow(fd));
        return false;
    }
    stream.has_rest()
}

/// Whether a descriptor stays open when the process becomes another program.
pub(crate) fn stays_open(fd: RawFd) -> bool {
    rustix::io::fcntl_getfd(borrow(fd)).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

fn with_stream(fd: RawFd, act: impl FnOnce(&Stream)) {
    if let Some(held) = table::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        act(stream);
    }
}

/// Does something with each open descriptor of the calling process, without taking memory. `false`
/// if they could not be listed.
fn for_each_open(mut act: impl FnMut(RawFd)) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(list) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return false };
    let mut space = [MaybeUninit::<u8>::uninit(); LIST_LEN];
    let mut entries = RawDir::new(&list, &mut space);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        if let Ok(fd) = entry.file_name().to_str().unwrap_or_default().parse() {
            act(fd);
        }
    }
    true
}
