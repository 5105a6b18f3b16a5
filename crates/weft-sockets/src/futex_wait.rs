//! Waits on futexes until a peer of one of several ends has written.

use smallvec::SmallVec;
use weft_sys::FutexWord;
use weft_sys::calls::io::Errno;

use crate::kernel::{End, Host, Kernel as _};
use crate::limits::FUTEX_WAIT_ENDS_MAX;
use crate::wait;

/// The longest futex wait in nanoseconds: a killed peer wakes nobody.
pub(crate) const TIME_NS: u64 = 10_000_000;

/// Waits for any of the ends for `time` nanoseconds, but at most for [`TIME_NS`].
///
/// # Errors
/// `EINTR`: a signal was handled.
pub(crate) fn on_ends<'a>(ends: impl Iterator<Item = &'a End>, time: u64) -> Result<(), Errno> {
    let mut words: SmallVec<[FutexWord<'static>; FUTEX_WAIT_ENDS_MAX]> = SmallVec::new();
    for end in ends {
        let Some(word) = end.begin_futex_wait() else { return Ok(()) };
        words.push(word);
    }
    let until = wait::timespec(wait::now().saturating_add(time.min(TIME_NS)));
    Host::wait_for_peers(words.into_iter(), &until)
}
