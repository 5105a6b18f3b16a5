//! Critical sections that no signal handler of the program interrupts, without system calls.
//!
//! Blocking signals costs two system calls for each section, too much for a lock that each message
//! takes. So a section only increments a counter of its thread, and a handler that comes in the
//! middle is deferred: the wrapper around the program's handler calls [`defer`], which records the
//! signal and returns with all signals blocked. The end of the section sends the signal again.
//!
//! # Safety
//! Only a thread itself accesses its state, and handlers that interrupt it, which return before it
//! continues. Signal sets consist of integers; the first word is the kernel's set.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use libc::{c_int, siginfo_t, ucontext_t};

use crate::by_hand::system_call;
use crate::lock::{Lock, LockGuard};
use crate::signal_lock::{ALL_BUT_FAULTS, Mask, set_mask};

/// A thread's state of its sections.
struct Thread {
    depth: Cell<u32>,
    deferred: Cell<Option<Deferred>>,
    /// Whether `deferred` has a signal.
    is_deferred: Cell<bool>,
    /// Number of handlers that the thread has run, and of those without `SA_RESTART`.
    handled: Cell<u64>,
    ending: Cell<u64>,
}

/// A signal whose handler has been deferred.
#[derive(Clone, Copy)]
struct Deferred {
    signal: c_int,
    info: Option<siginfo_t>,
    /// The signals that were blocked before it came.
    mask: Mask,
    /// The process that got the signal: a child has a copy of the thread's state.
    process: libc::c_long,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            deferred: Cell::new(None),
            is_deferred: Cell::new(false),
            handled: Cell::new(0),
            ending: Cell::new(0),
        }
    };
}

/// Until this is dropped, no handler that asks [`defer`] runs on the calling thread. Sections may
/// be nested.
#[derive(Debug)]
pub struct Section {
    thread: *const Thread,
    /// Makes the section stay on its thread.
    _own: PhantomData<*const ()>,
}

impl Section {
    /// Begins a section.
    #[must_use]
    #[inline]
    pub fn begin() -> Self {
        let thread = THREAD.with(std::ptr::from_ref);
        // SAFETY: this is the calling thread's own state, which exists until the thread has ended.
        let depth = unsafe { &(*thread).depth };
        depth.set(depth.get() + 1);
        compiler_fence(Ordering::SeqCst);
        Self { thread, _own: PhantomData }
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the state of the calling thread, because a section cannot move to another
        // one, and it exists until the thread has ended.
        let thread = unsafe { &*self.thread };
        compiler_fence(Ordering::SeqCst);
        let depth = thread.depth.get() - 1;
        thread.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && thread.is_deferred.get() {
            thread.deliver();
        }
    }
}

impl Thread {
    /// Sends the deferred signal again, after the end of the section; this time its handler runs.
    #[cold]
    fn deliver(&self) {
        self.is_deferred.set(false);
        let Some(deferred) = self.deferred.take() else { return };
        // SAFETY: the function has no arguments and returns the address of this thread's `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the pointer is this thread's `errno`, which no other thread accesses.
        let before = unsafe { *errno };
        // A child that was born in the section must not get its parent's signal.
        if deferred.process == call(libc::SYS_getpid, [0; 6]) {
            deferred.send();
        }
        set_mask(deferred.mask);
        // SAFETY: the pointer is this thread's `errno`, which no other thread accesses.
        unsafe { *errno = before };
    }
}

impl Deferred {
    /// Sends the signal to the calling thread, which has it blocked.
    fn send(&self) {
        let thread = call(libc::SYS_gettid, [0; 6]);
        let numbers = [self.process as usize, thread as usize, self.signal as usize];
        let [process, thread, signal] = numbers;
        let info = self.info.as_ref().map_or(0, |info| std::ptr::from_ref(info) as usize);
        let queue = [process, thread, signal, info, 0, 0];
        if info == 0 || call(libc::SYS_rt_tgsigqueueinfo, queue) != 0 {
            call(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]);
        }
    }
}

/// Makes a system call about the process's own signals.
fn call(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    // SAFETY: the arguments are numbers, and the address of a signal's description that lives
    // during the call.
    unsafe { system_call(number, arguments) }
}

/// Whether signals may be deferred. They may not in a process with a seccomp filter.
static DEFERS: AtomicBool = AtomicBool::new(true);

/// Stops deferring signals: a seccomp filter may forbid the system calls that it needs.
pub fn never_defer() {
    DEFERS.store(false, Ordering::Relaxed);
}

/// Whether the thread is in a section. A handler's wrapper calls this first; if it returns `true`
/// the wrapper returns at once, and is called again after the section.
///
/// # Safety
/// The arguments are those of a signal handler, and the signal is not a fault. `info` is `None` if
/// the handler was set without `SA_SIGINFO`.
pub unsafe fn defer(signal: c_int, info: Option<&siginfo_t>, context: *mut ucontext_t) -> bool {
    THREAD.with(|thread| {
        if thread.depth.get() == 0 || !DEFERS.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the caller guarantees that `context` is that of the handler. The kernel's set is
        // the first word of the C library's.
        let mask = unsafe { &raw mut (*context).uc_sigmask }.cast::<Mask>();
        let process = call(libc::SYS_getpid, [0; 6]);
        // SAFETY: `mask` points into the handler's context, which the caller guarantees to be
        // valid.
        let before = unsafe { mask.read() };
        thread.deferred.set(Some(Deferred { signal, info: info.copied(), mask: before, process }));
        thread.is_deferred.set(true);
        // The kernel restores this mask when the handler returns.
        // SAFETY: `mask` points into the handler's context, which the caller guarantees to be
        // valid, and which the handler may change.
        unsafe { mask.write(ALL_BUT_FAULTS) };
        true
    })
}

/// Counts a handler of the program that the calling thread is about to run. `restarts` says whether
/// the kernel restarts interrupted calls after it (`SA_RESTART`).
pub fn note_handled(restarts: bool) {
    THREAD.with(|thread| {
        thread.handled.set(thread.handled.get() + 1);
        thread.ending.set(thread.ending.get() + u64::from(!restarts));
    });
}

/// The number of handlers that the calling thread had run at some time.
#[derive(Clone, Copy, Debug)]
pub struct Handled {
    all: u64,
    ending: u64,
}

impl Handled {
    /// The handlers run up to now.
    #[must_use]
    #[inline]
    pub fn up_to_now() -> Self {
        THREAD.with(|thread| Self { all: thread.handled.get(), ending: thread.ending.get() })
    }

    /// Whether the thread has since run a handler without `SA_RESTART`.
    #[must_use]
    #[inline]
    pub fn ends_calls_now(self) -> bool {
        Self::up_to_now().ending != self.ending
    }

    /// Whether the thread has since run a handler, which has interrupted a call that began then.
    #[must_use]
    #[inline]
    pub fn is_more_now(self) -> bool {
        Self::up_to_now().all != self.all
    }
}

/// A [`Lock`] that is held within a [`Section`]: a handler never finds it taken by the thread that
/// the handler has interrupted.
#[derive(Debug)]
pub struct SectionLock<T, const KEEPS_NOTES: bool = false>(Lock<T, KEEPS_NOTES>);

/// Exclusive access to the value of a [`SectionLock`], until dropped. The lock is freed before the
/// section ends, because fields are dropped in order.
#[derive(Debug)]
pub struct SectionGuard<'a, T, const KEEPS_NOTES: bool = false> {
    guard: LockGuard<'a, T, KEEPS_NOTES>,
    _section: Section,
}

impl<T, const KEEPS_NOTES: bool> SectionLock<T, KEEPS_NOTES> {
    /// Creates a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    /// Takes the lock. Waits while another thread holds it.
    pub fn lock(&self) -> SectionGuard<'_, T, KEEPS_NOTES> {
        let section = Section::begin();
        SectionGuard { guard: self.0.lock(), _section: section }
    }

    /// Takes the lock if no thread holds it.
    pub fn try_lock(&self) -> Option<SectionGuard<'_, T, KEEPS_NOTES>> {
        let section = Section::begin();
        Some(SectionGuard { guard: self.0.try_lock()?, _section: section })
    }

    /// Takes the lock across a fork, like [`Lock::freeze`].
    pub fn freeze(&self) {
        std::mem::forget(self.lock());
    }

    /// Frees a lock that [`SectionLock::freeze`] took.
    ///
    /// # Safety
    /// Those of [`Lock::thaw`].
    pub unsafe fn thaw(&self) {
        let section = Section { thread: THREAD.with(std::ptr::from_ref), _own: PhantomData };
        // SAFETY: the caller fulfils the conditions of `Lock::thaw`.
        unsafe { self.0.thaw() };
        drop(section); // The section that `freeze` has begun.
    }

    /// The value of a frozen lock.
    ///
    /// # Safety
    /// Those of [`Lock::peek`].
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: the caller fulfils the conditions of `Lock::peek`.
        unsafe { self.0.peek() }
    }
}

/// A value that is initialised once, within a [`Section`]: a handler never interrupts the
/// initialisation by its own thread.
#[derive(Debug)]
pub struct SectionOnce<T>(OnceLock<T>);

impl<T> SectionOnce<T> {
    /// An uninitialised value.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value, if it has been initialised.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// The value, which is initialised now if it has not been yet.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.0.get() {
            return made;
        }
        let _section = Section::begin();
        self.0.get_or_init(make)
    }

    /// Initialises the value.
    ///
    /// # Errors
    /// The value, if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _section = Section::begin();
        self.0.set(value)
    }

    /// Takes the value out.
    pub fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Default for SectionOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const KEEPS_NOTES: bool> Deref for SectionGuard<'_, T, KEEPS_NOTES> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const KEEPS_NOTES: bool> DerefMut for SectionGuard<'_, T, KEEPS_NOTES> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static COUNT: SectionLock<u32> = SectionLock::new(0);
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    static VALUE: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(signal: c_int, info: *mut siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the handler is set with `SA_SIGINFO`, so `info` is valid.
        let info = unsafe { &*info };
        // SAFETY: the arguments are those of the handler.
        if unsafe { defer(signal, Some(info), context.cast()) } {
            return;
        }
        *COUNT.lock() += 1;
        // SAFETY: the signal was sent by `sigqueue`, so it has a value.
        let value = unsafe { info.si_value() }.sival_ptr as usize;
        VALUE.store(u32::try_from(value).expect("small"), Ordering::SeqCst);
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    fn send(value: usize) {
        let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
        // SAFETY: the function has no conditions.
        let this = unsafe { libc::pthread_self() };
        // SAFETY: the signal is handled, and goes to the calling thread.
        let sent = unsafe { libc::pthread_sigqueue(this, libc::SIGWINCH, value) };
        assert_eq!(sent, 0);
    }

    fn blocked() -> Mask {
        let mask = set_mask(ALL_BUT_FAULTS);
        set_mask(mask);
        mask
    }

    #[test]
    fn handler_runs_after_the_section() {
        // SAFETY: `sigaction` consists of integers and pointers, for which zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction =
            count as extern "C" fn(c_int, *mut siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler lives for ever, and only takes the lock.
        let set =
            unsafe { libc::sigaction(libc::SIGWINCH, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        let mask = blocked();
        let mut held = COUNT.lock();
        let inner = Section::begin();
        send(7);
        *held += 10;
        drop(inner);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0, "the section goes on undisturbed");
        drop(held);
        assert_eq!((HANDLED.load(Ordering::SeqCst), *COUNT.lock()), (1, 11));
        assert_eq!(VALUE.load(Ordering::SeqCst), 7, "the handler gets what it would have got");
        assert_eq!(blocked(), mask);

        COUNT.freeze();
        send(8);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1, "frozen as well");
        // SAFETY: the child only reads atomics and its signal mask, and ends.
        let child = unsafe { libc::fork() };
        // SAFETY: the lock was frozen above, by this thread or the one of which it is a copy.
        unsafe { COUNT.thaw() };
        if child == 0 {
            let is_right = HANDLED.load(Ordering::SeqCst) == 1 && blocked() == mask;
            // SAFETY: `_exit` ends the child at once, and accesses no memory.
            unsafe { libc::_exit(c_int::from(!is_right)) };
        }
        assert_eq!((HANDLED.load(Ordering::SeqCst), *COUNT.lock()), (2, 12));
        let mut status = -1;
        // SAFETY: `child` is the child created above, and `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a child has no part in its parent's signal");

        send(9);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 3, "outside of sections nothing waits");
        assert_eq!(blocked(), mask);
    }
}
