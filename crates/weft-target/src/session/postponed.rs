//! Responses to requests that end commands, or connections: they are sent when these have ended.

use super::job::JobId;
use super::member::MemberId;
use crate::wire::Response;

/// A response that is sent when some jobs and connections have ended.
#[derive(Debug)]
pub(super) struct Postponed {
    /// The jobs that have not ended.
    pub(super) jobs: Vec<JobId>,
    /// The connections that have not ended.
    pub(super) leaving: Vec<MemberId>,
    /// The response.
    pub(super) response: Response,
    /// It ends the connection.
    pub(super) ends: Option<ConnectionEnd>,
}

impl Postponed {
    /// Whether it waits for nothing.
    pub(super) fn is_due(&self) -> bool {
        self.jobs.is_empty() && self.leaving.is_empty()
    }
}

/// The end of a connection by a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The initiator has logged out.
    LoggedOut,
    /// A cold reset ends all sessions of the target.
    ColdReset,
}

/// Notes that a job has ended.
pub(super) fn note_end(all: &mut [Postponed], ended: JobId) {
    all.iter_mut().for_each(|postponed| postponed.jobs.retain(|job| *job != ended));
}

/// Takes the responses that wait for nothing any more.
pub(super) fn take_due(all: &mut Vec<Postponed>) -> Vec<Postponed> {
    all.extract_if(.., |postponed| postponed.is_due()).collect()
}
