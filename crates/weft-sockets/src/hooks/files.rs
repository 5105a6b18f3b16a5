//! The C library's streams (`FILE`) on sockets of ours.
//!
//! A stream reads and writes by ways of the C library's own, which no hook sees. So one that is
//! made of a TCP socket is given ways that lead here (fopencookie(3)).
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, or of the ways
//! that `fopencookie` asks for. What the C library calls them with is what it guarantees there.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use super::closing::closing;
use super::data::{read, write};
use crate::datagram::Why;
use crate::descriptor::Descriptor;
use crate::errno;
use crate::next::next;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::ways::stdio;

/// Where a stream keeps its descriptor, for fileno(3): the C library's headers show programs its
/// fields up to this one and beyond (`struct _IO_FILE`), so that they stay where they are.
const FILENO_AT: usize = 112;

/// Where a stream has the table of its functions: behind all the fields of `struct _IO_FILE`.
const WAYS_AT: usize = 216;

/// That table, of streams that `fopencookie` has made.
static WAYS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether there has been a stream by our ways.
static EVER: AtomicBool = AtomicBool::new(false);

/// `cookie_io_functions_t`.
#[repr(C)]
struct Ways {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, ways: Ways) -> *mut FILE;
    fn __fpurge(file: *mut FILE);
}

/// The descriptor that a stream's cookie is.
fn descriptor(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie as usize).unwrap_or(-1)
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { read(descriptor(cookie), to.cast(), len) }
}

/// Writes everything, as the C library does itself. What could not be written is an error.
unsafe extern "C" fn write_cookie(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: within the C library's buffer.
        let rest = unsafe { from.add(done) };
        // SAFETY: within the C library's buffer.
        match usize::try_from(unsafe { write(descriptor(cookie), rest.cast(), len - done) }) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done.cast_signed()
}

/// The number may be a file's by now, where the stream is a standard one.
unsafe extern "C" fn seek_cookie(cookie: *mut c_void, place: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library's place.
    let offset = unsafe { place.read() };
    // SAFETY: no memory is named.
    let at = unsafe { libc::lseek64(descriptor(cookie), offset, whence) };
    if at < 0 {
        return -1;
    }
    // SAFETY: no memory is named.
    unsafe { place.write(at) };
    0
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    with_stream(fd, |stream| stream.files().fetch_sub(1, Ordering::Relaxed));
    // SAFETY: the stream's own descriptor.
    unsafe { libc::close(fd) }
}

fn with_stream<T>(fd: c_int, act: impl FnOnce(&Stream) -> T) -> Option<T> {
    match &*sockets::find(fd)? {
        Kind::Stream(stream) => Some(act(stream)),
        Kind::Datagram(_) => None,
    }
}

/// `fd` has just become a socket of ours, and may have the number of a stream of the C library's.
pub(super) fn check_stream(fd: c_int) {
    if stdio::check(fd) {
        // What is unread in memory, and wakeups that are under way, are for the hooks.
        let before = errno::get();
        replace_input();
        errno::set_raw(before);
    }
}

/// The end of the process, which the C library writes its streams' last bytes in, is near: later
/// they would not come by us.
pub(crate) fn flush() {
    if EVER.load(Ordering::Relaxed) {
        // SAFETY: NULL stands for all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The program has been started with connections that others have used. Where those are its
/// standard streams, it gets such as go by our ways. To be called before any code of the program's.
pub(crate) fn replace_standard() {
    let streams: [(c_int, *mut *mut FILE, &CStr); 3] = [
        (libc::STDIN_FILENO, &raw mut stdin, c"r"),
        (libc::STDOUT_FILENO, &raw mut stdout, c"w"),
        (libc::STDERR_FILENO, &raw mut stderr, c"w"),
    ];
    for (fd, place, mode) in streams {
        if with_stream(fd, |_| ()).is_some() {
            replace(fd, place, mode);
        }
    }
}

/// `stdin`, which nothing has been read from, has become a connection that others have used.
pub(crate) fn replace_input() {
    replace(libc::STDIN_FILENO, &raw mut stdin, c"r");
}

fn replace(fd: c_int, place: *mut *mut FILE, mode: &CStr) {
    // SAFETY: a mode that there is.
    let file = unsafe { fdopen(fd, mode.as_ptr()) };
    if file.is_null() {
        return; // No memory: the program will not get far.
    }
    if fd == libc::STDERR_FILENO {
        // SAFETY: a stream that nobody has used.
        unsafe { libc::setvbuf(file, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
    // SAFETY: the C library lets programs set these (stdin(3)), and nobody reads them meanwhile: at
    // the start, or in the program's own call that makes the number another descriptor.
    unsafe { place.write(file) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if with_stream(fd, |stream| !stream.is_tcp()) == Some(true)
        && rustix::io::fcntl_getfd(Descriptor::of(fd)).is_ok()
    {
        let ways =
            Ways { read: read_cookie, write: write_cookie, seek: seek_cookie, close: close_cookie };
        let cookie = fd.unsigned_abs() as usize as *mut c_void;
        // SAFETY: the program's mode, and ways that take this cookie.
        let file = unsafe { fopencookie(cookie, mode, ways) };
        if !file.is_null() {
            EVER.store(true, Ordering::Relaxed);
            with_stream(fd, |stream| stream.files().fetch_add(1, Ordering::Relaxed));
            // SAFETY: within the stream, which nobody else knows yet.
            let place = unsafe { file.byte_add(FILENO_AT) };
            // SAFETY: within the stream, where its descriptor is.
            unsafe { place.cast::<c_int>().write(fd) };
            // SAFETY: within the stream.
            let place = unsafe { file.byte_add(WAYS_AT) };
            // SAFETY: within the stream, where the address of its functions is.
            WAYS.store(unsafe { place.cast::<*mut c_void>().read() }, Ordering::Relaxed);
            stdio::note(fd, false);
        }
        return file;
    }
    if let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        datagram.leave(Why::Stdio);
    }
    type Hooked = unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE;
    static NEXT: weft_sys::NextFunction = weft_sys::NextFunction::new(c"fdopen");
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) };
    // SAFETY: the program's own arguments.
    let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next(fd, mode) });
    if !file.is_null() {
        stdio::note(fd, true);
    }
    file
}

/// Closes by a way of the C library's own, unless the stream has ours.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: the program's own stream.
        let fd = unsafe { libc::fileno(file) };
        let is_by_us = with_stream(fd, |stream| stream.files().load(Ordering::Relaxed) > 0);
        if is_by_us != Some(true) {
            closing(fd);
        }
        stdio::note(fd, false);
    }
    next!(fclose(file: *mut FILE) -> c_int)
}

/// Opens a stream by the next library's function of a name.
macro_rules! open {
    ($name:ident, $c_name:literal, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> *mut FILE {
            type Hooked = unsafe extern "C-unwind" fn($($type),*) -> *mut FILE;
            static NEXT: weft_sys::NextFunction = weft_sys::NextFunction::new($c_name);
            let next = NEXT.address();
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(next) };
            // SAFETY: the program's own arguments.
            let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next($($argument),*) });
            if !file.is_null() {
                // SAFETY: a stream just opened.
                stdio::note(unsafe { libc::fileno(file) }, true);
            }
            file
        }
    };
}
open!(fopen, c"fopen", (path: *const c_char, mode: *const c_char));
open!(fopen64, c"fopen64", (path: *const c_char, mode: *const c_char));
open!(tmpfile, c"tmpfile", ());
open!(tmpfile64, c"tmpfile64", ());

/// Whether a stream with a descriptor is one by our ways: those that the program itself makes by
/// `fopencookie` have none.
///
/// # Safety
/// The stream is the program's.
unsafe fn leads_to_us(file: *mut FILE) -> bool {
    let known = WAYS.load(Ordering::Relaxed);
    // SAFETY: within every stream.
    let place = unsafe { file.byte_add(WAYS_AT) };
    // SAFETY: within every stream.
    !known.is_null() && unsafe { place.cast::<*mut c_void>().read() } == known
}

/// Opens another file in the place of a stream's descriptor. The C library's own way crashes with
/// streams that `fopencookie` has made.
///
/// # Safety
/// The arguments are the program's; the stream is by our ways and has the descriptor.
unsafe fn reopen_by_us(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
    fd: c_int,
) -> *mut FILE {
    const NO_READS: u32 = 4;
    const NO_WRITES: u32 = 8;
    // SAFETY: the program's own stream.
    unsafe { libc::fflush(file) };
    // SAFETY: the program's own stream.
    unsafe { __fpurge(file) };
    // SAFETY: the program's own stream.
    unsafe { libc::clearerr(file) };
    // SAFETY: the program's own string.
    let wanted = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let has = |letter| wanted.contains(&letter);
    let (mut flags, refused) = match (wanted.first(), has(b'+')) {
        (_, true) => (libc::O_RDWR, 0),
        (Some(b'r'), false) => (libc::O_RDONLY, NO_WRITES),
        _ => (libc::O_WRONLY, NO_READS),
    };
    match wanted.first() {
        Some(b'w') => flags |= libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => flags |= libc::O_CREAT | libc::O_APPEND,
        _ => {}
    }
    let cloexec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    if path.is_null() {
        return file; // The same file; its mode is not changed.
    }
    // SAFETY: the program's own string.
    let opened = unsafe { libc::open(path, flags | cloexec | exclusive, 0o666) };
    if opened < 0 {
        // SAFETY: the stream's own descriptor, which is closed in any case.
        unsafe { libc::close(fd) };
        return std::ptr::null_mut();
    }
    if opened != fd {
        with_stream(fd, |stream| stream.files().fetch_sub(1, Ordering::Relaxed));
        // SAFETY: a descriptor just opened, and the stream's own.
        unsafe { libc::dup3(opened, fd, cloexec) };
        // SAFETY: a descriptor just opened.
        unsafe { libc::close(opened) };
    }
    // SAFETY: a stream begins with its flags.
    let place = unsafe { &mut *file.cast::<u32>() };
    *place = *place & !(NO_READS | NO_WRITES) | refused;
    file
}

/// Opens another file by a stream, whose descriptor is closed, or replaced, inside.
macro_rules! reopen {
    ($name:ident, $c_name:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            file: *mut FILE,
        ) -> *mut FILE {
            if !file.is_null() {
                // SAFETY: the program's own stream.
                let fd = unsafe { libc::fileno(file) };
                // SAFETY: the program's own stream.
                if fd >= 0 && unsafe { leads_to_us(file) } {
                    // SAFETY: the program's own stream.
                    return unsafe { reopen_by_us(path, mode, file, fd) };
                }
                closing(fd);
                stdio::note(fd, false);
            }
            type Hooked =
                unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
            static NEXT: weft_sys::NextFunction = weft_sys::NextFunction::new($c_name);
            let next = NEXT.address();
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(next) };
            // SAFETY: the program's own arguments.
            let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next(path, mode, file) });
            if !file.is_null() {
                // SAFETY: a stream just opened.
                stdio::note(unsafe { libc::fileno(file) }, true);
            }
            file
        }
    };
}
reopen!(freopen, c"freopen");
reopen!(freopen64, c"freopen64");
