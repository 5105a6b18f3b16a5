//! The messages on a control socket: one request as a line of JSON, then the answer, up to the end.

use serde::{Deserialize, Serialize};

/// A request to a running target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    /// Adds units, as the command line has them. Paths are absolute.
    Add { target: Option<String>, units: Vec<String> },
    /// Lists the units.
    List,
    /// Removes a unit.
    Remove { target: Option<String>, lun: u8 },
    /// Sets the length of a unit, or takes the one that its medium has.
    Resize { target: Option<String>, lun: u8, len: Option<u64> },
    /// Reads the file that the target was started with again, and serves what it says now.
    Reload { dry_run: bool },
    /// Lists the sessions, and what the units have done.
    Stats,
    /// Returns counters as Prometheus reads them.
    Metrics,
    /// Ends the target in order. The connection stays until it has ended.
    Drain,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// It is done.
    Done(serde_json::Value),
    /// Why it is not done.
    Error(String),
}
