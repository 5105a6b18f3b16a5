//! This process's page of sleepers: peers look there whether a thread must be woken.

use weft_sys::{Forkable, OwnPresence};

/// The page; `None` if there is no memory for it.
pub(crate) fn own() -> Option<&'static OwnPresence> {
    static PRESENCE: Forkable<Option<OwnPresence>> = Forkable::new(|| OwnPresence::new().ok());
    PRESENCE.get().as_ref()
}
