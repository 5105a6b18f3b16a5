//! Who may share memory, and whether connections should.

use std::sync::OnceLock;

use rustix::process::getuid;

/// What `WEFT_TRANSPORT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Shared memory where it can be had, TCP elsewhere: the default.
    Auto,
    /// TCP always.
    Forbidden,
    /// A connection that cannot have shared memory fails.
    Demanded,
}

/// What the user chose: `WEFT_TRANSPORT` is `auto`, `tcp` or `shm`.
pub(crate) fn choice() -> Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    *CHOICE.get_or_init(|| match std::env::var("WEFT_TRANSPORT").as_deref() {
        Ok("tcp") => Choice::Forbidden,
        Ok("shm") => Choice::Demanded,
        _ => Choice::Auto,
    })
}

/// Whether a process of this user may share memory with this one: those of the same user, and
/// those that `WEFT_SHM_USERS` names (user numbers separated by commas, or `any`).
pub(super) fn admits(uid: u32) -> bool {
    uid == getuid().as_raw() || {
        let users = std::env::var("WEFT_SHM_USERS").unwrap_or_default();
        users.split(',').any(|user| user == "any" || user.parse() == Ok(uid))
    }
}
