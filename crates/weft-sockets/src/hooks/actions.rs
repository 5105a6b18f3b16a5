//! Which descriptors a child of `posix_spawn(3)` gets copies of.
//!
//! # Safety
//! The C library keeps what a child is to do in a list whose layout is its own (glibc 2.24 and
//! later, `posix/spawn_int.h`). It is read only if a list that was made for the purpose reads as
//! what was put into it; otherwise every descriptor is taken for one that the child gets.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use weft_sys::SectionOnce;

use libc::{c_int, c_void};
use smallvec::SmallVec;

use crate::limits::ACTIONS_MAX;
use crate::open;

/// Descriptors that are copied.
pub(super) type Copied = SmallVec<[RawFd; 8]>;

/// `posix_spawn_file_actions_t`.
#[repr(C)]
pub(super) struct Actions {
    allocated: c_int,
    used: c_int,
    list: *const Action,
}

/// `struct __spawn_action`.
#[repr(C)]
struct Action {
    tag: c_int,
    /// The union's part for `dup2`.
    fd: c_int,
    _copy: c_int,
    _rest: [u64; 2],
}

const DUP2: c_int = 1;

unsafe extern "C" {
    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, copy: c_int) -> c_int;
    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int;
}

impl Actions {
    /// The descriptors that a list has copied.
    ///
    /// # Safety
    /// NULL, or a list that the C library has made.
    pub(super) unsafe fn copied(actions: *const c_void) -> Copied {
        if actions.is_null() {
            return Copied::new();
        }
        if !is_layout_known() {
            return open::within(0, u32::MAX).collect();
        }
        // SAFETY: guaranteed by the caller, and the layout is the one that is known.
        unsafe { read(actions.cast()) }
    }
}

/// # Safety
/// A list of the known layout.
unsafe fn read(actions: *const Actions) -> Copied {
    // SAFETY: guaranteed by the caller.
    let actions = unsafe { actions.read() };
    let used = usize::try_from(actions.used.min(ACTIONS_MAX)).unwrap_or(0);
    let mut copied = Copied::new();
    for index in 0..used {
        // SAFETY: so many are in the list.
        let action = unsafe { actions.list.add(index) };
        // SAFETY: so many are in the list.
        let action = unsafe { &*action };
        if action.tag == DUP2 {
            copied.push(action.fd);
        }
    }
    copied
}

/// Whether this C library's lists are as they are read here.
fn is_layout_known() -> bool {
    static KNOWN: SectionOnce<bool> = SectionOnce::new();
    *KNOWN.get_or_init(|| {
        const FDS: [c_int; 2] = [12_345, 54_321];
        /// `sizeof(posix_spawn_file_actions_t)`.
        const LEN: usize = 80;
        let mut space = MaybeUninit::<[u64; LEN / 8]>::zeroed();
        let list: *mut c_void = space.as_mut_ptr().cast();
        // SAFETY: as long as the C library's type.
        if unsafe { posix_spawn_file_actions_init(list) } != 0 {
            return false;
        }
        let added = FDS.iter().all(|&fd| {
            // SAFETY: a list that has been initialised.
            unsafe { posix_spawn_file_actions_adddup2(list, fd, fd + 1) == 0 }
        });
        let space: *const Actions = list.cast();
        // SAFETY: initialised.
        let made = unsafe { &*space };
        let is_plausible = added && made.used == 2 && made.allocated >= 2;
        // SAFETY: two actions, of which the second ends within memory only if the layout is known:
        // the C library allocates eight at a time.
        let is_known = is_plausible && unsafe { read(space) }.as_slice() == FDS;
        // SAFETY: a list that has been initialised.
        unsafe { posix_spawn_file_actions_destroy(list) };
        is_known
    })
}
