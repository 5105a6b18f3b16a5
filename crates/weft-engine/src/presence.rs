//! This process's presence page, where peers look whether a thread sleeps and must be woken.

use weft_sys::{Forkable, OwnPresence};

/// The page; `None` if it could not be allocated.
pub(crate) fn own() -> Option<&'static OwnPresence> {
    static PRESENCE: Forkable<Option<OwnPresence>> = Forkable::new(|| OwnPresence::new().ok());
    PRESENCE.get().as_ref()
}
