//! Stacks on which functions of ours run for a call by hand: the thread's own where it has room, as
//! it would be if the program had called the C library, otherwise one of ours.
//!
//! Handlers of signals may run on the stack of ours, may make calls by hand themselves, and may be
//! left by a jump. So it has parts: the first is for threads that are on no stack of signals, and
//! so have nothing under way there; those on one use the next part.
//!
//! # Safety
//! A stack is mapped once and used by one thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::ucontext_t;
use weft_sys::raw_system_call;

use super::frame::RED_ZONE;
use super::place::own;

/// The part of a stack that leaves a hook room below it. Only half of it is believed: the lower
/// end of a thread's stack is where the C library has put its guard.
pub(super) fn known_part(high: usize, len: usize) -> [usize; 2] {
    if len / 2 < 2 * HOOK_ROOM { [0, 0] } else { [high - len / 2 + HOOK_ROOM, high] }
}

/// Bytes of stack that hooks need, with much to spare.
const HOOK_ROOM: usize = 64 << 10;

/// The main thread's stack.
pub(super) fn note_main() {
    const LONGEST: usize = 8 << 20;
    let high = 0_usize;
    let high = (&raw const high) as usize;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place for the answer is a local variable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0;
    let len =
        if known { usize::try_from(limit.rlim_cur).unwrap_or(LONGEST).min(LONGEST) } else { 0 };
    own!(stack = known_part(high, len));
}

/// Parts of a stack of ours.
const PARTS: usize = 4;
const PART_LEN: usize = 128 << 10;

/// Where a function of ours may run for a thread with this stack pointer: the top of free memory.
/// `None` if there is none.
pub(super) fn stack_for(context: &ucontext_t, stack: usize) -> Option<usize> {
    let [low, high] = own!(stack);
    if (low..high).contains(&stack) {
        return Some(stack - RED_ZONE);
    }
    let own_stack = own!(own_stack);
    if own_stack != 0 && (own_stack..own_stack + PARTS * PART_LEN).contains(&stack) {
        // A signal's handler that has interrupted a hook there.
        let part = (stack - own_stack) % PART_LEN;
        return (part > PART_LEN / 2).then_some(stack - RED_ZONE);
    }
    let start = match own_stack {
        0 => map_stack()?,
        known => known,
    };
    let alternate = context.uc_stack.ss_sp as usize;
    // A handler on the stack of signals may have interrupted a hook; one that has not is not there.
    let is_alternate = (alternate..alternate + context.uc_stack.ss_size).contains(&stack);
    let part = if is_alternate { own!(own_used).max(1) } else { 0 };
    if part >= PARTS {
        return None;
    }
    own!(own_used = part + 1);
    Some(start + (part + 1) * PART_LEN)
}

/// Bytes below the parts that nobody is to reach.
const GUARD: usize = 64 << 10;
/// Bytes of all.
const LEN: usize = GUARD + PARTS * PART_LEN;

/// By which the C library tells of the end of a thread that has a stack of ours.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Keys for which glibc has a place in each thread from the start; for others it needs memory,
/// which a handler must not ask for. Their threads' stacks stay mapped.
const KEYS_WITHOUT_MEMORY: u32 = 32;

/// To be called before any thread needs a stack of ours.
pub(super) fn prepare() {
    let mut key = 0;
    // SAFETY: the place is a local variable; the function stays.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(unmap_stack)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

unsafe extern "C" fn unmap_stack(start: *mut c_void) {
    own!(own_stack = 0);
    own!(own_used = 0);
    // SAFETY: mapped below; the thread is on its own stack as it ends, and maps another if need be.
    unsafe { raw_system_call(libc::SYS_munmap, [start as usize, LEN, 0, 0, 0, 0]) };
}

fn map_stack() -> Option<usize> {
    let (access, kind) = (
        (libc::PROT_READ | libc::PROT_WRITE) as usize,
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK) as usize,
    );
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { raw_system_call(libc::SYS_mmap, [0, LEN, access, kind, usize::MAX, 0]) };
    let start = usize::try_from(start).ok()?;
    // SAFETY: the lowest part of it, which nobody is to reach.
    unsafe {
        raw_system_call(libc::SYS_mprotect, [start, GUARD, libc::PROT_NONE as usize, 0, 0, 0])
    };
    own!(own_stack = start + GUARD);
    let key = KEY.load(Ordering::Relaxed);
    if key < KEYS_WITHOUT_MEMORY {
        // SAFETY: a key of ours, which needs no memory.
        unsafe { libc::pthread_setspecific(key, start as *const c_void) };
    }
    Some(start + GUARD)
}
