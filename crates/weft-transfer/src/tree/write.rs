//! Writes to files.

use std::os::fd::AsFd;

use rustix::io::{Errno, pwrite};

/// Length of a write of zeros.
const ZEROS_LEN: usize = 256 << 10;

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

/// Writes zeros to a range.
///
/// # Errors
/// An error of the kernel. A part may have been written.
pub(crate) fn write_zeros(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    let (zeros, mut at, end) = (vec![0; ZEROS_LEN], offset, offset + len);
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(ZEROS_LEN).min(ZEROS_LEN);
        write_all(&fd, &zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}
