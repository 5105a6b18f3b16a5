//! What the verbs library tells this one.
//!
//! # Safety
//! The function only compares the address that it gets with those of the loaded libraries.
#![allow(unsafe_code)]

use libc::c_void;

use crate::by_hand;

/// Notes that `address` lies in the code of Weft's verbs library, whose system calls are not the
/// program's: the sockets of its connections are none of this library's.
#[unsafe(no_mangle)]
extern "C" fn weft_sockets_note_verbs_library(address: *const c_void) {
    by_hand::note_verbs(address as usize);
}
