//! Marks failures that no second run can excuse.

use anyhow::{Error, anyhow};

/// What the description of such a failure begins with. `scripts/second-look` finds it there.
pub(crate) const MARK: &str = "DEFECT: ";

/// Describes wrong, lost or foreign data, a crash, or a hang. A test that fails with it counts as
/// failed even if it passes when it is run again.
pub fn defect(what: impl std::fmt::Display) -> Error {
    anyhow!("\n{MARK}{what}")
}

/// Like `anyhow::ensure!`, for data that arrived: if the condition is false the test fails with a
/// [`defect`].
#[macro_export]
macro_rules! ensure_data {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::defect(format!($($text)+)));
        }
    };
}
