//! Write protection of memory by `userfaultfd(2)` (`UFFDIO_WRITEPROTECT`, Linux 5.7).
//!
//! A thread that writes to a protected page is blocked, in the program or inside a system call,
//! until the protection of that page is removed. Unlike with `mprotect(2)` no system call fails.
//!
//! # Safety
//! Structures are those of `linux/userfaultfd.h`, and live while the kernel uses them. Protecting a
//! page changes none of its bytes: the worst result of a wrong range is a blocked thread.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use crate::calls::fs::{Mode, OFlags};
use crate::calls::io::Errno;

const API: u64 = 0xaa;
/// Pages that were never touched can be protected (Linux 6.4). Before, they have to be mapped
/// first, to the zero page.
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// Pages of shared segments can be registered (Linux 5.19).
const FEATURE_WP_SHARED: u64 = 1 << 12;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
/// Only faults of user code: these need no privilege (Linux 5.11).
const USER_MODE_ONLY: libc::c_int = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;

/// `_IOWR(0xaa, number, [u64; words])`.
const fn request(number: libc::c_ulong, words: libc::c_ulong) -> libc::c_ulong {
    3 << 30 | (8 * words) << 16 | 0xaa << 8 | number
}
const IOCTL_API: libc::c_ulong = request(0x3f, 3);
const IOCTL_REGISTER: libc::c_ulong = request(0x00, 4);
const IOCTL_WRITEPROTECT: libc::c_ulong = request(0x06, 3);
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const IOCTL_NEW: libc::c_ulong = 0xaa << 8;

/// `struct uffd_msg` for a page fault.
#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// The write protection of a process's memory.
#[derive(Debug)]
pub struct UserFault {
    fd: OwnedFd,
    features: u64,
}

impl UserFault {
    /// Opens a userfaultfd for the calling process.
    ///
    /// # Errors
    /// `EPERM` if the process may not handle faults inside system calls (`CAP_SYS_PTRACE`,
    /// `vm.unprivileged_userfaultfd` or the permissions of `/dev/userfaultfd`); `EINVAL` or
    /// `ENOSYS` if the kernel is older than Linux 5.14.
    pub fn new() -> Result<Self, Errno> {
        Self::with(FEATURE_WP_UNPOPULATED, 0).or_else(|_| {
            can_populate()?;
            Self::with(0, 0)
        })
    }

    /// Opens a userfaultfd that protects nothing. It stops every thread that is about to give back
    /// registered pages of a shared segment (`madvise(2)`) or to move them (`mremap(2)`), until
    /// `UserFault::resume_one`.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` if it is forbidden; `EINVAL` if the kernel is older than Linux 5.19.
    pub fn for_change_events() -> Result<Self, Errno> {
        let features = FEATURE_WP_SHARED | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE;
        Self::with(features, USER_MODE_ONLY)
    }

    fn with(features: u64, flags: libc::c_int) -> Result<Self, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | flags;
        // SAFETY: only numbers are passed.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let made = match libc::c_int::try_from(made) {
            Ok(fd) if fd >= 0 => fd,
            _ => Self::from_device(flags)?,
        };
        // SAFETY: the descriptor was created just now, and nothing else owns it.
        let this = Self { fd: unsafe { OwnedFd::from_raw_fd(made) }, features };
        let mut answer = [API, features, 0];
        this.ioctl(IOCTL_API, &mut answer)?;
        // Linux 6.0 to 6.3 ignore unknown features.
        if answer[1] & features == features { Ok(this) } else { Err(Errno::INVAL) }
    }

    fn from_device(flags: libc::c_int) -> Result<libc::c_int, Errno> {
        let access = OFlags::RDWR | OFlags::CLOEXEC;
        let device = crate::calls::fs::open("/dev/userfaultfd", access, Mode::empty())
            .map_err(|_| Errno::PERM)?;
        // SAFETY: only numbers are passed.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_NEW, flags) };
        if made < 0 { Err(last_error()) } else { Ok(made) }
    }

    /// Registers pages, so that they can be protected. Whole mappings are best, because a part
    /// splits its mapping.
    ///
    /// # Errors
    /// `EINVAL` if the pages are not ordinary memory; `EBUSY` if another userfaultfd has them.
    pub fn register(&self, pages: &Range<usize>) -> Result<(), Errno> {
        self.ioctl(IOCTL_REGISTER, &mut [pages.start as u64, len(pages), REGISTER_MODE_WP, 0])
    }

    /// Blocks writers to the pages until they are released.
    ///
    /// # Errors
    /// `ENOENT` if the pages are not registered, or have been mapped anew since; `ENOMEM` or
    /// `EFAULT` if they cannot be read.
    pub fn protect(&self, pages: &Range<usize>) -> Result<(), Errno> {
        if self.features & FEATURE_WP_UNPOPULATED == 0 {
            populate(pages)?;
        }
        self.write_protect(pages, WRITEPROTECT_MODE_WP)
    }

    /// Removes the protection, and wakes the blocked writers.
    ///
    /// # Errors
    /// Those of [`UserFault::protect`]; the pages are not protected then.
    pub fn release(&self, pages: &Range<usize>) -> Result<(), Errno> {
        self.write_protect(pages, 0)
    }

    fn write_protect(&self, pages: &Range<usize>, mode: u64) -> Result<(), Errno> {
        loop {
            let mut range = [pages.start as u64, len(pages), mode];
            match self.ioctl(IOCTL_WRITEPROTECT, &mut range) {
                Err(Errno::AGAIN) => {} // The mappings are being changed: try again.
                other => return other,
            }
        }
    }

    /// The address to which a blocked thread wants to write. `None` if there is none.
    pub fn next_fault(&self) -> Option<usize> {
        let mut message = Message::default();
        let size = size_of::<Message>();
        // SAFETY: the buffer is a local variable of that size, for which any bytes are valid.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut message).cast(), size) };
        let is_fault = read == size.cast_signed() && message.event == EVENT_PAGEFAULT;
        is_fault.then(|| usize::try_from(message.address).unwrap_or(0))
    }

    /// Lets one stopped thread continue. Returns whether there was one.
    pub(crate) fn resume_one(&self) -> bool {
        let mut message = Message::default();
        let size = size_of::<Message>();
        // SAFETY: the buffer is a local variable of that size, for which any bytes are valid.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut message).cast(), size) };
        read == size.cast_signed()
    }

    fn ioctl<const WORDS: usize>(
        &self,
        request: libc::c_ulong,
        argument: &mut [u64; WORDS],
    ) -> Result<(), Errno> {
        // SAFETY: the request's structure has as many words, and lives during the call.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        if done < 0 { Err(last_error()) } else { Ok(()) }
    }
}

impl AsFd for UserFault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for UserFault {
    /// Another descriptor of a userfaultfd.
    fn from(fd: OwnedFd) -> Self {
        Self { fd, features: 0 }
    }
}

/// Maps all pages, so that pages which were never touched can be read.
fn populate(pages: &Range<usize>) -> Result<(), Errno> {
    let start = pages.start as *mut libc::c_void;
    // SAFETY: no byte changes, and no mapping is removed.
    let done = unsafe { libc::madvise(start, pages.len(), libc::MADV_POPULATE_READ) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Whether the kernel supports that: `EINVAL` if it is older than Linux 5.14.
fn can_populate() -> Result<(), Errno> {
    populate(&(0..0))
}

fn len(pages: &Range<usize>) -> u64 {
    pages.len() as u64
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    const PAGE: usize = 4_096;

    /// Writers by stores and by system calls wait until the page is released, and the bytes are
    /// right then.
    fn writers_wait_and_system_calls_do_not_fail(features: u64) {
        let fault = match UserFault::with(features, 0) {
            Ok(fault) => fault,
            Err(errno) => {
                let _ = writeln!(std::io::stderr(), "skipped: no userfaultfd here ({errno})");
                return;
            }
        };
        // The first two pages are touched, the others are not.
        let memory = vec![0_u8; 1 << 20].leak();
        let start = (memory.as_ptr() as usize).next_multiple_of(PAGE);
        let first = start - memory.as_ptr() as usize;
        memory[first..first + 2 * PAGE].fill(7);
        let pages = start..start + 4 * PAGE;
        assert_eq!(fault.protect(&pages), Err(Errno::NOENT), "not registered");
        fault.register(&pages).expect("private memory");
        fault.protect(&pages).expect("registered");
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stored, read) = memory[first..].split_at_mut(2 * PAGE);
            let released = &released;
            scope.spawn(move || {
                stored[5] = 1;
                assert!(released.load(Ordering::SeqCst));
                assert_eq!(&stored[4..7], b"\x07\x01\x07");
            });
            scope.spawn(move || {
                let (mut from, mut to) = std::io::pipe().expect("a pipe");
                to.write_all(b"xyz").expect("room");
                assert_eq!(from.read(&mut read[..3]).ok(), Some(3));
                assert!(released.load(Ordering::SeqCst));
                assert_eq!(&read[..4], b"xyz\0");
            });
            let mut found = Vec::new();
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(240);
            while found.len() < 2 && std::time::Instant::now() < limit {
                match fault.next_fault() {
                    Some(at) => found.push(at / PAGE - start / PAGE),
                    None => std::thread::yield_now(),
                }
            }
            found.sort_unstable();
            released.store(true, Ordering::SeqCst);
            fault.release(&pages).expect("registered");
            assert_eq!(found, [0, 2]);
        });
    }

    #[test]
    fn writers_wait() {
        writers_wait_and_system_calls_do_not_fail(FEATURE_WP_UNPOPULATED);
    }

    #[test]
    fn writers_wait_on_older_kernels() {
        can_populate().expect("Linux 5.14");
        writers_wait_and_system_calls_do_not_fail(0);
    }
}
