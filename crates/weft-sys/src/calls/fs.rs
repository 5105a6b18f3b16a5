//! Files.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

pub use rustix::fs::{
    CWD, FallocateFlags, FileType, FsWord, MemfdFlags, Mode, OFlags, SealFlags, Stat, StatFs,
    major, minor,
};
use rustix::io::Errno;
use rustix::path::Arg;

pub use super::data::file_flags as fcntl_getfl;
use super::raw::{call, int, number, open_by, path_at};

const AT_CWD: usize = libc::AT_FDCWD as usize;

/// Opens a file.
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    path.into_with_c_str(|path| {
        let (flags, mode) = (flags.bits() as usize, mode.bits() as usize);
        // SAFETY: the path lives during the call, which returns a new descriptor.
        unsafe { open_by(libc::SYS_openat, [AT_CWD, path_at(path), flags, mode, 0, 0]) }
    })
}

/// The state of an open file.
///
/// # Errors
/// Those of `fstat(2)`.
pub fn fstat(file: impl AsFd) -> Result<Stat, Errno> {
    let mut state = MaybeUninit::<Stat>::uninit();
    let arguments = [number(&file), state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: `state` has room for the structure that the kernel writes: rustix's is the kernel's.
    unsafe { call(libc::SYS_fstat, arguments) }?;
    // SAFETY: the call has succeeded, so the kernel has filled the structure.
    Ok(unsafe { state.assume_init() })
}

/// The state of the file that a path names.
///
/// # Errors
/// Those of `stat(2)`.
pub fn stat(path: impl Arg) -> Result<Stat, Errno> {
    path.into_with_c_str(|path| {
        let mut state = MaybeUninit::<Stat>::uninit();
        let arguments = [AT_CWD, path_at(path), state.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the path lives during the call, and `state` has room for the structure that the
        // kernel writes: rustix's is the kernel's.
        unsafe { call(libc::SYS_newfstatat, arguments) }?;
        // SAFETY: the call has succeeded, so the kernel has filled the structure.
        Ok(unsafe { state.assume_init() })
    })
}

/// The file system of an open file.
///
/// # Errors
/// Those of `fstatfs(2)`.
pub fn fstatfs(file: impl AsFd) -> Result<StatFs, Errno> {
    let mut state = MaybeUninit::<StatFs>::uninit();
    let arguments = [number(&file), state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: `state` has room for the structure that the kernel writes: rustix's is the kernel's.
    unsafe { call(libc::SYS_fstatfs, arguments) }?;
    // SAFETY: the call has succeeded, so the kernel has filled the structure.
    Ok(unsafe { state.assume_init() })
}

/// Sets the length of a file.
///
/// # Errors
/// Those of `ftruncate(2)`.
pub fn ftruncate(file: impl AsFd, len: u64) -> Result<(), Errno> {
    // SAFETY: the call accesses no memory of this process; what is mapped of the file belongs to
    // the caller.
    unsafe { call(libc::SYS_ftruncate, [number(&file), len as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Reserves room for a part of a file.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn fallocate(file: impl AsFd, flags: FallocateFlags, at: u64, len: u64) -> Result<(), Errno> {
    let arguments = [number(&file), flags.bits() as usize, at as usize, len as usize, 0, 0];
    // SAFETY: the call accesses no memory of this process.
    unsafe { call(libc::SYS_fallocate, arguments) }.map(drop)
}

/// Makes a file in memory.
///
/// # Errors
/// Those of `memfd_create(2)`.
pub fn memfd_create(name: impl Arg, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    name.into_with_c_str(|name| {
        let arguments = [path_at(name), flags.bits() as usize, 0, 0, 0, 0];
        // SAFETY: the name lives during the call, which returns a new descriptor.
        unsafe { open_by(libc::SYS_memfd_create, arguments) }
    })
}

/// Makes a file of any type.
///
/// # Errors
/// Those of `mknodat(2)`.
pub fn mknodat(
    directory: impl AsFd,
    path: impl Arg,
    kind: FileType,
    mode: Mode,
    device: u64,
) -> Result<(), Errno> {
    path.into_with_c_str(|path| {
        let mode = (kind.as_raw_mode() | mode.bits()) as usize;
        let arguments = [number(&directory), path_at(path), mode, device as usize, 0, 0];
        // SAFETY: the path lives during the call.
        unsafe { call(libc::SYS_mknodat, arguments) }.map(drop)
    })
}

/// Removes a name.
///
/// # Errors
/// Those of `unlink(2)`.
pub fn unlink(path: impl Arg) -> Result<(), Errno> {
    path.into_with_c_str(|path| {
        // SAFETY: the path lives during the call.
        unsafe { call(libc::SYS_unlinkat, [AT_CWD, path_at(path), 0, 0, 0, 0]) }.map(drop)
    })
}

/// Reads what a symbolic link names, and returns the part of `room` that has it; the rest is cut.
///
/// # Errors
/// Those of `readlink(2)`.
pub fn readlink<'a>(path: &CStr, room: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let arguments = [AT_CWD, path_at(path), room.as_mut_ptr() as usize, room.len(), 0, 0];
    // SAFETY: the path and the room live during the call, and the length is that of the room.
    let len = unsafe { call(libc::SYS_readlinkat, arguments) }?;
    Ok(&room[..len.min(room.len())])
}

/// Sets the flags of an open file (`F_SETFL`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_setfl(file: impl AsFd, flags: OFlags) -> Result<(), Errno> {
    let arguments = [number(&file), int(libc::F_SETFL), flags.bits() as usize, 0, 0, 0];
    // SAFETY: `F_SETFL` accesses no memory.
    unsafe { call(libc::SYS_fcntl, arguments) }.map(drop)
}

/// The seals of a file in memory (`F_GET_SEALS`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_get_seals(file: impl AsFd) -> Result<SealFlags, Errno> {
    // SAFETY: `F_GET_SEALS` accesses no memory.
    let seals =
        unsafe { call(libc::SYS_fcntl, [number(&file), int(libc::F_GET_SEALS), 0, 0, 0, 0]) };
    seals.map(|seals| SealFlags::from_bits_retain(seals as u32))
}

/// Adds seals to a file in memory (`F_ADD_SEALS`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_add_seals(file: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    let arguments = [number(&file), int(libc::F_ADD_SEALS), seals.bits() as usize, 0, 0, 0];
    // SAFETY: `F_ADD_SEALS` accesses no memory.
    unsafe { call(libc::SYS_fcntl, arguments) }.map(drop)
}

/// Reads names of a directory into `room` (`getdents64(2)`), and calls `act` with each, `.` and
/// `..` among them. Uses no heap memory.
///
/// # Errors
/// Those of `getdents64(2)`: `EINVAL` if `room` is too short for a name.
pub fn for_each_name(
    directory: impl AsFd,
    room: &mut [u64],
    mut act: impl FnMut(&CStr),
) -> Result<(), Errno> {
    /// Offsets in `struct linux_dirent64`.
    const LEN_AT: usize = 16;
    const NAME_AT: usize = 19;
    let number = number(&directory);
    loop {
        let (place, len) = (room.as_mut_ptr(), size_of_val(room));
        // SAFETY: the length is that of the room, which lives during the call.
        let filled = unsafe { call(libc::SYS_getdents64, [number, place as usize, len, 0, 0, 0]) }?;
        if filled == 0 {
            return Ok(());
        }
        // SAFETY: the bytes are those of the room, which consists of integers.
        let bytes =
            unsafe { std::slice::from_raw_parts(place.cast::<u8>().cast_const(), filled.min(len)) };
        let mut rest = bytes;
        while let Some(&[low, high]) = rest.get(LEN_AT..LEN_AT + 2) {
            let entry_len = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, others)) = rest.split_at_checked(entry_len) else { break };
            let name = entry.get(NAME_AT..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            let Some(name) = name else { break };
            act(name);
            rest = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_rustix_sees_them() {
        let file = memfd_create("weft", MemfdFlags::ALLOW_SEALING).expect("a file");
        assert_eq!(ftruncate(&file, 4_097), Ok(()));
        assert_eq!(fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 8_192), Ok(()));
        let (ours, theirs) =
            (fstat(&file).expect("a state"), rustix::fs::fstat(&file).expect("a state"));
        assert_eq!(
            (ours.st_size, ours.st_ino, ours.st_mode),
            (4_097, theirs.st_ino, theirs.st_mode)
        );
        assert_eq!((ours.st_blocks, ours.st_mtime), (theirs.st_blocks, theirs.st_mtime));
        let system = fstatfs(&file).expect("a state").f_type;
        assert_eq!(system, rustix::fs::fstatfs(&file).expect("a state").f_type);
        assert_eq!(fcntl_add_seals(&file, SealFlags::SHRINK), Ok(()));
        assert_eq!(fcntl_get_seals(&file), Ok(SealFlags::SHRINK));
        assert_eq!(ftruncate(&file, 1), Err(Errno::PERM));
        assert_eq!(fcntl_setfl(&file, OFlags::APPEND), Ok(()));
        assert_eq!(fcntl_getfl(&file), rustix::fs::fcntl_getfl(&file));
    }

    #[test]
    fn paths_are_opened_made_and_removed() {
        let path = std::env::temp_dir().join(format!("weft-calls-{}", std::process::id()));
        assert_eq!(mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0), Ok(()));
        let named = stat(&path).expect("it is there");
        assert_eq!(FileType::from_raw_mode(named.st_mode), FileType::Fifo);
        let opened = open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("it opens");
        assert_eq!(fstat(&opened).expect("a state").st_ino, named.st_ino);
        let link = format!("/proc/self/fd/{}\0", std::os::fd::AsRawFd::as_raw_fd(&opened));
        let link = CStr::from_bytes_with_nul(link.as_bytes()).expect("a path");
        let mut room = [0; 4_096];
        assert_eq!(readlink(link, &mut room), Ok(path.as_os_str().as_encoded_bytes()));
        assert_eq!(readlink(link, &mut room[..3]).map(<[u8]>::len), Ok(3));
        assert_eq!(unlink(&path), Ok(()));
        assert_eq!(unlink(&path), Err(Errno::NOENT));
        assert_eq!(stat(&path).map(drop), Err(Errno::NOENT));
    }

    #[test]
    fn every_name_of_a_directory_is_read_with_little_room() {
        let files: Vec<_> =
            (0..40).map(|_| memfd_create("weft", MemfdFlags::CLOEXEC).expect("a file")).collect();
        let list = open("/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let list = list.expect("it opens");
        let mut seen = std::collections::HashSet::new();
        let read = for_each_name(&list, &mut [0; 16], |name| {
            seen.insert(name.to_str().expect("a number").to_owned());
        });
        assert_eq!(read, Ok(()));
        for file in &files {
            assert!(seen.contains(&std::os::fd::AsRawFd::as_raw_fd(file).to_string()));
        }
        assert!(seen.contains(".."));
        let again = open("/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        assert_eq!(for_each_name(again.expect("it opens"), &mut [0; 2], |_| ()), Err(Errno::INVAL));
    }
}
