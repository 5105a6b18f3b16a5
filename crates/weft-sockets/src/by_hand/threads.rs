//! Arming threads.
//!
//! # Safety
//! The kernel gets the address of a byte that lives for ever, and what it says is read as it has
//! it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use weft_sys::{Handled, raw_system_call};

use super::outside::outside;
use super::place::own;
use super::signals::Handler;
use super::state::{State, give_up, is, tell_waiting};
use super::switch::arm;
use super::{code, landing, signals, stacks, switch};
use crate::descriptor::has_time_limit;
use crate::limits::ASKED_THREADS_MAX;
use crate::{errno, wait};

/// Arms the calling thread, the process's first. Why that cannot be done.
pub(super) fn arm_process(handler: Handler) -> Result<(), &'static str> {
    if !landing::prepare() {
        return Err("calls by hand cannot be seen: the processor has no XSAVE");
    }
    code::find().ok_or("calls by hand cannot be seen: the C library is not as it is known")?;
    stacks::prepare();
    signals::begin(handler)?;
    BEGAN.store(wait::now(), Ordering::Relaxed);
    switch::report_all();
    WANTED.store(true, Ordering::SeqCst);
    arm()
}

/// Threads are armed as they begin.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Threads that have been asked to arm themselves, and have not: their numbers.
static ASKED: [AtomicU32; ASKED_THREADS_MAX] = [const { AtomicU32::new(0) }; ASKED_THREADS_MAX];
/// How many of them there are; one more while they are being asked.
static MISSING: AtomicUsize = AtomicUsize::new(1);

/// A thread begins, by a function of the C library's.
pub(crate) fn begun(stack: usize, stack_len: usize, holds_off: bool) {
    own!(stack = stacks::known_part(stack, stack_len));
    own!(holds_off = holds_off);
    if WANTED.load(Ordering::SeqCst) && is_wanted() {
        signals::let_through();
        // As for the first one; if not, its calls are not seen, and the process goes to TCP.
        if let Err(why) = arm() {
            give_up();
            (outside().keep_on_tcp)(why);
        }
    }
}

fn is_wanted() -> bool {
    is(State::Beginning) || is(State::Armed)
}

/// Has the process's other threads arm themselves.
pub(super) fn arm_others() {
    let me = own_number();
    let Ok(list) = std::fs::read_dir("/proc/self/task") else {
        return; // Without it the process stays on TCP: one is missing.
    };
    let numbers = list.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let mut places = ASKED.iter();
    for number in numbers.filter(|&number| number != me) {
        let Some(asked) = places.next() else { return };
        MISSING.fetch_add(1, Ordering::SeqCst);
        asked.store(number, Ordering::SeqCst);
    }
    ask_all();
    MISSING.fetch_sub(1, Ordering::SeqCst);
}

/// Asks those that have not answered, once more perhaps.
fn ask_all() {
    for asked in &ASKED {
        let number = asked.load(Ordering::SeqCst);
        if number != 0 && !would_be_disturbed(number) && !ask(number) {
            answered(number); // It has ended.
        }
    }
}

/// Whether a thread sleeps in a call that a signal ends for the program to see. Others go on by
/// themselves (`SA_RESTART`, the C library's `sigwait`), or by their hooks ([`go_on`]).
fn would_be_disturbed(number: u32) -> bool {
    const ENDED: [libc::c_long; 5] = [
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_msgsnd,
        libc::SYS_msgrcv,
        libc::SYS_io_getevents,
    ];
    // Those of sockets end if they have a time limit (signal(7)).
    const TIMED: [libc::c_long; 14] = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_sendfile,
        libc::SYS_connect,
    ];
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/task/{number}/syscall")) else {
        return false;
    };
    let mut words = text.split_ascii_whitespace();
    let Some(call) = words.next().and_then(|word| word.parse().ok()) else { return false };
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let fd = first.and_then(|word| c_int::try_from(u64::from_str_radix(word, 16).ok()?).ok());
    let is_timed =
        |fd| [Timeout::Recv, Timeout::Send].into_iter().any(|which| has_time_limit(fd, which));
    ENDED.contains(&call) || TIMED.contains(&call) && fd.is_some_and(is_timed)
}

fn own_number() -> u32 {
    // SAFETY: it takes no memory.
    unsafe { raw_system_call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// What comes with a signal, as far as its sender sets it.
#[repr(C, align(8))]
struct Question {
    signal: c_int,
    error: c_int,
    code: c_int,
    _padding: c_int,
    pid: u32,
    user: u32,
    value: usize,
    _rest: [u64; 12],
}

/// Bytes of `siginfo_t`.
const _: () = assert!(size_of::<Question>() == 128);

/// What tells our question from any other signal.
fn sign() -> usize {
    switch::SELECTOR.as_ptr() as usize
}

/// Asks a thread to arm itself. Whether it is there.
fn ask(number: u32) -> bool {
    let (pid, signal) = (std::process::id(), libc::SIGSYS);
    let question = Question {
        signal,
        error: 0,
        code: libc::SI_QUEUE,
        _padding: 0,
        pid,
        user: 0,
        value: sign(),
        _rest: [0; 12],
    };
    let place = (&raw const question) as usize;
    let arguments = [pid as usize, number as usize, signal as usize, place, 0, 0];
    // SAFETY: a local variable, as the kernel has it.
    unsafe { raw_system_call(libc::SYS_rt_tgsigqueueinfo, arguments) == 0 }
}

/// A thread need not be waited for any more.
fn answered(number: u32) {
    for asked in &ASKED {
        if asked.compare_exchange(number, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            MISSING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A `SIGSYS` that no call by hand has brought: whether it is ours, by which a thread arms itself.
pub(super) fn is_call_to_arm(info: *const siginfo_t) -> bool {
    // SAFETY: what the kernel has written.
    let question = unsafe { &*info.cast::<Question>() };
    if question.code != libc::SI_QUEUE || question.value != sign() {
        return false;
    }
    own!(interruptions = own!(interruptions) + 1);
    if own!(is_armed) || is_wanted() && arm().is_ok() {
        answered(own_number());
    }
    true
}

/// What had interrupted the calling thread at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interruptions {
    /// Signals of ours.
    ours: usize,
    /// Handlers of the program's.
    programs: Handled,
}

impl Interruptions {
    /// Up to now.
    pub(crate) fn up_to_now() -> Self {
        Self { ours: own!(interruptions), programs: Handled::up_to_now() }
    }

    /// Whether a call that has begun then, and been interrupted, goes on: only by us.
    pub(crate) fn are_ours_alone(self) -> bool {
        own!(interruptions) != self.ours && !self.programs.is_more_now()
    }
}

/// Sleeps by `call` for as long as the program has asked for, in nanoseconds, whatever signals of
/// ours come, and until one of the program's does. It has the results of C.
pub(crate) fn go_on(limit: Option<u64>, mut call: impl FnMut(Option<u64>) -> c_int) -> c_int {
    if is(State::Off) || limit == Some(0) {
        return call(limit); // None comes, or nothing is slept through.
    }
    // Also to a thread that is armed: it may have been asked again before it had published that.
    let until = limit.map(|limit| wait::now().saturating_add(limit));
    let mut left = limit;
    loop {
        let before = Interruptions::up_to_now();
        let result = call(left);
        if result >= 0 || errno::last() != Errno::INTR || !before.are_ours_alone() {
            return result;
        }
        left = until.map(|until| until.saturating_sub(wait::now()));
    }
}

/// When the first thread was armed, in nanoseconds.
static BEGAN: AtomicU64 = AtomicU64::new(u64::MAX);
/// For how long connections wait for the others from then on.
const TIMEOUT_NS: u64 = 100_000_000;

/// Whether each thread's calls are seen. Waits for those that are about to be.
#[inline]
pub(super) fn are_all_armed() -> bool {
    is(State::Armed) && MISSING.load(Ordering::Acquire) == 0 || wait_for_others()
}

#[cold]
fn wait_for_others() -> bool {
    const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    /// Sleeps after which threads are asked once more.
    const ROUND: u32 = 32;
    for sleeps in 0_u32.. {
        if is(State::Armed) && MISSING.load(Ordering::Acquire) == 0 || is(State::Off) {
            return true;
        }
        if is(State::Armed) && sleeps % ROUND == 0 {
            ask_all();
        }
        if wait::now() > BEGAN.load(Ordering::Relaxed).saturating_add(TIMEOUT_NS) {
            break;
        }
        let _ = nanosleep(&SLEEP_TIME);
    }
    tell_waiting(MISSING.load(Ordering::Acquire));
    false
}

/// The process is a fork's child, whose only thread is the calling one.
pub(super) fn forget_others() {
    ASKED.iter().for_each(|asked| asked.store(0, Ordering::Relaxed));
    MISSING.store(0, Ordering::SeqCst);
}
