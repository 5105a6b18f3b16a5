//! The C library's streams (`FILE`) on known sockets.
//!
//! A stream reads and writes inside the C library, where no hook sees it. So a stream on a TCP
//! socket is made with functions that lead to the hooks (fopencookie(3)).
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, or that
//! `fopencookie` requires. The C library guarantees the arguments of the latter.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use weft_sys::Uncancelled;
use weft_sys::calls;

use super::close::close_uncancelled;
use super::closing::closing;
use super::data::{read, write};
use super::flags::becomes_append_only;
use crate::datagram::DatagramReason;
use crate::descriptor::Descriptor;
use crate::errno;
use crate::next::next;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::ways::stdio;

/// Offset of the descriptor in a stream, for fileno(3). The C library's headers expose the fields
/// up to this one and beyond (`struct _IO_FILE`), so the offset is fixed.
const FILENO_AT: usize = 112;

/// Offset of the pointer to a stream's function table, behind all fields of `struct _IO_FILE`.
const FUNCTIONS_AT: usize = 216;

/// The function table of streams that `fopencookie` has made.
static FUNCTIONS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether a stream with Weft's functions has ever been made.
static EVER: AtomicBool = AtomicBool::new(false);

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, ways: Functions) -> *mut FILE;
    fn __fpurge(file: *mut FILE);
}

/// Returns the descriptor that a stream's cookie stands for.
fn descriptor(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie as usize).unwrap_or(-1)
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library passes a buffer of `len` bytes.
    unsafe { read(descriptor(cookie), to.cast(), len) }
}

/// Writes all bytes, as the C library does itself. A short count is an error.
unsafe extern "C" fn write_cookie(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is below the buffer's `len`.
        let rest = unsafe { from.add(done) };
        // SAFETY: the rest of the buffer has `len - done` bytes.
        match usize::try_from(unsafe { write(descriptor(cookie), rest.cast(), len - done) }) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done.cast_signed()
}

/// Seeks. The number of a standard stream may have become a file's.
unsafe extern "C" fn seek_cookie(cookie: *mut c_void, place: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library passes a valid place.
    let offset = unsafe { place.read() };
    // SAFETY: `lseek64` takes no pointer.
    let at = unsafe { libc::lseek64(descriptor(cookie), offset, whence) };
    if at < 0 {
        return -1;
    }
    // SAFETY: the C library passes a valid place.
    unsafe { place.write(at) };
    0
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    with_stream(fd, |stream| stream.files().fetch_sub(1, Ordering::Relaxed));
    let _uncancelled = Uncancelled::begin(); // `fclose` is no cancellation point.
    close_uncancelled(fd)
}

fn with_stream<T>(fd: c_int, act: impl FnOnce(&Stream) -> T) -> Option<T> {
    match &*sockets::find(fd)? {
        Kind::Stream(stream) => Some(act(stream)),
        Kind::Datagram(_) => None,
    }
}

/// Checks whether `fd`, which has just become a known socket, has the number of a stream of the C
/// library's.
pub(super) fn check_stream(fd: c_int) {
    if stdio::check(fd) {
        // The hooks have to handle unread bytes in memory, and wakeups in flight.
        let before = errno::get();
        replace_input();
        errno::set_raw(before);
    }
}

/// Flushes all streams shortly before the process ends. The C library's own flush would come too
/// late for the hooks.
pub(crate) fn flush() {
    if EVER.load(Ordering::Relaxed) {
        // SAFETY: NULL means all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// Replaces standard streams on inherited connections by streams with Weft's functions, when the
/// program starts. Must run before any code of the program.
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

/// Replaces `stdin`, from which nothing has been read, after it has become an inherited connection.
pub(crate) fn replace_input() {
    replace(libc::STDIN_FILENO, &raw mut stdin, c"r");
}

fn replace(fd: c_int, place: *mut *mut FILE, mode: &CStr) {
    // SAFETY: the mode is a valid C string.
    let file = unsafe { fdopen(fd, mode.as_ptr()) };
    if file.is_null() {
        return; // No memory: the program will not get far.
    }
    if fd == libc::STDERR_FILENO {
        // SAFETY: the stream is new, and nothing else uses it.
        unsafe { libc::setvbuf(file, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
    // SAFETY: the C library lets programs set these variables (stdin(3)), and no other thread reads
    // them: this is the start of the program, or its own call that gives the number to another
    // descriptor.
    unsafe { place.write(file) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the mode is the program's C string.
    if unsafe { mode.cast::<u8>().read() } == b'a' {
        becomes_append_only(fd); // The C library sets `O_APPEND`, not by `fcntl`.
    }
    if with_stream(fd, |stream| !stream.is_tcp()) == Some(true)
        && calls::io::fcntl_getfd(Descriptor::of(fd)).is_ok()
    {
        let ways = Functions {
            read: read_cookie,
            write: write_cookie,
            seek: seek_cookie,
            close: close_cookie,
        };
        let cookie = fd.unsigned_abs() as usize as *mut c_void;
        // SAFETY: the mode is the program's C string, and the functions take this cookie.
        let file = unsafe { fopencookie(cookie, mode, ways) };
        if !file.is_null() {
            EVER.store(true, Ordering::Relaxed);
            with_stream(fd, |stream| stream.files().fetch_add(1, Ordering::Relaxed));
            // SAFETY: the offset is inside the new stream, which nothing else uses yet.
            let place = unsafe { file.byte_add(FILENO_AT) };
            // SAFETY: a `c_int` field of the new stream is at this offset.
            unsafe { place.cast::<c_int>().write(fd) };
            // SAFETY: the offset is inside the new stream.
            let place = unsafe { file.byte_add(FUNCTIONS_AT) };
            // SAFETY: the pointer to the function table is at this offset.
            FUNCTIONS.store(unsafe { place.cast::<*mut c_void>().read() }, Ordering::Relaxed);
            stdio::note(fd, false);
        }
        return file;
    }
    if let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        datagram.fall_back_to_udp(DatagramReason::Stdio);
    }
    type Hooked = unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE;
    static NEXT: weft_sys::NextFunction = weft_sys::NextFunction::new(c"fdopen");
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) };
    // SAFETY: passes on the program's own arguments.
    let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next(fd, mode) });
    if !file.is_null() {
        stdio::note(fd, true);
    }
    file
}

/// Closes a stream. The C library closes its descriptor unseen, unless the stream has Weft's
/// functions.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: not NULL, so the program passes a valid stream.
        let fd = unsafe { libc::fileno(file) };
        let is_by_us = with_stream(fd, |stream| stream.files().load(Ordering::Relaxed) > 0);
        if is_by_us != Some(true) {
            closing(fd);
        }
        stdio::note(fd, false);
    }
    next!(fclose(file: *mut FILE) -> c_int)
}

/// Defines a hook that opens a stream by the next library's function.
macro_rules! open {
    ($name:ident, $c_name:literal, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> *mut FILE {
            type Hooked = unsafe extern "C-unwind" fn($($type),*) -> *mut FILE;
            static NEXT: weft_sys::NextFunction = weft_sys::NextFunction::new($c_name);
            let next = NEXT.address();
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(next) };
            // SAFETY: passes on the program's own arguments.
            let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next($($argument),*) });
            if !file.is_null() {
                // SAFETY: the stream has just been opened.
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

/// Returns whether a stream with a descriptor has Weft's functions. Streams that the program itself
/// makes by `fopencookie` have no descriptor.
///
/// # Safety
/// `file` is a valid stream of the program's.
unsafe fn leads_to_us(file: *mut FILE) -> bool {
    let known = FUNCTIONS.load(Ordering::Relaxed);
    // SAFETY: the offset is inside every stream.
    let place = unsafe { file.byte_add(FUNCTIONS_AT) };
    // SAFETY: the pointer to the function table is at this offset.
    !known.is_null() && unsafe { place.cast::<*mut c_void>().read() } == known
}

/// Opens another file in the place of a stream's descriptor. The C library's own function crashes
/// for streams that `fopencookie` has made.
///
/// # Safety
/// The arguments are the program's. The stream has Weft's functions and the descriptor `fd`.
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
        // SAFETY: `close` takes no pointer; the stream's descriptor is closed even after an error.
        unsafe { libc::close(fd) };
        return std::ptr::null_mut();
    }
    if opened != fd {
        with_stream(fd, |stream| stream.files().fetch_sub(1, Ordering::Relaxed));
        // SAFETY: `dup3` takes no pointer; both descriptors belong to this call.
        unsafe { libc::dup3(opened, fd, cloexec) };
        // SAFETY: `close` takes no pointer; `opened` belongs to this call.
        unsafe { libc::close(opened) };
    }
    // SAFETY: `struct _IO_FILE` begins with the flags, and the stream is the program's.
    let place = unsafe { &mut *file.cast::<u32>() };
    *place = *place & !(NO_READS | NO_WRITES) | refused;
    file
}

/// Defines a hook that opens another file on a stream; the C library closes or replaces its
/// descriptor unseen.
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
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(next) };
            // SAFETY: passes on the program's own arguments.
            let file = next.map_or(std::ptr::null_mut(), |next| unsafe { next(path, mode, file) });
            if !file.is_null() {
                // SAFETY: the stream has just been opened.
                stdio::note(unsafe { libc::fileno(file) }, true);
            }
            file
        }
    };
}
reopen!(freopen, c"freopen");
reopen!(freopen64, c"freopen64");
