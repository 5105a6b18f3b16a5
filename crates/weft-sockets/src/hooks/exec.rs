//! Becoming another program, or starting one, with an environment of the program's choice.
//!
//! Connections that the program gets go back to TCP first ([`crate::handover`]). Where bytes of one
//! wait in memory, or datagrams, only a program on Weft finds them. So it gets the variables that
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

use super::actions::Actions;
use crate::births::{ProgramStart, STARTS};
use crate::by_hand::signals;
use crate::closes::Start;
use crate::descriptor::stays_open;
use crate::handover::{self, Estate, Heir};
use crate::next::next;
use crate::sockets::{self, Kind};
use crate::zcopy::deferred::reclaim_all;
use crate::{epoll, errno, identity, settings};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libweft-sockets.so";

pub(crate) type List = *const *const c_char;

/// An environment as a new program gets it: pointers, of which the last is NULL.
struct Environment {
    list: SmallVec<[*const c_char; 128]>,
    /// The one string that is neither the program's nor remembered.
    _preload: Option<CString>,
}

/// From here on the kernel takes all datagrams: the new program may not look anywhere else.
fn shut_inboxes() {
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref()
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.shut();
        }
    }
}

/// Whether a program gets sockets with datagrams that wait in memory: those that stay open, or, if
/// it may get copies of others, any.
fn hands_on_datagrams(may_copy: bool) -> bool {
    sockets::all().any(|fd| match sockets::find(fd).as_deref() {
        Some(Kind::Datagram(datagram)) => {
            datagram.known_inbox().is_some_and(|it| !it.is_empty()) && (may_copy || stays_open(fd))
        }
        _ => false,
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The environment `given`, with what it lacks to put Weft in front of the program, and what the
/// program gets. `None`: it needs nothing of Weft.
///
/// # Safety
/// NULL, or pointers to C strings, of which the last is NULL.
unsafe fn prepared(given: List, heir: Heir<'_>) -> (Option<Environment>, Estate) {
    let may_copy = !matches!(heir, Heir::Self_);
    if !may_copy {
        reclaim_all(); // The memory of the deferred sends goes.
    }
    shut_inboxes();
    epoll::hand_on_all(false);
    if let Heir::Child(copies) = heir {
        copies.iter().for_each(|&fd| epoll::hand_on(fd));
    }
    let estate = handover::prepare(heir);
    let needs_weft = estate.is_for_weft() || hands_on_datagrams(may_copy);
    // SAFETY: guaranteed by the caller.
    let environment = if needs_weft { unsafe { completed(given) } } else { None };
    (environment, estate)
}

/// The environment `given`, with what it lacks to put Weft in front of a program.
///
/// # Safety
/// NULL, or pointers to C strings, of which the last is NULL.
unsafe fn completed(given: List) -> Option<Environment> {
    let mut list = SmallVec::new();
    let mut at = given;
    while !at.is_null() {
        // SAFETY: the list goes on up to its NULL.
        let text = unsafe { at.read() };
        if text.is_null() {
            break;
        }
        list.push(text);
        // SAFETY: the list goes on up to its NULL.
        at = unsafe { at.add(1) };
    }
    // SAFETY: guaranteed by the caller.
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

/// Makes the calling process another program by `call`, which gets a complete environment and
/// returns only if that fails.
///
/// # Safety
/// The list is NULL, or pointers to C strings, of which the last is NULL.
unsafe fn become_program(list: List, call: impl FnOnce(List) -> c_int) -> c_int {
    let heir = if identity::is_borrowed() { Heir::Borrower } else { Heir::Self_ };
    // A child of `vfork` has descriptors of its own.
    let _start = matches!(heir, Heir::Self_).then(Start::begin);
    if matches!(heir, Heir::Borrower) {
        STARTS.note();
    }
    // SAFETY: guaranteed by the caller.
    let (complete, estate) = unsafe { prepared(list, heir) };
    let list = complete.as_ref().map_or(list, |ours| ours.list.as_ptr());
    signals::before_exec();
    let failed = call(list);
    signals::after_exec();
    let why = errno::get();
    estate.take_back();
    if matches!(heir, Heir::Self_) {
        handover::take_back();
    }
    errno::set_raw(why);
    failed
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: List,
    list: List,
) -> c_int {
    let call =
        |list: List| next!(execve(path: *const c_char, arguments: List, list: List) -> c_int);
    // SAFETY: the program's own environment.
    unsafe { become_program(list, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(file: *const c_char, arguments: List, list: List) -> c_int {
    let call =
        |list: List| next!(execvpe(file: *const c_char, arguments: List, list: List) -> c_int);
    // SAFETY: the program's own environment.
    unsafe { become_program(list, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: List, list: List) -> c_int {
    let call = |list: List| next!(fexecve(fd: c_int, arguments: List, list: List) -> c_int);
    // SAFETY: the program's own environment.
    unsafe { become_program(list, call) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: List,
    list: List,
    flags: c_int,
) -> c_int {
    let call = |list: List| {
        next!(execveat(
            dir: c_int, path: *const c_char, arguments: List, list: List, flags: c_int
        ) -> c_int)
    };
    // SAFETY: the program's own environment.
    unsafe { become_program(list, call) }
}

// The program's own environment may have been cleared, too.

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execve(path, arguments, own()) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execvpe(file, arguments, own()) }
}

/// posix_spawn(3).
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
            // SAFETY: NULL or the program's own.
            let copies = unsafe { Actions::copied(actions) };
            let _birth = ProgramStart::begin();
            let _start = Start::begin();
            // SAFETY: the program's own environment.
            let (complete, estate) = unsafe { prepared(list, Heir::Child(&copies)) };
            let list = complete.as_ref().map_or(list, |ours| ours.list.as_ptr());
            let failed = next!($name(
                pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void,
                attributes: *const c_void, arguments: List, list: List
            ) -> c_int);
            if failed != 0 {
                estate.take_back();
            }
            failed
        }
    };
}
spawn!(posix_spawn);
spawn!(posix_spawnp);
