//! What the kernel says of the mapping that an address of this process lies in (`PROCMAP_QUERY`,
//! Linux 6.11).
//!
//! # Safety
//! The structure is that of `linux/fs.h`, and lives while the kernel fills it in.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::AsRawFd as _;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

const WRITABLE: u64 = 1 << 1;
const SHARED: u64 = 1 << 3;
const PAGE: u64 = 4_096;
/// Longer names are those of files.
const NAME_MAX: usize = 128;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    is: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong =
    3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | 0x66 << 8 | 17;

/// Looks mappings up.
#[derive(Debug)]
pub struct Mapping;

impl Mapping {
    /// The addresses of the mapping that `address` lies in, if that is ordinary private memory: all
    /// ways to its pages are through these addresses. `None` if it is something else: shared, of a
    /// file, of huge pages, not writable, or the first thread's stack.
    ///
    /// # Errors
    /// `ENOENT` if nothing is mapped there; `ENOTTY` if the kernel is older than Linux 6.11.
    pub fn at(address: usize) -> Result<Option<Range<usize>>, Errno> {
        let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut name = [0_u8; NAME_MAX];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address: address as u64,
            name_size: NAME_MAX as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the structure and the place for the name live during the call, and the structure
        // says how long both are.
        let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if done < 0 {
            let error = std::io::Error::last_os_error();
            return match Errno::from_io_error(&error) {
                Some(Errno::NAMETOOLONG) => Ok(None),
                errno => Err(errno.unwrap_or(Errno::IO)),
            };
        }
        let ordinary = query.is & (WRITABLE | SHARED) == WRITABLE
            && query.inode == 0
            && query.page_size == PAGE
            && !name.starts_with(b"[stack");
        let addresses = usize::try_from(query.start).ok().zip(usize::try_from(query.end).ok());
        Ok(addresses.filter(|_| ordinary).map(|(start, end)| start..end))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn only_private_memory_is_ordinary() {
        let heap = vec![0_u8; 1 << 20];
        let at = heap.as_ptr() as usize;
        let found = match Mapping::at(at) {
            Err(Errno::NOTTY) => {
                let _ = writeln!(std::io::stderr(), "skipped: a kernel older than Linux 6.11");
                return;
            }
            found => found.expect("mapped").expect("ordinary"),
        };
        assert!(found.start <= at && at + heap.len() <= found.end);
        let code = only_private_memory_is_ordinary as *const () as usize;
        assert_eq!(Mapping::at(code), Ok(None), "a file's");
        let (shared, _fd) = crate::SharedMemory::create(1 << 16).expect("memory");
        assert_eq!(Mapping::at(shared.addr()), Ok(None), "shared");
        assert_eq!(Mapping::at(8), Err(Errno::NOENT));
    }
}
