//! Calls that fail before they begin, and give back what they were given.

use crate::error::Error;
use crate::memory::Buffer;

/// A call that failed before it began, and returns the buffer that it was given. `?` turns it into
/// an [`Error`], and drops the buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Returned {
    /// Why it failed.
    pub error: Error,
    /// The buffer, unchanged.
    pub buffer: Buffer,
}

impl From<Returned> for Error {
    fn from(returned: Returned) -> Self {
        returned.error
    }
}
