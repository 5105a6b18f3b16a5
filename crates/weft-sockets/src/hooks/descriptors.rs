//! Closing and copying descriptors.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. `fcntl` and `ioctl` are variadic in C: the argument is declared here
//! and always handed on, present or not, in the register where it would be.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, c_ulong, c_void};
use rustix::io::Errno;
use std::os::fd::AsFd as _;
use weft_stream::Carrier;
use weft_sys::{apart_within, is_apart};

use super::closing::closing;
use super::files::check_stream;
use crate::arguments::is_nowhere;
use crate::births::Opening;
use crate::closes::UnderWay;
use crate::datagram::Why;
use crate::descriptor::{Descriptor, stays_open};
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::ways::{self, stdio};
use crate::{epoll, errno, identity, open};

/// Whether the next byte is the urgent one (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Switches signals for input and output (asm-generic/ioctls.h).
const FIOASYNC: c_ulong = 0x5452;

/// Signals for input and output (`O_ASYNC`) are the kernel's, and so is a socket that has them.
fn becomes_signal_driven(fd: c_int) {
    let Some(held) = sockets::find(fd) else { return };
    match &*held {
        Kind::Stream(stream) => {
            stream.leave(fd, Reason::Signals);
            stream.tell(fd);
        }
        Kind::Datagram(datagram) => datagram.leave(Why::Option),
    }
}

/// `fcntl(2)` is about to be called.
fn wants_signals(fd: c_int, command: c_int, argument: *mut c_void) {
    if command == libc::F_SETFL && argument as usize & libc::O_ASYNC as usize != 0 {
        becomes_signal_driven(fd);
    }
}

/// `copy` has been made from `fd`.
fn copied(fd: c_int, copy: c_int, opening: &Opening) {
    if copy < 0 || copy == fd || identity::is_borrowed() {
        return;
    }
    // What the number was has been closed behind our back.
    epoll::forget_number(copy);
    match sockets::find(fd) {
        Some(held) => {
            sockets::share(&held, copy);
            if let Kind::Stream(stream) = &*held
                && opening.is_beside_start(|| stays_open(copy))
            {
                stream.leave(copy, Reason::Started); // The program may have got this copy alone.
            }
            check_stream(copy);
        }
        None => {
            drop(sockets::remove(copy));
            epoll::copied(fd, copy);
        }
    }
}

/// A close or a copy of these begins, if one of them is ours.
fn begin(fds: &[c_int]) -> UnderWay {
    UnderWay::begin(fds.iter().any(|&fd| open::knows(fd)) && !identity::is_borrowed())
}

/// A copy of a descriptor, from before the kernel makes it until the table knows of it.
struct Copying {
    fd: c_int,
    opening: Opening,
    _under_way: UnderWay,
}

impl Copying {
    /// `fd` is about to be copied to a free number.
    fn begin(fd: c_int) -> Self {
        let under_way = begin(&[fd]);
        Self { fd, opening: Opening::begin(), _under_way: under_way }
    }

    /// `dup2(2)` or `dup3(2)` is about to copy `fd` to the number `copy`, which may be in use.
    fn begin_to(fd: c_int, copy: c_int, flags: c_int) -> Self {
        let under_way = begin(&[fd, copy]);
        replacing(fd, copy, flags);
        stdio::copying(fd, copy);
        Self { fd, opening: Opening::begin(), _under_way: under_way }
    }

    /// `fcntl(2)` is about to be called, which copies `fd` by some of its commands.
    fn begin_if_command(fd: c_int, command: c_int) -> Option<Self> {
        let copies = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
        copies.then(|| Self::begin(fd))
    }

    /// The call has returned `result`, a number or an error. Returns it.
    fn end(self, result: c_int) -> c_int {
        copied(self.fd, result, &self.opening);
        result
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_apart(fd) && !identity::is_borrowed() {
        return errno::fail(Errno::BADF); // The program has not opened it.
    }
    let _under_way = begin(&[fd]);
    closing(fd);
    next!(close(fd: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    if first <= last && flags & UNSHARE != 0 {
        ways::process::unsharing(libc::CLONE_FILES); // Other threads keep theirs.
    }
    let closes = first <= last && flags & CLOEXEC == 0;
    let is_any_ours = closes && open::within(first, last).next().is_some();
    let _under_way = UnderWay::begin(is_any_ours && !identity::is_borrowed());
    if closes {
        open::within(first, last).for_each(closing);
    }
    let mut first = first;
    if flags == 0 && !identity::is_borrowed() {
        for own in apart_within(first, last) {
            if own > first {
                let last = own - 1;
                next!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int);
            }
            if own == last {
                return 0;
            }
            first = own + 1;
        }
    }
    next!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: it takes numbers alone.
    let _ = unsafe { close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let copying = Copying::begin(fd);
    copying.end(next!(dup(fd: c_int) -> c_int))
}

/// `dup2(2)` or `dup3(2)` is about to give the number `copy` to another file, which closes what it
/// was. What the kernel would refuse changes nothing (do_dup2, ksys_dup3). It refuses a number that
/// another thread is just opening, too, which none is that the table has.
fn replacing(fd: c_int, copy: c_int, flags: c_int) {
    if fd < 0 || fd == copy || !open::knows(copy) || flags & !libc::O_CLOEXEC != 0 {
        return;
    }
    let before = errno::get();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let is_within = limit.is_none_or(|limit| u64::from(copy.unsigned_abs()) < limit);
    if is_within && is_open(fd) {
        closing(copy);
    }
    errno::set_raw(before);
}

fn is_open(fd: c_int) -> bool {
    rustix::io::fcntl_getfd(Descriptor::of(fd)).is_ok()
}

/// Whether a copy of `fd` cannot have the number `copy`, which is Weft's: as beside an `open` that
/// is about to get it.
fn is_taken(fd: c_int, copy: c_int) -> bool {
    is_apart(copy) && fd >= 0 && is_open(fd) && !identity::is_borrowed()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, copy: c_int) -> c_int {
    if is_taken(fd, copy) {
        return errno::fail(Errno::BUSY);
    }
    let copying = Copying::begin_to(fd, copy, 0);
    copying.end(next!(dup2(fd: c_int, copy: c_int) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    if is_taken(fd, copy) {
        return errno::fail(Errno::BUSY);
    }
    let copying = Copying::begin_to(fd, copy, flags);
    copying.end(next!(dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    wants_signals(fd, command, argument);
    let copying = Copying::begin_if_command(fd, command);
    let result = next!(fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    copying.map_or(result, |copying| copying.end(result))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    wants_signals(fd, command, argument);
    let copying = Copying::begin_if_command(fd, command);
    let result = next!(fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    copying.map_or(result, |copying| copying.end(result))
}

/// What `ioctl(2)` tells of a socket of ours; `None`: the kernel does.
fn amount(fd: c_int, request: c_ulong) -> Option<usize> {
    if ![libc::FIONREAD, libc::TIOCOUTQ, SIOCATMARK].contains(&request) {
        return None;
    }
    let held = sockets::find(fd)?;
    let stream = match &*held {
        Kind::Stream(stream) => stream,
        Kind::Datagram(datagram) if request == libc::FIONREAD => return datagram.next_len(),
        _ => return None,
    };
    let end = stream.link()?;
    end.drain_wakeups_if_left(Descriptor::of(fd).as_fd());
    match request {
        libc::FIONREAD => end.all_unread(Descriptor::of(fd).as_fd()),
        // Urgent bytes come over TCP, behind what the rings have.
        SIOCATMARK => (end.unread() > 0).then_some(0),
        // What the peer has not read is with the peer: the rings keep nothing back.
        _ => (end.carrier_out() == Carrier::Memory).then_some(0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_nowhere(argument)
        && let Some(amount) = amount(fd, request)
    {
        let amount = c_int::try_from(amount).unwrap_or(c_int::MAX);
        // SAFETY: the program's place for the answer.
        unsafe { argument.cast::<c_int>().write_unaligned(amount) };
        return 0;
    }
    if request == FIOASYNC
        && sockets::knows(fd)
        && !is_nowhere(argument)
        // SAFETY: the program's place for the switch.
        && unsafe { argument.cast::<c_int>().read_unaligned() } != 0
    {
        becomes_signal_driven(fd);
    }
    next!(ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut answer: c_int = 0;
    // SAFETY: the place for the answer is a local variable.
    let result = unsafe { ioctl(fd, SIOCATMARK, (&raw mut answer).cast()) };
    if result < 0 { result } else { answer }
}
