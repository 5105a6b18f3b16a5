//! Arms the process's threads.
//!
//! # Safety
//! The kernel gets the address of a static byte, and its answers are read in its own layout.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt::Timeout;
use weft_sys::calls::thread::{nanosleep, sched_yield};
use weft_sys::calls::time::Timespec;
use weft_sys::{Handled, Section, Uncancelled, raw_system_call, read_text};

use super::outside::outside;
use super::place::own;
use super::signals::Handler;
use super::state::{State, give_up, is, log_waiting};
use super::switch::arm;
use super::{code, signals, stacks, switch, trampoline};
use crate::descriptor::has_time_limit;
use crate::limits::ASKED_THREADS_MAX;
use crate::{errno, wait};

/// Arms the calling thread, the process's first. The error says why that is impossible.
pub(super) fn arm_process(handler: Handler) -> Result<(), &'static str> {
    if !trampoline::prepare() {
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

/// Whether threads arm themselves as they begin.
static WANTED: AtomicBool = AtomicBool::new(false);

/// The threads that are to arm themselves and have not answered. One that is not armed gets the
/// signal once; one that is armed never does: a signal that is pending makes the kernel drop the
/// report of a call, which would then not be made.
static ASKED: [AtomicU64; ASKED_THREADS_MAX] = [const { AtomicU64::new(0) }; ASKED_THREADS_MAX];
/// Set in an entry of [`ASKED`], beside the thread's id, once the thread has been sent the signal.
const SENT: u64 = 1 << 32;
/// How many of them there are, plus one until all have been listed.
static MISSING: AtomicUsize = AtomicUsize::new(1);
/// Whether the list is complete: threads that are not in it get no signal.
static IS_LISTED: AtomicBool = AtomicBool::new(false);
/// Held while a thread is sent the signal, so that a thread that begins knows whether it was.
static SENDING: AtomicBool = AtomicBool::new(false);

/// Runs when a thread begins that the C library has created.
pub(crate) fn begun(stack: usize, stack_len: usize, blocks_sigsys: bool) {
    own!(stack = stacks::known_part(stack, stack_len));
    own!(blocks_sigsys = blocks_sigsys);
    if WANTED.load(Ordering::SeqCst) && is_wanted() {
        signals::let_through();
        let is_expected = take_back_question();
        // The signal may have armed this thread. Arming has worked for the first thread; if it
        // fails here, Weft cannot see this thread's calls, and the process falls back to TCP.
        if !own!(is_armed)
            && is_wanted()
            && let Err(why) = arm()
        {
            give_up();
            (outside().keep_on_tcp)(why);
        }
        if is_expected {
            answered(own_tid());
        }
    }
}

/// Makes sure that the calling thread, which arms itself, will not be sent the signal. Returns
/// whether it is waited for.
fn take_back_question() -> bool {
    while is_wanted() && !IS_LISTED.load(Ordering::Acquire) {
        sched_yield();
    }
    if MISSING.load(Ordering::Acquire) == 0 {
        return false;
    }
    let me = u64::from(own_tid());
    while !begin_sending() {
        sched_yield();
    }
    // An entry may also be of a thread that had the same id, and its signal went with it.
    let change = |entry: u64| (entry & !SENT == me).then_some(me | SENT);
    let mut entries = ASKED.iter();
    let is_expected = entries
        .any(|asked| asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok());
    end_sending();
    is_expected
}

fn begin_sending() -> bool {
    !SENDING.swap(true, Ordering::Acquire)
}

fn end_sending() {
    SENDING.store(false, Ordering::Release);
}

fn is_wanted() -> bool {
    is(State::Beginning) || is(State::Armed)
}

/// Asks the process's other threads to arm themselves.
pub(super) fn arm_others() {
    let is_complete = list_others();
    IS_LISTED.store(true, Ordering::Release);
    ask_all();
    if is_complete {
        MISSING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lists the other threads. Returns whether all are in the list; otherwise the process stays on
/// TCP, because `MISSING` stays above 0.
fn list_others() -> bool {
    let me = own_tid();
    let Ok(list) = std::fs::read_dir("/proc/self/task") else { return false };
    let numbers = list.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let mut places = ASKED.iter();
    for number in numbers.filter(|&number| number != me) {
        let Some(asked) = places.next() else { return false };
        MISSING.fetch_add(1, Ordering::SeqCst);
        asked.store(number.into(), Ordering::SeqCst);
    }
    true
}

/// Sends the signal to the threads in the list that have not been sent it, unless they sleep in a
/// call that must not be interrupted. Notes those that have ended.
fn ask_all() {
    let _uncancelled = Uncancelled::begin();
    let _section = Section::begin();
    for asked in &ASKED {
        let entry = asked.load(Ordering::SeqCst);
        let number = entry as u32;
        if number == 0 || entry & SENT == 0 && would_return_eintr(number) || !begin_sending() {
            continue;
        }
        let sent = u64::from(number) | SENT;
        let is_first = asked
            .compare_exchange(number.into(), sent, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        let exists = if is_first { send_arm_signal(number) } else { exists(number) };
        end_sending();
        if !exists {
            answered(number);
        }
    }
}

/// Returns whether a thread of this process exists.
fn exists(number: u32) -> bool {
    let arguments = [std::process::id() as usize, number as usize, 0, 0, 0, 0];
    // SAFETY: `tgkill` takes no pointer, and sends nothing for signal 0.
    unsafe { raw_system_call(libc::SYS_tgkill, arguments) == 0 }
}

/// Returns whether a thread sleeps in a call that would return `EINTR` to the program. Other calls
/// resume by themselves (`SA_RESTART`, the C library's `sigwait`), or in their hooks ([`go_on`]).
fn would_return_eintr(number: u32) -> bool {
    const ENDED: [libc::c_long; 5] = [
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_msgsnd,
        libc::SYS_msgrcv,
        libc::SYS_io_getevents,
    ];
    // Socket calls with a time limit do not restart (signal(7)).
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
    let Ok(text) = read_text(&format!("/proc/self/task/{number}/syscall")) else {
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

fn own_tid() -> u32 {
    // SAFETY: `gettid` takes no arguments.
    unsafe { raw_system_call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// `siginfo_t` as its sender fills it in.
#[repr(C, align(8))]
struct ArmSignal {
    signal: c_int,
    error: c_int,
    code: c_int,
    _padding: c_int,
    pid: u32,
    user: u32,
    value: usize,
    _rest: [u64; 12],
}

/// The size of `siginfo_t` in bytes.
const _: () = assert!(size_of::<ArmSignal>() == 128);

/// A value that tells Weft's signal from others: an address in this library.
fn arm_signal_value() -> usize {
    switch::SELECTOR.as_ptr() as usize
}

/// Sends a thread the signal to arm itself. Returns whether the thread exists.
fn send_arm_signal(number: u32) -> bool {
    let (pid, signal) = (std::process::id(), libc::SIGSYS);
    let message = ArmSignal {
        signal,
        error: 0,
        code: libc::SI_QUEUE,
        _padding: 0,
        pid,
        user: 0,
        value: arm_signal_value(),
        _rest: [0; 12],
    };
    let place = (&raw const message) as usize;
    let arguments = [pid as usize, number as usize, signal as usize, place, 0, 0];
    // SAFETY: the local variable has the layout and size of `siginfo_t`.
    unsafe { raw_system_call(libc::SYS_rt_tgsigqueueinfo, arguments) == 0 }
}

/// Removes a thread from those that are waited for.
fn answered(number: u32) {
    let sent = u64::from(number) | SENT;
    for asked in &ASKED {
        if asked.compare_exchange(sent, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            MISSING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Handles a `SIGSYS` that no call by hand has raised. Returns whether it is the signal by which a
/// thread arms itself.
pub(super) fn is_arm_signal(info: *const siginfo_t) -> bool {
    // SAFETY: the kernel passes a `siginfo_t`, which has this layout.
    let question = unsafe { &*info.cast::<ArmSignal>() };
    if question.code != libc::SI_QUEUE || question.value != arm_signal_value() {
        return false;
    }
    own!(interruptions = own!(interruptions) + 1);
    if own!(is_armed) || is_wanted() && arm().is_ok() {
        answered(own_tid());
    }
    true
}

/// How often signals had interrupted the calling thread at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interruptions {
    /// Signals of Weft's.
    ours: usize,
    /// The program's own handlers.
    programs: Handled,
}

impl Interruptions {
    /// Counts up to now.
    pub(crate) fn up_to_now() -> Self {
        Self { ours: own!(interruptions), programs: Handled::up_to_now() }
    }

    /// Returns whether only signals of Weft's have interrupted a call since then. The call then
    /// resumes.
    pub(crate) fn are_ours_alone(self) -> bool {
        own!(interruptions) != self.ours && !self.programs.is_more_now()
    }
}

/// Sleeps by `call` for the time that the program has asked for, in nanoseconds, and resumes after
/// signals of Weft's. Only the program's own signals end it. Results are those of C.
pub(crate) fn go_on(limit: Option<u64>, mut call: impl FnMut(Option<u64>) -> c_int) -> c_int {
    if limit == Some(0) || is_settled() {
        return call(limit); // The call does not sleep, or Weft sends no signals.
    }
    // An armed thread gets the signal, too, if it was asked again before it had published its
    // state.
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

/// Returns whether Weft sends no thread a signal any more, and each that it has sent has been
/// handled: a thread has answered only after that.
#[inline]
fn is_settled() -> bool {
    is(State::Off) || is(State::Armed) && MISSING.load(Ordering::Acquire) == 0
}

/// When the first thread was armed, in nanoseconds.
static BEGAN: AtomicU64 = AtomicU64::new(u64::MAX);
/// How long connections wait for the other threads after that.
const TIMEOUT_NS: u64 = 100_000_000;

/// Returns whether Weft sees each thread's calls. Waits for threads that are about to arm
/// themselves.
#[inline]
pub(super) fn are_all_armed() -> bool {
    is_settled() || wait_for_others()
}

#[cold]
fn wait_for_others() -> bool {
    const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    /// Number of sleeps after which threads are asked once more.
    const ROUND: u32 = 32;
    for sleeps in 0_u32.. {
        if is_settled() {
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
    log_waiting(MISSING.load(Ordering::Acquire));
    false
}

/// Forgets the parent's other threads, in the child of a fork.
pub(super) fn forget_others() {
    ASKED.iter().for_each(|asked| asked.store(0, Ordering::Relaxed));
    MISSING.store(0, Ordering::SeqCst);
    IS_LISTED.store(true, Ordering::Release);
    end_sending();
}
