//! Functions of the C library that replace descriptors, or fork, internally. These versions do the
//! same through the hooks.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes.
#![allow(unsafe_code)]

use libc::{c_char, c_int, pid_t, termios, winsize};
use weft_sys::calls;
use weft_sys::calls::io::Errno;

use crate::errno;

/// The device number of `/dev/null`.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Closes a descriptor, and returns -1 with the earlier error.
fn give_up(fd: c_int) -> c_int {
    let before = errno::get();
    // SAFETY: `close` takes no pointer; the descriptor is the caller's own.
    unsafe { libc::close(fd) };
    errno::set_raw(before);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    // SAFETY: the program has asked for a fork.
    match unsafe { libc::fork() } {
        -1 => return -1,
        0 => {}
        // SAFETY: the parent ends without running exit handlers, as daemon(3) says.
        _ => unsafe { libc::_exit(0) },
    }
    // SAFETY: `setsid` takes no arguments.
    if unsafe { libc::setsid() } == -1 {
        return -1;
    }
    if no_chdir == 0 {
        // SAFETY: a C string.
        let _ = unsafe { libc::chdir(c"/".as_ptr()) };
    }
    if no_close != 0 {
        return 0;
    }
    // SAFETY: a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    if null < 0 {
        return -1;
    }
    let status = calls::fs::fstat(crate::descriptor::Descriptor::of(null));
    let device = |device| (calls::fs::major(device), calls::fs::minor(device));
    if !status.is_ok_and(|status| device(status.st_rdev) == NULL_DEVICE) {
        errno::set(Errno::NODEV);
        return give_up(null);
    }
    for fd in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        // SAFETY: `dup2` takes no pointer.
        unsafe { libc::dup2(null, fd) };
    }
    if null > libc::STDERR_FILENO {
        // SAFETY: `close` takes no pointer; the descriptor was opened above.
        unsafe { libc::close(null) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: `setsid` takes no arguments.
    unsafe { libc::setsid() };
    // SAFETY: TIOCSCTTY takes no pointer.
    if unsafe { libc::ioctl(fd, libc::TIOCSCTTY, 0) } == -1 {
        return -1;
    }
    for copy in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        // SAFETY: `dup2` takes no pointer.
        while unsafe { libc::dup2(fd, copy) } == -1 && errno::last() == Errno::BUSY {}
    }
    if fd > libc::STDERR_FILENO {
        // SAFETY: `close` takes no pointer; the program hands over the descriptor.
        unsafe { libc::close(fd) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    modes: *const termios,
    size: *const winsize,
) -> pid_t {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: the program's own arguments, and two local variables for the descriptors.
    if unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, modes, size) } == -1 {
        return -1;
    }
    // SAFETY: the program has asked for a fork.
    match unsafe { libc::fork() } {
        -1 => {
            give_up(ours);
            give_up(theirs)
        }
        0 => {
            // SAFETY: `close` takes no pointer; the descriptor was opened above.
            unsafe { libc::close(ours) };
            // SAFETY: `login_tty` takes no pointer; the descriptor was opened above.
            if unsafe { login_tty(theirs) } != 0 {
                // SAFETY: the child ends without running the parent's exit handlers.
                unsafe { libc::_exit(1) };
            }
            0
        }
        child => {
            // SAFETY: the program passes a valid place for the descriptor.
            unsafe { master.write(ours) };
            // SAFETY: `close` takes no pointer; the descriptor was opened above.
            unsafe { libc::close(theirs) };
            child
        }
    }
}
