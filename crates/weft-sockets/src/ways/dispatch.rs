//! Executes a system call by its number, by the hook of the same meaning if it can reach a known
//! descriptor. Both `syscall()` and calls by hand that the kernel reports lead here.
//!
//! # Safety
//! The arguments are the program's, and mean what that system call defines. Each is passed to the
//! hook in the form of the C library's function. `libc::NAME` is the hook, because the hooks
//! precede the C library.
#![allow(unsafe_code)]

use libc::{c_int, c_long, c_uint, c_void};
use weft_sys::calls::io::Errno;
use weft_sys::{Uncancelled, is_apart, system_call};

use super::{fallback, process as whole, rings, submit};
use crate::arguments::{Arguments, clone_flags, is_nowhere};
use crate::hooks::exec::execveat;
use crate::hooks::memory;
use crate::hooks::users::becoming;
use crate::{errno, mode, open, process};

/// Executes a system call whose number [`crate::reach::REACH`] names, with the C library's results:
/// -1 and `errno`. `None`: the kernel is to do it, with the same arguments.
///
/// # Safety
/// The arguments are those of the program's call.
pub(crate) unsafe fn call(number: c_long, arguments: Arguments) -> Option<c_long> {
    if !mode::enabled() && !mode::is_in_fallback() {
        return None; // Weft is off in this process.
    }
    let fd = int(arguments[0]);
    let reaches = match number {
        // These add descriptors to the table, or pass sockets on.
        libc::SYS_socket | libc::SYS_accept | libc::SYS_accept4 => true,
        libc::SYS_sendmsg | libc::SYS_recvmsg | libc::SYS_sendmmsg | libc::SYS_recvmmsg => true,
        libc::SYS_dup2 | libc::SYS_dup3 => {
            let copy = int(arguments[1]);
            open::knows(fd) || open::knows(copy) || is_apart(copy)
        }
        libc::SYS_close => open::knows(fd) || is_apart(fd),
        libc::SYS_splice => open::knows(fd) || open::knows(int(arguments[2])),
        libc::SYS_epoll_ctl => open::knows(fd) || open::knows(int(arguments[2])),
        _ => open::knows(fd),
    };
    let done = match number {
        _ if !reaches => None,
        // SAFETY: the caller guarantees the program's arguments.
        _ => unsafe { on_descriptor(number, fd, arguments) },
    };
    // SAFETY: the caller guarantees the program's arguments.
    done.or_else(|| unsafe { others(number, arguments) })
}

fn int(argument: usize) -> c_int {
    argument as u32 as c_int // The kernel uses the low 32 bits.
}

fn uint(argument: usize) -> c_uint {
    argument as c_uint
}

unsafe extern "C" {
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_pwait2(
        epoll: c_int,
        events: *mut libc::epoll_event,
        count: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Calls the hook with arguments of its types. A raw call is no cancellation point.
macro_rules! hook {
    ($name:path, $($argument:expr),*) => {{
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the program's arguments, which mean the same to the C library's function.
        let result = unsafe { $name($($argument),*) };
        Some(result as c_long)
    }};
}

/// Returns whether a `clone` or `vfork` is a fork, which [`call`] executes. For others it makes all
/// preparations before the jump.
///
/// # Safety
/// The arguments are those of the program's call.
pub(crate) unsafe fn is_fork(number: c_long, arguments: Arguments) -> bool {
    if !mode::enabled() {
        return false;
    }
    match number {
        // SAFETY: the caller guarantees the program's arguments.
        libc::SYS_clone | libc::SYS_clone3 => unsafe { whole::is_fork(number, arguments) },
        // A program cannot use vfork by `syscall`, whose return would use a stack that the child
        // has changed.
        libc::SYS_vfork => {
            fallback::all();
            false
        }
        _ => false,
    }
}

/// Executes a call on descriptors of which at least one may be known.
///
/// # Safety
/// The arguments are those of the program's call.
#[allow(clippy::too_many_lines)] // One line for each call.
unsafe fn on_descriptor(number: c_long, fd: c_int, a: Arguments) -> Option<c_long> {
    /// Converts an argument to an address.
    macro_rules! place {
        ($at:literal) => {
            a[$at] as *mut c_void
        };
    }
    match number {
        libc::SYS_read => hook!(libc::read, fd, place!(1), a[2]),
        libc::SYS_write => hook!(libc::write, fd, place!(1), a[2]),
        libc::SYS_readv => hook!(libc::readv, fd, place!(1).cast(), int(a[2])),
        libc::SYS_writev => hook!(libc::writev, fd, place!(1).cast(), int(a[2])),
        libc::SYS_preadv2 => {
            let offset = a[3].cast_signed() as libc::off_t;
            hook!(libc::preadv2, fd, place!(1).cast(), int(a[2]), offset, int(a[5]))
        }
        libc::SYS_pwritev2 => {
            let offset = a[3].cast_signed() as libc::off_t;
            hook!(libc::pwritev2, fd, place!(1).cast(), int(a[2]), offset, int(a[5]))
        }
        libc::SYS_recvfrom => {
            let (address, len) = (place!(4).cast(), place!(5).cast());
            hook!(libc::recvfrom, fd, place!(1), a[2], int(a[3]), address, len)
        }
        libc::SYS_sendto => {
            let (address, len) = (place!(4).cast(), uint(a[5]));
            hook!(libc::sendto, fd, place!(1), a[2], int(a[3]), address, len)
        }
        libc::SYS_recvmsg => hook!(libc::recvmsg, fd, place!(1).cast(), int(a[2])),
        libc::SYS_sendmsg => hook!(libc::sendmsg, fd, place!(1).cast(), int(a[2])),
        libc::SYS_recvmmsg => {
            let timeout = place!(4).cast();
            hook!(libc::recvmmsg, fd, place!(1).cast(), uint(a[2]), int(a[3]), timeout)
        }
        libc::SYS_sendmmsg => {
            hook!(libc::sendmmsg, fd, place!(1).cast(), uint(a[2]), int(a[3]))
        }
        libc::SYS_sendfile => hook!(libc::sendfile, fd, int(a[1]), place!(2).cast(), a[3]),
        libc::SYS_splice => {
            let (to, to_offset) = (int(a[2]), place!(3).cast());
            hook!(libc::splice, fd, place!(1).cast(), to, to_offset, a[4], uint(a[5]))
        }
        libc::SYS_socket => hook!(libc::socket, fd, int(a[1]), int(a[2])),
        libc::SYS_connect => hook!(libc::connect, fd, place!(1).cast(), uint(a[2])),
        libc::SYS_bind => hook!(libc::bind, fd, place!(1).cast(), uint(a[2])),
        libc::SYS_accept => hook!(libc::accept, fd, place!(1).cast(), place!(2).cast()),
        libc::SYS_accept4 => {
            hook!(libc::accept4, fd, place!(1).cast(), place!(2).cast(), int(a[3]))
        }
        libc::SYS_shutdown => hook!(libc::shutdown, fd, int(a[1])),
        libc::SYS_getsockopt => {
            hook!(libc::getsockopt, fd, int(a[1]), int(a[2]), place!(3), place!(4).cast())
        }
        libc::SYS_setsockopt => {
            hook!(libc::setsockopt, fd, int(a[1]), int(a[2]), place!(3), uint(a[4]))
        }
        libc::SYS_dup => hook!(libc::dup, fd),
        libc::SYS_dup2 => hook!(libc::dup2, fd, int(a[1])),
        libc::SYS_dup3 => hook!(libc::dup3, fd, int(a[1]), int(a[2])),
        libc::SYS_close => hook!(libc::close, fd),
        // The C library's function changes the results of other commands.
        libc::SYS_fcntl => match int(a[1]) {
            command @ (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL) => {
                hook!(libc::fcntl, fd, command, a[2])
            }
            _ => None,
        },
        libc::SYS_ioctl => hook!(libc::ioctl, fd, a[1] as libc::c_ulong, a[2]),
        libc::SYS_epoll_ctl => {
            hook!(libc::epoll_ctl, fd, int(a[1]), int(a[2]), place!(3).cast())
        }
        libc::SYS_epoll_wait => {
            hook!(libc::epoll_wait, fd, place!(1).cast(), int(a[2]), int(a[3]))
        }
        libc::SYS_epoll_pwait if is_set(a[4], a[5]) => {
            let mask = place!(4).cast();
            hook!(libc::epoll_pwait, fd, place!(1).cast(), int(a[2]), int(a[3]), mask)
        }
        EPOLL_PWAIT2 if is_set(a[4], a[5]) && can_be(a[3]) => {
            let (timeout, mask) = (place!(3).cast(), place!(4).cast());
            hook!(epoll_pwait2, fd, place!(1).cast(), int(a[2]), timeout, mask)
        }
        _ => None,
    }
}

/// `epoll_pwait2(2)`, whose number the `libc` crate lacks for some targets.
const EPOLL_PWAIT2: c_long = 441;
/// Size of a signal set in the kernel, in bytes. Hooks get only its address.
const SET_BYTES: usize = 8;

fn is_set(mask: usize, len: usize) -> bool {
    mask == 0 || len == SET_BYTES && can_be(mask)
}

/// Returns whether an address is NULL or possible. The C library itself reads times, where the
/// kernel would return `EFAULT`.
fn can_be(place: usize) -> bool {
    place == 0 || !is_nowhere(place as *const c_void)
}

/// Executes calls whose first argument is not a descriptor, or a descriptor of any kind.
///
/// # Safety
/// The arguments are those of the program's call.
unsafe fn others(number: c_long, a: Arguments) -> Option<c_long> {
    let place = |at: usize| a[at] as *mut c_void;
    match number {
        libc::SYS_close_range => {
            hook!(libc::close_range, uint(a[0]), uint(a[1]), int(a[2]))
        }
        libc::SYS_poll => hook!(libc::poll, place(0).cast(), a[1] as libc::nfds_t, int(a[2])),
        libc::SYS_ppoll if is_set(a[3], a[4]) && can_be(a[2]) => {
            let (timeout, mask) = (place(2).cast(), place(3).cast());
            let limit = Limit::begin(timeout);
            let count = a[1] as libc::nfds_t;
            let ready = hook!(libc::ppoll, place(0).cast(), count, timeout, mask);
            limit.end();
            ready
        }
        libc::SYS_select if can_be(a[4]) => {
            let (writes, others) = (place(2).cast(), place(3).cast());
            hook!(libc::select, int(a[0]), place(1).cast(), writes, others, place(4).cast())
        }
        libc::SYS_pselect6 => {
            // SAFETY: the caller guarantees the program's arguments.
            unsafe { pselect(a) }
        }
        libc::SYS_epoll_create => hook!(epoll_create, int(a[0])),
        libc::SYS_epoll_create1 => hook!(libc::epoll_create1, int(a[0])),
        // Libraries that watch memory (libfabric, UCX) patch the C functions, and come here from
        // their patches: so these functions must not be called.
        libc::SYS_mmap => {
            memory::mapping(a[0], a[1], int(a[3]));
            None
        }
        libc::SYS_mprotect => {
            memory::protecting(a[0], a[1], int(a[2]));
            None
        }
        libc::SYS_munmap => {
            memory::unmapping(a[0], a[1]);
            None
        }
        libc::SYS_mremap => {
            memory::moving(a[0], a[1], a[2], int(a[3]), a[4]);
            None
        }
        libc::SYS_madvise => {
            memory::advising(a[0], a[1], int(a[2]));
            None
        }
        libc::SYS_io_uring_setup => rings::refuse_ring(),
        libc::SYS_io_submit => {
            // SAFETY: the caller guarantees the program's arguments.
            unsafe { submit::submit(a) }
        }
        libc::SYS_bpf => {
            fallback::all();
            None
        }
        libc::SYS_pidfd_open => {
            fallback::looking_at_a_process();
            None
        }
        libc::SYS_pidfd_getfd if !fallback::may_take() => {
            errno::set(Errno::PERM);
            Some(-1)
        }
        libc::SYS_pidfd_getfd => {
            // SAFETY: passes on the program's own arguments.
            let got = unsafe { system_call(number, a) };
            fallback::taken(int(got as usize));
            Some(got)
        }
        libc::SYS_execve => {
            let (arguments, list) = (place(1).cast(), place(2).cast());
            hook!(libc::execve, place(0).cast(), arguments, list)
        }
        libc::SYS_execveat => {
            let (arguments, list) = (place(2).cast_const().cast(), place(3).cast_const().cast());
            let (from, path) = (int(a[0]), place(1).cast_const().cast());
            hook!(execveat, from, path, arguments, list, int(a[4]))
        }
        libc::SYS_exit_group => {
            process::end_at_once();
            None
        }
        libc::SYS_prctl => {
            // Does what the `prctl` hook checks, and calls the kernel as the C library does.
            hook!(libc::prctl, int(a[0]), a[1], a[2], a[3], a[4])
        }
        libc::SYS_seccomp => {
            whole::seccomp(uint(a[0]), place(2));
            None
        }
        libc::SYS_setrlimit => {
            hook!(libc::setrlimit, uint(a[0]), place(1).cast_const().cast())
        }
        libc::SYS_prlimit64 => {
            let (pid, limit) = (int(a[0]), place(2).cast_const().cast());
            hook!(libc::prlimit, pid, uint(a[1]), limit, place(3).cast())
        }
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
            becoming(uint(a[0]));
            None
        }
        libc::SYS_unshare => {
            whole::unsharing(int(a[0]));
            None
        }
        libc::SYS_setns => {
            whole::entering(int(a[1]));
            None
        }
        // SAFETY: the program's own arguments; the child of a fork has its own memory and stack.
        libc::SYS_fork => Some(unsafe { whole::fork(number, a, 0) }),
        libc::SYS_clone | libc::SYS_clone3 => {
            // SAFETY: the caller guarantees the program's arguments.
            let flags = unsafe { clone_flags(number, a) };
            // SAFETY: the program's own arguments. The child has its own memory and stack, because
            // `is_fork` has diverted other clones.
            Some(unsafe { whole::fork(number, a, flags) })
        }
        _ => None,
    }
}

/// A time limit of which the kernel writes the rest to the program's memory; the C library does
/// not.
struct Limit {
    place: *mut libc::timespec,
    until: Option<u64>,
}

impl Limit {
    fn begin(place: *mut libc::timespec) -> Self {
        // SAFETY: the program passes NULL or a valid time.
        let limit = unsafe { place.as_ref() };
        let until = limit.map(|&limit| crate::wait::now().saturating_add(nanoseconds(limit)));
        Self { place, until }
    }

    fn end(self) {
        if let Some(until) = self.until {
            let left = crate::wait::timespec(until.saturating_sub(crate::wait::now()));
            let left = libc::timespec { tv_sec: left.tv_sec, tv_nsec: left.tv_nsec };
            // SAFETY: not NULL, and `begin` has read it.
            unsafe { self.place.write(left) };
        }
    }
}

fn nanoseconds(time: libc::timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Executes `pselect6(2)`, whose last argument points to the mask's address and length.
///
/// # Safety
/// The arguments are those of the program's call.
unsafe fn pselect(a: Arguments) -> Option<c_long> {
    let mut mask = [0_usize, SET_BYTES];
    if !can_be(a[4]) || !can_be(a[5]) {
        return None;
    }
    if a[5] != 0 {
        // SAFETY: not NULL, so the program passes a pair of words.
        mask = unsafe { (a[5] as *const [usize; 2]).read_unaligned() };
    }
    if !is_set(mask[0], mask[1]) {
        return None;
    }
    let timeout: *mut libc::timespec = a[4] as *mut libc::timespec;
    let set = |at: usize| a[at] as *mut libc::fd_set;
    let limit = Limit::begin(timeout);
    let mask = mask[0] as *const libc::sigset_t;
    let ready = hook!(libc::pselect, int(a[0]), set(1), set(2), set(3), timeout, mask);
    limit.end();
    ready
}
