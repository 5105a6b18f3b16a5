//! The real kernel. Calls on the data path use [`weft_sys::system_call`]. Calls that stand for a
//! call of the program, and may sleep, use the C library's own functions.
//!
//! # Safety
//! The C library's functions get the addresses and lengths of local variables, which live until the
//! call returns.
#![allow(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, ssize_t, timespec};
use weft_stream::datagram::receiver_of;
use weft_sys::calls;
use weft_sys::calls::event::{PollFd, PollFlags};
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt::{self, Timeout};
use weft_sys::calls::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getpeername, getsockname, socket_with,
};
use weft_sys::calls::time::{ClockId, Timespec, clock_gettime};
use weft_sys::calls::{
    Sharing, file_flags, futex_wait, is_at_mark, poll, socket_cookie, socket_option,
    socket_timeout, take_events, tcp_received,
};
use weft_sys::{FutexWord, Linux, network_namespace};

use super::calls::Kernel;
use crate::next::next;
use crate::{address, errno};

impl Kernel for Linux {
    #[inline]
    fn now() -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }

    fn sleep_for(time: &Timespec) {
        let _ = calls::thread::nanosleep(time);
    }

    fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        getsockname(socket).ok()?.try_into().ok()
    }

    fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
        getpeername(socket).ok()??.try_into().ok()
    }

    fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: `getsockname` writes an address of at most the given length.
        let own = unsafe { named(fd, libc::getsockname) }?;
        // SAFETY: `getpeername` writes an address of at most the given length.
        Some((own, unsafe { named(fd, libc::getpeername) }?))
    }

    fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Result<(), Errno> {
        bind(socket, address)
    }

    fn source_towards(target: SocketAddr) -> Option<IpAddr> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        connect(&probe, &target).ok()?;
        let source: SocketAddr = getsockname(&probe).ok()?.try_into().ok()?;
        Some(source.ip())
    }

    fn receiver_of(from: SocketAddr, to: SocketAddr) -> Option<u64> {
        receiver_of(from, to).ok().flatten()
    }

    fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        socket_cookie(socket)
    }

    fn network_of(socket: BorrowedFd<'_>) -> u64 {
        network_namespace(socket)
    }

    fn inode(file: BorrowedFd<'_>) -> Option<u64> {
        calls::fs::fstat(file).ok().map(|status| status.st_ino)
    }

    fn is_open(file: BorrowedFd<'_>) -> bool {
        file_flags(file).is_ok()
    }

    #[inline]
    fn is_nonblocking(file: BorrowedFd<'_>) -> bool {
        file_flags(file).is_ok_and(|flags| flags.contains(calls::fs::OFlags::NONBLOCK))
    }

    fn is_listening(socket: BorrowedFd<'_>) -> bool {
        sockopt::socket_acceptconn(socket) == Ok(true)
    }

    fn is_at_mark(socket: BorrowedFd<'_>) -> bool {
        is_at_mark(socket)
    }

    #[inline]
    fn time_limit(socket: BorrowedFd<'_>, which: Timeout) -> Option<Duration> {
        socket_timeout(socket, which).ok().flatten()
    }

    fn option(socket: BorrowedFd<'_>, option: c_int) -> Result<c_int, Errno> {
        socket_option(socket, option)
    }

    fn take_error(socket: BorrowedFd<'_>) -> Option<Errno> {
        sockopt::socket_error(socket).ok()?.err()
    }

    fn received(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        tcp_received(socket)
    }

    #[inline]
    fn wait_for_bytes(socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let fd = socket.as_raw_fd();
        let mut byte = 0_u8;
        let place: *mut libc::c_void = (&raw mut byte).cast();
        let (len, flags) = (1_usize, libc::MSG_PEEK);
        let received: ssize_t = next!(recv(
            fd: RawFd, place: *mut libc::c_void, len: usize, flags: c_int
        ) -> ssize_t);
        if received < 0 { Err(errno::last()) } else { Ok(()) }
    }

    #[inline]
    fn poll(
        file: BorrowedFd<'_>,
        events: PollFlags,
        timeout: Option<&Timespec>,
    ) -> Result<PollFlags, Errno> {
        let mut set = [PollFd::from_borrowed_fd(file, events)];
        poll(&mut set, timeout)?;
        Ok(set[0].revents())
    }

    fn poll_as_program(set: &mut [pollfd], timeout: Option<&Timespec>) -> c_int {
        let timeout = timeout.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        let (set, count) = (set.as_mut_ptr(), set.len() as nfds_t);
        let timeout: *const timespec = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mask: *const sigset_t = ptr::null();
        next!(ppoll(
            set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
        ) -> c_int)
    }

    #[inline]
    fn wait_on_word(word: &AtomicU32, value: u32, time: &Timespec) -> Result<(), Errno> {
        futex_wait(word, Sharing::Processes, value, Some(time))
    }

    #[inline]
    fn wait_for_peer(word: FutexWord<'_>, time: &Timespec) -> Result<(), Errno> {
        word.wait(time)
    }

    #[inline]
    fn wait_for_peers<'a>(
        words: impl Iterator<Item = FutexWord<'a>>,
        until: &Timespec,
    ) -> Result<(), Errno> {
        FutexWord::wait_any(words, until)
    }

    fn control(epoll: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> c_int {
        let mut event = event;
        let place: *mut epoll_event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        next!(epoll_ctl(
            epoll: c_int, operation: c_int, fd: c_int, place: *mut epoll_event
        ) -> c_int)
    }

    fn take_events(epoll: BorrowedFd<'_>, events: &mut [epoll_event]) -> Result<usize, Errno> {
        take_events(epoll, events)
    }

    fn registrations(epoll: RawFd) -> String {
        weft_sys::read_text(&format!("/proc/self/fdinfo/{epoll}")).unwrap_or_default()
    }
}

type Name = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// Returns an address of a socket by a function of the C library.
///
/// # Safety
/// The function writes an address of at most the given length, and its full length.
unsafe fn named(fd: RawFd, function: Name) -> Option<SocketAddr> {
    // SAFETY: a structure of integers, for which zero is valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    let place: *mut libc::sockaddr = (&raw mut name).cast();
    let before = errno::get();
    // SAFETY: both pointers are to local variables, and `len` is the size of the first.
    if unsafe { function(fd, place, &raw mut len) } != 0 {
        errno::set_raw(before);
        return None;
    }
    // SAFETY: `name` is initialised, and has room for any address.
    unsafe { address::read(place, len) }
}
