//! Makes memory read as zeros after the program has given it back by `madvise(MADV_DONTNEED)`;
//! allocators rely on that. In a shared segment the call would drop only this process's view, and
//! the bytes would come back. So `userfaultfd(2)` stops a thread that makes the call, and a thread
//! of Weft replaces the segment by replace private memory before it lets the stopped thread
//! continue.
//!
//! The kernel reports the range only by letting the thread continue. So the range is read from the
//! thread's system call in `/proc/self/task`.
//!
//! # Safety
//! The program is about to lose the contents of the memory that is replaced, and the kernel has
//! just reported that it is a segment.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Name, PAGE, Place, map};
use crate::calls::event::{PollFd, PollFlags, poll};
use crate::calls::fs::{Mode, OFlags, for_each_name, open};
use crate::calls::io::{Errno, read};
use crate::calls::thread::{Timespec, gettid, nanosleep};
use crate::forkable::Forkable;
use crate::limits::{CALL_LEN_MAX, PATH_LEN_MAX};
use crate::maps;
use crate::thread::spawn_quiet;
use crate::userfault::UserFault;

const MADV_DONTNEED_LOCKED: libc::c_int = 24;
/// Longer than a thread uses a core between the moment when its event is queued and the moment when
/// it is blocked.
const TIME_TO_BLOCK: Duration = Duration::from_micros(500);

/// Stops threads that give back pages of segments.
#[derive(Debug)]
pub(super) struct Watch {
    fault: Arc<UserFault>,
}

/// This process's watch, whose thread is running when this returns.
///
/// # Errors
/// The error that prevents it.
pub(super) fn start() -> Result<&'static Watch, Errno> {
    static WATCH: Forkable<Result<Watch, Errno>> = Forkable::new(Watch::new);
    WATCH.get().as_ref().map_err(|&errno| errno)
}

impl Watch {
    fn new() -> Result<Self, Errno> {
        let fault = Arc::new(UserFault::for_change_events()?);
        // Without that file the watcher could not tell what a thread is about to do.
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
        // From now on the thread counts as Weft's.
        while !is_up.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(Self { fault })
    }

    /// Watches the pages of a segment.
    ///
    /// # Errors
    /// Those of [`UserFault::register`].
    pub(super) fn register(&self, pages: &Range<usize>) -> Result<(), Errno> {
        self.fault.register(pages)
    }
}

/// Handles stopped threads. It neither allocates nor locks, because a stopped thread may hold any
/// lock.
fn run(fault: &UserFault, name: &Name) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fault.as_fd(), PollFlags::IN)];
        // Continue after an error, too: otherwise stopped threads would never continue.
        let _ = poll(&mut fds, None);
        replace_all_discarded(name);
        fault.resume_one();
    }
}

/// Replaces memory that threads are about to give back. The kernel lets them continue in the order
/// in which they came, so the next one was blocked before this began. Each thread is waited for
/// until it is seen to be blocked, or cannot be the next one.
fn replace_all_discarded(name: &Name) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = open("/proc/self/task", flags, Mode::empty()) else { return };
    let _ = for_each_name(&tasks, &mut [0; 256], |task| {
        let number = task.to_str().ok().and_then(|task| task.parse().ok());
        let thread = number.filter(|&thread| thread != gettid().as_raw_pid());
        let call = thread.and_then(call_when_blocked);
        if let Some(range) = call.as_ref().and_then(discarded_range) {
            replace(name, &range);
        }
    });
}

/// The system call in which a thread is blocked. `None` if it has ended, or is running: it has used
/// a core for longer than a thread needs that was about to block, or was woken by mistake.
fn call_when_blocked(thread: libc::pid_t) -> Option<[u64; 4]> {
    let mut path = [0; PATH_LEN_MAX];
    write!(&mut path[..PATH_LEN_MAX - 1], "/proc/self/task/{thread}/syscall").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let start = cpu_time(thread)?;
    loop {
        if let Some(call) = call_of(path).ok()? {
            return Some(call);
        }
        if cpu_time(thread)? > start + TIME_TO_BLOCK {
            return None;
        }
        sleep_shortly();
    }
}

/// The CPU time of a thread of this process; `None` if it has ended.
fn cpu_time(thread: libc::pid_t) -> Option<Duration> {
    /// `CPUCLOCK_PERTHREAD_MASK` and `CPUCLOCK_SCHED`.
    const OF_THREAD: libc::clockid_t = 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local variable. The clock is that of a thread, by its number.
    let done = unsafe { libc::clock_gettime(!thread << 3 | OF_THREAD, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    (done == 0).then(|| Some(Duration::new(seconds.ok()?, nanoseconds.ok()?)))?
}

fn sleep_shortly() {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000 };
    let _ = nanosleep(&time);
}

/// The system call in which a thread is blocked: its number and first arguments. `None` while the
/// thread runs. The calling thread's own call is always known.
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

/// The range of memory that a call discards.
fn discarded_range(&[number, addr, len, advice]: &[u64; 4]) -> Option<Range<usize>> {
    let is_emptying = [libc::MADV_DONTNEED, MADV_DONTNEED_LOCKED]
        .iter()
        .any(|&wanted| u64::try_from(wanted).is_ok_and(|wanted| wanted == advice));
    if number != libc::SYS_madvise.cast_unsigned() || !is_emptying {
        return None;
    }
    let (start, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
    Some(start..start.checked_add(len.checked_next_multiple_of(PAGE)?)?)
}

/// Replaces segments in a range by replace memory.
fn replace(name: &Name, range: &Range<usize>) {
    let _ = maps::visit(range, &mut |entry| {
        if name.is_of(entry) {
            let start = entry.range.start.max(range.start);
            let len = entry.range.end.min(range.end) - start;
            let place = Place { at: Some(start), len, rights: entry.rights };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a thread of the program is blocked in a call that discards these pages.
            let _ = unsafe { map(&place, flags, -1, 0) };
        }
        ControlFlow::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_parsed() {
        let call = parse(b"28 0x7f1000 0x1001 0x4 0x0 0x0 0x0 0x7ffd 0x7f2a\n").expect("a call");
        assert_eq!(call, [28, 0x7f_1000, 0x1001, 4]);
        assert_eq!(parse(b"running\n"), None);
        assert_eq!(parse(b"-1 0x7ffd 0x7f2a\n"), None);
        let madvise = libc::SYS_madvise.cast_unsigned();
        assert_eq!(discarded_range(&[madvise, 0x1000, 0x1001, 4]), Some(0x1000..0x3000));
        assert_eq!(discarded_range(&[madvise, 0x1000, 0x1000, 3]), None, "MADV_WILLNEED");
        assert_eq!(discarded_range(&[madvise + 1, 0x1000, 0x1000, 4]), None, "another call");
        assert_eq!(discarded_range(&[madvise, u64::MAX, 0x1000, 4]), None, "no range");
    }
}
