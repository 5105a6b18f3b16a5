//! Hooks of the calls that close and duplicate descriptors.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. `fcntl` and `ioctl` are variadic in C: the argument is always declared
//! and passed on here, in the register where it would be. The code in assembly changes a register
//! for arguments that `close` does not have.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, c_ulong, c_void};
use std::arch::naked_asm;
use std::os::fd::AsFd as _;
use weft_stream::Carrier;
use weft_sys::calls;
use weft_sys::calls::io::Errno;
use weft_sys::{Uncancelled, apart_within, is_apart, test_cancel};

use super::close::close_uncancelled;
use super::closing::closing;
use super::files::check_stream;
use super::flags::{becomes_signal_driven, sets_flags};
use crate::arguments::is_nowhere;
use crate::child_starts::Opening;
use crate::closes::UnderWay;
use crate::descriptor::{Descriptor, stays_open};
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::ways::{self, stdio};
use crate::{by_hand, epoll, errno, identity, open};

/// Asks whether the next byte is the urgent one (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Turns signal-driven input and output on or off (asm-generic/ioctls.h).
const FIOASYNC: c_ulong = 0x5452;

/// Records that `copy` is a duplicate of `fd`.
fn copied(fd: c_int, copy: c_int, opening: &Opening) {
    if copy < 0 || copy == fd || identity::is_borrowed() {
        return;
    }
    // The number's earlier file has been closed unseen.
    epoll::forget_number(copy);
    match sockets::find(fd) {
        Some(held) => {
            sockets::share(&held, copy);
            if let Kind::Stream(stream) = &*held
                && opening.is_beside_start(|| stays_open(copy))
            {
                // A new program may have inherited only this copy.
                stream.fall_back_to_tcp(copy, Reason::Started);
            }
            check_stream(copy);
        }
        None => {
            drop(sockets::remove(copy));
            epoll::copied(fd, copy);
        }
    }
}

/// Begins a close or a copy of these descriptors, if one of them is Weft's.
fn begin(fds: &[c_int]) -> UnderWay {
    UnderWay::begin(fds.iter().any(|&fd| open::knows(fd)) && !identity::is_borrowed())
}

/// A duplication, from before the kernel makes the copy until the table has it.
struct Copying {
    fd: c_int,
    opening: Opening,
    _under_way: UnderWay,
}

impl Copying {
    /// Begins to duplicate `fd` to a free number.
    fn begin(fd: c_int) -> Self {
        let under_way = begin(&[fd]);
        Self { fd, opening: Opening::begin(), _under_way: under_way }
    }

    /// Begins a `dup2(2)` or `dup3(2)` of `fd` to the number `copy`, which may be in use.
    fn begin_to(fd: c_int, copy: c_int, flags: c_int) -> Self {
        let under_way = begin(&[fd, copy]);
        replacing(fd, copy, flags);
        stdio::copying(fd, copy);
        Self { fd, opening: Opening::begin(), _under_way: under_way }
    }

    /// Begins an `fcntl(2)`, if its command duplicates `fd`.
    fn begin_if_command(fd: c_int, command: c_int) -> Option<Self> {
        let copies = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
        copies.then(|| Self::begin(fd))
    }

    /// Ends the duplication with the call's `result`, a number or an error. Returns it.
    fn end(self, result: c_int) -> c_int {
        copied(self.fd, result, &self.opening);
        result
    }
}

/// Passes on where the call comes from: the address on top of the stack.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    naked_asm!("mov rsi, [rsp]", "jmp {close}", close = sym close_for)
}

/// Executes `close(2)` for a caller at this address.
///
/// The program's call is a cancellation point. Weft's own is none: a descriptor may be dropped
/// while a lock is held, which a cancelled thread would never free, and in calls that are no
/// cancellation points.
unsafe extern "C-unwind" fn close_for(fd: c_int, caller: usize) -> c_int {
    let is_programs = !by_hand::is_own_code(caller);
    if is_programs {
        test_cancel();
    }
    // From here on the descriptor is closed: a thread cancelled before the kernel's call would
    // leave it open, and its connection half closed.
    let uncancelled = (!is_programs || open::knows(fd)).then(Uncancelled::begin);
    let result = close_uncancelled(fd);
    drop(uncancelled);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    let is_refused = first > last || flags & !(UNSHARE | CLOEXEC) != 0;
    if !is_refused && flags & UNSHARE != 0 {
        ways::process::unsharing(libc::CLONE_FILES); // Other threads keep their table.
    }
    let closes = !is_refused && flags & CLOEXEC == 0;
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
    // SAFETY: it takes no pointers.
    let _ = unsafe { close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let copying = Copying::begin(fd);
    copying.end(next!(dup(fd: c_int) -> c_int))
}

/// Handles the close of the file that has the number `copy`, which a `dup2(2)` or `dup3(2)` is
/// about to replace. Nothing changes if the kernel would refuse the call (do_dup2, ksys_dup3). The
/// kernel also refuses a number that another thread is just opening, but such a number is not in
/// the table yet.
fn replacing(fd: c_int, copy: c_int, flags: c_int) {
    if fd < 0 || fd == copy || !open::knows(copy) || flags & !libc::O_CLOEXEC != 0 {
        return;
    }
    let before = errno::get();
    let limit = calls::process::getrlimit(calls::process::Resource::Nofile).current;
    let is_within = limit.is_none_or(|limit| u64::from(copy.unsigned_abs()) < limit);
    if is_within && is_open(fd) {
        closing(copy);
    }
    errno::set_raw(before);
}

fn is_open(fd: c_int) -> bool {
    calls::io::fcntl_getfd(Descriptor::of(fd)).is_ok()
}

/// Returns whether `copy` is a number that Weft uses, so that no copy of `fd` can have it. The call
/// fails with `EBUSY`, as it does for a number that an `open` is about to get.
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
    sets_flags(fd, command, argument);
    let copying = Copying::begin_if_command(fd, command);
    let result = next!(fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    copying.map_or(result, |copying| copying.end(result))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    sets_flags(fd, command, argument);
    let copying = Copying::begin_if_command(fd, command);
    let result = next!(fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int);
    copying.map_or(result, |copying| copying.end(result))
}

/// Returns the answer of an `ioctl(2)` on a known socket. `None`: the kernel is to answer.
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
        // Urgent bytes come over TCP, behind those in the rings.
        SIOCATMARK => (end.unread() > 0).then_some(0),
        // Unread bytes are in the peer's ring already: the send queue is empty.
        _ => (end.carrier_out() == Carrier::Memory).then_some(0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_nowhere(argument)
        && let Some(amount) = amount(fd, request)
    {
        let amount = c_int::try_from(amount).unwrap_or(c_int::MAX);
        // SAFETY: the program passes a valid place for the answer.
        unsafe { argument.cast::<c_int>().write_unaligned(amount) };
        return 0;
    }
    if request == FIOASYNC
        && sockets::knows(fd)
        && !is_nowhere(argument)
        // SAFETY: the program passes a valid place for the argument.
        && unsafe { argument.cast::<c_int>().read_unaligned() } != 0
    {
        becomes_signal_driven(fd);
    }
    next!(ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut answer: c_int = 0;
    // SAFETY: the answer goes to a local variable.
    let result = unsafe { ioctl(fd, SIOCATMARK, (&raw mut answer).cast()) };
    if result < 0 { result } else { answer }
}
