//! What the kernel hands to a program and is asked for, without the C library.
//!
//! # Safety
//! The calls get strings with their nulls, lists of such strings with a null pointer at their end,
//! and memory with its length. None of them keeps a pointer, and those that write do so into
//! borrowed memory only.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;

use crate::limits::VARIABLES_MAX;

const WRITE: usize = 1;
const STAT: usize = 4;
const EXECVE: usize = 59;
const READLINK: usize = 89;
const GETEUID: usize = 107;
const GETXATTR: usize = 191;
const EXIT_GROUP: usize = 231;

/// Strings as the kernel hands them to a program: pointers, of which the last one is null.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    first: *const *const c_char,
    len: usize,
    strings: PhantomData<&'a CStr>,
}

impl<'a> Strings<'a> {
    /// # Safety
    /// A list of pointers to strings begins there and ends with a null pointer, and nobody changes
    /// either during the lifetime.
    #[must_use]
    pub unsafe fn new(first: *const *const c_char) -> Self {
        let mut len = 0;
        loop {
            // SAFETY: it is not behind the null pointer.
            let at = unsafe { first.add(len) };
            // SAFETY: the caller says so.
            if unsafe { at.read() }.is_null() {
                return Self { first, len, strings: PhantomData };
            }
            len += 1;
        }
    }

    /// The number of strings.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(self, index: usize) -> Option<&'a CStr> {
        if index >= self.len {
            return None;
        }
        // SAFETY: it is before the null pointer.
        let at = unsafe { self.first.add(index) };
        // SAFETY: it is one of the list's pointers.
        let string = unsafe { at.read() };
        // SAFETY: `new` demands it.
        Some(unsafe { CStr::from_ptr(string) })
    }

    /// The strings from one of them on; none if there are fewer.
    pub(crate) fn from(self, index: usize) -> Self {
        let skipped = index.min(self.len);
        // SAFETY: it is not behind the null pointer.
        Self { first: unsafe { self.first.add(skipped) }, len: self.len - skipped, ..self }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = &'a CStr> {
        (0..self.len).filter_map(move |index| self.get(index))
    }
}

/// A list of strings that is being put together.
#[derive(Debug)]
pub(crate) struct List<'a> {
    /// Behind the strings there are null pointers only.
    pointers: [*const c_char; VARIABLES_MAX],
    len: usize,
    strings: PhantomData<&'a CStr>,
}

impl<'a> List<'a> {
    pub(crate) fn new() -> Self {
        Self { pointers: [core::ptr::null(); VARIABLES_MAX], len: 0, strings: PhantomData }
    }

    /// Appends a string. `None` if there is no room.
    pub(crate) fn push(&mut self, string: &'a CStr) -> Option<()> {
        // The last pointer stays null.
        let room = self.len.checked_add(1).filter(|&end| end < VARIABLES_MAX)?;
        *self.pointers.get_mut(self.len)? = string.as_ptr();
        self.len = room;
        Some(())
    }

    pub(crate) fn strings(&self) -> Strings<'_> {
        Strings { first: self.pointers.as_ptr(), len: self.len, strings: PhantomData }
    }
}

/// Makes a system call and returns the kernel's result: an error is negative.
///
/// # Safety
/// The arguments are valid for the call.
unsafe fn call(number: usize, [a, b, c, d]: [usize; 4]) -> isize {
    let result: isize;
    // SAFETY: these are the registers of the kernel's calling convention, and the caller guarantees
    // what the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Returns the type and the permissions of a file, as `stat(2)` does (`st_mode`).
pub(crate) fn mode_of(path: &CStr) -> Option<u32> {
    // `struct stat` of x86-64 has 144 bytes, and the mode at byte 24.
    let mut stat = [0_u32; 36];
    let at = stat.as_mut_ptr() as usize;
    // SAFETY: the path ends with a null, and the memory has the size of the structure.
    let done = unsafe { call(STAT, [path.as_ptr() as usize, at, 0, 0]) };
    (done == 0).then_some(stat[6])
}

/// Returns the target of a symbolic link. `None` if it is none, or too long for the memory.
pub(crate) fn target_of<'a>(path: &CStr, memory: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, len) = (memory.as_mut_ptr() as usize, memory.len());
    // SAFETY: the path ends with a null, and the memory has this length.
    let written = unsafe { call(READLINK, [path.as_ptr() as usize, at, len, 0]) };
    // A target that fills the memory may have been cut.
    memory.get(..usize::try_from(written).ok().filter(|&written| written < len)?)
}

/// Whether the file gives capabilities to who executes it.
pub(crate) fn has_capabilities(path: &CStr) -> bool {
    let name = c"security.capability";
    // SAFETY: both strings end with a null, and no memory is given.
    let size = unsafe { call(GETXATTR, [path.as_ptr() as usize, name.as_ptr() as usize, 0, 0]) };
    size >= 0
}

pub(crate) fn is_root() -> bool {
    // SAFETY: it has no arguments.
    (unsafe { call(GETEUID, [0; 4]) }) == 0
}

/// Replaces the process. Returns only if that fails, with the number of the error.
pub(crate) fn execute(path: &CStr, arguments: Strings<'_>, environment: Strings<'_>) -> usize {
    let (arguments, environment) = (arguments.first as usize, environment.first as usize);
    // SAFETY: the path ends with a null, and the lists with null pointers.
    let error = unsafe { call(EXECVE, [path.as_ptr() as usize, arguments, environment, 0]) };
    error.unsigned_abs()
}

/// Writes to standard error what there is room for.
pub(crate) fn complain(text: &[u8]) {
    // SAFETY: the memory has this length.
    unsafe { call(WRITE, [2, text.as_ptr() as usize, text.len(), 0]) };
}

/// Ends the process.
pub fn end(status: usize) -> ! {
    loop {
        // SAFETY: it ends the process, and nothing after it is executed.
        unsafe { call(EXIT_GROUP, [status, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::{ffi::CString, fs, vec::Vec};

    use super::*;

    fn c_string(path: &std::path::Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    #[test]
    fn lists_are_read_as_they_were_put_together() {
        let mut list = List::new();
        for text in [c"weft", c"run", c""] {
            list.push(text).unwrap();
        }
        // SAFETY: the list ends with a null pointer.
        let read = unsafe { Strings::new(list.strings().first) };
        assert_eq!(read.iter().collect::<Vec<_>>(), [c"weft", c"run", c""]);
        assert_eq!(read.from(1).iter().collect::<Vec<_>>(), [c"run", c""]);
        assert_eq!((read.get(3), read.from(4).get(0)), (None, None));
        for _ in 4..VARIABLES_MAX {
            list.push(c"more").unwrap();
        }
        assert_eq!(list.push(c"too much"), None);
        // SAFETY: the list ends with a null pointer.
        assert_eq!(unsafe { Strings::new(list.strings().first) }.len, VARIABLES_MAX - 1);
    }

    #[test]
    fn files_are_as_the_standard_library_sees_them() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "").unwrap();
        symlink("file", &link).unwrap();
        let mode = fs::metadata(&file)
            .map(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()));
        assert_eq!(mode_of(&c_string(&link)), mode.ok());
        assert_eq!(mode_of(c"/no/such/file"), None);
        let mut memory = [0; 5];
        assert_eq!(target_of(&c_string(&link), &mut memory), Some(&b"file"[..]));
        assert_eq!(target_of(&c_string(&link), &mut memory[..4]), None);
        assert_eq!(target_of(&c_string(&file), &mut memory), None);
        assert!(!has_capabilities(&c_string(&file)));
    }
}
