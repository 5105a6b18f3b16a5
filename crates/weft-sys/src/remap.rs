//! Remaps a program's memory as shared, so that peers on this host can map it.
//!
//! Memory that a program has allocated is private to its process. It can be replaced by a shared
//! segment with the same contents at the same addresses, if no thread writes to it meanwhile. That
//! is certain only while the process has no thread but the calling one (and Weft's, which the
//! caller keeps away), or if the caller owns the memory ([`Unused`]).
//!
//! From then on Weft reaches the segment's pages through its own mapping, never through the
//! program's addresses. The program may unmap those, map something else there or move them, and a
//! registration still means the pages that were registered, as with hardware. Which pages a
//! program's address refers to now is looked up in the kernel's table of mappings ([`views`]).
//!
//! Differences between shared and private memory are hidden: a forked child gets a copy
//! ([`children`]), and memory that the program gives back by `madvise` reads as zeros ([`watch`]).
//!
//! # Safety
//! Mappings are replaced only where the kernel reports that they are private, anonymous, readable
//! and writable, and only in whole pages inside the range that the caller provides. They are
//! replaced back only where the kernel reports that they are the segment.
#![allow(unsafe_code)]

mod children;
mod place;
mod replica;
mod watch;

use std::fs;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Once};

use crate::calls::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use crate::calls::io::Errno;
use crate::calls::process::{Resource, getrlimit};
use crate::cancellation::Uncancelled;
use crate::limits::GROWTH_MAX;
use crate::maps::{self, Entry};
use crate::memory_node::place_like;
use crate::region::Region;
use crate::shared::SharedMemory;
use crate::thread::quiet_threads;
use children::Table;
use place::{Name, PAGE, Piece, Place, READ_WRITE, last_error, map, pieces};
use replica::Replica;

/// Memory within this distance of the current stack pointer counts as the stack.
const STACK_NEAR: usize = 1 << 20;

/// Pages of the program that have been remapped as a shared segment.
#[derive(Debug)]
pub struct RemappedPages {
    pages: Arc<SharedMemory>,
    inode: u64,
    is_writable: bool,
    fd: OwnedFd,
}

/// Proof that only the caller uses the memory of a region while it is registered, so that it can be
/// remapped in a process with other threads.
#[derive(Debug)]
pub struct Unused(());

impl Unused {
    /// Creates the proof.
    ///
    /// # Safety
    /// No other thread, signal handler or call of the kernel reads or writes the memory of the
    /// region that is registered with it, until that has happened.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// A part of the program's memory that is a segment, as the kernel reports.
#[derive(Clone, Debug)]
pub struct View {
    /// The segment.
    pub segment: Arc<RemappedPages>,
    /// The start of the part at the program's addresses.
    pub addr: usize,
    /// The same pages in Weft's mapping.
    pub own: Region,
}

impl RemappedPages {
    /// Replaces pages that [`remappable`] has found by a shared segment. Peers that get its
    /// descriptor can write to it only if it is `writable`. With a proof that they are `unused`,
    /// the process may have other threads.
    ///
    /// # Errors
    /// `EINVAL` if the memory cannot be replaced; `EBUSY` if other threads could be writing to it;
    /// `EFBIG` if the process may not create such a file; `EPERM` and similar errors without
    /// userfaultfd; errors of `memfd_create(2)` and `mmap(2)`.
    pub fn remap(
        pages: &Range<usize>,
        writable: bool,
        unused: Option<&Unused>,
    ) -> Result<Arc<Self>, Errno> {
        let watch = watch::start()?;
        if unused.is_none() && !is_alone()? {
            return Err(Errno::BUSY);
        }
        let is_heap = match memory_kind(pages)? {
            MemoryKind::Plain { is_heap } => is_heap,
            MemoryKind::Other => return Err(Errno::INVAL),
        };
        if is_heap {
            keep_heap();
        }
        let (len, size) = (pages.len(), pages.len() + GROWTH_MAX);
        // A process that exceeds the limit is killed.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < size as u64) {
            return Err(Errno::FBIG);
        }
        let fd = memfd_create(&Name::own().0[..], MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, size as u64)?;
        let inode = fstat(&fd)?.st_ino;
        let own = Arc::new(SharedMemory::view(fd.as_fd(), len)?);
        // Its pages come from where the program wants those that they replace.
        place_like(pages.start, &(own.addr()..own.addr() + len));
        children::watch_forks();
        let segment = Arc::new(Self { pages: own, inode, is_writable: writable, fd });
        segment.exchange(pages)?;
        if let Err(errno) = watch.register(pages) {
            segment.restore(|_| false)?;
            return Err(errno);
        }
        let base = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let seals = if writable { base } else { base | SealFlags::FUTURE_WRITE };
        if let Err(errno) = fcntl_add_seals(&segment.fd, seals) {
            segment.restore(|_| false)?;
            return Err(errno);
        }
        Ok(segment)
    }

    fn exchange(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let present = present_pages(pages);
        // No signal handler of the program may write between the copy and the replacement, and no
        // fork may happen between the replacement and the entry in the table.
        let _signals = SignalsBlocked::new();
        let mut table = Table::lock();
        table.make_room();
        for (page, _) in present.iter().enumerate().filter(|(_, present)| **present) {
            let at = page * PAGE;
            let from = (pages.start + at) as *const u8;
            let to = self.pages.range(at, PAGE);
            // SAFETY: both pages are mapped (`remap` has checked the first, and `range` the
            // second), and they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE) };
        }
        let place = Place { at: Some(pages.start), len: pages.len(), rights: READ_WRITE };
        // SAFETY: this replaces private anonymous pages of the program by pages with the same
        // contents and rights. No other thread accesses them meanwhile: there is one thread, or the
        // caller of `Unused::new` has promised it, and signals are blocked.
        unsafe { map(&place, libc::MAP_SHARED, self.fd.as_raw_fd(), 0)? };
        table.insert(children::Entry {
            inode: self.inode,
            fd: self.fd.as_raw_fd(),
            pages: Arc::downgrade(&self.pages),
        });
        Ok(())
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A segment is never empty.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether peers that get the descriptor can write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The segment's descriptor. The file continues, empty, behind the pages.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether a region is all of the segment's pages.
    #[must_use]
    pub fn is_whole(&self, own: &Region) -> bool {
        own.addr() == self.pages.addr() && own.len() == self.pages.len()
    }

    /// Gives the program private memory again, wherever it has mapped the pages by now.
    ///
    /// # Errors
    /// `EBUSY` if other threads could be writing to the pages, or pages of it are `used` by their
    /// addresses; errors of `mmap(2)` and `pread(2)`. In these cases some of it may still be
    /// shared.
    pub fn restore(&self, used: impl Fn(&Range<usize>) -> bool) -> Result<(), Errno> {
        let _signals = SignalsBlocked::new();
        let mut table = Table::lock();
        let own = self.pages.addr();
        let pieces = pieces(|entry| entry.inode == self.inode && entry.range.start != own)?;
        if !is_alone()? {
            if !pieces.is_empty() {
                return Err(Errno::BUSY);
            }
            // A mapping that another thread moves at this moment may have been overlooked.
            table.may_have_orphans();
        }
        if pieces.iter().any(|piece| used(&piece.range)) {
            return Err(Errno::BUSY);
        }
        for piece in &pieces {
            let replica = Replica::of(piece, Some(self.fd.as_raw_fd()))?;
            // SAFETY: this replaces pages of the segment, which the kernel has just reported there,
            // by a copy of them. No other thread accesses them or changes mappings meanwhile: there
            // is one thread, and signals are blocked.
            unsafe { replica.put()? };
        }
        Ok(())
    }
}

impl Drop for RemappedPages {
    fn drop(&mut self) {
        Table::lock().remove(self.inode);
    }
}

/// The whole pages inside a region, if all of them can be remapped.
#[must_use]
pub fn remappable(region: &Region) -> Option<Range<usize>> {
    let start = region.addr().checked_next_multiple_of(PAGE)?;
    let end = (region.addr() + region.len()) / PAGE * PAGE;
    // The stack that this function runs on changes between the copy and the replacement.
    let here = (&raw const start).addr();
    if start >= end || (start.saturating_sub(STACK_NEAR)..end + STACK_NEAR).contains(&here) {
        return None;
    }
    let memory_kind = memory_kind(&(start..end)).ok()?;
    matches!(memory_kind, MemoryKind::Plain { .. }).then_some(start..end)
}

/// The parts of a region that are now segments among `segments`, in order. The memory between them
/// is something else, or unknown.
#[must_use]
pub fn views(segments: &[Arc<RemappedPages>], region: &Region) -> Vec<View> {
    let range = region.addr()..region.addr() + region.len();
    let mut views: Vec<View> = Vec::new();
    if segments.is_empty() {
        return views;
    }
    let name = Name::own();
    let seen = maps::visit(&range, &mut |entry| {
        if let Some(view) = view_of(segments, &name, entry, &range) {
            let joined = views.last().and_then(|last| join(last, &view));
            match (joined, views.last_mut()) {
                (Some(whole), Some(last)) => last.own = whole,
                _ => views.push(view),
            }
        }
        ControlFlow::Continue(())
    });
    if seen.is_ok() { views } else { Vec::new() }
}

fn view_of(
    segments: &[Arc<RemappedPages>],
    name: &Name,
    entry: &Entry<'_>,
    range: &Range<usize>,
) -> Option<View> {
    if !name.is_of(entry) {
        return None;
    }
    let segment = segments.iter().find(|segment| segment.inode == entry.inode)?;
    let start = entry.range.start.max(range.start);
    let len = entry.range.end.min(range.end) - start;
    let offset = usize::try_from(entry.offset).ok()? + (start - entry.range.start);
    // SAFETY: this is a mapping of the segment, which lives as long as `RemappedPages`, and a
    // `View` keeps that alive.
    let whole = unsafe { Region::new(segment.pages.addr(), segment.pages.len()) }?;
    // Memory that the program has let grow is not in Weft's mapping.
    let len = len.min(whole.len().checked_sub(offset)?);
    let own = whole.part(offset, len).filter(|own| !own.is_empty())?;
    Some(View { segment: Arc::clone(segment), addr: start, own })
}

/// Joins two views, if the second continues the first both in the program and in Weft's mapping.
fn join(first: &View, second: &View) -> Option<Region> {
    let len = first.own.len();
    let goes_on = Arc::ptr_eq(&first.segment, &second.segment)
        && first.addr + len == second.addr
        && first.own.addr() + len == second.own.addr();
    // SAFETY: both are parts of one mapping, and the second starts where the first ends.
    goes_on.then(|| unsafe { Region::new(first.own.addr(), len + second.own.len()) }).flatten()
}

/// Weft's mapping of a segment that this process has made, found by a descriptor: a process may be
/// its own peer.
#[must_use]
pub fn own_pages(fd: BorrowedFd<'_>) -> Option<Arc<SharedMemory>> {
    let inode = fstat(fd).ok()?.st_ino;
    Table::lock().pages_of(inode)
}

/// Whether no other thread of the program can be writing to its memory.
///
/// # Errors
/// `EACCES` if the kernel does not tell.
pub fn is_alone() -> Result<bool, Errno> {
    let tasks = fs::read_dir("/proc/self/task").map_err(|_| Errno::ACCESS)?;
    Ok(tasks.count() == 1 + quiet_threads())
}

/// The kind of a range of memory.
enum MemoryKind {
    /// Private and anonymous, readable and writable, without gaps. Not the stack or another named
    /// mapping.
    Plain {
        /// Whether a part of it is the `brk` heap.
        is_heap: bool,
    },
    Other,
}

fn memory_kind(pages: &Range<usize>) -> Result<MemoryKind, Errno> {
    let (mut covered, mut is_heap) = (pages.start, false);
    maps::visit(pages, &mut |entry| {
        let anonymous = entry.inode == 0 && !entry.is_shared && entry.has_usual_pages;
        let named = !matches!(entry.name, b"" | b"[heap]") && !entry.name.starts_with(b"[anon:");
        if entry.range.start > covered || entry.rights != READ_WRITE || !anonymous || named {
            return ControlFlow::Break(());
        }
        is_heap |= entry.name == b"[heap]";
        covered = entry.range.end;
        ControlFlow::Continue(())
    })?;
    Ok(if covered >= pages.end { MemoryKind::Plain { is_heap } } else { MemoryKind::Other })
}

/// Makes `free` keep the end of the heap from now on. Some libraries hide that from code which
/// watches memory to invalidate cached registrations.
fn keep_heap() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        // SAFETY: the call takes two numbers. Its only effect is that memory is kept.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, -1) };
    });
}

/// Which pages have contents, in memory or swapped out; all of them if the kernel does not tell.
fn present_pages(pages: &Range<usize>) -> Vec<bool> {
    use std::os::unix::fs::FileExt;
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let count = pages.len() / PAGE;
    let mut words = vec![0; count * 8];
    let at = (pages.start / PAGE * 8) as u64;
    let read = fs::File::open("/proc/self/pagemap").and_then(|f| f.read_exact_at(&mut words, at));
    if read.is_err() {
        return vec![true; count];
    }
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
    words.chunks_exact(8).map(|chunk| word(chunk) & PRESENT_OR_SWAPPED != 0).collect()
}

/// Blocks the calling thread's signals and cancellation until it is dropped.
struct SignalsBlocked {
    before: libc::sigset_t,
    _uncancelled: Uncancelled,
}

impl SignalsBlocked {
    fn new() -> Self {
        let uncancelled = Uncancelled::begin();
        // SAFETY: a signal set consists of integers, for which zero is a valid value.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: `all` is a signal set that lives during the call.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both are signal sets that live during the call. Only the calling thread's mask
        // changes.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self { before, _uncancelled: uncancelled }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that `new` has saved.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests;
