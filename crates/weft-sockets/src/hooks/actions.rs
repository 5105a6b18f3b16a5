//! Finds the descriptors that a `posix_spawn(3)` child gets copies of.
//!
//! # Safety
//! The C library keeps a child's file actions in a list with an internal layout (glibc 2.24 and
//! later, `posix/spawn_int.h`). This module reads a list only if a test list reads back as
//! expected. Otherwise it assumes that the child gets every descriptor.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use weft_sys::SectionOnce;

use libc::{c_int, c_void};
use smallvec::SmallVec;

use crate::limits::ACTIONS_MAX;
use crate::open;

/// Descriptors that the child gets copies of.
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
    /// The union's member for `dup2`.
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
    /// Returns the descriptors that a list copies.
    ///
    /// # Safety
    /// `actions` is NULL, or a list that the C library has made.
    pub(super) unsafe fn copied(actions: *const c_void) -> Copied {
        if actions.is_null() {
            return Copied::new();
        }
        if !is_layout_known() {
            return open::within(0, u32::MAX).collect();
        }
        // SAFETY: the caller guarantees a list of the C library's, and its layout is the known one.
        unsafe { read(actions.cast()) }
    }
}

/// # Safety
/// `actions` is a list with the known layout.
unsafe fn read(actions: *const Actions) -> Copied {
    // SAFETY: the caller guarantees a list with this layout.
    let actions = unsafe { actions.read() };
    let used = usize::try_from(actions.used.min(ACTIONS_MAX)).unwrap_or(0);
    let mut copied = Copied::new();
    for index in 0..used {
        // SAFETY: `index` is below the list's `used`.
        let action = unsafe { actions.list.add(index) };
        // SAFETY: the list has `used` initialised actions, and `index` is below that.
        let action = unsafe { &*action };
        if action.tag == DUP2 {
            copied.push(action.fd);
        }
    }
    copied
}

/// Returns whether this C library's lists have the layout that is read here.
fn is_layout_known() -> bool {
    static KNOWN: SectionOnce<bool> = SectionOnce::new();
    *KNOWN.get_or_init(|| {
        const FDS: [c_int; 2] = [12_345, 54_321];
        /// `sizeof(posix_spawn_file_actions_t)`.
        const LEN: usize = 80;
        let mut space = MaybeUninit::<[u64; LEN / 8]>::zeroed();
        let list: *mut c_void = space.as_mut_ptr().cast();
        // SAFETY: `space` has the size and alignment of the C library's type.
        if unsafe { posix_spawn_file_actions_init(list) } != 0 {
            return false;
        }
        let added = FDS.iter().all(|&fd| {
            // SAFETY: the list has been initialised.
            unsafe { posix_spawn_file_actions_adddup2(list, fd, fd + 1) == 0 }
        });
        let space: *const Actions = list.cast();
        // SAFETY: the C library has initialised the first words of `space`.
        let made = unsafe { &*space };
        let is_plausible = added && made.used == 2 && made.allocated >= 2;
        // SAFETY: the list claims two actions, and the C library allocates eight at a time, so even
        // with another layout both reads stay inside its memory.
        let is_known = is_plausible && unsafe { read(space) }.as_slice() == FDS;
        // SAFETY: the list has been initialised.
        unsafe { posix_spawn_file_actions_destroy(list) };
        is_known
    })
}
