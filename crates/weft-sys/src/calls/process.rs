//! Processes and their limits.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::io::Errno;
/// The name by which this program was started, which rustix has from the C library.
pub use rustix::param::linux_execfn;
pub use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Uid};

use super::raw::{call, int, number, open_by};

/// A call without arguments that never fails.
fn ask(number: libc::c_long) -> u32 {
    // SAFETY: the calls that are made so access no memory.
    unsafe { call(number, [0; 6]) }.map_or(0, |answer| answer as u32)
}

/// The number of this process.
///
/// # Panics
/// Never: the kernel gives each process a number above 0.
#[must_use]
pub fn getpid() -> Pid {
    Pid::from_raw(ask(libc::SYS_getpid).cast_signed()).expect("a process has a number")
}

/// The real user of this process.
#[must_use]
pub fn getuid() -> Uid {
    Uid::from_raw(ask(libc::SYS_getuid))
}

/// The effective user of this process.
#[must_use]
pub fn geteuid() -> Uid {
    Uid::from_raw(ask(libc::SYS_geteuid))
}

/// Whether a process exists and may be sent signals: an error says why not.
///
/// # Errors
/// `ESRCH`: no such process; `EPERM`: another user's.
pub fn test_kill_process(process: Pid) -> Result<(), Errno> {
    // SAFETY: the call accesses no memory, and sends no signal.
    unsafe { call(libc::SYS_kill, [int(process.as_raw_pid()), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Opens a process.
///
/// # Errors
/// Those of `pidfd_open(2)`.
pub fn pidfd_open(process: Pid, flags: PidfdFlags) -> Result<OwnedFd, Errno> {
    let arguments = [int(process.as_raw_pid()), flags.bits() as usize, 0, 0, 0, 0];
    // SAFETY: the call accesses no memory, and returns a new descriptor.
    unsafe { open_by(libc::SYS_pidfd_open, arguments) }
}

/// Duplicates a descriptor of another process.
///
/// # Errors
/// Those of `pidfd_getfd(2)`.
pub fn pidfd_getfd(
    process: impl AsFd,
    fd: RawFd,
    flags: PidfdGetfdFlags,
) -> Result<OwnedFd, Errno> {
    let arguments = [number(&process), int(fd), flags.bits() as usize, 0, 0, 0];
    // SAFETY: the call accesses no memory, and returns a new descriptor.
    unsafe { open_by(libc::SYS_pidfd_getfd, arguments) }
}

/// `prlimit64(2)` of this process.
fn limits(resource: Resource, new: Option<[u64; 2]>) -> Result<[u64; 2], Errno> {
    let mut old = [u64::MAX; 2];
    let new = new.as_ref().map_or(0, |new| new.as_ptr() as usize);
    let arguments = [0, resource as usize, new, old.as_mut_ptr() as usize, 0, 0];
    // SAFETY: both structures are two 64-bit numbers; they are local variables or NULL.
    unsafe { call(libc::SYS_prlimit64, arguments) }?;
    Ok(old)
}

/// A limit of this process.
#[must_use]
pub fn getrlimit(resource: Resource) -> Rlimit {
    let known = limits(resource, None).unwrap_or([u64::MAX; 2]);
    let [current, maximum] = known.map(|limit| (limit != u64::MAX).then_some(limit));
    Rlimit { current, maximum }
}

/// Sets a limit of this process.
///
/// # Errors
/// Those of `setrlimit(2)`.
pub fn setrlimit(resource: Resource, new: Rlimit) -> Result<(), Errno> {
    let new = [new.current, new.maximum].map(|limit| limit.unwrap_or(u64::MAX));
    limits(resource, Some(new)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_the_one_that_rustix_sees() {
        assert_eq!(getpid(), rustix::process::getpid());
        assert_eq!((getuid(), geteuid()), (rustix::process::getuid(), rustix::process::geteuid()));
        assert_eq!(test_kill_process(getpid()), Ok(()));
        for resource in [Resource::Nofile, Resource::Core, Resource::Fsize] {
            let limit = getrlimit(resource);
            assert_eq!(limit, rustix::process::getrlimit(resource));
            assert_eq!(setrlimit(resource, limit), Ok(()));
            assert_eq!(getrlimit(resource), limit);
        }
    }

    #[test]
    fn descriptors_of_a_process_are_duplicated() {
        let this = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
        let file = rustix::fs::memfd_create("weft", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("a file");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let copy = pidfd_getfd(&this, fd, PidfdGetfdFlags::empty()).expect("a copy");
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).expect("a state").st_ino;
        assert_eq!(inode(&copy), inode(&file));
    }
}
