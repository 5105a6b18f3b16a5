//! Closes one descriptor.
//!
//! # Safety
//! The C library's function has the signature that is declared here, and takes no pointers.
#![allow(unsafe_code)]

use libc::c_int;
use weft_sys::calls::io::Errno;
use weft_sys::is_apart;

use super::closing::closing_ours;
use crate::closes::UnderWay;
use crate::next::next;
use crate::{errno, identity, open};

/// Closes a descriptor like `close(2)`. If it is Weft's, or Weft calls, the caller prevents that
/// the thread is cancelled meanwhile.
pub(super) fn close_uncancelled(fd: c_int) -> c_int {
    if is_apart(fd) && !identity::is_borrowed() {
        return errno::fail(Errno::BADF); // Weft uses it, and the program has not opened it.
    }
    let is_ours = open::knows(fd) && !identity::is_borrowed();
    let _under_way = UnderWay::begin(is_ours);
    if is_ours {
        closing_ours(fd);
    }
    next!(close(fd: c_int) -> c_int)
}
