//! What all calls use: the call itself, options of sockets, and descriptors and paths as arguments.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

/// Makes a system call without setting `errno`, because the program's call may still succeed.
///
/// # Safety
/// Those of `system_call`.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller fulfils the conditions of `system_call`.
    let result = unsafe { crate::by_hand::raw_system_call(number, arguments) };
    if (-4095..0).contains(&result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result.cast_unsigned())
}

/// # Safety
/// Those of `system_call`.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller fulfils the conditions of `system_call`.
    let result = unsafe { crate::by_hand::system_call(number, arguments) };
    usize::try_from(result).map_err(|_| {
        let code = std::io::Error::last_os_error().raw_os_error();
        code.map_or(Errno::IO, Errno::from_raw_os_error)
    })
}

/// The address of an argument, or 0.
pub(super) fn address<T>(place: Option<&T>) -> usize {
    place.map_or(0, |place| ptr::from_ref(place) as usize)
}

/// Reads an option whose value has the length of `T`, which consists of integers.
pub(crate) fn option_of<T: Default>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> Result<T, Errno> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let (level, option, place) = (level as usize, option as usize, &raw mut value);
    let arguments = [number(&socket), level, option, place as usize, &raw mut len as usize, 0];
    // SAFETY: both pointers are to local variables, and `len` is the length of the first.
    unsafe { call(libc::SYS_getsockopt, arguments) }.map(|_| value)
}

/// Sets an option whose value is a `T`.
pub(crate) fn set_option<T: Copy>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    let (level, option, place) = (level as usize, option as usize, ptr::from_ref(value));
    let arguments = [number(&socket), level, option, place as usize, size_of::<T>(), 0];
    // SAFETY: `value` can be read during the call, and the length is its length.
    unsafe { call(libc::SYS_setsockopt, arguments) }.map(drop)
}

/// Sets an option whose value is a text.
pub(super) fn set_option_bytes(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> Result<(), Errno> {
    let (level, option, place) = (level as usize, option as usize, value.as_ptr() as usize);
    let arguments = [number(&socket), level, option, place, value.len(), 0];
    // SAFETY: the bytes live during the call, and the length is theirs.
    unsafe { call(libc::SYS_setsockopt, arguments) }.map(drop)
}

/// The number of a descriptor. It is borrowed, so that an owned one is open during the call.
pub(super) fn number(fd: &impl AsFd) -> usize {
    fd.as_fd().as_raw_fd() as usize
}

/// Makes a system call that returns a new descriptor.
///
/// # Safety
/// Those of `system_call`, and the call returns a descriptor that nothing else owns.
pub(super) unsafe fn open_by(
    number: libc::c_long,
    arguments: [usize; 6],
) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller fulfils the conditions of `system_call`.
    let fd = unsafe { call(number, arguments) }?;
    // SAFETY: the caller guarantees that the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// The address of a path.
pub(super) fn path_at(path: &CStr) -> usize {
    path.as_ptr() as usize
}

/// An argument that is an `int`, as the kernel expects it in a register.
pub(super) fn int(value: libc::c_int) -> usize {
    value as usize
}
