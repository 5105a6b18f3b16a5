//! The part of a connection that depends on its turns among those of its session.

use std::collections::VecDeque;

use super::job::Job;
use super::member::MemberId;

/// The part of a connection that depends on its turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The connection is the first one, and the session is not shared yet. The initiator's number.
    pub(super) unshared: Option<u16>,
    /// The jobs of the session are here.
    pub(super) is_under_way: bool,
    /// Jobs that are to be carried out.
    pub(super) jobs: VecDeque<Job>,
    /// The number of the command that waits for earlier ones, of other connections.
    pub(super) waits_for: Option<u32>,
    /// Whether requests and data may come between the turns.
    pub(super) has_room: bool,
    /// Another connection has to end first.
    pub(super) has_predecessor: bool,
    /// It ends when its jobs have.
    pub(super) must_leave: bool,
    /// Other connections that have to leave.
    pub(super) dismissed: Vec<MemberId>,
    /// A request has aborted tasks of other connections, too.
    pub(super) has_aborted: bool,
    /// A job has ended in this turn.
    pub(super) has_completed: bool,
    /// Such requests that this connection has seen.
    pub(super) aborts: u64,
    /// The connections of the session, with the numbers of the initiator.
    pub(super) members: Vec<(MemberId, u16)>,
}

impl Turns {
    /// The first connection.
    pub(super) fn first(cid: u16) -> Self {
        Self { unshared: Some(cid), ..Self::default() }
    }

    /// Another connection.
    pub(super) fn joined() -> Self {
        Self { has_predecessor: true, ..Self::default() }
    }
}
