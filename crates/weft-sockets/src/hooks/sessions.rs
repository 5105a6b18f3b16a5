//! Functions of the C library that replace descriptors, or fork, inside themselves: done as the C
//! library does them, by the hooks.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of.
#![allow(unsafe_code)]

use libc::{c_char, c_int, pid_t, termios, winsize};
use rustix::io::Errno;

use crate::errno;

/// The device number of `/dev/null`.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Closes a descriptor, and fails with the error of before.
fn give_up(fd: c_int) -> c_int {
    let before = errno::get();
    // SAFETY: a descriptor of the caller's own.
    unsafe { libc::close(fd) };
    errno::set_raw(before);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    // SAFETY: the program's own wish.
    match unsafe { libc::fork() } {
        -1 => return -1,
        0 => {}
        // SAFETY: the parent ends without its handlers, as the manual page says.
        _ => unsafe { libc::_exit(0) },
    }
    // SAFETY: no argument.
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
    let status = rustix::fs::fstat(crate::descriptor::Descriptor::of(null));
    let device = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    if !status.is_ok_and(|status| device(status.st_rdev) == NULL_DEVICE) {
        errno::set(Errno::NODEV);
        return give_up(null);
    }
    for fd in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        // SAFETY: a descriptor just opened.
        unsafe { libc::dup2(null, fd) };
    }
    if null > libc::STDERR_FILENO {
        // SAFETY: a descriptor just opened.
        unsafe { libc::close(null) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: no argument.
    unsafe { libc::setsid() };
    // SAFETY: the program's own descriptor.
    if unsafe { libc::ioctl(fd, libc::TIOCSCTTY, 0) } == -1 {
        return -1;
    }
    for copy in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        // SAFETY: the program's own descriptor.
        while unsafe { libc::dup2(fd, copy) } == -1 && errno::last() == Errno::BUSY {}
    }
    if fd > libc::STDERR_FILENO {
        // SAFETY: the program's own descriptor.
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
    // SAFETY: the program's own arguments, and places for two descriptors.
    if unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, modes, size) } == -1 {
        return -1;
    }
    // SAFETY: the program's own wish.
    match unsafe { libc::fork() } {
        -1 => {
            give_up(ours);
            give_up(theirs)
        }
        0 => {
            // SAFETY: a descriptor just opened.
            unsafe { libc::close(ours) };
            // SAFETY: a descriptor just opened.
            if unsafe { login_tty(theirs) } != 0 {
                // SAFETY: the child cannot go on.
                unsafe { libc::_exit(1) };
            }
            0
        }
        child => {
            // SAFETY: the program's place.
            unsafe { master.write(ours) };
            // SAFETY: a descriptor just opened.
            unsafe { libc::close(theirs) };
            child
        }
    }
}
