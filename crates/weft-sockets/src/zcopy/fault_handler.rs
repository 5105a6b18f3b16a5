//! Protects deferred bytes from changes by the program: by write protection, and a thread that
//! handles the write faults.
//!
//! # Safety
//! The thread has its own descriptor table, in which it closes all descriptors but one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use weft_sys::calls::event::{PollFd, PollFlags, Timespec, poll};
use weft_sys::calls::io::Errno;
use weft_sys::{Mapping, UserFault, spawn_quiet};

/// Interval at which the thread calls `tick`, while sends are deferred and while none are.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const IDLE_TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Memory above the stack pointer that may belong to the same stack, whatever kind of stack it is.
const STACK_NEAR: usize = 256 << 10;

/// The state of the process's write protection.
#[derive(Debug)]
pub(super) enum FaultHandler {
    /// It has not been requested yet.
    Unasked,
    /// The kernel does not allow it, for this reason.
    Missing(Errno),
    /// It is available.
    Ready(UserFault),
}

impl FaultHandler {
    /// Makes sure that memory can be protected. The first call starts the thread. It calls
    /// `write_fault` for each address that a thread waits to write to, and `tick` at intervals,
    /// which returns whether anything is deferred.
    ///
    /// # Errors
    /// The reason why it is impossible, which is always the same.
    pub(super) fn prepare(
        &mut self,
        write_fault: fn(usize),
        tick: fn() -> bool,
    ) -> Result<(), Errno> {
        if matches!(self, Self::Unasked) {
            *self = start(write_fault, tick).map_or_else(Self::Missing, Self::Ready);
        }
        match *self {
            Self::Missing(errno) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Protects pages.
    ///
    /// # Errors
    /// `EINVAL` if other processes can change the pages, or if a fault on them must not block;
    /// other errors of the kernel.
    pub(super) fn protect(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let Self::Ready(fault) = self else { return Err(Errno::INVAL) };
        if is_near_stack(pages) || is_on_stack(pages) {
            return Err(Errno::INVAL);
        }
        match fault.protect(pages) {
            Err(Errno::NOENT) => {
                register(fault, pages)?;
                fault.protect(pages)
            }
            other => other,
        }
    }

    /// Ends the protection of pages. Unmapped pages need none.
    pub(super) fn release(&self, pages: &Range<usize>) {
        if let Self::Ready(fault) = self
            && !pages.is_empty()
        {
            let _ = fault.release(pages);
        }
    }
}

/// Registers the mappings of the pages with userfaultfd. The kernel forgets the registration when a
/// range is mapped anew.
fn register(fault: &UserFault, pages: &Range<usize>) -> Result<(), Errno> {
    let mut at = pages.start;
    while at < pages.end {
        let mapping = Mapping::at(at)?.ok_or(Errno::INVAL)?;
        fault.register(&mapping)?;
        at = mapping.end;
    }
    Ok(())
}

/// Returns whether pages may belong to the current stack, if it is one that the C library does not
/// know.
fn is_near_stack(pages: &Range<usize>) -> bool {
    let here = std::ptr::from_ref(&pages) as usize;
    here < pages.end && pages.start.saturating_sub(here) < STACK_NEAR
}

/// Returns whether pages belong to the calling thread's stack. A thread that holds one of Weft's
/// locks must never fault on its own stack.
fn is_on_stack(pages: &Range<usize>) -> bool {
    thread_local! {
        static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }
    let (mut start, mut end) = STACK.get();
    if end == 0 {
        (start, end) = stack();
        STACK.set((start, end));
    }
    pages.start < end && start < pages.end
}

/// Returns the calling thread's stack; all addresses if it is not known.
fn stack() -> (usize, usize) {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: `pthread_self` has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: asks about the calling thread, into a local variable.
    let asked = unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) };
    if asked != 0 {
        return (0, usize::MAX);
    }
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: `pthread_getattr_np` has filled it in.
    unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut len) };
    // SAFETY: `pthread_getattr_np` has filled it in, and it is not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (start as usize, (start as usize).saturating_add(len))
}

fn start(write_fault: fn(usize), tick: fn() -> bool) -> Result<UserFault, Errno> {
    let fault = UserFault::new()?;
    let fd = fault.as_fd().as_raw_fd();
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let thread = move || {
        // A separate table, because the program may close descriptors that it has not opened, and
        // reuse the numbers.
        let files = [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0];
        // SAFETY: it takes no pointers, and concerns this thread alone.
        let alone = unsafe { weft_sys::system_call(libc::SYS_unshare, files) } == 0;
        let _ = sender.send(alone);
        if alone {
            close_all_but(fd);
            // SAFETY: this thread has its own descriptor table, and nothing else in it owns `fd`.
            let fault = UserFault::from(unsafe { OwnedFd::from_raw_fd(fd) });
            watch(&fault, write_fault, tick);
        }
    };
    spawn_quiet("weft-fault", thread)?;
    if receiver.recv() == Ok(true) { Ok(fault) } else { Err(Errno::PERM) }
}

fn close_all_but(fd: RawFd) {
    let fd = fd.unsigned_abs();
    for (first, last) in [(0, fd.checked_sub(1)), (fd + 1, Some(u32::MAX))] {
        if let Some(last) = last {
            let numbers = [first as usize, last as usize, 0, 0, 0, 0];
            // SAFETY: it takes no pointers, and closes only descriptors of this thread's own table.
            unsafe { weft_sys::system_call(libc::SYS_close_range, numbers) };
        }
    }
}

fn watch(fault: &UserFault, write_fault: fn(usize), tick: fn() -> bool) -> ! {
    let mut busy = true;
    loop {
        let time = if busy { &TICK } else { &IDLE_TICK };
        let mut set = [PollFd::new(fault, PollFlags::IN)];
        if poll(&mut set, Some(time)) == Ok(0) {
            busy = tick();
        }
        while let Some(address) = fault.next_fault() {
            write_fault(address);
            busy = true;
        }
    }
}
