//! Responses to requests that end commands: they are sent when the jobs of these commands have
//! ended.

use super::job::JobId;
use crate::wire::Response;

/// A response that is sent when some jobs have ended.
#[derive(Debug)]
pub(super) struct Postponed {
    /// The jobs that have not ended.
    pub(super) jobs: Vec<JobId>,
    /// The response.
    pub(super) response: Response,
    /// It ends the connection.
    pub(super) ends: Option<ConnectionEnd>,
}

/// The end of a connection by a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The initiator has logged out.
    LoggedOut,
    /// A cold reset ends all sessions of the target.
    ColdReset,
}

/// Notes that a job has ended. Takes the responses that have waited for no other one.
pub(super) fn take_due(all: &mut Vec<Postponed>, ended: JobId) -> Vec<Postponed> {
    for postponed in &mut *all {
        postponed.jobs.retain(|job| *job != ended);
    }
    all.extract_if(.., |postponed| postponed.jobs.is_empty()).collect()
}
