//! Making a program's memory one that peers on this host can map.
//!
//! Memory that a program allocated is private to its process. It can be exchanged for a shared
//! segment with the same contents at the same addresses, if nobody writes to it meanwhile: that is
//! certain only while the process has no thread but the calling one (and ours, which the caller
//! keeps away).
//!
//! A child that a process forks must not share the memory with its parent: it gets a private view
//! of it ([`private_in_child`]).
//!
//! # Safety
//! Mappings are exchanged only where the kernel's table says that they are private, anonymous,
//! readable and writable, and only whole pages inside the range that the caller vouches for. The
//! table of adopted ranges is guarded by a lock that is held across a fork.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::region::Region;
use crate::thread::quiet_threads;

const PAGE: usize = 4_096;
/// So near to where the stack is now memory is taken for the stack.
const STACK_NEAR: usize = 1 << 20;

/// Pages of the program's that are a shared segment while this value lives.
#[derive(Debug)]
pub struct Adopted {
    addr: usize,
    len: usize,
    inode: u64,
    writable: bool,
    fd: OwnedFd,
}

impl Adopted {
    /// Exchanges the whole pages inside `region` for a shared segment. Those who get its descriptor
    /// can write to it only if it is `writable`.
    ///
    /// # Errors
    /// `EINVAL` when there is no whole page, or the memory is not of a kind that can be exchanged;
    /// `EBUSY` when other threads could be writing to it; what `memfd_create(2)` and `mmap(2)`
    /// report.
    pub fn adopt(region: &Region, writable: bool) -> Result<Arc<Self>, Errno> {
        let start = region.addr().checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
        let end = (region.addr() + region.len()) / PAGE * PAGE;
        // The stack that this runs on changes between the copy and the exchange.
        let here = (&raw const start).addr();
        if start >= end || (start.saturating_sub(STACK_NEAR)..end + STACK_NEAR).contains(&here) {
            return Err(Errno::INVAL);
        }
        if count_threads()? != 1 + quiet_threads() {
            return Err(Errno::BUSY);
        }
        if !is_plain(start, end)? {
            return Err(Errno::INVAL);
        }
        let len = end - start;
        let fd = memfd_create("weft-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        let inode = fstat(&fd)?.st_ino;
        watch_forks();
        {
            // No handler of the program's may write between the copy and the exchange, and no
            // fork may fall between the exchange and the entry in the table.
            let _undisturbed = Undisturbed::new();
            let mut table = Table::lock();
            let present = present_pages(start, len);
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let copy = unsafe { map(std::ptr::null_mut(), len, libc::MAP_SHARED, fd.as_raw_fd())? };
            for (page, _) in present.iter().enumerate().filter(|(_, present)| **present) {
                let at = page * PAGE;
                let from = (start + at) as *const u8;
                // SAFETY: `page` is one of the `len / PAGE` pages of the copy.
                let to = unsafe { copy.cast::<u8>().add(at) };
                // SAFETY: both pages are mapped (the first is checked by `is_plain`) and do not
                // overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE) };
            }
            // SAFETY: the mapping was made above and nothing points into it.
            unsafe { libc::munmap(copy, len) };
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: replaces private anonymous pages of the caller's by ones with the same
            // contents and rights; nobody accesses them meanwhile (one thread, no signals).
            unsafe { map(start as *mut libc::c_void, len, flags, fd.as_raw_fd())? };
            table.push(Entry { addr: start, len, fd: fd.as_raw_fd() });
        }
        let base = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let seals = if writable { base } else { base | SealFlags::FUTURE_WRITE };
        let adopted = Arc::new(Self { addr: start, len, inode, writable, fd });
        fcntl_add_seals(&adopted.fd, seals)?;
        Ok(adopted)
    }

    /// The first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether those who get the descriptor can write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The segment.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Gives the program private memory again, if it has not unmapped it itself. While other
    /// threads could be writing to it, it stays as it is: nobody new can map it any more.
    fn restore(&self) -> Result<(), Errno> {
        let _undisturbed = Undisturbed::new();
        let mut table = Table::lock();
        let is_own = |entry: &Entry| entry.fd == self.fd.as_raw_fd();
        if !is_backed_by(self.addr, self.addr + self.len, self.inode)? {
            table.retain(|entry| !is_own(entry));
            return Ok(());
        }
        if count_threads()? != 1 + quiet_threads() {
            // A child must still be told apart; it needs a descriptor for that.
            let kept = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?;
            if let Some(entry) = table.iter_mut().find(|entry| is_own(entry)) {
                entry.fd = std::os::fd::IntoRawFd::into_raw_fd(kept);
            }
            return Ok(());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let copy = unsafe { map(std::ptr::null_mut(), self.len, flags, -1)? };
        let from = self.addr as *const u8;
        // SAFETY: both ranges are mapped (the first is checked above), as long, and distinct.
        unsafe { std::ptr::copy_nonoverlapping(from, copy.cast::<u8>(), self.len) };
        let (old, new) = (copy, self.addr as *mut libc::c_void);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves the copy over the shared pages, which hold the same bytes; nobody accesses
        // them meanwhile (one thread, no signals).
        let moved = unsafe { libc::mremap(old, self.len, self.len, flags, new) };
        if moved == libc::MAP_FAILED {
            return Err(last_error());
        }
        table.retain(|entry| !is_own(entry));
        Ok(())
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // The memory is the program's either way.
        let _ = self.restore();
    }
}

/// # Safety
/// As for `mmap(2)`: with `MAP_FIXED` the caller owns what is mapped there.
unsafe fn map(
    addr: *mut libc::c_void,
    len: usize,
    flags: libc::c_int,
    fd: RawFd,
) -> Result<*mut libc::c_void, Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's to give.
    let mapped = unsafe { libc::mmap(addr, len, rights, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(last_error()) } else { Ok(mapped) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn count_threads() -> Result<usize, Errno> {
    let tasks = fs::read_dir("/proc/self/task").map_err(|_| Errno::ACCESS)?;
    Ok(tasks.count())
}

/// Whether a range is private anonymous memory, readable and writable, and neither stack nor
/// anything else that has a name.
fn is_plain(start: usize, end: usize) -> Result<bool, Errno> {
    covers(start, end, |entry| {
        let plain = matches!(entry.name, "" | "[heap]") || entry.name.starts_with("[anon:");
        entry.rights == "rw-p" && entry.inode == 0 && plain
    })
}

fn is_backed_by(start: usize, end: usize, inode: u64) -> Result<bool, Errno> {
    covers(start, end, |entry| entry.inode == inode && entry.name.starts_with("/memfd:weft-region"))
}

/// A line of `/proc/self/maps`.
struct MapsEntry<'a> {
    start: usize,
    end: usize,
    rights: &'a str,
    inode: u64,
    name: &'a str,
}

/// Whether mappings that are `right` cover a range without a gap.
fn covers(start: usize, end: usize, right: impl Fn(&MapsEntry<'_>) -> bool) -> Result<bool, Errno> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| Errno::ACCESS)?;
    let mut covered = start;
    for entry in maps.lines().filter_map(parse_entry) {
        if entry.end <= covered {
            continue;
        }
        if entry.start > covered || !right(&entry) {
            return Ok(false);
        }
        covered = entry.end;
        if covered >= end {
            return Ok(true);
        }
    }
    Ok(false)
}

fn parse_entry(line: &str) -> Option<MapsEntry<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_start();
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(MapsEntry { start: address(start)?, end: address(end)?, rights, inode, name })
}

/// Which pages hold something, in memory or swapped out; all of them if the kernel does not tell.
fn present_pages(start: usize, len: usize) -> Vec<bool> {
    use std::os::unix::fs::FileExt;
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let pages = len / PAGE;
    let mut words = vec![0; pages * 8];
    let at = (start / PAGE * 8) as u64;
    let read = fs::File::open("/proc/self/pagemap").and_then(|f| f.read_exact_at(&mut words, at));
    if read.is_err() {
        return vec![true; pages];
    }
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    words.chunks_exact(8).map(|chunk| word(chunk) & PRESENT_OR_SWAPPED != 0).collect()
}

/// Holds the calling thread's signals off.
struct Undisturbed(libc::sigset_t);

impl Undisturbed {
    fn new() -> Self {
        // SAFETY: a signal set is plain data, for which zero is a value.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: `all` is a valid place for a signal set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both are valid signal sets; the mask is the calling thread's only.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: the mask that `new` found.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

// ---- Fork ----

/// An adopted range.
#[derive(Debug)]
struct Entry {
    addr: usize,
    len: usize,
    fd: RawFd,
}

static LOCKED: AtomicBool = AtomicBool::new(false);
static ENTRIES: Entries = Entries(UnsafeCell::new(Vec::new()));

struct Entries(UnsafeCell<Vec<Entry>>);

// SAFETY: reached through a `Table` only, of which there is one at a time.
unsafe impl Sync for Entries {}

/// The table of adopted ranges, locked.
struct Table;

impl Table {
    fn lock() -> Self {
        while LOCKED.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Self
    }
}

impl std::ops::Deref for Table {
    type Target = Vec<Entry>;
    fn deref(&self) -> &Vec<Entry> {
        // SAFETY: only one `Table` exists at a time, for `lock` waits for the last one's drop.
        unsafe { &*ENTRIES.0.get() }
    }
}

impl std::ops::DerefMut for Table {
    fn deref_mut(&mut self) -> &mut Vec<Entry> {
        // SAFETY: as above, and this one is borrowed exclusively.
        unsafe { &mut *ENTRIES.0.get() }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
    }
}

fn watch_forks() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: functions that live for ever. Without memory for them a child shares the pages.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(private_in_child))
        };
    });
}

extern "C" fn before_fork() {
    std::mem::forget(Table::lock());
}

extern "C" fn after_fork() {
    // Locked by `before_fork`, in the same thread.
    drop(Table);
}

/// A child gets a private view of the parent's memory: what it writes is its own.
extern "C" fn private_in_child() {
    let table = Table;
    for entry in table.iter() {
        let (addr, flags) = (entry.addr as *mut libc::c_void, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: replaces shared pages by a private view of the same ones, in a process that has
        // only this thread. On failure they stay shared.
        let _ = unsafe { map(addr, entry.len, flags, entry.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child, which has one thread only, whatever the test runner does.
    fn in_child(body: impl FnOnce() -> bool) {
        // SAFETY: the child runs `body`, which uses files, memory and the allocator (glibc's own
        // handlers keep it usable), and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = body();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place, `child` is our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child found all as it should be");
    }

    fn pages(count: usize) -> Region {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let addr = unsafe { map(std::ptr::null_mut(), count * PAGE, flags, -1) }.expect("memory");
        // SAFETY: mapped above and never unmapped.
        unsafe { Region::new(addr as usize, count * PAGE) }.expect("no wrap")
    }

    fn bytes(region: &Region) -> Vec<u8> {
        let mut out = Vec::new();
        region.copy_out(&mut out);
        out
    }

    #[test]
    fn contents_survive_both_ways_and_are_shared_between() {
        in_child(|| {
            let region = pages(5);
            let inner = region.part(100, 3 * PAGE).expect("inside");
            inner.copy_in(&vec![7; inner.len()]);
            let before = bytes(&region);
            let adopted = Adopted::adopt(&inner, true).expect("plain memory");
            let same = bytes(&region) == before && adopted.len() == 2 * PAGE;
            let theirs = crate::SharedMemory::open(
                std::os::fd::AsFd::as_fd(adopted.fd()),
                adopted.len(),
                true,
            )
            .expect("sealed");
            theirs.copy_in(10, b"peer");
            let seen = bytes(&region)[PAGE + 10..PAGE + 14] == *b"peer";
            drop(adopted);
            theirs.copy_in(10, b"late");
            let kept = bytes(&region)[PAGE + 10..PAGE + 14] == *b"peer";
            same && seen && kept
        });
    }

    #[test]
    fn a_child_has_its_own() {
        in_child(|| {
            let region = pages(1);
            region.copy_in(b"parent");
            let adopted = Adopted::adopt(&region, true).expect("plain memory");
            // SAFETY: the child writes to its memory and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let inherited = bytes(&region)[..6] == *b"parent";
                region.copy_in(b"child!");
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!inherited)) };
            }
            let mut status = 0;
            // SAFETY: `status` is a valid place, `child` is our child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            let untouched = bytes(&region)[..6] == *b"parent";
            drop(adopted);
            status == 0 && untouched
        });
    }

    #[test]
    fn what_is_not_plain_is_left_alone() {
        in_child(|| {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping.
            let addr = unsafe { map(std::ptr::null_mut(), PAGE, flags, -1) }.expect("memory");
            // SAFETY: mapped above and never unmapped.
            let shared = unsafe { Region::new(addr as usize, PAGE) }.expect("no wrap");
            let shared = Adopted::adopt(&shared, true);
            let small = pages(1).part(1, PAGE - 1).expect("inside");
            let no_page = Adopted::adopt(&small, true);
            let region = pages(1);
            let first = Adopted::adopt(&region, true);
            let again = Adopted::adopt(&region, true);
            shared.is_err() && no_page.is_err() && first.is_ok() && again.is_err()
        });
    }

    #[test]
    fn the_program_may_unmap_it_first() {
        in_child(|| {
            let region = pages(2);
            let adopted = Adopted::adopt(&region, true).expect("plain memory");
            // SAFETY: the test's own mapping, of which nothing is used any more.
            unsafe { libc::munmap(region.addr() as *mut libc::c_void, region.len()) };
            drop(adopted);
            // Nothing has been put where the memory was.
            is_plain(region.addr(), region.addr() + region.len()) == Ok(false)
        });
    }

    #[test]
    fn other_threads_forbid_it() {
        in_child(|| {
            let other =
                std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(1)));
            let refused = Adopted::adopt(&pages(1), true).map(drop) == Err(Errno::BUSY);
            other.join().is_ok() && refused
        });
    }
}
