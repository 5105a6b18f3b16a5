//! Processes that are started by other functions than `fork`.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. `clone` is variadic in C: all possible arguments are declared and passed
//! on here, in the registers and the stack slot where they would be.
#![allow(unsafe_code)]

use libc::{c_char, c_int, c_void, pid_t};
use weft_sys::calls;
use weft_sys::{NextFunction, with_cleanup};

use crate::child_starts::ProgramStart;
use crate::closes::Start;
use crate::handover::{self, ExecTarget, Inheritance};
use crate::next::next;
use crate::ways::process::cloning;
use crate::{epoll, errno, mode, process};

/// Prepares for a shell that is about to be started, which inherits the descriptors without
/// `FD_CLOEXEC`.
fn start_shell() -> Inheritance {
    if !mode::enabled() {
        return Inheritance::empty();
    }
    let before = errno::get();
    let _start = Start::begin();
    epoll::hand_on_all(false);
    let inheritance = handover::prepare(ExecTarget::Child(&[]));
    errno::set_raw(before);
    inheritance
}

/// Restores the connections after a shell could not be started.
fn take_back(inheritance: Inheritance) {
    let why = errno::get();
    inheritance.take_back();
    errno::set_raw(why);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let mut child_start = Some(ProgramStart::begin());
    // NULL asks whether there is a shell, and starts one to find out.
    let inheritance = start_shell();
    let run = |_: &mut _| next!(system(command: *const c_char) -> c_int);
    // The thread may be cancelled while the shell runs.
    let status = with_cleanup(&mut child_start, run, |start| drop(start.take()));
    if status == -1 {
        take_back(inheritance);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wordexp(text: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    let _child_start = ProgramStart::begin();
    let _inheritance = start_shell(); // It does not say whether it starts a shell.
    next!(wordexp(text: *const c_char, to: *mut c_void, flags: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let _child_start = ProgramStart::begin();
    let inheritance = start_shell();
    static NEXT: NextFunction = NextFunction::new(c"popen");
    type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Popen>>(NEXT.address()) };
    // SAFETY: passes on the program's own arguments.
    let stream = next.map_or(std::ptr::null_mut(), |next| unsafe { next(command, mode) });
    if stream.is_null() {
        take_back(inheritance);
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> pid_t {
    process::fork_with_handlers(|| next!(fork() -> pid_t))
}

/// Forks without the fork handlers, Weft's among them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    let fork = process::Forking::begin(0);
    let pid = next!(_Fork() -> pid_t);
    fork.end(pid.into());
    pid
}

type Main = extern "C" fn(*mut c_void) -> c_int;

/// What the child of a `clone` that copies memory executes.
struct Child {
    main: Main,
    argument: *mut c_void,
}

extern "C" fn begin_child(child: *mut c_void) -> c_int {
    // SAFETY: the child's memory is a copy of the parent's, in which the variable is valid.
    let Child { main, argument } = unsafe { child.cast::<Child>().read() };
    process::in_child();
    let status = main(argument);
    process::end_at_once(); // The C library ends the child by a system call that no hook sees.
    status
}

type Clone =
    unsafe extern "C" fn(Main, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    main: Main,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    tls: usize,
    child: usize,
) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"clone");
    // SAFETY: NULL becomes `None`, and the C library's function of this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Clone>>(NEXT.address()) };
    let Some(next) = next else { return errno::fail(calls::io::Errno::NOSYS) };
    if flags & libc::CLONE_VM != 0 {
        cloning(flags as usize);
        // SAFETY: passes on the program's own arguments.
        return unsafe { next(main, stack, flags, argument, parent, tls, child) };
    }
    let fork = process::Forking::begin(flags);
    let mut begun = Child { main, argument };
    let place: *mut c_void = (&raw mut begun).cast();
    // SAFETY: passes on the program's own arguments; the child has its own copy of `begun`.
    let pid = unsafe { next(begin_child, stack, flags, place, parent, tls, child) };
    fork.end_in_parent(pid.into());
    pid
}
