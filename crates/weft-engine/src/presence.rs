//! This process's presence page, where peers look whether a thread sleeps and must be woken.

use weft_sys::{Forkable, OwnPresence};

use crate::Result;

/// The page.
///
/// # Errors
/// Why it could not be allocated, at the first use in this process.
pub(crate) fn own() -> Result<&'static OwnPresence> {
    static PRESENCE: Forkable<Result<OwnPresence>> = Forkable::new(OwnPresence::new);
    PRESENCE.get().as_ref().map_err(|&error| error)
}
