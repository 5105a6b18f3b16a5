//! Hooks of the calls that execute or start another program with an environment of the caller's
//! choice.
//!
//! Connections that the new program inherits fall back to TCP first ([`crate::handover`]). If bytes
//! or datagrams still wait in memory, only a program with Weft finds them. So that program gets the
//! variables that preload Weft, even if the caller leaves them out (`env -i`).
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged, except for the environment, a copy that lives until the call returns.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr;

use libc::{c_char, c_int, c_void};
use smallvec::SmallVec;

use super::actions::Actions;
use crate::by_hand::signals;
use crate::child_starts::{ProgramStart, STARTS};
use crate::closes::Start;
use crate::descriptor::stays_open;
use crate::handover::{self, ExecTarget, Inheritance};
use crate::next::next;
use crate::sockets::{self, Kind};
use crate::zcopy::deferred::reclaim_all;
use crate::{epoll, errno, identity, settings};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libweft-sockets.so";

pub(crate) type List = *const *const c_char;

/// An environment for a new program: pointers to strings, with NULL at the end.
struct Environment {
    list: SmallVec<[*const c_char; 128]>,
    /// The one string that belongs neither to the program nor to the settings.
    _preload: Option<CString>,
}

/// Shuts all inboxes, so that the kernel takes all datagrams: the new program may not read an
/// inbox.
fn shut_inboxes() {
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref()
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.shut();
        }
    }
}

/// Returns whether a program inherits sockets with datagrams in memory: among those that stay open,
/// or among all if it `may_copy` others.
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

/// Prepares all descriptors for the new program. Returns its completed environment (`None` if it
/// does not need Weft) and the connections that it gets.
///
/// # Safety
/// `given` is NULL, or a list of C strings that ends with NULL.
unsafe fn prepared(given: List, target: ExecTarget<'_>) -> (Option<Environment>, Inheritance) {
    let may_copy = !matches!(target, ExecTarget::SameProcess);
    if !may_copy {
        reclaim_all(); // The buffers of deferred sends disappear with this program.
    }
    shut_inboxes();
    epoll::hand_on_all(false);
    if let ExecTarget::Child(copies) = target {
        copies.iter().for_each(|&fd| epoll::hand_on(fd));
    }
    let inheritance = handover::prepare(target);
    let needs_weft = inheritance.is_for_weft() || hands_on_datagrams(may_copy);
    // SAFETY: the caller guarantees a list that ends with NULL.
    let environment = if needs_weft { unsafe { completed(given) } } else { None };
    (environment, inheritance)
}

/// Returns the environment `given`, completed with the variables that preload Weft.
///
/// # Safety
/// `given` is NULL, or a list of C strings that ends with NULL.
unsafe fn completed(given: List) -> Option<Environment> {
    let mut list = SmallVec::new();
    let mut at = given;
    while !at.is_null() {
        // SAFETY: the loop has not met the list's NULL yet.
        let text = unsafe { at.read() };
        if text.is_null() {
            break;
        }
        list.push(text);
        // SAFETY: this entry is not the NULL at the end, so another follows.
        at = unsafe { at.add(1) };
    }
    // SAFETY: each entry is a C string, as the caller guarantees.
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

/// Returns the program's own environment.
fn own() -> *const *const c_char {
    // SAFETY: reads one pointer, as the C library does in the same call.
    unsafe { environ }
}

/// Executes another program in this process by `call`, with a completed environment. Returns only
/// if that fails.
///
/// # Safety
/// The list is NULL, or a list of C strings that ends with NULL.
unsafe fn become_program(list: List, call: impl FnOnce(List) -> c_int) -> c_int {
    let target =
        if identity::is_borrowed() { ExecTarget::VforkChild } else { ExecTarget::SameProcess };
    // A child of `vfork` has its own descriptor table.
    let _start = matches!(target, ExecTarget::SameProcess).then(Start::begin);
    if matches!(target, ExecTarget::VforkChild) {
        STARTS.note();
    }
    // SAFETY: the caller guarantees a list that ends with NULL.
    let (complete, inheritance) = unsafe { prepared(list, target) };
    let list = complete.as_ref().map_or(list, |ours| ours.list.as_ptr());
    signals::before_exec();
    let failed = call(list);
    signals::after_exec();
    let why = errno::get();
    inheritance.take_back();
    if matches!(target, ExecTarget::SameProcess) {
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

// These use the program's own environment, which may have been cleared.

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

/// Defines a hook of `posix_spawn(3)` or `posix_spawnp(3)`.
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
            // SAFETY: the program passes NULL or file actions that the C library has made.
            let copies = unsafe { Actions::copied(actions) };
            let _child_start = ProgramStart::begin();
            let _start = Start::begin();
            // SAFETY: the program's own environment.
            let (complete, inheritance) = unsafe { prepared(list, ExecTarget::Child(&copies)) };
            let list = complete.as_ref().map_or(list, |ours| ours.list.as_ptr());
            let failed = next!($name(
                pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void,
                attributes: *const c_void, arguments: List, list: List
            ) -> c_int);
            if failed != 0 {
                inheritance.take_back();
            }
            failed
        }
    };
}
spawn!(posix_spawn);
spawn!(posix_spawnp);
