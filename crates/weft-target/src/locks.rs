//! Locks that are taken without a wait.

use std::sync::{TryLockError, TryLockResult};

/// The guard of a lock that was tried. `None` if others have the lock. A panic of theirs does not
/// matter: what they have left is as it was between two steps.
pub(crate) fn at_once<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
