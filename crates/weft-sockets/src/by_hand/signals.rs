//! Keeps `SIGSYS` unblocked and handled while calls are reported: otherwise the next report would
//! kill the process. The program still sees the masks and the handler that it has set.
//!
//! # Safety
//! The caller guarantees that sets and actions are valid as the call requires. A set is accessed in
//! the kernel's layout, its first eight bytes.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_long, siginfo_t, sigset_t};
use weft_sys::raw_system_call;

use super::place::own;
use super::pure::{Mask, SIGSYS_BIT, changed, seen};
use super::state::{State, is};
use crate::arguments::{Arguments, is_nowhere};
use crate::next::next;

/// Size of a set in bytes.
const SET_LEN: usize = size_of::<Mask>();

/// Signals whose handlers the program wants to run with `SIGSYS` blocked.
static HELD_BY_ACTION: AtomicU64 = AtomicU64::new(0);
/// Whether Weft's handler of `SIGSYS` is installed.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// The action of `SIGSYS` that the program has asked for.
struct Action {
    handler: AtomicUsize,
    flags: AtomicUsize,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static PROGRAMS: Action = Action {
    handler: AtomicUsize::new(0),
    flags: AtomicUsize::new(0),
    restorer: AtomicUsize::new(0),
    mask: AtomicU64::new(0),
};

/// An action in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: Mask,
}

impl Action {
    fn get(&self) -> KernelAction {
        KernelAction {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    fn set(&self, action: KernelAction) {
        self.handler.store(action.handler, Ordering::Relaxed);
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
    }
}

/// Returns whether threads are armed, or may be later.
fn may_report() -> bool {
    !is(State::Off)
}

/// Returns whether the program has blocked `SIGSYS` in the calling thread.
pub(crate) fn blocks_sigsys() -> bool {
    own!(blocks_sigsys)
}

/// The valid signal numbers.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

fn bit(signal: c_int) -> Mask {
    if SIGNALS.contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// A signal handler with three arguments (`SA_SIGINFO`).
pub(super) type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs Weft's handler of `SIGSYS`, and removes `SIGSYS` from the masks of all other handlers.
pub(super) fn begin(handler: Handler) -> Result<(), &'static str> {
    for signal in SIGNALS {
        let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let place = (&raw mut action) as usize;
        // SAFETY: the kernel writes the answer to a local variable.
        let known = unsafe { raw_action(signal, 0, place) };
        if signal == libc::SIGSYS {
            PROGRAMS.set(action);
        } else if known == 0 && action.handler > libc::SIG_IGN && action.mask & SIGSYS_BIT != 0 {
            HELD_BY_ACTION.fetch_or(bit(signal), Ordering::Relaxed);
            action.mask &= !SIGSYS_BIT;
            let changed = (&raw const action) as usize;
            // SAFETY: the action is the program's own, with a smaller mask.
            unsafe { raw_action(signal, changed, 0) };
        }
    }
    // SAFETY: a structure of integers and pointers, for which zero is valid.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler as usize;
    // SA_ONSTACK: the program's stack may be small where it has set a signal stack. SA_RESTART:
    // interrupted calls resume.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    write_mask(&raw mut ours.sa_mask, Mask::MAX);
    let (signal, ours): (c_int, *const libc::sigaction) = (libc::SIGSYS, &raw const ours);
    let old: *mut libc::sigaction = std::ptr::null_mut();
    let set: c_int = next!(sigaction(
        signal: c_int, ours: *const libc::sigaction, old: *mut libc::sigaction
    ) -> c_int);
    if set != 0 {
        return Err("calls by hand cannot be seen: a handler of SIGSYS cannot be installed");
    }
    IS_OURS.store(true, Ordering::Release);
    let_through();
    Ok(())
}

/// Unblocks `SIGSYS` in the calling thread, and remembers that the program had blocked it.
pub(super) fn let_through() {
    let (set, mut before) = (SIGSYS_BIT, 0);
    // SAFETY: both pointers are to local variables.
    unsafe { raw_mask(libc::SIG_UNBLOCK, (&raw const set) as usize, (&raw mut before) as usize) };
    if before & SIGSYS_BIT != 0 {
        own!(blocks_sigsys = true);
    }
}

/// Unblocks `SIGSYS` when the process begins, if the program that has started this one had blocked
/// it. Later a thread could not be armed: masks that the C library restores (`siglongjmp(3)`, the
/// end of a handler) are not seen. A pending signal stays pending, and the thread unarmed.
pub(super) fn let_inherited_through() {
    let mut pending: Mask = 0;
    let arguments = [(&raw mut pending) as usize, SET_LEN, 0, 0, 0, 0];
    // SAFETY: the answer goes to a local variable.
    let asked = unsafe { raw_system_call(libc::SYS_rt_sigpending, arguments) };
    if asked == 0 && pending & SIGSYS_BIT == 0 {
        let_through();
    }
}

unsafe fn raw_action(signal: c_int, new: usize, old: usize) -> isize {
    let arguments = [signal as usize, new, old, SET_LEN, 0, 0];
    // SAFETY: the caller guarantees that `new` and `old` are valid or NULL.
    unsafe { raw_system_call(libc::SYS_rt_sigaction, arguments) }
}

unsafe fn raw_mask(how: c_int, new: usize, old: usize) -> isize {
    let arguments = [how as usize, new, old, SET_LEN, 0, 0];
    // SAFETY: the caller guarantees that `new` and `old` are valid or NULL.
    unsafe { raw_system_call(libc::SYS_rt_sigprocmask, arguments) }
}

fn read_mask(set: *const sigset_t) -> Mask {
    // SAFETY: the program passes a valid set, of at least eight bytes.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

fn write_mask(set: *mut sigset_t, mask: Mask) {
    // SAFETY: the set is the program's or a local one, of at least eight bytes.
    unsafe { set.cast::<Mask>().write_unaligned(mask) };
}

/// A signal set for the duration of one call, without `SIGSYS`.
pub(crate) struct Without {
    given: *const sigset_t,
    set: sigset_t,
}

impl Without {
    /// Copies the program's set, unless it is NULL.
    pub(crate) fn of(given: *const sigset_t) -> Self {
        // SAFETY: plain data, for which zero is valid.
        let mut set: sigset_t = unsafe { std::mem::zeroed() };
        if !is_nowhere(given) {
            write_mask(&raw mut set, read_mask(given) & !SIGSYS_BIT);
        }
        Self { given, set }
    }

    /// Returns the set to pass to the call.
    pub(crate) fn set(&self) -> *const sigset_t {
        if is_nowhere(self.given) || !may_report() { self.given } else { &raw const self.set }
    }
}

/// Changes the calling thread's mask by `call`, which takes the same sets as sigprocmask(2).
pub(crate) fn change_mask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
    call: impl FnOnce(*const sigset_t, *mut sigset_t) -> c_int,
) -> c_int {
    if !may_report() || !new.is_null() && is_nowhere(new) {
        return call(new, old);
    }
    let held = own!(blocks_sigsys);
    // SAFETY: plain data, for which zero is valid.
    let mut set: sigset_t = unsafe { std::mem::zeroed() };
    let mut holds = held;
    let mut given = new;
    if !new.is_null() {
        let (mask, after) = changed(how, read_mask(new), held);
        write_mask(&raw mut set, mask);
        (given, holds) = (&raw const set, after);
    }
    let result = call(given, old);
    if result == 0 {
        own!(blocks_sigsys = holds);
        if !old.is_null() {
            write_mask(old, seen(read_mask(old), held));
        }
    }
    result
}

/// Executes `rt_sigprocmask(2)` by number, with the kernel's result.
///
/// # Safety
/// The arguments are those of the program's call.
pub(super) unsafe fn mask_by_number(a: Arguments) -> isize {
    if a[3] != SET_LEN {
        // SAFETY: the program's own call, passed on unchanged.
        return unsafe { raw_system_call(libc::SYS_rt_sigprocmask, a) };
    }
    let mut result = 0;
    let (new, old) = (a[1] as *const sigset_t, a[2] as *mut sigset_t);
    change_mask(a[0] as c_int, new, old, |new, old| {
        // SAFETY: the sets are the program's, or the local copies of `change_mask`.
        result = unsafe { raw_mask(a[0] as c_int, new as usize, old as usize) };
        result as c_int
    });
    result
}

/// Executes `rt_sigsuspend(2)` by number, with the kernel's result.
///
/// # Safety
/// The arguments are those of the program's call.
pub(super) unsafe fn suspend_by_number(a: Arguments) -> isize {
    let set = Without::of(a[0] as *const sigset_t);
    let arguments = [set.set() as usize, a[1], 0, 0, 0, 0];
    // SAFETY: the set is a local copy, or the program's own.
    unsafe { raw_system_call(libc::SYS_rt_sigsuspend, arguments) }
}

/// Executes sigaction(3), by `call` unless it is about `SIGSYS`.
///
/// # Safety
/// `new` and `old` are NULL or the program's valid actions.
pub(crate) unsafe fn set_action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
    call: impl FnOnce(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    if signal == libc::SIGSYS && IS_OURS.load(Ordering::Acquire) {
        let before = PROGRAMS.get();
        if !new.is_null() {
            // SAFETY: not NULL, so the caller guarantees a valid action.
            let new = unsafe { &*new };
            PROGRAMS.set(KernelAction {
                handler: new.sa_sigaction,
                flags: new.sa_flags as usize,
                restorer: 0,
                mask: read_mask(&raw const new.sa_mask),
            });
        }
        // SAFETY: the caller guarantees NULL or a valid action.
        if let Some(old) = unsafe { old.as_mut() } {
            old.sa_sigaction = before.handler;
            old.sa_flags = before.flags as c_int & !SA_RESTORER;
            write_mask(&raw mut old.sa_mask, before.mask);
        }
        return 0;
    }
    if !may_report() {
        return call(new, old);
    }
    let was_held = HELD_BY_ACTION.load(Ordering::Relaxed) & bit(signal) != 0;
    // SAFETY: not NULL, so the caller guarantees a valid action.
    let mut copy = (!is_nowhere(new)).then(|| unsafe { new.read() });
    let mut holds = was_held;
    if let Some(copy) = &mut copy {
        let mask = read_mask(&raw const copy.sa_mask);
        holds = mask & SIGSYS_BIT != 0;
        write_mask(&raw mut copy.sa_mask, mask & !SIGSYS_BIT);
    }
    let done = call(copy.as_ref().map_or(new, std::ptr::from_ref), old);
    if done == 0 {
        note_held(signal, holds);
        if was_held && !old.is_null() {
            // SAFETY: not NULL, so the caller guarantees a valid action.
            let mask = unsafe { &raw mut (*old).sa_mask };
            write_mask(mask, read_mask(mask) | SIGSYS_BIT);
        }
    }
    done
}

const SA_RESTORER: c_int = 0x0400_0000;

fn note_held(signal: c_int, holds: bool) {
    if holds {
        HELD_BY_ACTION.fetch_or(bit(signal), Ordering::Relaxed);
    } else {
        HELD_BY_ACTION.fetch_and(!bit(signal), Ordering::Relaxed);
    }
}

/// Executes `rt_sigaction(2)` by number, with the kernel's result.
///
/// # Safety
/// The arguments are those of the program's call.
pub(super) unsafe fn action_by_number(a: Arguments) -> isize {
    let (signal, new, old) = (a[0] as c_int, a[1], a[2]);
    let is_odd = a[3] != SET_LEN || new != 0 && is_nowhere(new as *const c_void);
    if is_odd || !may_report() && signal != libc::SIGSYS {
        // SAFETY: the program's own call, passed on unchanged.
        return unsafe { raw_system_call(libc::SYS_rt_sigaction, a) };
    }
    // SAFETY: `new` is neither NULL nor an impossible address, so the program's action is there.
    let mut copy = (new != 0).then(|| unsafe { (new as *const KernelAction).read_unaligned() });
    let place = old as *mut KernelAction;
    crate::handlers::changed();
    if signal == libc::SIGSYS {
        let before = PROGRAMS.get();
        if let Some(action) = copy {
            PROGRAMS.set(action);
        }
        if old != 0 {
            // SAFETY: the program passes a valid place, or gets the SIGSEGV of its own mistake.
            unsafe { place.write_unaligned(before) };
        }
        return 0;
    }
    let was_held = HELD_BY_ACTION.load(Ordering::Relaxed) & bit(signal) != 0;
    let holds = copy.as_ref().map_or(was_held, |action| action.mask & SIGSYS_BIT != 0);
    if let Some(action) = &mut copy {
        action.mask &= !SIGSYS_BIT;
    }
    let given = copy.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
    // SAFETY: `given` is a local copy or 0, `old` the program's own pointer.
    let done = unsafe { raw_action(signal, given, old) };
    if done == 0 {
        note_held(signal, holds);
        if was_held && old != 0 {
            // SAFETY: the kernel has just written an action there.
            let mut action = unsafe { place.read_unaligned() };
            action.mask |= SIGSYS_BIT;
            // SAFETY: the kernel has just written an action there.
            unsafe { place.write_unaligned(action) };
        }
    }
    done
}

/// Handles a `SIGSYS` that is not Weft's by the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
pub(super) unsafe fn forward(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let action = PROGRAMS.get();
    match action.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => end_process(),
        handler => {
            // SAFETY: the kernel has written the context for this handler.
            let uc = unsafe { &*context.cast::<libc::ucontext_t>() };
            let mask = (read_mask(&raw const uc.uc_sigmask) | action.mask) & !SIGSYS_BIT;
            // SAFETY: the set is a local variable.
            unsafe { raw_mask(libc::SIG_SETMASK, (&raw const mask) as usize, 0) };
            if action.flags & libc::SA_RESETHAND as usize != 0 {
                PROGRAMS.handler.store(libc::SIG_DFL, Ordering::Relaxed);
            }
            // SAFETY: the program has installed this function as a handler; one with a single
            // parameter ignores the other arguments.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Ends the process, which is the default action of `SIGSYS`.
fn end_process() {
    let action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    let place = (&raw const action) as usize;
    // SAFETY: the action is a local variable.
    unsafe { raw_action(libc::SIGSYS, place, 0) };
    // The signal is pending until this handler returns, because it is blocked meanwhile.
    let arguments = [std::process::id() as usize, libc::SIGSYS as usize, 0, 0, 0, 0];
    // SAFETY: `kill` takes no pointer.
    unsafe { raw_system_call(libc::SYS_kill as c_long, arguments) };
}

/// Restores the mask that the program has asked for, just before an exec. Only the C library's call
/// follows.
pub(crate) fn before_exec() {
    if own!(blocks_sigsys) {
        let set = SIGSYS_BIT;
        // SAFETY: the set is a local variable.
        unsafe { raw_mask(libc::SIG_BLOCK, (&raw const set) as usize, 0) };
    }
}

/// Unblocks `SIGSYS` again after an exec that has failed.
pub(crate) fn after_exec() {
    if own!(blocks_sigsys) {
        let_through();
    }
}
