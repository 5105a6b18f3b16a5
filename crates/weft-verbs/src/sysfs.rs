//! Reads of files under `/sys`, where our devices have none. This module answers reads through the
//! library; the preload library serves files that programs open themselves.
//!
//! # Safety
//! A program passes paths as valid C strings, and buffers of the size that it states.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use weft_engine::{Errno, Result};

use crate::device;
use crate::errno;
use crate::presentation::Presentation;

const CLASS: &str = "/sys/class/infiniband/";

/// The content of a file without its final newline.
///
/// # Errors
/// As `open(2)` and `read(2)`.
fn content(directory: &str, file: &str, room: usize) -> Result<Vec<u8>> {
    let own = directory.strip_prefix(CLASS).and_then(|name| {
        let devices = device::list().unwrap_or_default();
        devices.into_iter().find(|device| device.engine().name == name)
    });
    match own {
        Some(device) => {
            let gids = device.engine().addresses.len();
            attribute_text(file, gids).map(String::into_bytes).ok_or(Errno::NOENT)
        }
        None => from_disk(&Path::new(directory).join(file), room),
    }
}

fn attribute_text(file: &str, gids: usize) -> Option<String> {
    if let Some(index) = file.strip_prefix("ports/1/gid_attrs/types/") {
        let index: usize = index.parse().ok()?;
        return (index < gids).then(|| Presentation::get().gid_type_text().to_owned());
    }
    let text = match (file, Presentation::get()) {
        ("board_id" | "hca_type", _) => "Weft",
        ("fw_ver", _) => env!("CARGO_PKG_VERSION"),
        ("node_type", Presentation::Roce) => "1: CA",
        ("node_type", Presentation::Iwarp) => "4: RNIC",
        _ => return None,
    };
    Some(text.to_owned())
}

fn from_disk(path: &Path, room: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(room as u64).read_to_end(&mut bytes));
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

/// # Safety
/// `text` must be a C string that lives for `'a`.
unsafe fn path<'a>(text: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller guarantees a C string that lives for `'a`.
    let text = unsafe { CStr::from_ptr(text) };
    OsStr::from_bytes(text.to_bytes()).to_str().ok_or(Errno::NOENT)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file's text, cut to the size of the buffer and terminated by NUL if there is room.
/// Returns the number of bytes without the final newline, or -1 and sets `errno`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the program passes valid C strings, which live during the call.
    let (directory, file) = (unsafe { path(directory) }, unsafe { path(file) });
    let read = directory.and_then(|directory| content(directory, file?, size));
    match read {
        Ok(bytes) => {
            let count = bytes.len().min(size);
            // SAFETY: `count` is at most `size`, and the program passes a buffer of `size` bytes.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count) };
            if count < size {
                // SAFETY: `count` is less than the size of the buffer.
                let end = unsafe { buffer.add(count) };
                // SAFETY: `count` is less than the size of the buffer.
                unsafe { end.write(0) };
            }
            c_int::try_from(count).unwrap_or(c_int::MAX)
        }
        Err(error) => errno::minus_one(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_device_have_its_attributes() {
        assert_eq!(attribute_text("fw_ver", 1).as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(attribute_text("ports/1/gid_attrs/types/0", 1).as_deref(), Some("RoCE v2"));
        assert_eq!(attribute_text("ports/1/gid_attrs/types/1", 1), None);
        assert_eq!(attribute_text("ports/1/gid_attrs/types/x", 1), None);
        assert_eq!(attribute_text("uevent", 1), None);
    }

    #[test]
    fn files_of_other_devices_are_read_from_disk() {
        let mut buffer = [1; 64];
        // SAFETY: the arguments are C strings and a buffer of the stated size.
        let count = unsafe {
            ibv_read_sysfs_file(
                c"/proc/sys/kernel".as_ptr(),
                c"ostype".as_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        assert_eq!(count, 5);
        assert_eq!(buffer.map(i8::cast_unsigned)[..6], *b"Linux\0");
    }
}
