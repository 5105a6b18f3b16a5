//! Requests that end commands and connections: task management and logout.

use std::sync::Arc;

use super::FullFeature;
use crate::scsi::Unit;
use crate::session::closed::Closed;
use crate::session::job::{JobId, Work};
use crate::session::jobs::{Footprint, Purpose};
use crate::session::portal::OpenSession;
use crate::session::postponed::{ConnectionEnd, Postponed, take_due};
use crate::wire::{
    Logout, LogoutResponse, Response, SendBuffer, TaskRequest, TaskResponse, logout_response,
    task_response,
};

impl FullFeature {
    /// Handles a task management request (RFC 7143, section 11.5). Returns why the connection ends.
    pub(super) fn manage(
        &mut self,
        session: &Arc<OpenSession>,
        request: &TaskRequest,
        output: &mut SendBuffer,
    ) -> Option<Closed> {
        let device = session.device();
        let nexus = session.nexus.id;
        let unit = device.unit(request.lun);
        let (mut jobs, mut ends, mut reset) = (Vec::new(), None, Vec::new());
        let response = match (request.function, unit) {
            (1, _) => self.abort(request, &mut jobs),
            (2 | 4 | 5, None) => task_response::NO_UNIT,
            (function @ (2 | 4 | 5), Some(unit)) => {
                jobs = self.abort_all(|other| other.is_some_and(|other| Arc::ptr_eq(other, &unit)));
                match function {
                    4 => device.clear_tasks(&unit, nexus),
                    5 => device.reset_unit(&unit),
                    // Those of the other connections.
                    _ if self.group.is_shared() => device.abort_tasks(&unit, nexus),
                    _ => {}
                }
                if function != 2 || self.group.is_shared() {
                    reset.push(unit);
                }
                task_response::COMPLETE
            }
            (6 | 7, _) => {
                jobs = self.abort_all(|_| true);
                device.reset();
                reset.extend(device.units().into_iter().map(|(_, unit)| unit));
                ends = (request.function == 7).then_some(ConnectionEnd::ColdReset);
                task_response::COMPLETE
            }
            (8, _) => task_response::NO_REASSIGNMENT,
            _ => task_response::NOT_SUPPORTED,
        };
        self.turns.has_aborted |= request.function != 1;
        // Steps that others have begun end before the response.
        if !reset.iter().all(|unit| unit.has_no_steps()) {
            let work = Work::WaitForSteps(reset);
            jobs.push(self.jobs.plan(session, work, Footprint::nothing(), Purpose::End));
        }
        let response = Response::Task(TaskResponse { task: request.task, response });
        self.postpone(Postponed { jobs, leaving: Vec::new(), response, ends }, output)
    }

    /// Logs out this connection, another one, or the session (RFC 7143, section 11.14). Returns why
    /// this one ends.
    pub(in crate::session) fn log_out(
        &mut self,
        logout: &Logout,
        output: &mut SendBuffer,
    ) -> Option<Closed> {
        let others = match logout.reason {
            0 => self.dismiss(|_| true),
            1 if self.is_number(logout.connection) => Vec::new(),
            1 => self.dismiss(|cid| cid == logout.connection),
            _ => Vec::new(),
        };
        let closes_this = logout.reason == 0 || self.is_number(logout.connection);
        let response = match logout.reason {
            0 | 1 if closes_this || !others.is_empty() => logout_response::CLOSED,
            0 | 1 => logout_response::NO_CONNECTION,
            _ => logout_response::NO_RECOVERY,
        };
        let (time_to_wait, time_to_retain) = (0, 0);
        let task = logout.task;
        let response = LogoutResponse { response, task, time_to_wait, time_to_retain };
        let response = Response::Logout(response);
        let (mut jobs, mut ends) = (Vec::new(), None);
        if logout.reason <= 1 && closes_this {
            self.is_leaving = true;
            (jobs, ends) = (self.abort_all(|_| true), Some(ConnectionEnd::LoggedOut));
        }
        self.postpone(Postponed { jobs, leaving: others, response, ends }, output)
    }

    /// Responds when jobs and connections have ended, which may be at once. Returns why the
    /// connection ends.
    fn postpone(&mut self, postponed: Postponed, output: &mut SendBuffer) -> Option<Closed> {
        if postponed.is_due() {
            return self.answer(&postponed, output);
        }
        self.postponed.push(postponed);
        None
    }

    /// Sends the responses that wait for nothing any more.
    pub(super) fn answer_due(&mut self, output: &mut SendBuffer) -> Option<Closed> {
        let due = take_due(&mut self.postponed);
        due.iter().fold(None, |closed, postponed| self.answer(postponed, output).or(closed))
    }

    fn answer(&mut self, postponed: &Postponed, output: &mut SendBuffer) -> Option<Closed> {
        if matches!(postponed.ends, Some(ConnectionEnd::LoggedOut))
            && !self.group.is_shared()
            && let Some(session) = &self.session
        {
            // An initiator that knows of the end must not meet what the session had reserved.
            session.device().detach(session.nexus.id);
        }
        self.respond(&postponed.response, &[], output);
        self.may_end |= postponed.ends.is_some();
        match (postponed.ends?, &self.session) {
            (ConnectionEnd::ColdReset, Some(session)) => {
                self.portal.close_all(session.device());
                Some(Closed::Reset)
            }
            _ => Some(Closed::LoggedOut),
        }
    }

    /// Aborts a task. Returns the response; jobs that have to end before are added to `jobs`.
    fn abort(&mut self, request: &TaskRequest, jobs: &mut Vec<JobId>) -> u8 {
        let tag = request.referenced;
        let mut is_found = false;
        if let Some(task) = self.tasks.remove(&tag) {
            self.release(&task);
            is_found = true;
        }
        let before = self.readings.len();
        self.readings.retain(|reading| reading.command.task != tag);
        is_found |= self.readings.len() < before;
        is_found |= self.jobs.readings().any(|reading| reading.command.task == tag);
        jobs.extend(self.jobs.abandon(|purpose| match purpose {
            Purpose::Read(reading) => reading.command.task == tag,
            Purpose::Task { tag: other, .. } => *other == tag,
            Purpose::End => false,
        }));
        // A command that is complete is no task any more (RFC 7143, section 11.5.1).
        if is_found { task_response::COMPLETE } else { task_response::NO_TASK }
    }

    /// Aborts the tasks of all units that are wanted. Returns jobs of them that have to end.
    pub(super) fn abort_all(&mut self, wanted: impl Fn(Option<&Arc<Unit>>) -> bool) -> Vec<JobId> {
        let aborted: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, task)| wanted(task.unit.as_ref().map(|(unit, _)| unit)))
            .map(|(tag, _)| *tag)
            .collect();
        for tag in &aborted {
            if let Some(task) = self.tasks.remove(tag) {
                self.release(&task);
            }
        }
        self.readings.retain(|reading| !wanted(Some(&reading.unit)));
        self.jobs.abandon(|purpose| match purpose {
            Purpose::Read(reading) => wanted(Some(&reading.unit)),
            Purpose::Task { tag, .. } => aborted.contains(tag),
            Purpose::End => false,
        })
    }
}
