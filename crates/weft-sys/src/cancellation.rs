//! Cancelled threads, and jumps out of signal handlers.
//!
//! The C library ends a cancelled thread by an unwind that passes these libraries' frames without
//! running their drops (`panic = "abort"`). `longjmp(3)` out of a signal handler leaves frames in
//! the same way. In both cases the C library calls the cleanup handlers of the frames that it
//! leaves.
//!
//! # Safety
//! A cleanup handler is removed before the frame returns whose local variables it refers to. It
//! runs instead of the rest of that frame.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use libc::c_int;

/// `struct _pthread_cleanup_buffer` of `pthread.h`.
#[repr(C)]
struct CleanupBuffer {
    routine: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut Self,
}

// Not "C-unwind", which would abort a thread that is cancelled there.
unsafe extern "C" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// A cancellation point: does not return if the thread has been cancelled. The caller holds no
/// lock.
#[inline]
pub fn test_cancel() {
    // SAFETY: the function takes no arguments. It leaves this library's frames as a cancelled call
    // of the C library does.
    unsafe { pthread_testcancel() };
}

/// The calling thread is not cancelled until this is dropped.
#[derive(Debug)]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// Prevents cancellation.
    #[must_use]
    #[inline]
    pub fn begin() -> Self {
        let mut before = 0;
        // SAFETY: the old state goes to a local variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: restores the earlier state; NULL is allowed for the old one.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// A state, and what happens to it if its frame is left.
struct Abandoned<T> {
    state: *mut T,
    abandon: fn(&mut T),
}

unsafe extern "C" fn run<T>(abandoned: *mut c_void) {
    // SAFETY: the argument is that of `with_cleanup`, whose frame still exists.
    let Abandoned { state, abandon } = unsafe { abandoned.cast::<Abandoned<T>>().read() };
    // SAFETY: `with_cleanup` had the state exclusively, and its frame does not resume.
    abandon(unsafe { &mut *state });
}

/// Calls `call`. If the thread is cancelled in it, or a signal handler jumps out of it, `abandon`
/// is called instead of what would have followed. The handler may have interrupted `call` anywhere
/// but in a [`Section`](crate::Section).
pub fn with_cleanup<T, R>(state: &mut T, call: impl FnOnce(&mut T) -> R, abandon: fn(&mut T)) -> R {
    struct Pushed(MaybeUninit<CleanupBuffer>);
    impl Drop for Pushed {
        fn drop(&mut self) {
            // SAFETY: `_pthread_cleanup_push` has filled the buffer in, and those that calls of
            // this frame have pushed since are popped.
            unsafe { _pthread_cleanup_pop(self.0.as_mut_ptr(), 0) };
        }
    }
    let state: *mut T = state;
    let mut abandoned = Abandoned { state, abandon };
    let mut pushed = Pushed(MaybeUninit::uninit());
    let (buffer, argument) = (pushed.0.as_mut_ptr(), (&raw mut abandoned).cast());
    // SAFETY: the buffer and the argument are local variables, which outlive the handler.
    unsafe { _pthread_cleanup_push(buffer, run::<T>, argument) };
    // SAFETY: the pointer is the caller's exclusive reference. A cleanup handler uses it only
    // when `call` does not resume.
    let result = call(unsafe { &mut *state });
    drop(pushed);
    result
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_abandoned_when_the_call_returns() {
        let mut calls = 0;
        let add = |calls: &mut i32| {
            *calls += 1;
            "result"
        };
        let result = with_cleanup(&mut calls, add, |calls| *calls += 10);
        assert_eq!((result, calls), ("result", 1));
    }

    #[test]
    fn cleanup_handlers_are_nested() {
        let mut outer = vec![1];
        let len = with_cleanup(
            &mut outer,
            |outer| {
                with_cleanup(outer, |both| both.push(2), |both| both.clear());
                outer.len()
            },
            Vec::clear,
        );
        assert_eq!(len, 2);
    }
}
