//! Random bytes of the kernel.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::session::Random;

/// The kernel's source. It fills at most 256 bytes at once (getrandom(2)).
pub const RANDOM: Random = Random(|bytes| {
    let len = bytes.len();
    getrandom(bytes, GetRandomFlags::empty()).is_ok_and(|filled| filled == len)
});
