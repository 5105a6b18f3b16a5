//! Writes to files.

use std::os::fd::AsFd;

use rustix::io::{Errno, pwrite};

/// Writes all of `data` at an offset.
///
/// # Errors
/// An error of the kernel. A part may have been written.
pub(crate) fn write_all(fd: impl AsFd, data: &[u8], offset: u64) -> Result<(), Errno> {
    let (mut rest, mut at) = (data, offset);
    while !rest.is_empty() {
        match pwrite(&fd, rest, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                rest = &rest[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
