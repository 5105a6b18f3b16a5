//! Children that are born by other ways than `fork`.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. `clone` is variadic in C: its arguments are declared here and always
//! handed on, present or not, in the registers and the place where they would be.
#![allow(unsafe_code)]

use libc::{c_char, c_int, c_void, pid_t};
use weft_sys::NextFunction;

use crate::births::ProgramStart;
use crate::closes::Start;
use crate::handover::{self, Estate, Heir};
use crate::next::next;
use crate::ways::process::cloning;
use crate::{epoll, errno, mode, process};

/// A shell is about to be started, which gets what stays open.
fn start_shell() -> Estate {
    if !mode::enabled() {
        return Estate::empty();
    }
    let before = errno::get();
    let _start = Start::begin();
    epoll::hand_on_all(false);
    let estate = handover::prepare(Heir::Child(&[]));
    errno::set_raw(before);
    estate
}

/// The shell has not been started.
fn take_back(estate: Estate) {
    let why = errno::get();
    estate.take_back();
    errno::set_raw(why);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let _birth = ProgramStart::begin();
    // A shell is started to see whether there is one, too, which NULL asks for.
    let estate = start_shell();
    let status = next!(system(command: *const c_char) -> c_int);
    if status == -1 {
        take_back(estate);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wordexp(text: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    let _birth = ProgramStart::begin();
    let _estate = start_shell(); // Whether it starts one nobody tells.
    next!(wordexp(text: *const c_char, to: *mut c_void, flags: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let _birth = ProgramStart::begin();
    let estate = start_shell();
    static NEXT: NextFunction = NextFunction::new(c"popen");
    type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Popen>>(NEXT.address()) };
    // SAFETY: the program's own arguments.
    let stream = next.map_or(std::ptr::null_mut(), |next| unsafe { next(command, mode) });
    if stream.is_null() {
        take_back(estate);
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> pid_t {
    process::fork_with_handlers(|| next!(fork() -> pid_t))
}

/// The same without the handlers of forks, which ours are.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    let fork = process::Forking::begin(0);
    let born = next!(_Fork() -> pid_t);
    fork.end(born.into());
    born
}

type Main = extern "C" fn(*mut c_void) -> c_int;

/// What the child of a `clone` that copies memory runs.
struct Child {
    main: Main,
    argument: *mut c_void,
}

extern "C" fn begin_child(child: *mut c_void) -> c_int {
    // SAFETY: a copy of the parent's variable, in the child's own memory.
    let Child { main, argument } = unsafe { child.cast::<Child>().read() };
    process::in_child();
    let status = main(argument);
    process::end_at_once(); // The C library does it by hand.
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
    // SAFETY: NULL is `None`, and what is found by this name has this signature.
    let next = unsafe { std::mem::transmute::<*mut c_void, Option<Clone>>(NEXT.address()) };
    let Some(next) = next else { return errno::fail(rustix::io::Errno::NOSYS) };
    if flags & libc::CLONE_VM != 0 {
        cloning(flags as usize);
        // SAFETY: the program's own arguments.
        return unsafe { next(main, stack, flags, argument, parent, tls, child) };
    }
    let fork = process::Forking::begin(flags);
    let mut begun = Child { main, argument };
    let place: *mut c_void = (&raw mut begun).cast();
    // SAFETY: the program's own arguments; the child has a copy of the variable.
    let born = unsafe { next(begin_child, stack, flags, place, parent, tls, child) };
    fork.end_in_parent(born.into());
    born
}
