//! What the kernel says of the mapping that an address of this process lies in: `PROCMAP_QUERY`,
//! or, before Linux 6.11, the text of `/proc/self/maps`. Nothing is allocated.
//!
//! # Safety
//! The structure is that of `linux/fs.h`, and lives while the kernel fills it in.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};

const WRITABLE: u64 = 1 << 1;
const SHARED: u64 = 1 << 3;
const PAGE: u64 = 4_096;
/// Longer names are those of files.
const NAME_MAX: usize = 128;
const STACK: &[u8] = b"[stack";
/// As much of a line as matters: the name begins in column 73 or a little later.
const LINE_MAX: usize = 256;

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
    /// `ENOENT` if nothing is mapped there; whatever the kernel says of `/proc/self/maps`.
    pub fn at(address: usize) -> Result<Option<Range<usize>>, Errno> {
        let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        match Self::asked(&maps, address) {
            Err(Errno::NOTTY) => Self::read(&maps, address),
            found => found,
        }
    }

    fn asked(maps: impl AsFd, address: usize) -> Result<Option<Range<usize>>, Errno> {
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
        let done = unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
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
            && !name.starts_with(STACK);
        let addresses = usize::try_from(query.start).ok().zip(usize::try_from(query.end).ok());
        Ok(addresses.filter(|_| ordinary).map(|(start, end)| start..end))
    }

    fn read(maps: impl AsFd, address: usize) -> Result<Option<Range<usize>>, Errno> {
        let mut line = [0; LINE_MAX];
        let mut len = 0;
        let mut block = [0; 4_096];
        loop {
            let count = match read(&maps, &mut block) {
                Ok(0) => return Err(Errno::NOENT),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            for &byte in &block[..count] {
                if byte != b'\n' {
                    if let Some(place) = line.get_mut(len) {
                        *place = byte;
                        len += 1;
                    }
                    continue;
                }
                let (addresses, is_ordinary) = parse(&line[..len]).ok_or(Errno::INVAL)?;
                if addresses.contains(&address) {
                    return Ok(is_ordinary.then_some(addresses));
                }
                len = 0;
            }
        }
    }
}

/// A line of `/proc/self/maps` (proc_pid_maps(5)): addresses, and whether they are ordinary memory.
/// Huge pages have the inode of a file.
fn parse(line: &[u8]) -> Option<(Range<usize>, bool)> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let addresses = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = addresses.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let is_stack = fields.next().is_some_and(|name| name.starts_with(STACK));
    let is_ordinary = matches!(rights, [_, b'w', _, b'p']) && inode == b"0" && !is_stack;
    Some((number(start)?..number(end)?, is_ordinary))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn only_private_memory_is_ordinary(at: fn(usize) -> Result<Option<Range<usize>>, Errno>) {
        let heap = vec![0_u8; 1 << 20];
        let start = heap.as_ptr() as usize;
        let found = at(start).expect("mapped").expect("ordinary");
        assert!(found.start <= start && start + heap.len() <= found.end);
        let code = maps as *const () as usize;
        assert_eq!(at(code), Ok(None), "a file's");
        let (shared, _fd) = crate::SharedMemory::create(1 << 16).expect("memory");
        assert_eq!(at(shared.addr()), Ok(None), "shared");
        assert_eq!(at(8), Err(Errno::NOENT));
    }

    fn maps() -> std::fs::File {
        std::fs::File::open("/proc/self/maps").expect("it is there")
    }

    #[test]
    fn the_kernel_is_asked() {
        if Mapping::asked(maps(), 8) == Err(Errno::NOTTY) {
            let _ = writeln!(std::io::stderr(), "skipped: a kernel older than Linux 6.11");
            return;
        }
        only_private_memory_is_ordinary(|address| Mapping::asked(maps(), address));
    }

    #[test]
    fn its_text_says_the_same() {
        only_private_memory_is_ordinary(|address| Mapping::read(maps(), address));
        let stack = b"7ffd1000-7ffd4000 rw-p 00000000 00:00 0                     [stack]";
        assert_eq!(parse(stack), Some((0x7ffd_1000..0x7ffd_4000, false)));
        assert_eq!(
            parse(b"7ffd1000-7ffd4000 rw-s 0 00:00 0"),
            Some((0x7ffd_1000..0x7ffd_4000, false))
        );
        assert_eq!(parse(b"7ffd1000 rw-p"), None);
    }
}
