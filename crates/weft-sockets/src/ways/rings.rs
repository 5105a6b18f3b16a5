//! io_uring rings, which use descriptors unseen.

use std::ffi::CStr;
use std::io::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_long;
use weft_sys::calls;
use weft_sys::calls::io::Errno;

use crate::seccomp_fallback::keep_on_tcp;
use crate::settings::{self, Ring};
use crate::{errno, mode, reason};

/// Executes `io_uring_setup(2)`. `None`: the kernel is to do it.
pub(super) fn refuse_ring() -> Option<c_long> {
    refuses_rings().then(|| {
        errno::set(Errno::PERM);
        -1
    })
}

/// Returns whether an io_uring ring is refused, as if the administrator had disabled rings: Weft
/// cannot see a ring's operations, and programs can do without. Otherwise the process stays on TCP
/// from here on.
pub(crate) fn refuses_rings() -> bool {
    if !mode::enabled() {
        return false;
    }
    if settings::ring() == Ring::Tcp {
        keep_on_tcp("io_uring is used");
        return false;
    }
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        reason::write_with(|line| {
            write!(line, "io_uring is refused; WEFT_SOCKETS_IO_URING=tcp lets it through")
        });
    }
    true
}

/// Keeps the process on TCP if a descriptor from another process or program is an io_uring ring.
pub(crate) fn check_ring(fd: RawFd) {
    let mut path = [0_u8; 32];
    let _ = write!(&mut path[..31], "/proc/self/fd/{fd}");
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return };
    let mut target = [0; 32];
    let known = calls::fs::readlink(path, &mut target);
    if known.is_ok_and(|target| target == b"anon_inode:[io_uring]") {
        keep_on_tcp("a ring of io_uring was inherited or received");
    }
}
