//! A copy to make, without its two ends.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::path;
use super::request::{Flags, Request};
use crate::end::{EndError, Observer, Progress};
use crate::session::Connection;
use crate::transport::tcp::TcpSettings;
use crate::tree::source::Missing;

/// A copy to make. Its methods make it with a server, by a remote shell, or within this host.
#[derive(Clone)]
pub struct CopyTask {
    /// The request to the other end.
    pub request: Request,
    /// Receives problems with single entries.
    pub observer: Arc<dyn Observer>,
    /// Sources of this process that cannot be found. They are reported as problems.
    pub missing: Vec<Missing>,
    /// The counters for progress displays.
    pub progress: Arc<Progress>,
    /// The most bytes of blocks per second.
    pub limit: Option<u64>,
    /// Whether the copy takes no more of a path than one connection of another program does.
    pub is_fair: bool,
    /// Whether a copy between two hosts compresses blocks while that pays, although the request
    /// does not ask for it.
    pub compresses_between_hosts: bool,
    /// Whether a copy between two hosts sends of large files only what differs from the sink's
    /// version, although the request does not ask for it.
    pub versions_between_hosts: bool,
    /// How long the other end may be silent before it counts as gone; `None` for the usual time.
    pub silence: Option<Duration>,
    /// Where sysfs is mounted, which shows the NUMA nodes of this machine.
    pub sysfs: PathBuf,
}

impl CopyTask {
    /// Returns the settings of this end's connections.
    ///
    /// # Errors
    /// If they cannot use the congestion control of the request.
    pub(super) fn tcp_settings(&self) -> Result<TcpSettings, EndError> {
        let congestion = self.request.congestion.clone();
        congestion.check().map_err(|error| EndError::Here(error.to_string()))?;
        let usual = TcpSettings::default();
        // The other end may be busy with blocks, and answer nevertheless.
        let stall = self.silence.map_or(usual.stall, |silence| silence.max(usual.stall));
        Ok(TcpSettings { congestion, stall, ..usual })
    }

    /// Returns the number of data channels over TCP.
    pub(super) fn channels(&self, round_trip: Option<Duration>) -> u16 {
        if self.is_fair { 1 } else { path::channels(round_trip) }
    }

    /// Limits the silence of the other end of a connection.
    pub(super) fn limit_silence(&self, connection: &mut Connection) {
        if let Some(silence) = self.silence {
            connection.allow_silence(silence);
        }
    }

    /// Settles what depends on whether the other end is on another host.
    pub(super) fn between_hosts(&mut self, are_two: bool) {
        if are_two && self.compresses_between_hosts {
            self.request.flags = self.request.flags.with(Flags::COMPRESSES, true);
        }
        if are_two && self.versions_between_hosts {
            self.request.flags = self.request.flags.with(Flags::VERSIONS, true);
        }
    }
}

impl fmt::Debug for CopyTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyTask").field("request", &self.request).finish_non_exhaustive()
    }
}
