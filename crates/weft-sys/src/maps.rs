//! The mappings of this process, as the kernel reports them: by `PROCMAP_QUERY`, or, before Linux
//! 6.11, in the text of `/proc/self/maps`. It neither allocates nor locks.
//!
//! # Safety
//! The structure is that of `linux/fs.h`, and lives while the kernel fills it.
#![allow(unsafe_code)]

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd as _};

use crate::calls::fs::{Mode, OFlags, open};
use crate::calls::io::{Errno, read};
use crate::limits::{MAPS_LINE_MAX, MAPS_NAME_MAX};

const READABLE: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;
const COVERING_OR_NEXT: u64 = 1 << 4;
const PAGE: u64 = 4_096;
/// Replaces a name that is too long.
const LONG_NAME: &[u8] = b"/";

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

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) range: Range<usize>,
    /// `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    pub(crate) rights: libc::c_int,
    pub(crate) is_shared: bool,
    /// Offset of its start in its file.
    pub(crate) offset: u64,
    /// The inode of its file; 0 if it has none.
    pub(crate) inode: u64,
    /// Whether its pages have the usual size. (Huge pages have a file as well.)
    pub(crate) has_usual_pages: bool,
    pub(crate) name: &'a [u8],
}

/// Calls `see` with every mapping that overlaps `range`, in order, until it breaks off. `see` may
/// change the mapping that it sees.
///
/// # Errors
/// An error of reading `/proc/self/maps`.
pub(crate) fn visit(
    range: &Range<usize>,
    see: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    match visit_by_query(&maps, range, see) {
        Err(Errno::NOTTY) => visit_text(&maps, range, see),
        done => done,
    }
}

/// Visits by queries. `ENOTTY` comes from the first query, before `see` has been called.
fn visit_by_query(
    maps: impl AsFd,
    range: &Range<usize>,
    see: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut name = [0; MAPS_NAME_MAX];
    let mut at = range.start;
    while at < range.end {
        let (query, name) = match ask(&maps, at, &mut name) {
            Err(Errno::NAMETOOLONG) => (ask(&maps, at, &mut [])?.0, LONG_NAME),
            Err(Errno::NOENT) => return Ok(()),
            found => found?,
        };
        let address = |word| usize::try_from(word).map_err(|_| Errno::OVERFLOW);
        let (start, end) = (address(query.start)?, address(query.end)?);
        if start >= range.end {
            return Ok(());
        }
        let entry = Entry {
            range: start..end,
            rights: rights([READABLE, WRITABLE, EXECUTABLE].map(|right| query.is & right != 0)),
            is_shared: query.is & SHARED != 0,
            offset: query.offset,
            inode: query.inode,
            has_usual_pages: query.page_size == PAGE,
            name,
        };
        if see(&entry).is_break() {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}

/// The mapping that contains an address, or else the next one, and its name, if `name` has room.
fn ask(maps: impl AsFd, address: usize, name: &mut [u8]) -> Result<(Query, &[u8]), Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address: address as u64,
        name_size: u32::try_from(name.len()).unwrap_or(0),
        name: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
        ..Query::default()
    };
    // SAFETY: the structure and the buffer for the name live during the call, and the structure
    // contains the lengths of both.
    let done = unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if done < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // The length includes the terminating zero.
    let len = (query.name_size as usize).saturating_sub(1);
    Ok((query, name.get(..len).unwrap_or_default()))
}

fn visit_text(
    maps: impl AsFd,
    range: &Range<usize>,
    see: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut line = [0; MAPS_LINE_MAX];
    let mut len = 0;
    let mut block = [0; 4_096];
    loop {
        let count = match read(&maps, &mut block) {
            Ok(0) => return Ok(()),
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
            let entry = parse(&line[..len]).ok_or(Errno::INVAL)?;
            if entry.range.start >= range.end {
                return Ok(());
            }
            if entry.range.end > range.start && see(&entry).is_break() {
                return Ok(());
            }
            len = 0;
        }
    }
}

/// Parses a line of `/proc/self/maps` (`proc_pid_maps(5)`).
fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let (addresses, rest) = field(line)?;
    let (start, end) = std::str::from_utf8(addresses).ok()?.split_once('-')?;
    let (bits, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (_device, rest) = field(rest)?;
    let (inode, rest) = field(rest)?;
    let &[r, w, x, kind] = bits else { return None };
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some(Entry {
        range: number(start)?..number(end)?,
        rights: rights([r == b'r', w == b'w', x == b'x']),
        is_shared: kind == b's',
        offset: u64::from_str_radix(std::str::from_utf8(offset).ok()?, 16).ok()?,
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        has_usual_pages: true,
        name: rest.trim_ascii_start(),
    })
}

/// Splits off the text before the next space.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    (end != 0).then(|| line.split_at(end))
}

fn rights([read, write, execute]: [bool; 3]) -> libc::c_int {
    let right = |has, right| if has { right } else { libc::PROT_NONE };
    right(read, libc::PROT_READ) | right(write, libc::PROT_WRITE) | right(execute, libc::PROT_EXEC)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write as _;

    type Visit = fn(&Range<usize>, &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>);

    fn maps() -> std::fs::File {
        std::fs::File::open("/proc/self/maps").expect("it is there")
    }

    /// Finds the mapping of a segment from a part of it.
    fn finds_a_segment(visit: Visit) {
        let (memory, _fd) = crate::SharedMemory::create(1 << 16).expect("memory");
        let within = memory.addr() + 4_096..memory.addr() + 8_192;
        let mut found = Vec::new();
        visit(&within, &mut |entry| {
            found.push((entry.range.clone(), entry.rights, entry.is_shared, entry.offset));
            assert!(entry.inode != 0 && entry.has_usual_pages);
            assert_eq!(entry.name, b"/memfd:weft (deleted)");
            ControlFlow::Continue(())
        });
        let whole = memory.addr()..memory.addr() + memory.len();
        assert_eq!(found, [(whole, libc::PROT_READ | libc::PROT_WRITE, true, 0)]);
    }

    /// Sees every mapping once and in order, and stops after a break.
    fn sees_all_in_order(visit: Visit) {
        let mut ends = vec![0];
        visit(&(0..usize::MAX), &mut |entry| {
            assert!(entry.range.start >= ends[ends.len() - 1], "in order");
            ends.push(entry.range.end);
            ControlFlow::Continue(())
        });
        assert!(ends.len() > 5, "code, data, stack and the like");
        let mut seen = 0;
        visit(&(0..usize::MAX), &mut |_| {
            seen += 1;
            ControlFlow::Break(())
        });
        assert_eq!(seen, 1);
        visit(&(0..4_096), &mut |entry| unreachable!("{entry:?} at address 0"));
    }

    #[test]
    fn queries_find_mappings() {
        if ask(maps(), 8, &mut []).map(drop) == Err(Errno::NOTTY) {
            let _ = writeln!(std::io::stderr(), "skipped: a kernel older than Linux 6.11");
            return;
        }
        let visit: Visit = |range, see| visit_by_query(maps(), range, see).expect("readable");
        finds_a_segment(visit);
        sees_all_in_order(visit);
    }

    #[test]
    fn text_of_the_maps_file_is_parsed() {
        let visit: Visit = |range, see| visit_text(maps(), range, see).expect("readable");
        finds_a_segment(visit);
        sees_all_in_order(visit);
        let line = b"7ffd1000-7ffd4000 rw-p 00001000 00:00 17                     /a file";
        let entry = parse(line).expect("a line");
        assert_eq!((entry.offset, entry.inode, entry.name), (4_096, 17, &b"/a file"[..]));
        assert_eq!(parse(b"7ffd1000-7ffd4000 rw-p 0 00:00 0").expect("a line").name, b"");
        assert_eq!(parse(b"7ffd1000-7ffd4000 rw-p 0"), None);
    }
}
