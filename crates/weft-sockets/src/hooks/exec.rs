//! Becoming another program, or starting one, with an environment of the program's choice.
//!
//! A program that gets a connection which the rings carry must know them: what it reads from the
//! kernel's socket would be bells, and what it writes would be taken for such. One that gets a UDP
//! socket for which something waits in memory would never find that. So it gets the variables that
//! put Weft in front of it, also from one that leaves them out (`env -i`).
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are, but for the environment, a copy that lives until the call returns.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr;

use libc::{c_char, c_int, c_void};
use smallvec::SmallVec;
use weft_stream::{Carrier, End};

use crate::next::next;
use crate::reason::Reason;
use crate::stream::borrow;
use crate::table::{self, Kind};
use crate::zcopy::promised::reclaim_all;
use crate::{epoll, process, settings};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libweft-sockets.so";

/// An environment as a new program gets it: pointers, of which the last is NULL.
struct Environment {
    list: SmallVec<[*const c_char; 128]>,
    /// The one string that is neither the program's nor remembered.
    _preload: Option<CString>,
}

/// From here on the kernel takes all datagrams: the new program may not look anywhere else.
fn shut_inboxes() {
    for fd in table::within(0, u32::MAX) {
        if let Some(Kind::Datagram(datagram)) = table::find(fd).as_deref()
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.shut();
        }
    }
}

/// Whether a program that gets this process's descriptors gets connections that the rings carry, or
/// sockets with datagrams in memory: those that stay open, or, if it may get copies of others, any.
fn hands_on_memory(may_copy: bool) -> bool {
    let by_rings = |end: &End| [end.carrier_in(), end.carrier_out()].contains(&Carrier::Memory);
    let stays_open = |fd| {
        rustix::io::fcntl_getfd(borrow(fd))
            .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
    };
    table::within(0, u32::MAX).any(|fd| {
        let held = table::find(fd);
        let is_carried = held.is_some_and(|held| match &*held {
            // A queue pair cannot be handed on.
            Kind::Stream(stream) if stream.is_far() => {
                if may_copy {
                    stream.leave(fd, Reason::PassedOn);
                } else if stays_open(fd) {
                    stream.hand_on(fd);
                }
                false
            }
            Kind::Stream(stream) => stream.end().is_some_and(by_rings),
            Kind::Datagram(datagram) => datagram.known_inbox().is_some_and(|it| !it.is_empty()),
            Kind::Epoll(_) => false,
        });
        is_carried && (may_copy || stays_open(fd))
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The environment `given`, with what it lacks to put Weft in front of the program. `None`: the
/// program needs nothing of it.
///
/// # Safety
/// NULL, or pointers to C strings, of which the last is NULL.
unsafe fn completed(given: *const *const c_char, may_copy: bool) -> Option<Environment> {
    if !may_copy {
        reclaim_all(); // The memory that it was promised out of goes.
    }
    shut_inboxes();
    epoll::hand_on_all(false);
    if !hands_on_memory(may_copy || process::is_borrowed()) {
        return None;
    }
    let mut list = SmallVec::new();
    let mut at = given;
    while !at.is_null() {
        // SAFETY: the list goes on up to its NULL.
        let text = unsafe { at.read() };
        if text.is_null() {
            break;
        }
        list.push(text);
        // SAFETY: likewise.
        at = unsafe { at.add(1) };
    }
    // SAFETY: the caller's promise.
    let text_of = |text: &*const c_char| unsafe { CStr::from_ptr(*text) }.to_bytes();
    let mut preload = None;
    for variable in settings::variables() {
        let bytes = variable.to_bytes();
        let name = bytes.split_inclusive(|&byte| byte == b'=').next().unwrap_or(bytes);
        let place = list.iter().position(|text| text_of(text).starts_with(name));
        match place {
            None => list.push(variable.as_ptr()),
            Some(place) if name == PRELOAD && !contains(text_of(&list[place]), LIBRARY) => {
                let theirs = &text_of(&list[place])[PRELOAD.len()..];
                let both = CString::new([bytes, b":", theirs].concat()).ok()?;
                list[place] = both.as_ptr();
                preload = Some(both);
            }
            Some(_) => {}
        }
    }
    list.push(ptr::null());
    Some(Environment { list, _preload: preload })
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// The program's own environment.
fn own() -> *const *const c_char {
    // SAFETY: a word, read as the C library reads it in the same call.
    unsafe { environ }
}

/// Runs `$call` with `$environment` standing for a complete one.
macro_rules! with_complete {
    ($environment:ident, $may_copy:expr, $call:expr) => {{
        // SAFETY: the program's own environment.
        let complete = unsafe { completed($environment, $may_copy) };
        let $environment = complete.as_ref().map_or($environment, |ours| ours.list.as_ptr());
        $call
    }};
}

type List = *const *const c_char;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: List, list: List) -> c_int {
    with_complete!(
        list,
        false,
        next!(execve(path: *const c_char, arguments: List, list: List) -> c_int)
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(file: *const c_char, arguments: List, list: List) -> c_int {
    with_complete!(
        list,
        false,
        next!(execvpe(file: *const c_char, arguments: List, list: List) -> c_int)
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: List, list: List) -> c_int {
    with_complete!(list, false, next!(fexecve(fd: c_int, arguments: List, list: List) -> c_int))
}

// The program's own environment may have been cleared, too.

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execve(path, arguments, own()) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execvpe(file, arguments, own()) }
}

/// posix_spawn(3), whose child may get copies of any descriptor.
macro_rules! spawn {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: List,
            list: List,
        ) -> c_int {
            with_complete!(
                list,
                true,
                next!($name(
                    pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void,
                    attributes: *const c_void, arguments: List, list: List
                ) -> c_int)
            )
        }
    };
}
spawn!(posix_spawn);
spawn!(posix_spawnp);
