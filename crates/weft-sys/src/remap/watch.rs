//! Memory that the program gives back by `madvise(MADV_DONTNEED)` is empty when it is used again;
//! allocators rely on that. Of a shared segment only this process's view would go, and the bytes
//! would come back. So userfaultfd(2) stops a thread that does it, and a thread of ours puts empty
//! private memory in the place of the segment before it lets that one go on.
//!
//! The kernel says which memory it is only while it lets the thread go. What the thread is about to
//! do stands in `/proc/self/task`.
//!
//! # Safety
//! The program is about to lose what is in the memory that is replaced, and the kernel has just
//! said that it is a segment.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::io::{Errno, read};
use rustix::thread::{Timespec, gettid, nanosleep};

use super::{Name, PAGE, Place, map};
use crate::forkable::Forkable;
use crate::limits::{CALL_LEN_MAX, PATH_LEN_MAX};
use crate::maps;
use crate::thread::spawn_quiet;
use crate::userfault::UserFault;

const MADV_DONTNEED_LOCKED: libc::c_int = 24;
/// More than a thread is on a core between the moment when the kernel says that it has to be let go
/// and the one when it stands still.
const TIME_TO_STAND_STILL: Duration = Duration::from_micros(500);

/// What stops the threads.
#[derive(Debug)]
pub(super) struct Watch {
    fault: Arc<UserFault>,
}

/// This process's, whose thread runs on return.
///
/// # Errors
/// Why there can be none.
pub(super) fn start() -> Result<&'static Watch, Errno> {
    static WATCH: Forkable<Result<Watch, Errno>> = Forkable::new(Watch::new);
    WATCH.get().as_ref().map_err(|&errno| errno)
}

impl Watch {
    fn new() -> Result<Self, Errno> {
        let fault = Arc::new(UserFault::of_changes()?);
        // Where that cannot be read nobody could say what a thread is about to do.
        if call_of(c"/proc/thread-self/syscall")?.is_none() {
            return Err(Errno::ACCESS);
        }
        let name = Name::own();
        let is_up = Arc::new(AtomicBool::new(false));
        let (events, up) = (Arc::clone(&fault), Arc::clone(&is_up));
        spawn_quiet("weft-watch", move || {
            up.store(true, Ordering::Release);
            drop(up);
            run(&events, &name);
        })?;
        // It counts as ours from now on.
        while !is_up.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(Self { fault })
    }

    /// Watches pages of a segment.
    ///
    /// # Errors
    /// As [`UserFault::register`].
    pub(super) fn register(&self, pages: &Range<usize>) -> Result<(), Errno> {
        self.fault.register(pages)
    }
}

/// Allocates nothing and takes no lock: a thread that has been stopped may hold any.
fn run(fault: &UserFault, name: &Name) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fault.as_fd(), PollFlags::IN)];
        // Whatever it returns, go on: a stopped thread that nobody lets go would wait for ever.
        let _ = poll(&mut fds, None);
        empty_all(name);
        fault.let_go();
    }
}

/// Empties what threads are about to give back. The kernel lets them go in the order in which they
/// came, so the one that goes next stood still before this began: each thread is waited for until
/// it is seen to stand still or cannot be that one.
fn empty_all(name: &Name) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = open("/proc/self/task", flags, Mode::empty()) else { return };
    let mut space = [MaybeUninit::uninit(); 2_048];
    let mut tasks = RawDir::new(tasks, &mut space);
    while let Some(Ok(task)) = tasks.next() {
        let number = task.file_name().to_str().ok().and_then(|name| name.parse().ok());
        let Some(thread) = number.filter(|&thread| thread != gettid().as_raw_nonzero().get())
        else {
            continue;
        };
        if let Some(range) = call_when_still(thread).as_ref().and_then(given_back) {
            empty(name, &range);
        }
    }
}

/// The call that a thread stands still in. `None` if it has ended, or goes on by itself: it has had
/// more time on a core than one needs that was just about to stand still, or that was woken by
/// mistake.
fn call_when_still(thread: libc::pid_t) -> Option<[u64; 4]> {
    let mut path = [0; PATH_LEN_MAX];
    write!(&mut path[..PATH_LEN_MAX - 1], "/proc/self/task/{thread}/syscall").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let start = time_on_core(thread)?;
    loop {
        if let Some(call) = call_of(path).ok()? {
            return Some(call);
        }
        if time_on_core(thread)? > start + TIME_TO_STAND_STILL {
            return None;
        }
        sleep_shortly();
    }
}

/// What a thread of this process has used of the cores; `None` when it has ended.
fn time_on_core(thread: libc::pid_t) -> Option<Duration> {
    /// `CPUCLOCK_PERTHREAD_MASK` and `CPUCLOCK_SCHED`.
    const OF_THREAD: libc::clockid_t = 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place. The clock is that of a thread, by its number.
    let done = unsafe { libc::clock_gettime(!thread << 3 | OF_THREAD, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    (done == 0).then(|| Some(Duration::new(seconds.ok()?, nanoseconds.ok()?)))?
}

fn sleep_shortly() {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000 };
    let _ = nanosleep(&time);
}

/// What a thread that stands still in a system call has asked for: the call's number and its first
/// arguments. `None` while it runs; the calling thread's is always known.
fn call_of(path: &std::ffi::CStr) -> Result<Option<[u64; 4]>, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; CALL_LEN_MAX];
    let len = read(&file, &mut text)?;
    Ok(parse(&text[..len]))
}

fn parse(text: &[u8]) -> Option<[u64; 4]> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some([number, argument()?, argument()?, argument()?])
}

/// The memory that a call empties.
fn given_back(&[number, addr, len, advice]: &[u64; 4]) -> Option<Range<usize>> {
    let is_emptying = [libc::MADV_DONTNEED, MADV_DONTNEED_LOCKED]
        .iter()
        .any(|&wanted| u64::try_from(wanted).is_ok_and(|wanted| wanted == advice));
    if number != libc::SYS_madvise.cast_unsigned() || !is_emptying {
        return None;
    }
    let (start, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
    Some(start..start.checked_add(len.checked_next_multiple_of(PAGE)?)?)
}

/// Puts empty memory in the place of segments.
fn empty(name: &Name, range: &Range<usize>) {
    let _ = maps::visit(range, &mut |entry| {
        if name.is_of(entry) {
            let start = entry.range.start.max(range.start);
            let len = entry.range.end.min(range.end) - start;
            let place = Place { at: Some(start), len, rights: entry.rights };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a thread of the program's stands still in a call that loses these pages.
            let _ = unsafe { map(&place, flags, -1, 0) };
        }
        ControlFlow::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_understood() {
        let call = parse(b"28 0x7f1000 0x1001 0x4 0x0 0x0 0x0 0x7ffd 0x7f2a\n").expect("a call");
        assert_eq!(call, [28, 0x7f_1000, 0x1001, 4]);
        assert_eq!(parse(b"running\n"), None);
        assert_eq!(parse(b"-1 0x7ffd 0x7f2a\n"), None);
        let madvise = libc::SYS_madvise.cast_unsigned();
        assert_eq!(given_back(&[madvise, 0x1000, 0x1001, 4]), Some(0x1000..0x3000));
        assert_eq!(given_back(&[madvise, 0x1000, 0x1000, 3]), None, "MADV_WILLNEED");
        assert_eq!(given_back(&[madvise + 1, 0x1000, 0x1000, 4]), None, "another call");
        assert_eq!(given_back(&[madvise, u64::MAX, 0x1000, 4]), None, "no range");
    }
}
