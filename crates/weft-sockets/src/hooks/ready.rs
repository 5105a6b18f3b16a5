//! Hooks of the calls that wait for readiness. They are cancellation points even if they find it
//! without a call of the C library.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. The program guarantees that its sets and lists are valid.
#![allow(unsafe_code)]

use libc::{
    c_int, c_ulong, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use weft_sys::test_cancel;

use crate::arguments::is_nowhere;
use crate::by_hand::signals::Without;
use crate::by_hand::threads::go_on;
use crate::limits::FDS_MAX;
use crate::next::next;
use crate::poll::{ASKED, BITS};
use crate::{epoll, errno, open, poll, wait};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Returns whether the kernel accepts it as a time.
pub(super) fn is_time(time: &timespec) -> bool {
    time.tv_sec >= 0 && (0..SECOND.cast_signed()).contains(&time.tv_nsec)
}

/// Converts a time to nanoseconds. An invalid time becomes 0 or is clamped.
pub(super) fn nanoseconds(time: timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

fn milliseconds(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|timeout| timeout * MS)
}

/// Converts a time to whole milliseconds, rounded up; negative for no limit.
fn to_milliseconds(timeout: Option<u64>) -> c_int {
    timeout.map_or(-1, |timeout| c_int::try_from(timeout.div_ceil(MS)).unwrap_or(c_int::MAX))
}

pub(super) fn to_timespec(timeout: u64) -> timespec {
    timespec { tv_sec: (timeout / SECOND).cast_signed(), tv_nsec: (timeout % SECOND).cast_signed() }
}

/// # Safety
/// `set` is the program's list of `count` entries.
unsafe fn list<'a>(set: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok().filter(|&count| count <= FDS_MAX)?;
    // SAFETY: not an impossible address, so the caller guarantees `count` entries.
    (!is_nowhere(set)).then(|| unsafe { std::slice::from_raw_parts_mut(set, count) })
}

/// Returns whether an address is neither NULL nor possible.
fn is_wrong<T>(place: *const T) -> bool {
    !place.is_null() && is_nowhere(place)
}

/// Returns the address of a time; NULL for none.
pub(super) fn place(time: &Option<timespec>) -> *const timespec {
    time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

fn kernel_poll(set: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> c_int {
    let time = timeout.map(to_timespec);
    let time: *const timespec = place(&time);
    let count = set.len() as nfds_t;
    let set = set.as_mut_ptr();
    next!(ppoll(
        set: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t
    ) -> c_int)
}

/// Polls for `select(2)`. The kernel's poll refuses more descriptors than the process may open
/// (`RLIMIT_NOFILE`), but select does not: then the kernel's select is used.
fn kernel_poll_of_select(set: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> c_int {
    match kernel_poll(set, timeout, mask) {
        -1 if errno::get() == libc::EINVAL => kernel_select(set, timeout, mask),
        found => found,
    }
}

/// Polls by the kernel's select, which only reports what can be done without blocking.
#[cold]
fn kernel_select(set: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> c_int {
    let bit = |fd: c_int| usize::try_from(fd).ok().map(|fd| (fd / BITS, 1 << (fd % BITS)));
    let count = set.iter().map(|place| place.fd + 1).max().unwrap_or(0);
    let words = usize::try_from(count).unwrap_or(0).div_ceil(BITS);
    let mut sets: [Vec<c_ulong>; 3] = std::array::from_fn(|_| vec![0; words]);
    for asked in &mut *set {
        for (bits, meaning) in sets.iter_mut().zip(ASKED) {
            if let (true, Some((word, bit))) = (asked.events & meaning != 0, bit(asked.fd)) {
                bits[word] |= bit;
            }
        }
    }
    let [reads, writes, others] = sets.each_mut().map(|bits| bits.as_mut_ptr().cast::<fd_set>());
    let time = timeout.map(to_timespec);
    let time: *const timespec = place(&time);
    let found = next!(pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
        time: *const timespec, mask: *const sigset_t
    ) -> c_int);
    if found < 0 {
        return found;
    }
    for asked in &mut *set {
        asked.revents = 0;
        for (bits, meaning) in sets.iter().zip(ASKED) {
            if bit(asked.fd).is_some_and(|(word, bit)| bits[word] & bit != 0) {
                asked.revents |= asked.events & meaning;
            }
        }
    }
    let ready = set.iter().filter(|place| place.revents != 0).count();
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(
    set: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    test_cancel();
    go_on(milliseconds(timeout), |limit| {
        // SAFETY: the program's own list.
        let ours = unsafe { list(set, count) }.and_then(|set| {
            poll::poll(set, limit, &mut |set, timeout| kernel_poll(set, timeout, std::ptr::null()))
        });
        let timeout = to_milliseconds(limit);
        ours.unwrap_or_else(
            || next!(poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int),
        )
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    set: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    test_cancel();
    if is_wrong(timeout) || is_wrong(mask) {
        return next!(ppoll(
            set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
        ) -> c_int);
    }
    // SAFETY: NULL, or a possible address, so the program passes a valid time.
    let limit = unsafe { timeout.as_ref() };
    // SAFETY: the program's own list.
    let set_of_ours = unsafe { list(set, count) }.filter(|_| limit.is_none_or(is_time));
    let is_ours = set_of_ours.is_some();
    let (without, given) = (Without::of(mask), timeout);
    let mask = without.set();
    go_on(limit.map(|&timeout| nanoseconds(timeout)), |limit| {
        // SAFETY: the program's own list.
        let set_of_ours = unsafe { list(set, count) }.filter(|_| is_ours);
        let ours = set_of_ours.and_then(|set| {
            poll::poll(set, limit, &mut |set, timeout| kernel_poll(set, timeout, mask))
        });
        let left = limit.map(to_timespec);
        let timeout = if is_ours { place(&left) } else { given };
        ours.unwrap_or_else(|| {
            next!(ppoll(
                set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
            ) -> c_int)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    set: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() >= usize::try_from(count).unwrap_or(usize::MAX) {
        // SAFETY: the program's own arguments.
        return unsafe { poll(set, count, timeout) };
    }
    next!(__poll_chk(set: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    set: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() >= usize::try_from(count).unwrap_or(usize::MAX) {
        // SAFETY: the program's own arguments.
        return unsafe { ppoll(set, count, timeout, mask) };
    }
    next!(__ppoll_chk(
        set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: size_t
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    test_cancel();
    let are_wrong = [reads, writes, others].iter().any(|set| is_wrong(*set));
    // SAFETY: NULL, or a possible address, so the program passes a valid time.
    let place = if is_wrong(timeout) { None } else { unsafe { timeout.as_mut() } };
    let is_time = place.as_ref().is_none_or(|time| time.tv_sec >= 0 && time.tv_usec >= 0);
    if are_wrong || is_wrong(timeout) || !is_time {
        return next!(select(
            count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
            timeout: *mut timeval
        ) -> c_int);
    }
    let limit = place.as_ref().map(|time| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        seconds.saturating_mul(SECOND).saturating_add(micros.saturating_mul(1_000))
    });
    let began = wait::now();
    let mut is_ours = true;
    let result = go_on(limit, |limit| {
        // SAFETY: the program's own sets.
        let ours = unsafe {
            poll::select(count, [reads, writes, others], limit, &mut |set, timeout| {
                kernel_poll_of_select(set, timeout, std::ptr::null())
            })
        };
        is_ours = ours.is_some();
        // The kernel itself updates the time that is left.
        ours.unwrap_or_else(|| {
            next!(select(
            count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
            timeout: *mut timeval
        ) -> c_int)
        })
    });
    if let (true, Some(place), Some(limit)) = (is_ours, place, limit) {
        // Linux reports the time that is left (select(2)).
        let left = limit.saturating_sub(wait::now().saturating_sub(began));
        place.tv_sec = (left / SECOND).cast_signed();
        place.tv_usec = (left % SECOND / 1_000).cast_signed();
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    test_cancel();
    let are_wrong = [reads, writes, others].iter().any(|set| is_wrong(*set));
    // SAFETY: NULL, or a possible address, so the program passes a valid time.
    let limit = if is_wrong(timeout) { None } else { unsafe { timeout.as_ref() } };
    if are_wrong || is_wrong(timeout) || is_wrong(mask) || !limit.is_none_or(is_time) {
        return next!(pselect(
            count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
            timeout: *const timespec, mask: *const sigset_t
        ) -> c_int);
    }
    let without = Without::of(mask);
    let mask = without.set();
    go_on(limit.map(|&timeout| nanoseconds(timeout)), |limit| {
        // SAFETY: the program's own sets.
        let ours = unsafe {
            poll::select(count, [reads, writes, others], limit, &mut |set, timeout| {
                kernel_poll_of_select(set, timeout, mask)
            })
        };
        let left = limit.map(to_timespec);
        let timeout = place(&left);
        ours.unwrap_or_else(|| {
            next!(pselect(
                count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
                timeout: *const timespec, mask: *const sigset_t
            ) -> c_int)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    let made = next!(epoll_create(size: c_int) -> c_int);
    epoll::created(made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    let made = next!(epoll_create1(flags: c_int) -> c_int);
    epoll::created(made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // For a child that shares the parent's memory (vfork(2)) the instance is the parent's, too.
    let is_sound = event.is_null() || !is_nowhere(event) || operation == libc::EPOLL_CTL_DEL;
    if is_sound && (open::knows(fd) || epoll::knows(epoll)) {
        let event = if is_nowhere(event) { std::ptr::null_mut() } else { event };
        // SAFETY: NULL, or a possible address, so the program passes a valid event.
        let given = unsafe { event.as_ref() }.copied();
        if let Some(result) = epoll::control(epoll, operation, fd, given) {
            return result;
        }
    }
    next!(epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int)
}

/// # Safety
/// `events` is the program's list with room for `count` events.
unsafe fn wait_for_events(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !epoll::knows(epoll) || is_nowhere(events) {
        return None;
    }
    let count = usize::try_from(count).ok()?;
    // SAFETY: not an impossible address, so the caller guarantees room for `count` events.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count) };
    epoll::wait(epoll, events, timeout, &mut |events, timeout| {
        let count = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        let events = events.as_mut_ptr();
        let timeout = to_milliseconds(timeout);
        next!(epoll_pwait(
            epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int,
            mask: *const sigset_t
        ) -> c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    test_cancel();
    go_on(milliseconds(timeout), |limit| {
        // SAFETY: the program's own list.
        let ours = unsafe { wait_for_events(epoll, events, count, limit, std::ptr::null()) };
        let timeout = to_milliseconds(limit);
        ours.unwrap_or_else(|| {
            next!(epoll_wait(
                epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int
            ) -> c_int)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    test_cancel();
    if is_wrong(mask) {
        return next!(epoll_pwait(
            epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int,
            mask: *const sigset_t
        ) -> c_int);
    }
    let without = Without::of(mask);
    let mask = without.set();
    go_on(milliseconds(timeout), |limit| {
        // SAFETY: the program's own list.
        let ours = unsafe { wait_for_events(epoll, events, count, limit, mask) };
        let timeout = to_milliseconds(limit);
        ours.unwrap_or_else(|| {
            next!(epoll_pwait(
                epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int,
                mask: *const sigset_t
            ) -> c_int)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    test_cancel();
    // SAFETY: NULL, or a possible address, so the program passes a valid time.
    let limit = if is_wrong(timeout) { None } else { unsafe { timeout.as_ref() } };
    if is_wrong(timeout) || is_wrong(mask) || !limit.is_none_or(is_time) {
        return next!(epoll_pwait2(
            epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec,
            mask: *const sigset_t
        ) -> c_int);
    }
    let without = Without::of(mask);
    let mask = without.set();
    go_on(limit.map(|&timeout| nanoseconds(timeout)), |limit| {
        // SAFETY: the program's own list.
        let ours = unsafe { wait_for_events(epoll, events, count, limit, mask) };
        let left = limit.map(to_timespec);
        let timeout = place(&left);
        ours.unwrap_or_else(|| {
            next!(epoll_pwait2(
                epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec,
                mask: *const sigset_t
            ) -> c_int)
        })
    })
}
