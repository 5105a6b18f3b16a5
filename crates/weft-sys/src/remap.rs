//! Making a program's memory one that peers on this host can map.
//!
//! Memory that a program allocated is private to its process. It can be exchanged for a shared
//! segment with the same contents at the same addresses, if nobody writes to it meanwhile: that is
//! certain only while the process has no thread but the calling one (and ours, which the caller
//! keeps away).
//!
//! From then on the segment's pages are reached through a mapping of our own, never through the
//! program's addresses: the program may unmap them, map something else there and move them
//! elsewhere, and a registration still means the pages that were registered, as it does with
//! hardware. What an address of the program's stands for now is for the kernel's table of mappings
//! to say ([`views`]).
//!
//! What would tell shared memory from private memory is made up for: a forked child gets a copy
//! ([`children`]), and memory that the program gives back by `madvise` comes back empty
//! ([`watch`]).
//!
//! # Safety
//! Mappings are exchanged only where the kernel's table says that they are private, anonymous,
//! readable and writable, and only whole pages inside the range that the caller vouches for; back
//! only where it says that they are the segment.
#![allow(unsafe_code)]

mod children;
mod place;
mod replica;
mod watch;

use std::fs;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Once};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::limits::GROWTH_MAX;
use crate::maps::{self, Entry};
use crate::region::Region;
use crate::shared::SharedMemory;
use crate::thread::quiet_threads;
use children::Table;
use place::{Name, PAGE, Piece, Place, READ_WRITE, last_error, map, pieces};
use replica::Replica;

/// So near to where the stack is now memory is taken for the stack.
const STACK_NEAR: usize = 1 << 20;

/// Pages that were the program's own and are a shared segment now.
#[derive(Debug)]
pub struct RemappedPages {
    pages: Arc<SharedMemory>,
    inode: u64,
    is_writable: bool,
    fd: OwnedFd,
}

/// A part of the program's memory that is a segment, as the kernel says.
#[derive(Clone, Debug)]
pub struct View {
    /// The segment.
    pub segment: Arc<RemappedPages>,
    /// Where the part begins, as the program sees it.
    pub addr: usize,
    /// The same pages, in our mapping.
    pub own: Region,
}

impl RemappedPages {
    /// Exchanges pages, which [`remappable`] has found, for a shared segment. Those who get its
    /// descriptor can write to it only if it is `writable`.
    ///
    /// # Errors
    /// `EINVAL` when the memory is not of a kind that can be exchanged; `EBUSY` when other threads
    /// could be writing to it; `EFBIG` when the process may not make such a file; `EPERM` and the
    /// like without userfaultfd; what `memfd_create(2)` and `mmap(2)` report.
    pub fn remap(pages: &Range<usize>, writable: bool) -> Result<Arc<Self>, Errno> {
        let watch = watch::start()?;
        if !is_alone()? {
            return Err(Errno::BUSY);
        }
        let is_heap = match plainness(pages)? {
            Plainness::Plain { is_heap } => is_heap,
            Plainness::Other => return Err(Errno::INVAL),
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
        // No handler of the program's may write between the copy and the exchange, and no fork may
        // fall between the exchange and the entry in the table.
        let _undisturbed = Undisturbed::new();
        let mut table = Table::lock();
        table.make_room();
        for (page, _) in present.iter().enumerate().filter(|(_, present)| **present) {
            let at = page * PAGE;
            let from = (pages.start + at) as *const u8;
            let to = self.pages.range(at, PAGE);
            // SAFETY: both pages are mapped (`remap` has checked the first) and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE) };
        }
        let place = Place { at: Some(pages.start), len: pages.len(), rights: READ_WRITE };
        // SAFETY: replaces private anonymous pages of the caller's by ones with the same contents
        // and rights; nobody accesses them meanwhile (one thread, no signals).
        unsafe { map(&place, libc::MAP_SHARED, self.fd.as_raw_fd(), 0)? };
        table.enter(children::Entry {
            inode: self.inode,
            fd: self.fd.as_raw_fd(),
            pages: Arc::downgrade(&self.pages),
        });
        Ok(())
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether those who get the descriptor can write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The segment, which goes on behind its pages, empty.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether these are all of its pages.
    #[must_use]
    pub fn is_whole(&self, own: &Region) -> bool {
        own.addr() == self.pages.addr() && own.len() == self.pages.len()
    }

    /// Gives the program private memory again, wherever it has the pages now.
    ///
    /// # Errors
    /// `EBUSY` while there are other threads, which could be writing to it, or pages of it that
    /// are `used` by their addresses; what `mmap(2)` and `pread(2)` report. Then some of it may
    /// still be shared.
    pub fn restore(&self, used: impl Fn(&Range<usize>) -> bool) -> Result<(), Errno> {
        let _undisturbed = Undisturbed::new();
        let mut table = Table::lock();
        let own = self.pages.addr();
        let pieces = pieces(|entry| entry.inode == self.inode && entry.range.start != own)?;
        if !is_alone()? {
            if !pieces.is_empty() {
                return Err(Errno::BUSY);
            }
            // One that another thread moves at this moment may have been overlooked.
            table.may_have_orphans();
        }
        if pieces.iter().any(|piece| used(&piece.range)) {
            return Err(Errno::BUSY);
        }
        for piece in &pieces {
            let replica = Replica::of(piece, Some(self.fd.as_raw_fd()))?;
            // SAFETY: puts the same bytes in the place of the segment's, where it was a moment ago;
            // nobody accesses them or changes mappings meanwhile (one thread, no signals).
            unsafe { replica.put()? };
        }
        Ok(())
    }
}

impl Drop for RemappedPages {
    fn drop(&mut self) {
        Table::lock().strike(self.inode);
    }
}

/// The whole pages inside a region, if all of that is memory which can be exchanged.
#[must_use]
pub fn remappable(region: &Region) -> Option<Range<usize>> {
    let start = region.addr().checked_next_multiple_of(PAGE)?;
    let end = (region.addr() + region.len()) / PAGE * PAGE;
    // The stack that this runs on changes between the copy and the exchange.
    let here = (&raw const start).addr();
    if start >= end || (start.saturating_sub(STACK_NEAR)..end + STACK_NEAR).contains(&here) {
        return None;
    }
    let plainness = plainness(&(start..end)).ok()?;
    matches!(plainness, Plainness::Plain { .. }).then_some(start..end)
}

/// The parts of a region that are segments among `segments` now, in order. What lies between them
/// is something else, or nobody knows what.
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
    // SAFETY: a view of the segment, which `RemappedPages` keeps mapped; who has a `View` has that,
    // too.
    let whole = unsafe { Region::new(segment.pages.addr(), segment.pages.len()) }?;
    // What the program has let grow is not all there.
    let len = len.min(whole.len().checked_sub(offset)?);
    let own = whole.part(offset, len).filter(|own| !own.is_empty())?;
    Some(View { segment: Arc::clone(segment), addr: start, own })
}

/// Two views as one, if the second goes on where the first ends, for the program and for us.
fn join(first: &View, second: &View) -> Option<Region> {
    let len = first.own.len();
    let goes_on = Arc::ptr_eq(&first.segment, &second.segment)
        && first.addr + len == second.addr
        && first.own.addr() + len == second.own.addr();
    // SAFETY: both are parts of one mapping, the second right behind the first.
    goes_on.then(|| unsafe { Region::new(first.own.addr(), len + second.own.len()) }).flatten()
}

/// Our mapping of a segment, if a descriptor is of one that this process has made: a process may
/// well talk to itself.
#[must_use]
pub fn own_pages(fd: BorrowedFd<'_>) -> Option<Arc<SharedMemory>> {
    let inode = fstat(fd).ok()?.st_ino;
    Table::lock().pages_of(inode)
}

/// Whether no other thread of the program's can be writing to its memory.
///
/// # Errors
/// `EACCES` when the kernel does not say.
pub fn is_alone() -> Result<bool, Errno> {
    let tasks = fs::read_dir("/proc/self/task").map_err(|_| Errno::ACCESS)?;
    Ok(tasks.count() == 1 + quiet_threads())
}

/// What memory is.
enum Plainness {
    /// Private and anonymous, readable and writable, without a gap, and neither stack nor anything
    /// else that has a name.
    Plain {
        /// Whether a part of it is the heap that `brk` makes.
        is_heap: bool,
    },
    Other,
}

fn plainness(pages: &Range<usize>) -> Result<Plainness, Errno> {
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
    Ok(if covered >= pages.end { Plainness::Plain { is_heap } } else { Plainness::Other })
}

/// From now on `free` does not give the end of the heap back: some libraries hide that from those
/// who watch memory to know when their cached registrations end.
fn keep_heap() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        // SAFETY: two numbers. It has no other effect than to keep memory.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, -1) };
    });
}

/// Which pages hold something, in memory or swapped out; all of them if the kernel does not tell.
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

#[cfg(test)]
mod tests;
