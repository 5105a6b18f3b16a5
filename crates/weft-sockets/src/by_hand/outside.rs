//! The functions of higher modules that execute calls by hand.

use std::sync::OnceLock;

use libc::c_long;

use crate::arguments::Arguments;

/// The library's functions for calls that the program makes by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callbacks {
    /// Executes a call that may reach a descriptor of Weft's, with results as the C library has
    /// them. `None`: the kernel is to execute it.
    pub(crate) call: unsafe fn(c_long, Arguments) -> Option<c_long>,
    /// Returns whether a `clone(2)`, `clone3(2)` or `vfork(2)` is a fork. For one that is not, it
    /// makes all preparations.
    pub(crate) is_fork: unsafe fn(c_long, Arguments) -> bool,
    /// Keeps the process on TCP from here on, because it uses something that Weft cannot see.
    pub(crate) keep_on_tcp: fn(&str),
}

static OUTSIDE: OnceLock<Callbacks> = OnceLock::new();

pub(super) fn set(outside: Callbacks) {
    OUTSIDE.get_or_init(|| outside);
}

/// Returns the functions, which the process sets at its beginning, before any thread is armed.
pub(super) fn outside() -> &'static Callbacks {
    let Some(outside) = OUTSIDE.get() else { unreachable!("`set` runs when the process begins") };
    outside
}
