//! What calls by hand lead to: what stands above this module.

use std::sync::OnceLock;

use libc::c_long;

use crate::arguments::Arguments;

/// What the library does about calls that the program makes by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outside {
    /// Does a call that may reach something of ours, with results as the C library has them.
    /// `None`: the kernel is to do it.
    pub(crate) call: unsafe fn(c_long, Arguments) -> Option<c_long>,
    /// Whether a `clone(2)`, `clone3(2)` or `vfork(2)` is a fork; for others everything is done
    /// that is to be done before.
    pub(crate) is_fork: unsafe fn(c_long, Arguments) -> bool,
    /// Something is used that cannot be seen: the process stays on TCP from here on.
    pub(crate) keep_on_tcp: fn(&str),
}

static OUTSIDE: OnceLock<Outside> = OnceLock::new();

pub(super) fn set(outside: Outside) {
    OUTSIDE.get_or_init(|| outside);
}

/// Set when the process began, before anything could be armed.
pub(super) fn outside() -> &'static Outside {
    let Some(outside) = OUTSIDE.get() else { unreachable!("set when the process began") };
    outside
}
