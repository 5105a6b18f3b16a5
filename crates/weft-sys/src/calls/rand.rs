//! Random numbers.
//!
//! # Safety
//! The call passes the address and length of its argument, which lives until it returns.
#![allow(unsafe_code)]

use rustix::io::Errno;
pub use rustix::rand::GetRandomFlags;

use super::raw::call;

/// Fills `bytes` with random ones, and returns how many are.
///
/// # Errors
/// Those of `getrandom(2)`.
pub fn getrandom(bytes: &mut [u8], flags: GetRandomFlags) -> Result<usize, Errno> {
    let arguments = [bytes.as_mut_ptr() as usize, bytes.len(), flags.bits() as usize, 0, 0, 0];
    // SAFETY: the length is that of the buffer, which lives during the call.
    unsafe { call(libc::SYS_getrandom, arguments) }
}
