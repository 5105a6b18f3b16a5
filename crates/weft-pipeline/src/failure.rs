//! Why a copy of a filter has failed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a copy of a filter has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// The filter itself has failed.
    Filter(String),
    /// The connection to another copy was lost. The cause is probably there.
    Lost(String),
}

impl Failure {
    pub(crate) fn filter(why: impl fmt::Display) -> Self {
        Self::Filter(why.to_string())
    }

    pub(crate) fn lost(peer: &str, why: impl fmt::Display) -> Self {
        Self::Lost(format!("the connection with {peer} was lost: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Filter(why) | Self::Lost(why)) = self;
        f.write_str(why)
    }
}
