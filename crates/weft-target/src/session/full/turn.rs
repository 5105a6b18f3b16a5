//! Turns of the connections of one session.

use super::FullFeature;
use crate::session::closed::Closed;
use crate::session::group::GroupState;
use crate::session::job::Job;
use crate::session::member::MemberId;
use crate::wire::Request;

impl FullFeature {
    /// Begins a turn: takes the session's jobs, and hears what others have done.
    pub(in crate::session) fn begin_turn(&mut self, shared: &mut GroupState) {
        let id = self.member;
        std::mem::swap(&mut self.jobs, &mut shared.jobs);
        self.jobs.member = id;
        let turns = &mut self.turns;
        turns.is_under_way = true;
        turns.waits_for = None;
        turns.has_predecessor = shared.has_predecessor(id);
        turns.members.clear();
        turns.members.extend(shared.members.iter().map(|each| (each.id, each.cid)));
        let is_member = |id: &MemberId| shared.members.iter().any(|each| each.id == *id);
        for postponed in &mut self.postponed {
            postponed.leaving.retain(is_member);
        }
        let must_leave = shared.member(id).is_none_or(|own| own.must_leave);
        if must_leave && !self.turns.must_leave {
            self.turns.must_leave = true;
            self.is_leaving = true;
            self.abort_all(|_| true);
        }
        if self.turns.aborts != shared.aborts {
            self.turns.aborts = shared.aborts;
            self.forget_aborted();
        }
    }

    /// Forgets the tasks that another connection has aborted: their initiator knows.
    fn forget_aborted(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        for (tag, task) in tasks {
            if task.is_aborted() {
                self.release(&task);
            } else {
                self.tasks.insert(tag, task);
            }
        }
        self.readings.retain(|reading| !reading.unit.is_aborted(reading.begun));
    }

    /// Ends a turn: gives the session's jobs back, and wakes the connections that can go on.
    pub(in crate::session) fn end_turn(&mut self, shared: &mut GroupState) {
        // What has ended widens the window for all.
        self.sequence();
        while let Some(job) = self.jobs.next() {
            self.turns.jobs.push_back(job);
        }
        let has_room = self.jobs.has_room();
        self.turns.has_room = has_room && self.turns.waits_for.is_none();
        if std::mem::take(&mut self.turns.has_aborted) {
            shared.aborts += 1;
            self.turns.aborts = shared.aborts;
            shared.members.iter().for_each(|each| self.group.wake(each.id));
        }
        let dismissed = std::mem::take(&mut self.turns.dismissed);
        self.group.dismiss(shared, |each| dismissed.contains(&each.id));
        let is_waiting = self.postponed.iter().any(|postponed| !postponed.leaving.is_empty());
        let is_stalled = !has_room || !self.readings.is_empty() && self.jobs.reading_len() > 0;
        let has_completed = std::mem::take(&mut self.turns.has_completed);
        let (waits_for, awaits_end) =
            (self.turns.waits_for, self.turns.has_predecessor || is_waiting);
        if let Some(own) = shared.member(self.member) {
            (own.waits_for, own.is_stalled, own.awaits_end) = (waits_for, is_stalled, awaits_end);
        }
        let expected = self.group.expected();
        for each in shared.members.iter().filter(|each| each.id != self.member) {
            let is_ready = self.jobs.ready_members().any(|id| id == each.id);
            let has_turn = each.waits_for.is_some_and(|number| is_before(number, expected));
            if is_ready || has_turn || each.is_stalled && has_completed {
                self.group.wake(each.id);
            }
        }
        std::mem::swap(&mut self.jobs, &mut shared.jobs);
        self.turns.is_under_way = false;
    }

    /// Shares the session, if it may have more connections and none could join so far.
    pub(in crate::session) fn share(&mut self) {
        if let Some(cid) = self.turns.unshared.take_if(|_| self.group.is_shared())
            && let Some(mut shared) = self.group.clone().turn()
        {
            self.turns.is_under_way = true;
            self.end_turn(&mut shared);
            drop(shared);
            self.group.open(cid);
        }
    }

    /// Whether a request has to wait for commands of other connections. The connection takes no
    /// input until then.
    pub(in crate::session) fn has_to_wait(&mut self, request: &Request) -> bool {
        if !self.turns.is_under_way {
            return false;
        }
        let Some(number) = request.command_number() else { return false };
        let window = self.sequence();
        let ahead = number.wrapping_sub(window.expected_command);
        let len = window.command_max.wrapping_sub(window.expected_command).wrapping_add(1);
        let is_early = ahead != 0 && ahead < len;
        self.turns.waits_for = is_early.then_some(number);
        is_early
    }

    /// A job that may be carried out.
    pub(in crate::session) fn next_job(&mut self) -> Option<Job> {
        if self.is_apart() { self.turns.jobs.pop_front() } else { self.jobs.next() }
    }

    /// Whether the session before, or another connection, has to end first.
    pub(in crate::session) fn is_opening(&self) -> bool {
        self.opens_after.is_some() || self.turns.has_predecessor
    }

    /// Whether more requests and data may come.
    pub(in crate::session) fn has_room(&self) -> bool {
        let has_room = if self.is_apart() {
            self.turns.has_room
        } else {
            self.jobs.has_room() && self.turns.waits_for.is_none()
        };
        has_room && !self.is_leaving
    }

    /// Why the connection ends, if another one has ended it and nothing is left of it.
    pub(in crate::session) fn dismissed(&mut self) -> Option<Closed> {
        let is_over = self.turns.must_leave && !self.jobs.has_of(self.member);
        self.may_end |= is_over;
        is_over.then_some(Closed::Dismissed)
    }

    /// Whether the jobs are with the other connections.
    fn is_apart(&self) -> bool {
        self.group.is_shared() && !self.turns.is_under_way
    }

    /// Whether the initiator's number of this connection is that.
    pub(super) fn is_number(&self, cid: u16) -> bool {
        !self.group.is_shared() || self.turns.members.contains(&(self.member, cid))
    }

    /// Ends the other connections whose numbers `wanted` selects, after this turn. Returns them.
    pub(super) fn dismiss(&mut self, wanted: impl Fn(u16) -> bool) -> Vec<MemberId> {
        let others =
            self.turns.members.iter().filter(|(id, cid)| *id != self.member && wanted(*cid));
        let others: Vec<MemberId> = others.map(|(id, _)| *id).collect();
        self.turns.dismissed.extend(&others);
        others
    }
}

/// Whether a command number is not after another one (RFC 7143, section 4.2.2.1: serial numbers).
fn is_before(number: u32, other: u32) -> bool {
    other.wrapping_sub(number) < 1 << 31
}
