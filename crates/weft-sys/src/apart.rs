//! Weft's own descriptors in the process of a program. Their numbers are so high that programs
//! reach them only with hundreds of files open. Weft remembers them, so that a program which closes
//! every possible descriptor does not close these.
//!
//! # Safety
//! A descriptor number is used only while this module has it open.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::calls::fs::{Stat, fstat};
use crate::calls::io::fcntl_dupfd_cloexec;

/// The first of the numbers. A process may usually have 1,024 descriptors.
const FIRST: RawFd = 960;
const COUNT: u32 = u64::BITS;

/// One bit for each number in use.
static OURS: AtomicU64 = AtomicU64::new(0);

fn bit(fd: RawFd) -> Option<u64> {
    let at = fd.checked_sub(FIRST).and_then(|at| u32::try_from(at).ok())?;
    (at < COUNT).then(|| 1 << at)
}

/// Whether a descriptor is one of Weft's own.
#[inline]
#[must_use]
pub fn is_apart(fd: RawFd) -> bool {
    bit(fd).is_some_and(|bit| OURS.load(Ordering::Relaxed) & bit != 0)
}

/// Weft's own descriptors in a range of numbers.
pub fn apart_within(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let all = (0..COUNT).map(|at| FIRST.unsigned_abs() + at);
    all.filter(move |&fd| first <= fd && fd <= last && is_apart(fd.cast_signed()))
}

/// A descriptor of Weft's own, open until this is dropped.
#[derive(Debug)]
pub struct ApartFd(RawFd);

impl ApartFd {
    /// Copies a file's descriptor to such a number. `None` if there is none free.
    #[must_use]
    pub fn new(file: &OwnedFd) -> Option<Self> {
        let copy = fcntl_dupfd_cloexec(file, FIRST).ok()?;
        let bit = bit(copy.as_raw_fd())?;
        OURS.fetch_or(bit, Ordering::SeqCst);
        // Before the bit was set, a program that closes everything may have closed the copy.
        let same =
            |one: Stat, other: Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        let is_it = fstat(&copy).is_ok_and(|it| fstat(file).is_ok_and(|file| same(it, file)));
        let fd = copy.into_raw_fd();
        if !is_it {
            OURS.fetch_and(!bit, Ordering::SeqCst);
            return None;
        }
        Some(Self(fd))
    }
}

impl AsFd for ApartFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until `self` is dropped, because the hooks close no number
        // in `OURS`.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for ApartFd {
    fn drop(&mut self) {
        if let Some(bit) = bit(self.0) {
            OURS.fetch_and(!bit, Ordering::SeqCst);
        }
        // SAFETY: `self` owns this open descriptor, and nothing uses it afterwards. A direct call,
        // because `close` would be the hook.
        let _ = unsafe { crate::system_call(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_have_numbers_that_programs_do_not_reach() {
        let file = crate::counting_eventfd().expect("an eventfd");
        assert!(!is_apart(file.as_raw_fd()));
        let apart = ApartFd::new(&file).expect("a number");
        let number = apart.as_fd().as_raw_fd();
        assert!(is_apart(number) && number >= FIRST);
        let other = ApartFd::new(&file).expect("another");
        assert_ne!(number, other.as_fd().as_raw_fd());
        drop(apart);
        assert!(!is_apart(number) && is_apart(other.as_fd().as_raw_fd()));
        assert!(!is_apart(-1) && !is_apart(RawFd::MAX) && !is_apart(RawFd::MIN));
    }
}
