//! The C functions of `weft_socket.h`, and the socket options by which programs get them.
//!
//! # Safety
//! Each function has the signature that the header declares. The program guarantees that its
//! pointers are valid; NULL is refused where a pointer is required.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, RawFd};
use std::time::Duration;

use libc::{c_int, c_void, iovec, size_t, socklen_t};
use weft_extended::abi::{
    Calls, Completion, Key, Operation, WEFT_ATOMIC, WEFT_CALLS, WEFT_MODE, WEFT_READ, WEFT_VERSION,
    WEFT_WRITE,
};
use weft_stream::GrantId;
use weft_sys::Region;
use weft_sys::calls::io::Errno;

use super::extended_switch::{SLEEP_MIN, switch};
use crate::descriptor::Descriptor;
use crate::extended::onesided::Target;
use crate::extended::queue::{Transfer, Work};
use crate::extended::{Extended, memory, onesided};
use crate::kernel::End;
use crate::limits::SWITCH_SLEEP_MAX;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{errno, wait};

/// How long a revocation waits for an operation in progress.
const REVOKE_LIMIT: Duration = Duration::from_secs(2);
/// The same once the peer is gone: it died in the middle, or one of its threads is still copying.
const REVOKE_OF_GONE_LIMIT: Duration = Duration::from_millis(100);

static CALLS: Calls = Calls {
    version: WEFT_VERSION,
    #[allow(clippy::cast_possible_truncation)] // Asserted where the type is defined.
    size: size_of::<Calls>() as u32,
    allocate,
    release,
    register_memory,
    deregister,
    put,
    get,
    fetch_add,
    compare_swap,
    post_put,
    post_get,
    post_fetch_add,
    post_compare_swap,
    post_send,
    post_recv,
    poll,
    wait: wait_for,
};

const _: () = assert!(weft_stream::limits::GRANTS_MAX == weft_extended::abi::WEFT_KEYS_MAX);

/// Executes `setsockopt(2)` at Weft's level. `None`: the socket is not known, and the kernel is to
/// refuse the option.
///
/// # Safety
/// The program passes a value of `len` bytes.
pub(crate) unsafe fn set_option(
    fd: RawFd,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Option<c_int> {
    let held = sockets::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if name != WEFT_MODE {
        return Some(errno::fail(Errno::NOPROTOOPT));
    }
    if value.is_null() || (len as usize) < size_of::<c_int>() {
        return Some(errno::fail(Errno::INVAL));
    }
    // SAFETY: the program says that the value has at least the size of an integer.
    let wanted = unsafe { value.cast::<c_int>().read_unaligned() };
    if wanted != 1 {
        return Some(errno::fail(Errno::INVAL));
    }
    Some(switch(stream, fd).map_or_else(errno::fail, |()| 0))
}

/// Executes `getsockopt(2)` at Weft's level. `None`: the socket is not known, and the kernel is to
/// refuse the option.
///
/// # Safety
/// `value` and `len` are the program's pointers.
pub(crate) unsafe fn get_option(
    fd: RawFd,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<c_int> {
    let held = sockets::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if value.is_null() || len.is_null() {
        return Some(errno::fail(Errno::FAULT));
    }
    // SAFETY: not NULL, so the program passes a valid pointer.
    let room = unsafe { *len } as usize;
    let extended = stream.extended().is_some();
    match name {
        WEFT_MODE if room >= size_of::<c_int>() => {
            // SAFETY: the program says that there is room for it.
            unsafe { value.cast::<c_int>().write_unaligned(extended.into()) };
            // SAFETY: not NULL, so the program passes a valid pointer.
            unsafe { *len = 4 };
        }
        WEFT_CALLS if room >= size_of::<*const Calls>() && extended => {
            // SAFETY: the program says that there is room for it.
            unsafe { value.cast::<*const Calls>().write_unaligned(&raw const CALLS) };
            // SAFETY: not NULL, so the program passes a valid pointer.
            unsafe { *len = 8 };
        }
        WEFT_CALLS if !extended => return Some(errno::fail(Errno::OPNOTSUPP)),
        WEFT_MODE | WEFT_CALLS => return Some(errno::fail(Errno::INVAL)),
        _ => return Some(errno::fail(Errno::NOPROTOOPT)),
    }
    Some(0)
}

/// A socket in extended mode.
struct Socket<'a> {
    fd: RawFd,
    stream: &'a Stream,
    end: &'a End,
    extended: &'a Extended,
}

impl<'a> Socket<'a> {
    fn target(&self, key: Key, offset: u64) -> Target<'a> {
        Target { fd: self.fd, end: self.end, key, offset }
    }
}

/// Calls `act` with the socket of `fd`, and returns the result for C.
fn with(fd: RawFd, act: impl FnOnce(&Socket<'_>) -> Result<c_int, Errno>) -> c_int {
    let acted = sockets::find(fd).map_or(Err(Errno::OPNOTSUPP), |held| match &*held {
        Kind::Stream(stream) => match (stream.end(), stream.extended()) {
            (Some(end), Some(extended)) => act(&Socket { fd, stream, end, extended }),
            _ => Err(Errno::OPNOTSUPP),
        },
        Kind::Datagram(_) => Err(Errno::OPNOTSUPP),
    });
    acted.unwrap_or_else(code)
}

fn code(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

/// # Safety
/// `key` is NULL, or the program's key.
unsafe fn read_key(key: *const Key) -> Result<Key, Errno> {
    if key.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not NULL, so the caller guarantees a valid key.
    Ok(unsafe { key.read_unaligned() })
}

/// # Safety
/// The buffer is valid during the current call.
unsafe fn region(place: *const c_void, len: size_t) -> Result<Region, Errno> {
    // SAFETY: the caller guarantees a buffer that is valid during the call.
    unsafe { Region::new(place as usize, len) }.ok_or(Errno::INVAL)
}

unsafe extern "C" fn allocate(len: size_t, to: *mut *mut c_void) -> c_int {
    if to.is_null() {
        return code(Errno::INVAL);
    }
    match memory::allocate(len) {
        Ok(addr) => {
            // SAFETY: the program's own place.
            unsafe { *to = addr as *mut c_void };
            0
        }
        Err(errno) => code(errno),
    }
}

unsafe extern "C" fn release(memory: *mut c_void) -> c_int {
    memory::release(memory as usize).map_or_else(code, |()| 0)
}

unsafe extern "C" fn register_memory(
    fd: c_int,
    memory: *mut c_void,
    len: size_t,
    rights: u32,
    key: *mut Key,
) -> c_int {
    with(fd, |socket| {
        const ALL: u32 = WEFT_READ | WEFT_WRITE | WEFT_ATOMIC;
        if key.is_null() || len == 0 || rights == 0 || rights & !ALL != 0 {
            return Err(Errno::INVAL);
        }
        let grant = memory::describe(memory as usize, len, rights)?;
        let id = socket.end.own_grants().add(&grant).ok_or(Errno::NOSPC)?;
        let made = Key { secret: id.secret, length: len as u64, index: id.index, rights };
        // SAFETY: the program's own place.
        unsafe { key.write_unaligned(made) };
        Ok(0)
    })
}

unsafe extern "C" fn deregister(fd: c_int, key: *const Key) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        let id = GrantId { index: key.index, secret: key.secret };
        let grants = socket.end.own_grants();
        if !grants.revoke(id) {
            return Err(Errno::NOKEY);
        }
        let began = wait::now();
        let mut sleep_time = SLEEP_MIN;
        while grants.is_in_use(id) {
            let waited = Duration::from_nanos(wait::now() - began);
            if waited >= REVOKE_OF_GONE_LIMIT && onesided::is_gone(fd, socket.end) {
                return Ok(0);
            }
            if waited >= REVOKE_LIMIT {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(sleep_time);
            sleep_time = (sleep_time * 2).min(SWITCH_SLEEP_MAX);
        }
        Ok(0)
    })
}

unsafe extern "C" fn put(
    fd: c_int,
    key: *const Key,
    offset: u64,
    from: *const c_void,
    len: size_t,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        // SAFETY: the program's own buffer, which is only read.
        let from = unsafe { region(from, len) }?;
        socket.extended.peer.put(socket.target(key, offset), [from].into_iter()).map(|_| 0)
    })
}

unsafe extern "C" fn get(
    fd: c_int,
    key: *const Key,
    offset: u64,
    to: *mut c_void,
    len: size_t,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        // SAFETY: the program's own buffer.
        let to = unsafe { region(to, len) }?;
        socket.extended.peer.get(socket.target(key, offset), [to].into_iter()).map(|_| 0)
    })
}

unsafe extern "C" fn fetch_add(
    fd: c_int,
    key: *const Key,
    offset: u64,
    add: u64,
    before: *mut u64,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        let found = socket.extended.peer.fetch_add(socket.target(key, offset), add)?;
        // SAFETY: the program's own place.
        unsafe { store_old_value(before, found) };
        Ok(0)
    })
}

unsafe extern "C" fn compare_swap(
    fd: c_int,
    key: *const Key,
    offset: u64,
    expected: u64,
    value: u64,
    before: *mut u64,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        let target = socket.target(key, offset);
        let found = socket.extended.peer.compare_swap(target, expected, value)?;
        // SAFETY: the program's own place.
        unsafe { store_old_value(before, found) };
        Ok(0)
    })
}

/// # Safety
/// `place` is NULL, or the program's place for a word.
unsafe fn store_old_value(place: *mut u64, word: u64) {
    if !place.is_null() {
        // SAFETY: not NULL, so the caller guarantees a valid place.
        unsafe { place.write_unaligned(word) };
    }
}

/// Executes an operation and queues its completion.
fn post(
    socket: &Socket<'_>,
    operation: Operation,
    id: u64,
    act: impl FnOnce() -> Result<(usize, u64), Errno>,
) -> Result<c_int, Errno> {
    if !socket.extended.work.lock().own().has_room() {
        return Err(Errno::AGAIN);
    }
    let result = act();
    socket.extended.work.lock().own().complete(operation, id, result);
    Ok(0)
}

unsafe extern "C" fn post_put(
    fd: c_int,
    key: *const Key,
    offset: u64,
    pieces: *const iovec,
    count: c_int,
    id: u64,
) -> c_int {
    // SAFETY: the program guarantees a valid key and list.
    unsafe { post_copy(fd, Operation::Put, (key, offset), (pieces, count), id) }
}

unsafe extern "C" fn post_get(
    fd: c_int,
    key: *const Key,
    offset: u64,
    pieces: *const iovec,
    count: c_int,
    id: u64,
) -> c_int {
    // SAFETY: the program guarantees a valid key and list.
    unsafe { post_copy(fd, Operation::Get, (key, offset), (pieces, count), id) }
}

/// Posts a copy between a list of the program's buffers and the peer's memory.
///
/// # Safety
/// Key and list are valid, as the program's call guarantees.
unsafe fn post_copy(
    fd: c_int,
    operation: Operation,
    (key, offset): (*const Key, u64),
    (pieces, count): (*const iovec, c_int),
    id: u64,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the caller guarantees a valid key.
        let key = unsafe { read_key(key) }?;
        // SAFETY: the caller guarantees a valid list, which is used only during this call.
        let list = unsafe { Transfer::new(pieces, count, id) }.ok_or(Errno::INVAL)?;
        let buffers = list.buffers().ok_or(Errno::INVAL)?;
        let place = socket.target(key, offset);
        post(socket, operation, id, || {
            let (peer, regions) = (&socket.extended.peer, buffers.regions());
            let copied = match operation {
                Operation::Get => peer.get(place, regions),
                _ => peer.put(place, regions),
            };
            Ok((copied?, 0))
        })
    })
}

unsafe extern "C" fn post_fetch_add(
    fd: c_int,
    key: *const Key,
    offset: u64,
    add: u64,
    id: u64,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        let target = socket.target(key, offset);
        post(socket, Operation::FetchAdd, id, || {
            Ok((size_of::<u64>(), socket.extended.peer.fetch_add(target, add)?))
        })
    })
}

unsafe extern "C" fn post_compare_swap(
    fd: c_int,
    key: *const Key,
    offset: u64,
    expected: u64,
    value: u64,
    id: u64,
) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program's own key.
        let key = unsafe { read_key(key) }?;
        let target = socket.target(key, offset);
        post(socket, Operation::CompareSwap, id, || {
            let found = socket.extended.peer.compare_swap(target, expected, value)?;
            Ok((size_of::<u64>(), found))
        })
    })
}

/// Makes as much progress as possible on posted operations without blocking.
fn progress(work: &mut Work, stream: &Stream, fd: c_int) {
    const SEND: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    const RECV: c_int = libc::MSG_DONTWAIT;
    work.progress(
        |rest| {
            stream
                .send(fd, rest, SEND)
                .unwrap_or_else(|| rest.send(Descriptor::of(fd).as_fd(), SEND))
        },
        |rest| {
            stream
                .recv(fd, rest, RECV)
                .unwrap_or_else(|| rest.recv(Descriptor::of(fd).as_fd(), RECV))
        },
    );
}

unsafe extern "C" fn post_send(fd: c_int, pieces: *const iovec, count: c_int, id: u64) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program keeps the list's buffers valid until it takes the completion.
        let transfer = unsafe { Transfer::new(pieces, count, id) }.ok_or(Errno::INVAL)?;
        let mut work = socket.extended.work.lock();
        let work = work.own();
        if !work.has_room() {
            return Err(Errno::AGAIN);
        }
        work.send(transfer);
        progress(work, socket.stream, fd);
        Ok(0)
    })
}

unsafe extern "C" fn post_recv(fd: c_int, pieces: *const iovec, count: c_int, id: u64) -> c_int {
    with(fd, |socket| {
        // SAFETY: the program keeps the list's buffers valid until it takes the completion.
        let transfer = unsafe { Transfer::new(pieces, count, id) }.ok_or(Errno::INVAL)?;
        let mut work = socket.extended.work.lock();
        let work = work.own();
        if !work.has_room() {
            return Err(Errno::AGAIN);
        }
        work.receive(transfer);
        progress(work, socket.stream, fd);
        Ok(0)
    })
}

/// Moves completions to the program's list. Returns how many, and whether sends and receives are
/// pending.
///
/// # Safety
/// `to` has room for `max` completions.
unsafe fn take(socket: &Socket<'_>, to: *mut Completion, max: c_int) -> (c_int, (bool, bool)) {
    let mut work = socket.extended.work.lock();
    let work = work.own();
    progress(work, socket.stream, socket.fd);
    let mut count = 0;
    while count < max
        && let Some(completion) = work.take()
    {
        // SAFETY: `count` is below `max`, for which there is room.
        let place = unsafe { to.add(count.unsigned_abs() as usize) };
        // SAFETY: the place is inside the program's list.
        unsafe { place.write(completion) };
        count += 1;
    }
    (count, work.is_pending())
}

unsafe extern "C" fn poll(fd: c_int, to: *mut Completion, max: c_int) -> c_int {
    with(fd, |socket| {
        if to.is_null() || max <= 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's list has room for `max` completions.
        Ok(unsafe { take(socket, to, max) }.0)
    })
}

unsafe extern "C" fn wait_for(
    fd: c_int,
    to: *mut Completion,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    const MS: u64 = 1_000_000;
    with(fd, |socket| {
        if to.is_null() || max <= 0 {
            return Err(Errno::INVAL);
        }
        let deadline = u64::try_from(timeout_ms).ok().map(|ms| wait::now() + ms * MS);
        loop {
            // SAFETY: the program's list has room for `max` completions.
            let (count, (sends, receives)) = unsafe { take(socket, to, max) };
            if count > 0 || !(sends || receives) {
                return Ok(count);
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(wait::now()).div_ceil(MS));
            let left = left.map_or(-1, |left| c_int::try_from(left).unwrap_or(c_int::MAX));
            if left == 0 {
                return Ok(0);
            }
            let events =
                if receives { libc::POLLIN } else { 0 } | if sends { libc::POLLOUT } else { 0 };
            let mut asked = libc::pollfd { fd, events, revents: 0 };
            // SAFETY: the list has one entry. This calls the library's own hook.
            if unsafe { libc::poll(&raw mut asked, 1, left) } < 0 {
                return Err(errno::last());
            }
        }
    })
}
