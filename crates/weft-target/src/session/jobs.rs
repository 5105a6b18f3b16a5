//! The jobs of a session: in which order they may be carried out, and who takes the result.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::job::{Job, JobId, Work};
use super::member::MemberId;
use super::portal::OpenSession;
use super::task::Reading;
use crate::limits::{JOBS_MAX, WRITING_LEN_MAX};
use crate::scsi::{Unit, spans_units};
use crate::wire::ScsiCommand;

/// The task attribute ORDERED (RFC 7143, section 11.3.1).
const ORDERED: u8 = 2;

/// The blocks that a job uses.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    /// The unit. `None` if there are several.
    pub(super) unit: Option<Arc<Unit>>,
    /// The range in bytes.
    pub(super) range: Range<u64>,
    /// The blocks may change.
    pub(super) changes: bool,
}

/// What the result of a job is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Data of a read.
    Read(Reading),
    /// A part of the task with this tag and serial number.
    Task { tag: u32, serial: u64 },
    /// Nothing but its end: it is waited for, or its task is aborted.
    End,
}

/// The jobs of a session that have not ended, in the order in which they were planned.
///
/// A job begins when no earlier one uses the same blocks, if one of both changes them. So commands
/// have the same effect as one after the other.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The connection that has its turn: it plans jobs, and sees only its own ones.
    pub(super) member: MemberId,
    last: u64,
    planned: Vec<Planned>,
    /// Those that may be carried out, with their connections.
    ready: VecDeque<(MemberId, Job)>,
    /// Bytes that are on their way to the store, and from it.
    writing_len: usize,
    reading_len: usize,
}

#[derive(Debug)]
struct Planned {
    id: JobId,
    member: MemberId,
    footprint: Footprint,
    purpose: Purpose,
    /// Bytes that it writes, and that it reads.
    lens: (usize, usize),
    /// It waits for earlier ones.
    waiting: Option<Job>,
}

impl Footprint {
    /// A part of a command that moves blocks. One that is ordered is between all others (SAM-5,
    /// section 8.7).
    pub(super) fn of_part(
        command: &ScsiCommand,
        unit: &Arc<Unit>,
        range: Range<u64>,
        changes: bool,
    ) -> Self {
        if command.attribute == ORDERED {
            return Self::whole(unit, true);
        }
        Self { unit: Some(Arc::clone(unit)), range, changes }
    }

    /// A command that is carried out as a whole.
    pub(super) fn of_whole(command: &ScsiCommand, unit: &Arc<Unit>, changes: bool) -> Self {
        let whole = Self::whole(unit, changes || command.attribute == ORDERED);
        if spans_units(&command.cdb) { Self { unit: None, ..whole } } else { whole }
    }

    /// All blocks of a unit.
    fn whole(unit: &Arc<Unit>, changes: bool) -> Self {
        Self { unit: Some(Arc::clone(unit)), range: 0..u64::MAX, changes }
    }

    /// No blocks.
    pub(super) fn nothing() -> Self {
        Self { unit: None, range: 0..0, changes: false }
    }

    fn conflicts(&self, other: &Self) -> bool {
        let is_same = match (&self.unit, &other.unit) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => true,
        };
        let overlaps = self.range.start < other.range.end && other.range.start < self.range.end;
        is_same && overlaps && (self.changes || other.changes)
    }
}

impl Jobs {
    /// Whether no connection has any.
    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Whether more commands and data may come.
    pub(super) fn has_room(&self) -> bool {
        self.planned.len() < JOBS_MAX && self.writing_len < WRITING_LEN_MAX
    }

    /// Bytes that are on their way from the store.
    pub(super) fn reading_len(&self) -> usize {
        self.reading_len
    }

    /// Whether work with this footprint has to wait for a job.
    pub(super) fn conflicts(&self, footprint: &Footprint) -> bool {
        self.planned.iter().any(|each| each.footprint.conflicts(footprint))
    }

    /// Whether a connection has any.
    pub(super) fn has_of(&self, member: MemberId) -> bool {
        self.planned.iter().any(|each| each.member == member)
    }

    /// The connections of which jobs may be carried out.
    pub(super) fn ready_members(&self) -> impl Iterator<Item = MemberId> {
        self.ready.iter().map(|(member, _)| *member)
    }

    /// The reads of the connection whose data is being read.
    pub(super) fn readings(&self) -> impl Iterator<Item = &Reading> {
        let own = self.planned.iter().filter(|each| each.member == self.member);
        own.filter_map(|each| match &each.purpose {
            Purpose::Read(reading) => Some(reading),
            _ => None,
        })
    }

    /// Plans a job.
    pub(super) fn plan(
        &mut self,
        session: &Arc<OpenSession>,
        work: Work,
        footprint: Footprint,
        purpose: Purpose,
    ) -> JobId {
        self.last += 1;
        let id = JobId(self.last);
        let (writing_len, reading_len) = match &work {
            Work::Stream { bytes, .. } => (bytes.len(), 0),
            Work::Read { buffer, .. } => (0, buffer.len()),
            _ => (0, 0),
        };
        self.writing_len += writing_len;
        self.reading_len += reading_len;
        let member = self.member;
        let job = Job { id, session: Arc::clone(session), work };
        let waiting = if self.conflicts(&footprint) {
            Some(job)
        } else {
            self.ready.push_back((member, job));
            None
        };
        let lens = (writing_len, reading_len);
        self.planned.push(Planned { id, member, footprint, purpose, lens, waiting });
        id
    }

    /// A job of the connection that may be carried out.
    pub(super) fn next(&mut self) -> Option<Job> {
        let own = self.ready.iter().position(|(member, _)| *member == self.member)?;
        self.ready.remove(own).map(|(_, job)| job)
    }

    /// A job has ended. Returns its purpose.
    pub(super) fn end(&mut self, id: JobId) -> Option<Purpose> {
        let at = self.planned.iter().position(|each| each.id == id)?;
        let ended = self.remove(at);
        self.release();
        Some(ended.purpose)
    }

    /// Takes back the jobs of the connection that `wanted` selects. Returns those that have begun:
    /// their ends have no other purpose any more.
    pub(super) fn abandon(&mut self, wanted: impl Fn(&Purpose) -> bool) -> Vec<JobId> {
        let mut begun = Vec::new();
        let mut at = 0;
        while let Some(each) = self.planned.get_mut(at) {
            let id = each.id;
            if each.member != self.member || !wanted(&each.purpose) {
                at += 1;
                continue;
            }
            let ready = self.ready.iter().position(|(_, job)| job.id == id);
            if each.waiting.is_none() && ready.is_none() {
                each.purpose = Purpose::End;
                begun.push(id);
                at += 1;
                continue;
            }
            if let Some(ready) = ready {
                self.ready.remove(ready);
            }
            self.remove(at);
        }
        self.release();
        begun
    }

    fn remove(&mut self, at: usize) -> Planned {
        let removed = self.planned.remove(at);
        self.writing_len -= removed.lens.0;
        self.reading_len -= removed.lens.1;
        removed
    }

    /// Makes those ready that have no earlier one to wait for.
    fn release(&mut self) {
        for at in 0..self.planned.len() {
            let (earlier, rest) = self.planned.split_at_mut(at);
            let each = &mut rest[0];
            if each.waiting.is_some()
                && !earlier.iter().any(|other| other.footprint.conflicts(&each.footprint))
            {
                let member = each.member;
                self.ready.extend(each.waiting.take().map(|job| (member, job)));
            }
        }
    }
}
