//! Closing and copying descriptors.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. `fcntl` and `ioctl` are variadic in C: the argument is declared here
//! and always handed on, present or not, in the register where it would be.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_uint, c_ulong, c_void};
use rustix::event::Timespec;
use rustix::io::Errno;
use weft_stream::Carrier;
use weft_sys::{apart_within, is_apart};

use super::data::is_nowhere;
use crate::datagram::Why;
use crate::next::next;
use crate::reason::Reason;
use crate::stream::borrow;
use crate::table::{self, Kind};
use crate::ways::{self, stdio};
use crate::{epoll, errno, process, settings};

/// Whether the next byte is the urgent one (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Switches signals for input and output (asm-generic/ioctls.h).
const FIOASYNC: c_ulong = 0x5452;

/// A descriptor is about to be closed.
pub(super) fn closing(fd: c_int) {
    if !table::knows(fd) || process::is_borrowed() {
        return;
    }
    let before = errno::get();
    let Some(held) = table::remove(fd) else { return };
    let last = held.descriptors() == 0;
    match &*held {
        Kind::Stream(stream) => {
            closing_watched(&held, fd, stream.watches());
            if last && !settings::is_confined() {
                stream.closing(fd);
            }
        }
        Kind::Datagram(datagram) => {
            closing_watched(&held, fd, datagram.watches());
            if last {
                datagram.closing(fd);
            }
        }
        Kind::Epoll(instance) => epoll::closing(&held, instance, fd),
    }
    errno::set_raw(before);
}

/// Tells the epoll instances that watch it.
fn closing_watched(held: &table::Held, fd: c_int, watches: &AtomicU32) {
    if watches.load(Ordering::Relaxed) == 0 {
        return;
    }
    if held.descriptors() == 0 {
        epoll::forget(held);
    } else if let Some(other) = another(held) {
        epoll::go_by(held, fd, other);
    }
}

/// Signals for input and output (`O_ASYNC`) are the kernel's, and so is a socket that has them.
fn becomes_signal_driven(fd: c_int) {
    let Some(held) = table::find(fd) else { return };
    match &*held {
        Kind::Stream(stream) => {
            stream.leave(fd, Reason::Signals);
            stream.tell(fd);
        }
        Kind::Datagram(datagram) => datagram.leave(Why::Option),
        Kind::Epoll(_) => {}
    }
}

/// `fcntl(2)` is about to be called.
fn wants_signals(fd: c_int, command: c_int, argument: *mut c_void) {
    if command == libc::F_SETFL && argument as usize & libc::O_ASYNC as usize != 0 {
        becomes_signal_driven(fd);
    }
}

/// Another descriptor of the same open file.
fn another(held: &table::Held) -> Option<c_int> {
    table::within(0, c_uint::MAX).find(|&fd| table::find(fd).is_some_and(|other| other.is(held)))
}

/// `copy` has been made from `fd`.
fn copied(fd: c_int, copy: c_int) {
    if copy < 0 || copy == fd || process::is_borrowed() {
        return;
    }
    match table::find(fd) {
        Some(held) => {
            table::share(&held, copy);
            stdio::check(copy);
        }
        None if table::knows(copy) => drop(table::remove(copy)),
        None => {}
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_apart(fd) && !process::is_borrowed() {
        return errno::fail(Errno::BADF); // The program has not opened it.
    }
    let _under_way = UnderWay::begin(fd);
    closing(fd);
    next!(close(fd: c_int) -> c_int)
}

/// Closes of sockets of ours that have begun and not ended.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// A close, from before the table forgets the descriptor until the kernel has.
struct UnderWay(bool);

impl UnderWay {
    fn begin(fd: c_int) -> Self {
        let is_ours = table::knows(fd) && !process::is_borrowed();
        if is_ours {
            UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        }
        Self(is_ours)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0 {
            UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// This is a child just born: other threads, and what they close, are the parent's.
pub(crate) fn forked() {
    UNDER_WAY.store(0, Ordering::Relaxed);
}

/// This process is about to become another program, and all that is in its table is prepared. What
/// another thread is about to close is not, and is to be closed before. One that lingers is closed
/// already, and one that a handler of a signal has interrupted does not end before the call: so the
/// wait is short.
pub(super) fn wait_for_closes() {
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    const NAPS_MAX: u32 = 1_000;
    for _ in 0..NAPS_MAX {
        if UNDER_WAY.load(Ordering::Acquire) == 0 {
            return;
        }
        let _ = rustix::thread::nanosleep(&NAP);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    if first <= last && flags & UNSHARE != 0 {
        ways::process::unsharing(libc::CLONE_FILES); // Other threads keep theirs.
    }
    if first <= last && flags & CLOEXEC == 0 {
        table::within(first, last).for_each(closing);
    }
    let mut first = first;
    if flags == 0 && !process::is_borrowed() {
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
    let copy = next!(dup(fd: c_int) -> c_int);
    copied(fd, copy);
    copy
}

/// `dup2(2)` or `dup3(2)` is about to give the number `copy` to another file, which closes what it
/// was. What the kernel would refuse changes nothing (do_dup2, ksys_dup3). It refuses a number that
/// another thread is just opening, too, which none is that the table has.
fn replacing(fd: c_int, copy: c_int, flags: c_int) {
    if fd < 0 || fd == copy || !table::knows(copy) || flags & !libc::O_CLOEXEC != 0 {
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
    rustix::io::fcntl_getfd(borrow(fd)).is_ok()
}

/// Whether a copy of `fd` cannot have the number `copy`, which is Weft's: as beside an `open` that
/// is about to get it.
fn is_taken(fd: c_int, copy: c_int) -> bool {
    is_apart(copy) && fd >= 0 && is_open(fd) && !process::is_borrowed()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, copy: c_int) -> c_int {
    if is_taken(fd, copy) {
        return errno::fail(Errno::BUSY);
    }
    replacing(fd, copy, 0);
    stdio::copying(fd, copy);
    let made = next!(dup2(fd: c_int, copy: c_int) -> c_int);
    copied(fd, made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    if is_taken(fd, copy) {
        return errno::fail(Errno::BUSY);
    }
    replacing(fd, copy, flags);
    stdio::copying(fd, copy);
    let made = next!(dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int);
    copied(fd, made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    wants_signals(fd, command, argument);
    let result = next!(fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        copied(fd, result);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    wants_signals(fd, command, argument);
    let result = next!(fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        copied(fd, result);
    }
    result
}

/// What `ioctl(2)` tells of a socket of ours; `None`: the kernel does.
fn amount(fd: c_int, request: c_ulong) -> Option<usize> {
    if ![libc::FIONREAD, libc::TIOCOUTQ, SIOCATMARK].contains(&request) {
        return None;
    }
    let held = table::find(fd)?;
    let stream = match &*held {
        Kind::Stream(stream) => stream,
        Kind::Datagram(datagram) if request == libc::FIONREAD => return datagram.next_len(),
        _ => return None,
    };
    let end = stream.link()?;
    end.hush_if_left(borrow(fd));
    match request {
        libc::FIONREAD => end.all_unread(borrow(fd)),
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
        && table::knows(fd)
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
