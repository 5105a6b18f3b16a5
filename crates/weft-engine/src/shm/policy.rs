//! The policy of shared memory: for which users, and for which connections.

use std::sync::OnceLock;

use weft_sys::calls::process::getuid;

/// The values of `WEFT_TRANSPORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Use shared memory if possible, otherwise TCP. This is the default.
    Auto,
    /// Always use TCP.
    Forbidden,
    /// A connection without shared memory fails.
    Demanded,
}

/// The user's choice: `WEFT_TRANSPORT` is `auto`, `tcp` or `shm`.
pub(crate) fn choice() -> Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    *CHOICE.get_or_init(|| match std::env::var("WEFT_TRANSPORT").as_deref() {
        Ok("tcp") => Choice::Forbidden,
        Ok("shm") => Choice::Demanded,
        _ => Choice::Auto,
    })
}

/// Whether a process of the user `uid` may share memory with this one: the same user may, and those
/// in `WEFT_SHM_USERS` (user ids separated by commas, or `any`).
pub(super) fn admits(uid: u32) -> bool {
    uid == getuid().as_raw() || {
        let users = std::env::var("WEFT_SHM_USERS").unwrap_or_default();
        users.split(',').any(|user| user == "any" || user.parse() == Ok(uid))
    }
}
