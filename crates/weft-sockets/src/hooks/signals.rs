//! Hooks of the calls that set handlers and masks of signals.
//!
//! A handler may call any hooked function, even after it has interrupted a hook that holds a lock.
//! So the kernel gets Weft's handler ([`handle`]), which calls the program's, but defers it until
//! the interrupted thread has left its critical sections ([`weft_sys::Section`]). The program sees
//! only its own handlers. Handlers of faults are installed as they are, because a fault cannot be
//! deferred. The cached flags of handlers are invalidated when one is set. `SIGSYS` reports calls
//! by hand ([`crate::by_hand::signals`]), so no mask blocks it.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on, with the program's handler replaced by [`handle`]. That has the signature of all
//! handlers, and calls the program's handler as the program has requested.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, sighandler_t, siginfo_t, sigset_t};
use weft_sys::calls::io::Errno;
use weft_sys::{FAULTS, NextFunction, SignalLock};

use crate::by_hand::signals;
use crate::by_hand::signals::Without;
use crate::by_hand::threads::go_on;
use crate::limits::SIGNALS_MAX;
use crate::next::next;
use crate::{errno, handlers, identity};

/// The program's handlers, with the flags below. A handler that the program has removed stays here,
/// because another thread may be about to call it.
static HANDLERS: [AtomicU64; SIGNALS_MAX] = [const { AtomicU64::new(0) }; SIGNALS_MAX];
/// The handler was set with `SA_SIGINFO`.
const TAKES_INFO: u64 = 1 << 63;
/// The handler was set with `SA_RESETHAND`. The kernel does not get this flag: it would drop a
/// handler that has only been deferred.
const IS_ONCE: u64 = 1 << 62;
/// The handler was set with `SA_RESTART`.
const RESTARTS: u64 = 1 << 61;
const FLAGS: u64 = TAKES_INFO | IS_ONCE | RESTARTS;

/// Signals for which `signal(3)` does not set `SA_RESTART`, because `siginterrupt(3)` has turned it
/// off; one bit each.
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

/// Serialises the setting of handlers.
static SETTING: SignalLock<()> = SignalLock::new(());

/// The handler that the kernel calls.
unsafe extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);
    let kept = programs(signal);
    // SAFETY: this handler is installed with `SA_SIGINFO`, so the kernel passes a valid structure.
    let known = (kept & TAKES_INFO != 0).then(|| unsafe { &*info });
    // SAFETY: these are the kernel's arguments, and `place` installs this handler for no fault.
    if unsafe { weft_sys::defer(signal, known, context.cast()) } {
        return;
    }
    weft_sys::note_handled(kept & RESTARTS != 0);
    if kept & IS_ONCE != 0 {
        let before = errno::get();
        SIGNAL.set(signal, libc::SIG_DFL);
        handlers::changed();
        errno::set_raw(before);
    }
    // SAFETY: NULL becomes `None`; the calling convention allows more arguments than a function
    // takes.
    let handler = unsafe { std::mem::transmute::<usize, Option<Handler>>(address(kept)) };
    if let Some(handler) = handler {
        // SAFETY: the program has installed this function for this signal.
        unsafe { handler(signal, info, context) };
    }
}

fn ours() -> sighandler_t {
    handle as unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) as sighandler_t
}

/// Returns the program's handler of a signal with its flags.
fn programs(signal: c_int) -> u64 {
    let kept = usize::try_from(signal).ok().and_then(|index| HANDLERS.get(index));
    kept.map_or(0, |kept| kept.load(Ordering::Acquire))
}

fn address(kept: u64) -> sighandler_t {
    (kept & !FLAGS) as sighandler_t
}

/// Returns where to keep a handler. `None`: the kernel gets the handler unchanged.
fn place(signal: c_int, handler: sighandler_t) -> Option<&'static AtomicU64> {
    const SIG_HOLD: sighandler_t = 2;
    let is_none = matches!(handler, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR | SIG_HOLD);
    // A child that borrows the memory (vfork) must not change its parent's entries.
    let stays = is_none
        || handler == ours()
        || handler as u64 & FLAGS != 0
        || FAULTS.contains(&signal)
        || identity::is_borrowed();
    usize::try_from(signal).ok().filter(|_| !stays).and_then(|index| HANDLERS.get(index))
}

/// Sets a handler by `set`, which gets the handler for the kernel and returns the call's result and
/// whether it has failed. Returns the earlier entry, and the result.
fn replace<R>(
    signal: c_int,
    handler: sighandler_t,
    flags: u64,
    set: impl FnOnce(sighandler_t) -> (R, bool),
) -> (u64, R) {
    let alone = SETTING.lock();
    let before = programs(signal);
    let place = place(signal, handler);
    if let Some(place) = place {
        place.store(handler as u64 | flags, Ordering::Release);
    }
    let (result, has_failed) = set(if place.is_some() { ours() } else { handler });
    if let Some(place) = place.filter(|_| has_failed) {
        place.store(before, Ordering::Release);
    }
    handlers::changed();
    let after = errno::get();
    drop(alone);
    errno::set_raw(after);
    (before, result)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let set = |action, old| {
        next!(sigaction(
            signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction
        ) -> c_int)
    };
    // SAFETY: each is NULL, the program's own action, or a local copy.
    let call = |action| unsafe { signals::set_action(signal, action, old, set) };
    // SAFETY: the program passes NULL or a valid action.
    let (before, done) = match unsafe { action.as_ref() } {
        None => (programs(signal), call(action)),
        Some(&(mut action)) => {
            let flag = |bit: c_int, flag| if action.sa_flags & bit != 0 { flag } else { 0 };
            let flags = flag(libc::SA_SIGINFO, TAKES_INFO)
                | flag(libc::SA_RESETHAND, IS_ONCE)
                | flag(libc::SA_RESTART, RESTARTS);
            replace(signal, action.sa_sigaction, flags, |handler| {
                if handler != action.sa_sigaction {
                    action.sa_sigaction = handler;
                    action.sa_flags &= !libc::SA_RESETHAND;
                }
                let done = call(&raw const action);
                (done, done < 0)
            })
        }
    };
    // SAFETY: the program passes NULL or a valid place.
    if let Some(old) = unsafe { old.as_mut() }
        && done == 0
        && old.sa_sigaction == ours()
    {
        old.sa_sigaction = address(before);
        old.sa_flags |= if before & IS_ONCE != 0 { libc::SA_RESETHAND } else { 0 };
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let alone = SETTING.lock();
    let done = next!(siginterrupt(signal: c_int, interrupts: c_int) -> c_int);
    if done == 0 {
        let kept = usize::try_from(signal).ok().and_then(|index| HANDLERS.get(index));
        let bit = 1_u64.checked_shl(signal.cast_unsigned()).unwrap_or(0);
        if interrupts == 0 {
            INTERRUPT.fetch_and(!bit, Ordering::AcqRel);
            kept.map(|kept| kept.fetch_or(RESTARTS, Ordering::AcqRel));
        } else {
            INTERRUPT.fetch_or(bit, Ordering::AcqRel);
            kept.map(|kept| kept.fetch_and(!RESTARTS, Ordering::AcqRel));
        }
    }
    handlers::changed();
    let after = errno::get();
    drop(alone);
    errno::set_raw(after);
    done
}

/// A function of the next library that sets a handler like `signal(2)`.
struct Setter {
    next: NextFunction,
    /// Whether its handlers restart interrupted calls.
    restarts: bool,
}

static SIGNAL: Setter = Setter { next: NextFunction::new(c"signal"), restarts: true };

impl Setter {
    fn set(&self, signal: c_int, handler: sighandler_t) -> sighandler_t {
        type Set = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
        // SAFETY: NULL becomes `None`, and the C library's functions of these names have this
        // signature.
        let next = unsafe { std::mem::transmute::<*mut c_void, Option<Set>>(self.next.address()) };
        // SAFETY: the handler is the program's or Weft's own.
        next.map_or(libc::SIG_ERR, |next| unsafe { next(signal, handler) })
    }

    /// Sets a handler of the program's.
    fn replace(&self, signal: c_int, handler: sighandler_t) -> sighandler_t {
        if signal == libc::SIGSYS {
            return set_simply(signal, handler, libc::SA_RESTART);
        }
        let interrupts =
            INTERRUPT.load(Ordering::Acquire) >> (signal.cast_unsigned() % 64) & 1 != 0;
        let flags = if self.restarts && !interrupts { RESTARTS } else { 0 };
        let (before, old) = replace(signal, handler, flags, |handler| {
            let old = self.set(signal, handler);
            (old, old == libc::SIG_ERR)
        });
        if old == ours() { address(before) } else { old }
    }
}

macro_rules! set {
    ($name:ident, $c_name:literal, $restarts:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            static NEXT: Setter = Setter { next: NextFunction::new($c_name), restarts: $restarts };
            NEXT.replace(signal, handler)
        }
    };
}
set!(signal, c"signal", true);
set!(bsd_signal, c"bsd_signal", true);
set!(ssignal, c"ssignal", true);
set!(sigset, c"sigset", false);

/// Sets a handler for one delivery, during which the signal is not blocked, like `sysv_signal(3)`.
fn set_once(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_simply(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

/// Sets a handler with the given flags and an empty mask.
fn set_simply(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if handler == libc::SIG_ERR {
        errno::set(Errno::INVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: a structure of integers and pointers, for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let mut old = action;
    // SAFETY: both actions are local variables, and the handler is the program's own.
    let done = unsafe { sigaction(signal, &raw const action, &raw mut old) };
    if done < 0 { libc::SIG_ERR } else { old.sa_sigaction }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_once(signal, handler)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_once(signal, handler)
}

/// Defines a hook that changes the calling thread's mask by the next library's function.
macro_rules! change_mask {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            how: c_int,
            set: *const sigset_t,
            old: *mut sigset_t,
        ) -> c_int {
            signals::change_mask(how, set, old, |set, old| {
                next!($name(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int)
            })
        }
    };
}
change_mask!(sigprocmask);
change_mask!(pthread_sigmask);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigsuspend(set: *const sigset_t) -> c_int {
    let without = Without::of(set);
    let set = without.set();
    go_on(None, |_| next!(sigsuspend(set: *const sigset_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_attr_setsigmask_np(
    attributes: *mut c_void,
    set: *const sigset_t,
) -> c_int {
    let without = Without::of(set);
    let set = without.set();
    next!(pthread_attr_setsigmask_np(attributes: *mut c_void, set: *const sigset_t) -> c_int)
}

/// `SIGSYS` in the masks of the BSD functions, which have one bit for each of the first 32 signals.
const SIGSYS_BIT: c_int = 1 << (libc::SIGSYS - 1);

/// Defines a hook of a BSD function that takes a mask as a word.
macro_rules! mask {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(mask: c_int) -> c_int {
            let mask = mask & !SIGSYS_BIT;
            next!($name(mask: c_int) -> c_int)
        }
    };
}
mask!(sigblock);
mask!(sigsetmask);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sighold(signal: c_int) -> c_int {
    if signal == libc::SIGSYS {
        return 0;
    }
    next!(sighold(signal: c_int) -> c_int)
}
