//! Stacks for Weft's functions during a call by hand: the thread's own stack if it has room, as if
//! the program had called the C library; otherwise one of Weft's.
//!
//! Signal handlers may run on Weft's stack, make calls by hand themselves, and be left by a jump.
//! So the stack has parts. The first is for threads that are not on a signal stack, and so have no
//! call in progress there; threads on a signal stack use the next free part.
//!
//! # Safety
//! Each stack is mapped once and used by one thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::ucontext_t;
use weft_sys::raw_system_call;

use super::frame::RED_ZONE;
use super::place::own;

/// Returns the range of a stack that leaves room for a hook below it. It trusts only the upper
/// half: the C library has put its guard at the lower end of a thread's stack.
pub(super) fn known_part(high: usize, len: usize) -> [usize; 2] {
    if len / 2 < 2 * HOOK_ROOM { [0, 0] } else { [high - len / 2 + HOOK_ROOM, high] }
}

/// Stack bytes that hooks need, with a wide margin.
const HOOK_ROOM: usize = 64 << 10;

/// Notes the main thread's stack.
pub(super) fn note_main() {
    const LONGEST: usize = 8 << 20;
    let high = 0_usize;
    let high = (&raw const high) as usize;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the answer goes to a local variable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0;
    let len =
        if known { usize::try_from(limit.rlim_cur).unwrap_or(LONGEST).min(LONGEST) } else { 0 };
    own!(stack = known_part(high, len));
}

/// Number and length of the parts of a stack of Weft's.
const PARTS: usize = 4;
const PART_LEN: usize = 128 << 10;

/// Returns the top of free stack memory for a thread with this stack pointer. `None` if there is
/// none.
pub(super) fn stack_for(context: &ucontext_t, stack: usize) -> Option<usize> {
    let [low, high] = own!(stack);
    if (low..high).contains(&stack) {
        return Some(stack - RED_ZONE);
    }
    let own_stack = own!(own_stack);
    if own_stack != 0 && (own_stack..own_stack + PARTS * PART_LEN).contains(&stack) {
        // A signal handler that has interrupted a hook on this stack.
        let part = (stack - own_stack) % PART_LEN;
        return (part > PART_LEN / 2).then_some(stack - RED_ZONE);
    }
    let start = match own_stack {
        0 => map_stack()?,
        known => known,
    };
    let alternate = context.uc_stack.ss_sp as usize;
    // On the signal stack a handler may have interrupted a hook; elsewhere no hook is in progress.
    let is_alternate = (alternate..alternate + context.uc_stack.ss_size).contains(&stack);
    let part = if is_alternate { own!(own_used).max(1) } else { 0 };
    if part >= PARTS {
        return None;
    }
    own!(own_used = part + 1);
    Some(start + (part + 1) * PART_LEN)
}

/// Bytes of the inaccessible guard below the parts.
const GUARD: usize = 64 << 10;
/// Bytes of the whole mapping.
const LEN: usize = GUARD + PARTS * PART_LEN;

/// The thread-specific key whose destructor unmaps a thread's stack.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Keys for which glibc has a slot in each thread from the start. For others it allocates, which a
/// signal handler must not do; stacks then stay mapped.
const KEYS_WITHOUT_MEMORY: u32 = 32;

/// Creates the key. Runs before any thread needs a stack of Weft's.
pub(super) fn prepare() {
    let mut key = 0;
    // SAFETY: the key goes to a local variable, and this library is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(unmap_stack)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

unsafe extern "C" fn unmap_stack(start: *mut c_void) {
    own!(own_stack = 0);
    own!(own_used = 0);
    // SAFETY: `map_stack` has mapped exactly this range; the ending thread runs on its own stack,
    // and the variables no longer name it.
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
    // SAFETY: the guard is the lowest part of the fresh mapping.
    unsafe {
        raw_system_call(libc::SYS_mprotect, [start, GUARD, libc::PROT_NONE as usize, 0, 0, 0])
    };
    own!(own_stack = start + GUARD);
    let key = KEY.load(Ordering::Relaxed);
    if key < KEYS_WITHOUT_MEMORY {
        // SAFETY: the key is Weft's own, and glibc does not allocate for it.
        unsafe { libc::pthread_setspecific(key, start as *const c_void) };
    }
    Some(start + GUARD)
}
