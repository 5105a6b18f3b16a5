//! Dozing until the peer of one of several ends has put something.

use rustix::io::Errno;
use smallvec::SmallVec;
use weft_sys::FutexWord;

use crate::kernel::{End, Host, Kernel as _};
use crate::limits::DOZED_ENDS_MAX;
use crate::wait;

/// The longest doze: a peer that is killed wakes nobody.
pub(crate) const TIME_NS: u64 = 10_000_000;

/// Dozes for `time` nanoseconds at most, and [`TIME_NS`].
///
/// # Errors
/// `EINTR`: a signal was handled.
pub(crate) fn doze<'a>(ends: impl Iterator<Item = &'a End>, time: u64) -> Result<(), Errno> {
    let mut words: SmallVec<[FutexWord<'static>; DOZED_ENDS_MAX]> = SmallVec::new();
    for end in ends {
        let Some(word) = end.begin_doze() else { return Ok(()) };
        words.push(word);
    }
    let until = wait::timespec(wait::now().saturating_add(time.min(TIME_NS)));
    Host::wait_for_peers(words.into_iter(), &until)
}
