//! Deferred sends of this process: which pages of which messages are write-protected, and how they
//! end (AZ-SDP, Balaji 2006, chapter 5).
//!
//! A record exists from the send until a later send, or the fault handler, finds its source
//! finished. If the program writes to the pages before, frees or unmaps them (a page fault, `free`,
//! `munmap`), it gets them back at once: the bytes are copied, and the receiver reads the copy
//! ([`write_fault`], [`revoke`]). Before the socket or the process ends, the remaining bytes are
//! put into the ring ([`reclaim`]).
//!
//! One lock guards the records. Its holder must never wait for itself, so it does not write to the
//! program's memory, allocate, free, or handle signals.
//!
//! # Safety
//! Blocks are mapped once, and never unmapped. A record's pieces are the program's memory. The
//! program guarantees that it is readable during the call; afterwards it cannot be unmapped without
//! [`revoke`].
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd as _, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use smallvec::SmallVec;
use weft_stream::limits::BIG_RING_LEN;
use weft_stream::{Plan, SrcAvailNumber};
use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, Lock};

use super::fault_handler::FaultHandler;
use super::{SendContext, Sender};
use crate::descriptor::Descriptor;
use crate::identity;
use crate::kernel::End;
use crate::limits::{DEFERRED_PIECES_MAX, DEFERRED_SENDS_MAX};
use crate::table::Kept;

const PAGE: usize = 4_096;
/// A record's own memory: the unaligned head and tail of its message, and, if it has to be moved,
/// all of it.
const BLOCK_LEN: usize = 2 * Plan::EDGES_LEN + Plan::PAGES_LEN_MAX;
/// Checks of a source in progress before it is copied.
const LOOKS: u32 = 2_000;

/// A message, or a part of one.
#[derive(Debug)]
struct Record {
    /// The reference that keeps the socket, and the sender in it.
    kept: Kept,
    sender: *const Sender,
    end: End,
    fd: RawFd,
    number: SrcAvailNumber,
    /// The protected pages: none if the call does not return before the source is finished.
    pages: Range<usize>,
    pieces: [libc::iovec; DEFERRED_PIECES_MAX],
    count: usize,
    is_awaited: bool,
}

// SAFETY: the pieces are addresses in the process, which all its threads share, and `kept` keeps
// the sender.
unsafe impl Send for Record {}

/// All records.
#[derive(Debug)]
struct Records {
    fault_handler: FaultHandler,
    /// Address of the blocks; 0 before they are mapped.
    blocks: usize,
    all: [Option<Record>; DEFERRED_SENDS_MAX],
}

static RECORDS: Lock<Records> = Lock::new(Records {
    fault_handler: FaultHandler::Unasked,
    blocks: 0,
    all: [const { None }; DEFERRED_SENDS_MAX],
});

/// The number of records, and the range of addresses that their pages lie in, for checks without
/// the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread holds the lock.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// References to be dropped after the lock is released, because that may call the allocator. Each
/// record can end at most twice meanwhile, if its slot is reused.
struct Spent([Option<Kept>; 2 * DEFERRED_SENDS_MAX]);

impl Spent {
    fn add(&mut self, kept: Kept) {
        match self.0.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(kept),
            None => std::mem::forget(kept), // A leaked reference is harmless.
        }
    }
}

/// The result of a deferred send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferral {
    /// This many bytes have been deferred.
    Made(usize),
    /// There is no room: the peer has to read first.
    NoRoom,
    /// These bytes cannot be deferred.
    Impossible,
    /// No bytes can ever be deferred: userfaultfd is not available.
    Unprotected(Errno),
}

fn locked<R>(job: impl FnOnce(&mut Records, &mut Spent) -> R) -> R {
    let mut spent = Spent([const { None }; 2 * DEFERRED_SENDS_MAX]);
    let signals = NoSignals::begin();
    INSIDE.set(true);
    let result = {
        let mut records = RECORDS.lock();
        let result = job(&mut records, &mut spent);
        records.publish();
        result
    };
    INSIDE.set(false);
    drop(signals);
    drop(spent);
    result
}

/// Returns whether there may be deferred sends. It costs one load.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Defers the send of the first bytes of the buffers, `most` at most. If the caller does not return
/// before it has sent everything, bytes that the peer must have read by then are not protected. A
/// caller that returns early must call [`settle`].
pub(super) fn defer_send(
    sender: &Sender,
    context: &SendContext<'_>,
    buffers: Buffers<'_>,
    most: usize,
    is_to_send_all: bool,
) -> Deferral {
    let &SendContext { end, fd, .. } = context;
    let mut kept = context.place.and_then(|place| place.keep_at(fd));
    if kept.is_none() {
        return Deferral::Impossible;
    }
    locked(|records, spent| {
        if let Err(errno) = records.fault_handler.prepare(write_fault, tick) {
            return Deferral::Unprotected(errno);
        }
        let Some(at) = records.free_record(spent) else { return Deferral::NoRoom };
        let Some(block) = records.block(at) else { return Deferral::Impossible };
        let plan = Plan::of(buffers, most, block, |region, to| {
            // SAFETY: an unaligned head or tail goes into the block's first part, which has room
            // for all of them, and does not overlap the program's memory.
            unsafe { copy(region.addr(), to, region.len()) };
        });
        if plan.is_empty() || (plan.pages().is_empty() && !end.has_deferred_sends()) {
            return Deferral::Impossible;
        }
        // Deferred bytes never exceed the ring's length, and the peer reads them in the ring's
        // order.
        let is_awaited = is_to_send_all && buffers.len() - plan.len() >= BIG_RING_LEN;
        let pages = if is_awaited { 0..0 } else { plan.pages().clone() };
        if !records.has(&pages) && records.fault_handler.protect(&pages).is_err() {
            records.release(&pages, None);
            return Deferral::Impossible;
        }
        let (pieces, count) = iovecs(plan.pieces());
        // SAFETY: the list is a local variable; its buffers are the program's memory and the block.
        let source = unsafe { Buffers::new(pieces.as_ptr(), count) };
        let owner = identity::owner();
        let deferred =
            source.and_then(|source| end.defer_send(Descriptor::of(fd).as_fd(), source, &owner));
        let Some(number) = deferred else {
            records.release(&pages, None);
            return Deferral::Impossible;
        };
        let end = *end;
        records.all[at] = kept.take().map(|kept| Record {
            kept,
            sender,
            end,
            fd,
            number,
            pages,
            pieces,
            count,
            is_awaited,
        });
        // Only now, so that pages which are deferred again stay protected.
        records.sweep(spent);
        Deferral::Made(plan.len())
    })
}

/// Handles a write fault: a thread waits to write to an address. The fault handler calls this.
fn write_fault(address: usize) {
    let page = address / PAGE * PAGE;
    let page = page..page + PAGE;
    locked(|records, spent| {
        records.give_back(&page, spent);
        // The page may have been unmapped meanwhile, but the thread still waits.
        records.release(&page, None);
    });
}

/// Copies deferred bytes of a range of the program's memory that is about to change or to be
/// unmapped.
#[inline]
pub(crate) fn revoke(start: usize, len: impl FnOnce() -> usize) {
    if any() && start < HIGHEST.load(Ordering::Relaxed) {
        revoke_range(start, len());
    }
}

#[cold]
fn revoke_range(start: usize, len: usize) {
    let end = start.saturating_add(len);
    let outside = end <= LOWEST.load(Ordering::Relaxed);
    if outside || INSIDE.get() || identity::is_borrowed() {
        return;
    }
    let before = crate::errno::get();
    locked(|records, spent| records.give_back(&(start..end), spent));
    crate::errno::set_raw(before);
}

/// Puts a socket's deferred bytes into its ring. Returns `true` if nothing is deferred any more.
pub(crate) fn reclaim(sender: &Sender) -> bool {
    reclaim_if(sender, |_| true)
}

/// Puts deferred but unprotected bytes into the ring, when a call returns that has sent less than
/// it wanted.
#[cold]
pub(crate) fn settle(sender: &Sender) {
    reclaim_if(sender, |record| record.is_awaited);
}

/// Puts all of a socket's deferred bytes into its ring if the condition holds for any record.
fn reclaim_if(sender: &Sender, is_so: impl Fn(&Record) -> bool) -> bool {
    if !any() || INSIDE.get() || identity::is_borrowed() {
        return true;
    }
    locked(|records, spent| {
        let mut its = records.all.iter().flatten().filter(|record| ptr::eq(record.sender, sender));
        match its.find(|record| is_so(record)).map(|record| record.end) {
            Some(end) => records.reclaim(&end, spent),
            None => true,
        }
    })
}

/// Puts all deferred bytes into the rings, before the process ends, forks, or executes another
/// program.
pub(crate) fn reclaim_all() {
    if any() && !INSIDE.get() && !identity::is_borrowed() {
        locked(Records::reclaim_all);
    }
}

/// Maintains the records at intervals. Returns `false` if there are none.
fn tick() -> bool {
    if !any() {
        return false;
    }
    locked(|records, spent| {
        records.sweep(spent);
        records.send_through_ring(spent);
    });
    true
}

impl Records {
    /// Returns the memory of a record. The blocks are mapped at their first use.
    fn block(&mut self, at: usize) -> Option<usize> {
        if self.blocks == 0 {
            let (protection, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            );
            let len = DEFERRED_SENDS_MAX * BLOCK_LEN;
            // SAFETY: the kernel chooses the address of the new mapping.
            let mapped = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED {
                return None;
            }
            self.blocks = mapped as usize;
        }
        Some(self.blocks + at * BLOCK_LEN)
    }

    /// Publishes the values that are read without the lock.
    fn publish(&self) {
        let records = self.all.iter().flatten();
        let (mut count, mut lowest, mut highest) = (0, usize::MAX, 0);
        for Record { pages, .. } in records {
            count += 1;
            if !pages.is_empty() {
                (lowest, highest) = (lowest.min(pages.start), highest.max(pages.end));
            }
        }
        LOWEST.store(lowest, Ordering::Relaxed);
        HIGHEST.store(highest, Ordering::Relaxed);
        COUNT.store(count, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns the index of a free record.
    fn free_record(&mut self, spent: &mut Spent) -> Option<usize> {
        let free_record = |records: &Self| records.all.iter().position(Option::is_none);
        free_record(self).or_else(|| {
            self.sweep(spent);
            free_record(self)
        })
    }

    /// Returns whether a record has all of these pages, so that they are protected.
    fn has(&self, pages: &Range<usize>) -> bool {
        let has =
            |record: &Record| record.pages.start <= pages.start && pages.end <= record.pages.end;
        pages.is_empty() || self.all.iter().flatten().any(has)
    }

    /// Ends the protection of pages, except those of records other than `not`.
    fn release(&self, pages: &Range<usize>, not: Option<usize>) {
        let mut at = pages.start;
        while at < pages.end {
            let others = self.all.iter().enumerate().filter(|&(other, _)| Some(other) != not);
            let others = others.filter_map(|(_, record)| record.as_ref().map(|r| &r.pages));
            let others = others.filter(|other| other.end > at && !other.is_empty());
            // The next range of another record, and its end.
            let next = others.min_by_key(|other| other.start).cloned().unwrap_or(pages.end..at);
            let end = next.start.clamp(at, pages.end);
            self.fault_handler.release(&(at..end));
            at = next.end.max(end);
            if next.end <= next.start {
                break;
            }
        }
    }

    /// Ends a record, and returns its pages to the program.
    fn end(&mut self, at: usize, spent: &mut Spent) {
        if let Some(record) = &self.all[at] {
            self.release(&record.pages, Some(at));
        }
        if let Some(record) = self.all[at].take() {
            spent.add(record.kept);
        }
    }

    /// Ends the records whose sources are finished.
    fn sweep(&mut self, spent: &mut Spent) {
        for at in 0..DEFERRED_SENDS_MAX {
            if self.all[at].as_ref().is_some_and(Record::is_over) {
                self.end(at, spent);
            }
        }
    }

    /// Returns pages to the program.
    fn give_back(&mut self, pages: &Range<usize>, spent: &mut Spent) {
        for at in 0..DEFERRED_SENDS_MAX {
            let overlaps =
                |record: &&Record| record.pages.start < pages.end && pages.start < record.pages.end;
            if self.all[at].as_ref().filter(overlaps).is_some() {
                self.relocate(at, spent);
            }
        }
    }

    /// Copies a record's deferred bytes, so that its pages are not needed any more.
    fn relocate(&mut self, at: usize, spent: &mut Spent) {
        let Some(block) = self.block(at) else { return };
        let Some(record) = &mut self.all[at] else { return };
        if record.is_over_soon() {
            return self.end(at, spent);
        }
        // SAFETY: `kept` keeps the socket, and the sender is a part of it.
        unsafe { &*record.sender }.note_write_fault();
        let place = block + Plan::EDGES_LEN;
        let mut len = 0;
        for piece in &record.pieces[..record.count] {
            // SAFETY: the record guarantees that the pieces are readable. The destination is the
            // block's second part, which is as long as all pieces can be.
            unsafe { copy(piece.iov_base as usize, place + len, piece.iov_len) };
            len += piece.iov_len;
        }
        if !record.end.move_deferred(record.number, place as u64) {
            return self.end(at, spent);
        }
        (record.pieces, record.count) = iovecs(&[(place, len)]);
        let pages = std::mem::take(&mut record.pages);
        self.release(&pages, Some(at));
    }

    /// Puts the deferred bytes for a peer into the ring.
    fn reclaim(&mut self, end: &End, spent: &mut Spent) -> bool {
        let mut fd = -1;
        let mut deferred_sends =
            SmallVec::<[(SrcAvailNumber, Buffers<'_>); DEFERRED_SENDS_MAX]>::new();
        for record in self.all.iter().flatten().filter(|record| record.end.is(end)) {
            // SAFETY: the list is in the record, which guarantees that the buffers are readable.
            let buffers = unsafe { Buffers::new(record.pieces.as_ptr(), record.count) };
            fd = record.fd;
            deferred_sends.extend(buffers.map(|buffers| (record.number, buffers)));
        }
        deferred_sends.sort_unstable_by_key(|&(number, _)| number);
        if !deferred_sends.is_empty() && !end.reclaim(Descriptor::of(fd).as_fd(), &deferred_sends) {
            return false;
        }
        drop(deferred_sends);
        for at in 0..DEFERRED_SENDS_MAX {
            if self.all[at].as_ref().is_some_and(|record| record.end.is(end)) {
                self.end(at, spent);
            }
        }
        true
    }

    fn reclaim_all(&mut self, spent: &mut Spent) {
        for at in 0..DEFERRED_SENDS_MAX {
            if let Some(end) = self.all[at].as_ref().map(|record| record.end) {
                self.reclaim(&end, spent);
            }
        }
    }

    /// Sends deferred bytes through the ring to a peer that cannot read this process's memory.
    fn send_through_ring(&mut self, spent: &mut Spent) {
        for at in 0..DEFERRED_SENDS_MAX {
            let record = self.all[at].as_ref().filter(|record| record.end.is_refused());
            if let Some(end) = record.map(|record| record.end) {
                self.reclaim(&end, spent);
            }
        }
    }
}

impl Record {
    fn is_over(&self) -> bool {
        !self.end.is_deferred(self.number)
    }

    /// Waits until the record is finished, if the peer is just reading it, but not for long
    /// (block-on-write).
    fn is_over_soon(&self) -> bool {
        let mut pulled = 0;
        let mut looks = 0;
        while let Some(now) = self.end.source_progress(self.number) {
            looks = if now == pulled { looks + 1 } else { 0 };
            if now == 0 || looks == LOOKS {
                return false;
            }
            pulled = now;
            std::hint::spin_loop();
        }
        self.is_over()
    }
}

fn iovecs(pieces: &[(usize, usize)]) -> ([libc::iovec; DEFERRED_PIECES_MAX], usize) {
    let mut list = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; DEFERRED_PIECES_MAX];
    for (place, &(addr, len)) in list.iter_mut().zip(pieces) {
        *place = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
    }
    (list, pieces.len().min(DEFERRED_PIECES_MAX))
}

/// Copies bytes from the program's memory, or from a block, to a block.
///
/// # Safety
/// Both ranges are mapped, and do not overlap. The program may change its memory meanwhile.
unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: the caller guarantees mapped ranges that do not overlap.
    unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) }
}

/// Blocks all signals of the calling thread while it exists.
struct NoSignals(libc::sigset_t);

impl NoSignals {
    fn begin() -> Self {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` is a local variable.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: `all` has been filled in, and `before` is a local variable.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: `pthread_sigmask` has filled it in.
        Self(unsafe { before.assume_init() })
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: restores this thread's earlier mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Reclaims all deferred sends before a fork, and locks the records.
pub(crate) fn freeze() {
    reclaim_all();
    RECORDS.freeze();
    INSIDE.set(true);
}

/// Unlocks the records after the fork, in the parent and in the child.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`freeze`].
pub(crate) unsafe fn thaw() {
    INSIDE.set(false);
    // SAFETY: the caller has frozen `RECORDS`.
    unsafe { RECORDS.thaw() };
}

/// Drops the records in a forked child: its memory is not protected, and the parent sends the
/// bytes.
pub(crate) fn forked() {
    locked(|records, spent| {
        records.fault_handler = FaultHandler::Unasked;
        let all = records.all.iter_mut().filter_map(Option::take);
        all.for_each(|record| spent.add(record.kept));
    });
}
