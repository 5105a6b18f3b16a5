//! Full feature phase: commands, data, task management, text and logout.

mod management;
mod sending;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::addresses::Addresses;
use super::closed::Closed;
use super::group::Group;
use super::job::{Done, JobId, Work};
use super::jobs::{Footprint, Jobs, Purpose};
use super::login::LoggedIn;
use super::member::MemberId;
use super::outcome::{plan, residual, sense_segment};
use super::portal::{Announcement, OpenSession, Portal, Session};
use super::postponed::{Postponed, note_end};
use super::settings::Settings;
use super::stats::count;
use super::task::{DataSequence, Reading, Sink, Task};
use super::text_exchange::{TextExchange, Visible};
use super::turns::Turns;
use super::wake::Wake;
use crate::limits::{COMMAND_WINDOW, HELD_LEN_MAX};
use crate::scsi::{Begun, Ended, Failure, Kind, Plan, Sense, Stream, Unit, status};
use crate::wire::{
    AsyncMessage, DataIn, DataOut, Digests, NO_TAG, NopIn, NopOut, Pdu, R2t, Reject, Request,
    Residual, Response, ScsiCommand, ScsiResponse, SendBuffer, Sequence, Text, TextResponse,
    Unparsed, append, login_status, reject_reason,
};

/// The arguments of requests, besides the session.
#[derive(Debug)]
pub(super) struct Context<'a> {
    /// The targets.
    pub(super) portal: &'a Portal,
    /// The ends of the connection.
    pub(super) addresses: Addresses,
}

/// A connection whose initiator is logged in.
#[derive(Debug)]
pub(super) struct FullFeature {
    portal: Arc<Portal>,
    /// `None` in a discovery session.
    session: Option<Arc<OpenSession>>,
    /// The iSCSI name of the initiator.
    initiator: String,
    settings: Settings,
    /// What it shares with the other connections of its session.
    group: Arc<Group>,
    /// Its place among them.
    member: MemberId,
    /// The state that depends on its turns, if the session may have several connections.
    turns: Turns,
    /// Commands with a number that have begun and ended, and how far the first is ahead because of
    /// commands without one.
    numbers: Numbers,
    /// The next status number.
    status: u32,
    /// Commands that wait for data or for the store, by their tags.
    tasks: HashMap<u32, Task>,
    /// How many tasks there have been.
    last_task: u64,
    /// Commands whose data is being sent, in the order in which they came.
    readings: VecDeque<Reading>,
    /// Work that waits for the store. That of the session only in a turn.
    jobs: Jobs,
    /// Responses to requests that end commands, which wait for jobs of these commands.
    postponed: Vec<Postponed>,
    /// The initiator is logging out, or another connection has taken the place of this one.
    is_leaving: bool,
    /// It ends without harm to the others.
    may_end: bool,
    /// The initiator is to be asked to log out within this many seconds.
    log_out_within: Option<u16>,
    /// The job that waits for the session before.
    opens_after: Option<JobId>,
    /// Bytes that tasks collect.
    held_len: usize,
    next_transfer: u32,
    text: TextExchange,
}

/// How many commands have begun and ended.
#[derive(Debug, Default)]
struct Numbers {
    begun: u32,
    ended: u32,
    /// Immediate commands, which have not used the window, and whose ends do not widen it.
    immediate: u32,
}

impl Drop for FullFeature {
    fn drop(&mut self) {
        let Some(session) = &self.session else { return self.portal.end_discovery() };
        let left = self.group.leave(self.member);
        if left.others == 0 {
            // It is removed when its last job has ended.
            session.end(Closed::LoggedOut);
        } else if !self.may_end && !left.was_dismissed {
            // Nothing that is lost with a connection is sent again (RFC 7143, section 7.1.5: error
            // recovery level 0 knows only the recovery of sessions).
            session.close(Closed::SessionFailed);
        }
    }
}

impl FullFeature {
    /// Opens the session of an initiator at `from`, or joins the one that the login names.
    /// `numbers` are the next command number and the next status number. It is open when
    /// [`Self::is_opening`] says so.
    ///
    /// # Errors
    ///
    /// The status of the login: there are too many sessions or connections, or none to join.
    pub(super) fn new(
        portal: &Arc<Portal>,
        from: SocketAddr,
        logged_in: LoggedIn,
        numbers: (u32, u32),
        wake: Wake,
    ) -> Result<Self, u16> {
        let LoggedIn { initiator, target, mut settings, tsih, connection } = logged_in;
        let name = initiator.name.clone();
        let (expected_command, status) = numbers;
        if tsih != 0 {
            let open = target.and_then(|target| portal.find(target.device(), &initiator, tsih));
            let session = open.ok_or(login_status::SESSION_DOES_NOT_EXIST)?;
            let group = Group::of(&session).ok_or(login_status::CANNOT_JOIN)?;
            let (member, settings) = group.join(connection, settings, wake)?;
            let mut full = Self::with(portal, Some(session), name, (settings, group), status);
            (full.member, full.turns) = (member, Turns::joined());
            return Ok(full);
        }
        if target.is_none() {
            settings.connections_max = 1;
        }
        let group = Arc::new(Group::new(settings, expected_command, wake));
        let (session, before) = match target {
            Some(target) => {
                let shared = (Arc::clone(group.wakes()), Arc::clone(&group) as _);
                let opened = portal.open(target.device(), initiator, from, shared);
                let (session, before) = opened.ok_or(login_status::OUT_OF_RESOURCES)?;
                (Some(session), before)
            }
            None if portal.begin_discovery() => (None, None),
            None => return Err(login_status::OUT_OF_RESOURCES),
        };
        let mut full = Self::with(portal, session.clone(), name, (settings, group), status);
        full.turns = Turns::first(connection);
        if let (Some(session), Some(before)) = (&session, before) {
            let work = Work::Replace(before);
            let job = full.jobs.plan(session, work, Footprint::nothing(), Purpose::End);
            full.opens_after = Some(job);
        }
        Ok(full)
    }

    fn with(
        portal: &Arc<Portal>,
        session: Option<Arc<OpenSession>>,
        initiator: String,
        (settings, group): (Settings, Arc<Group>),
        status: u32,
    ) -> Self {
        Self {
            portal: Arc::clone(portal),
            session,
            initiator,
            settings,
            group,
            member: 0,
            turns: Turns::default(),
            numbers: Numbers::default(),
            status,
            tasks: HashMap::new(),
            last_task: 0,
            jobs: Jobs::default(),
            postponed: Vec::new(),
            is_leaving: false,
            may_end: false,
            log_out_within: None,
            opens_after: None,
            readings: VecDeque::new(),
            held_len: 0,
            next_transfer: 1,
            text: TextExchange::default(),
        }
    }

    /// Asks the initiator to log out within this many seconds, in the next turn.
    pub(super) fn ask_to_log_out(&mut self, seconds: u16) {
        self.log_out_within = Some(seconds);
    }

    /// Does what others have asked for. Returns why the connection ends, once the output is sent.
    ///
    /// # Errors
    ///
    /// If another connection has ended this one.
    pub(super) fn hear(&mut self, output: &mut SendBuffer) -> Result<Option<Closed>, Closed> {
        if let Some(closed) = self.dismissed() {
            return Err(closed);
        }
        if let Some(time) = self.log_out_within.take() {
            self.respond(&Response::Async(AsyncMessage::LogOut { time }), &[], output);
        }
        if let Some(session) = self.session.clone().filter(|session| session.has_announcements()) {
            self.announce(&session, output);
        }
        Ok(self.answer_due(output))
    }

    /// Says what has happened to units (RFC 7143, section 11.9: event 0).
    fn announce(&mut self, session: &Session, output: &mut SendBuffer) {
        let device = session.device();
        for announcement in session.take_announcements() {
            let (number, sense) = match announcement {
                Announcement::UnitsChanged => (0, Sense::LUNS_CHANGED),
                Announcement::CapacityChanged(number) => (number, Sense::CAPACITY_CHANGED),
            };
            let lun = [0, number, 0, 0, 0, 0, 0, 0];
            let segment = sense_segment(device, device.unit(lun).as_deref(), sense);
            self.respond(&Response::Async(AsyncMessage::Sense { lun }), &segment, output);
        }
    }

    /// The window of the session if the connection has joined it: the next command number, and the
    /// last one that may be used.
    pub(super) fn window(&self) -> Option<(u32, u32)> {
        (self.member != 0).then(|| (self.group.expected(), self.group.last()))
    }

    /// What the connections share, if the session may have several.
    pub(super) fn shared_group(&self) -> Option<Arc<Group>> {
        self.group.is_shared().then(|| Arc::clone(&self.group))
    }

    /// The session, unless it is one of discovery.
    pub(super) fn session(&self) -> Option<&Arc<OpenSession>> {
        self.session.as_ref()
    }

    /// The target's part of the session's identity.
    pub(super) fn tsih(&self) -> u16 {
        self.session.as_ref().map_or(1, |session| session.tsih)
    }

    /// The settings that the login has agreed on.
    pub(super) fn digests(&self) -> Digests {
        self.settings.digests
    }

    /// Whether the memory that a write over RDMA names has all of its data.
    pub(super) fn has_whole_buffers(&self) -> bool {
        self.settings.has_whole_buffers
    }

    /// Handles a request. Returns why the connection ends, once the output is sent.
    ///
    /// # Errors
    ///
    /// If the connection has to be closed at once.
    pub(super) fn handle(
        &mut self,
        request: Result<Request, Unparsed>,
        pdu: &Pdu<'_>,
        context: &Context<'_>,
        output: &mut SendBuffer,
    ) -> Result<Option<Closed>, Closed> {
        let request = match request {
            Ok(request) => request,
            Err(Unparsed { .. }) => {
                self.reject(reject_reason::NOT_SUPPORTED, pdu, output);
                return Ok(None);
            }
        };
        if !self.is_next(&request)? {
            return Ok(None);
        }
        match request {
            Request::Nop(nop) => self.ping(&nop, pdu.data, output),
            Request::Text(text) => self.text(&text, pdu, context, output)?,
            Request::Logout(logout) => return Ok(self.log_out(&logout, output)),
            Request::Login(_) => return Err(Closed::Protocol("a login request after the login")),
            Request::Snack(_) => self.reject(reject_reason::SNACK, pdu, output),
            Request::Scsi(_) | Request::Task(_) | Request::DataOut(_) => {
                let Some(session) = self.session.clone() else {
                    return Err(Closed::Protocol("a command in a discovery session"));
                };
                match request {
                    Request::Scsi(command) => {
                        self.command(&session, &command, pdu, output)?;
                    }
                    Request::DataOut(data) => self.data_out(&session, &data, pdu, output)?,
                    Request::Task(request) => {
                        return Ok(self.manage(&session, &request, output));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Whether a request is the next one by its command number. Others outside of the window are
    /// ignored (RFC 7143, section 4.2.2.1).
    fn is_next(&mut self, request: &Request) -> Result<bool, Closed> {
        let Some(number) = request.command_number() else {
            if matches!(request, Request::Scsi(_)) {
                self.numbers.begun = self.numbers.begun.wrapping_add(1);
                self.numbers.immediate += 1;
            }
            return Ok(true);
        };
        let window = self.sequence();
        let ahead = number.wrapping_sub(window.expected_command);
        let len = window.command_max.wrapping_sub(window.expected_command).wrapping_add(1);
        if ahead >= len {
            return Ok(false);
        }
        if ahead != 0 {
            // One connection delivers in order, and nothing is sent again on it.
            return Err(Closed::Protocol("a command number is missing"));
        }
        self.group.count_command();
        self.numbers.begun = self.numbers.begun.wrapping_add(1);
        Ok(true)
    }

    /// The sequence numbers of a response.
    pub(super) fn sequence(&mut self) -> Sequence {
        self.sequence_with(0)
    }

    /// The sequence numbers while this many tasks more than are in the tables are outstanding.
    fn sequence_with(&mut self, more: u32) -> Sequence {
        let outstanding = self.outstanding() as u32 + more;
        self.group.count_ended(self.numbers.end(outstanding));
        Sequence {
            status: self.status,
            expected_command: self.group.expected(),
            command_max: self.group.last(),
        }
    }

    /// The commands that have not ended.
    fn outstanding(&self) -> usize {
        self.tasks.len() + self.readings.len() + self.jobs.readings().count()
    }

    /// Appends a response that has a status number.
    fn respond(&mut self, response: &Response, data: &[u8], output: &mut SendBuffer) {
        append(output, response, self.sequence(), self.settings.digests, data);
        self.status = self.status.wrapping_add(1);
    }

    fn reject(&mut self, reason: u8, pdu: &Pdu<'_>, output: &mut SendBuffer) {
        self.respond(&Response::Reject(Reject { reason }), pdu.header, output);
    }

    fn ping(&mut self, nop: &NopOut, data: &[u8], output: &mut SendBuffer) {
        if nop.task == NO_TAG {
            return;
        }
        let response = Response::Nop(NopIn { task: nop.task, transfer: NO_TAG, lun: nop.lun });
        let len = data.len().min(self.settings.send_len_max as usize);
        self.respond(&response, &data[..len], output);
    }

    fn text(
        &mut self,
        request: &Text,
        pdu: &Pdu<'_>,
        context: &Context<'_>,
        output: &mut SendBuffer,
    ) -> Result<(), Closed> {
        let visible = Visible {
            portal: context.portal,
            addresses: context.addresses,
            own: self.session.as_ref().map(|session| session.device().name()),
            initiator: &self.initiator,
        };
        let len_max = self.settings.send_len_max as usize;
        let next = self.text.receive((request, pdu.data), len_max, &visible)?;
        let answer = match next {
            Ok(next) => next,
            Err(reason) => {
                self.reject(reason, pdu, output);
                return Ok(());
            }
        };
        let response = TextResponse {
            is_final: answer.is_over,
            continues: answer.continues,
            lun: request.lun,
            task: request.task,
            transfer: if answer.is_over { NO_TAG } else { 1 },
        };
        self.respond(&Response::Text(response), &answer.text, output);
        Ok(())
    }

    fn command(
        &mut self,
        session: &Arc<OpenSession>,
        command: &ScsiCommand,
        pdu: &Pdu<'_>,
        output: &mut SendBuffer,
    ) -> Result<(), Closed> {
        if self.tasks.contains_key(&command.task)
            || self.readings.iter().any(|reading| reading.command.task == command.task)
            || self.jobs.readings().any(|reading| reading.command.task == command.task)
        {
            self.reject(reject_reason::TASK_IN_PROGRESS, pdu, output);
            return Ok(());
        }
        if self.outstanding() >= 2 * COMMAND_WINDOW as usize {
            self.reject(reject_reason::IMMEDIATE, pdu, output);
            return Ok(());
        }
        let since = self.portal.now();
        count(&session.counters().commands, 1);
        count(&session.counters().written_bytes, pdu.data.len());
        if command.writes {
            let unsolicited_max = self.settings.first_burst_len.min(command.expected_len);
            if !pdu.data.is_empty() && !self.settings.immediate_data
                || !command.is_final && self.settings.initial_r2t
                || pdu.data.len() as u64 > u64::from(unsolicited_max)
            {
                return Err(Closed::Protocol("unsolicited data that was not agreed on"));
            }
        } else if !pdu.data.is_empty() || !command.is_final {
            return Err(Closed::Protocol("data with a command that does not write"));
        }
        // What aborts tasks from here on aborts this one, too.
        let unit = session.device().unit(command.lun).map(|unit| {
            let begun = unit.begin(session.nexus.id);
            (unit, begun)
        });
        let plan = plan(session, unit.as_ref(), command, pdu);
        match plan {
            Ok(Plan::Read { range, flushes }) if !command.writes => {
                let Some((unit, begun)) = unit else { return Ok(()) };
                let (command, sent, pdus, loaded) = (*command, 0, 0, (Vec::new(), 0));
                let reading =
                    Reading { command, unit, begun, range, flushes, loaded, sent, pdus, since };
                self.readings.push_back(reading);
                Ok(())
            }
            Ok(Plan::Finished(data)) if !command.writes => {
                self.finish_with_data(session, command, &data, output);
                self.measure(unit.as_ref(), (Kind::Other, since), 0, false);
                Ok(())
            }
            Err(failure) if !command.writes => {
                let residual = residual(0, command.read_len());
                self.measure(unit.as_ref(), (Kind::Other, since), 0, true);
                let unit = unit.as_ref().map(|(unit, _)| &**unit);
                self.fail(session, command, unit, failure, (residual, 0), output);
                Ok(())
            }
            plan => {
                self.start_write(session, (command, since), unit, plan, pdu, output);
                Ok(())
            }
        }
    }

    /// Starts a command with data from the initiator, be it wanted or not, or one that the store
    /// carries out.
    fn start_write(
        &mut self,
        session: &Arc<OpenSession>,
        (command, since): (&ScsiCommand, Duration),
        unit: Option<(Arc<Unit>, Begun)>,
        plan: Result<Plan, Failure>,
        pdu: &Pdu<'_>,
        output: &mut SendBuffer,
    ) {
        let expected = u64::from(command.write_len());
        let room = HELD_LEN_MAX - self.held_len;
        let (sink, wanted_len) = Sink::of(plan, unit.as_ref(), expected, room);
        let held_len = if matches!(sink, Sink::Collect(..)) { wanted_len as usize } else { 0 };
        let end = match &sink {
            Sink::Stream(..) | Sink::Collect(..) => wanted_len.min(expected) as u32,
            Sink::Run { .. } | Sink::Drop(_) => 0,
        };
        let kind = match sink {
            Sink::Stream(_, Stream::Write { .. }) => Kind::Write,
            _ => Kind::Other,
        };
        self.held_len += held_len;
        self.last_task += 1;
        let unsolicited_end = self.settings.first_burst_len.min(command.expected_len);
        let mut task = Task {
            command: *command,
            unit,
            serial: self.last_task,
            kind,
            sink,
            pending: 0,
            held_len,
            failure: None,
            wanted_len,
            received: 0,
            end,
            sequence: DataSequence::unsolicited(command, unsolicited_end),
            r2ts: 0,
            since,
        };
        self.take(session, &mut task, 0, pdu.data);
        self.advance(session, task, output);
    }

    fn data_out(
        &mut self,
        session: &Arc<OpenSession>,
        data: &DataOut,
        pdu: &Pdu<'_>,
        output: &mut SendBuffer,
    ) -> Result<(), Closed> {
        // Data of an aborted task may still be on its way.
        let Some(mut task) = self.tasks.remove(&data.task) else { return Ok(()) };
        if task.sequence.is_over {
            // It waits for the store, and has got all that it wants or has failed.
            self.tasks.insert(data.task, task);
            return Ok(());
        }
        let sequence = &mut task.sequence;
        let end = u64::from(data.offset) + pdu.data.len() as u64;
        let is_short = data.is_final && data.transfer != NO_TAG && end < u64::from(sequence.end);
        let is_valid = data.transfer == sequence.transfer
            && data.number == sequence.number
            && data.offset == task.received
            && end <= u64::from(sequence.end)
            && !is_short;
        if !is_valid {
            // The command ends; what else comes for it is ignored (RFC 7143, section 7.9).
            sequence.is_over = true;
            task.failure = Some(Sense::DATA_SEQUENCE.into());
            self.advance(session, task, output);
            return Ok(());
        }
        count(&session.counters().written_bytes, pdu.data.len());
        sequence.number = sequence.number.wrapping_add(1);
        sequence.is_over = data.is_final;
        self.take(session, &mut task, data.offset, pdu.data);
        self.advance(session, task, output);
        Ok(())
    }

    /// Handles data at an offset of a task's data.
    fn take(&mut self, session: &Arc<OpenSession>, task: &mut Task, offset: u32, data: &[u8]) {
        let useful = task.receive(offset, data);
        let (range, stream) = match &mut task.sink {
            Sink::Collect(collected, _) => return collected.extend_from_slice(useful),
            Sink::Stream(range, stream) if !useful.is_empty() => (range.clone(), *stream),
            _ => return,
        };
        let Some((unit, begun)) = &task.unit else { return };
        let (start, at) = (range.start, range.start + u64::from(offset));
        let used = || {
            let changes = matches!(stream, Stream::Write { .. });
            Footprint::of_part(&task.command, unit, at..at + useful.len() as u64, changes)
        };
        if (self.jobs.is_empty() || !self.jobs.conflicts(&used()))
            && let Some(handled) = unit.try_stream(*begun, stream, start, at, useful)
        {
            task.failure = handled.err();
            return;
        }
        let is_last = task.has_all() && task.pending == 0;
        let (used, unit, begun) = (used(), Arc::clone(unit), *begun);
        let (bytes, offset) = (useful.to_vec(), at);
        let work = Work::Stream { unit, begun, stream, start, offset, bytes, is_last };
        if is_last {
            task.sink = Sink::Drop(Ok(Vec::new()));
        }
        self.plan_for(session, task, work, used);
    }

    /// Plans a job of a task.
    fn plan_for(
        &mut self,
        session: &Arc<OpenSession>,
        task: &mut Task,
        work: Work,
        used: Footprint,
    ) {
        let purpose = Purpose::Task { tag: task.command.task, serial: task.serial };
        self.jobs.plan(session, work, used, purpose);
        task.pending += 1;
    }

    /// Asks for more data of a task, or finishes it.
    fn advance(&mut self, session: &Arc<OpenSession>, mut task: Task, output: &mut SendBuffer) {
        if task.is_aborted() {
            // Another initiator has aborted it: there is no response (SAM-5, TAS is 0).
            self.release(&task);
            return;
        }
        if !task.sequence.is_over {
            self.tasks.insert(task.command.task, task);
            return;
        }
        if task.received < task.end && task.failure.is_none() {
            let transfer = self.next_transfer;
            self.next_transfer = if transfer + 1 == NO_TAG { 1 } else { transfer + 1 };
            let len = (task.end - task.received).min(self.settings.burst_len_max);
            let r2t = R2t {
                lun: task.command.lun,
                task: task.command.task,
                transfer,
                number: task.r2ts,
                offset: task.received,
                len,
            };
            let sequence = self.sequence_with(1);
            append(output, &Response::R2t(r2t), sequence, self.settings.digests, &[]);
            task.r2ts += 1;
            let end = task.received + len;
            task.sequence = DataSequence { transfer, number: 0, end, is_over: false };
            self.tasks.insert(task.command.task, task);
            return;
        }
        if task.pending > 0 {
            self.tasks.insert(task.command.task, task);
            return;
        }
        self.finish_write(session, task, output);
    }

    /// Finishes a task that has all its data and no job under way.
    fn finish_write(
        &mut self,
        session: &Arc<OpenSession>,
        mut task: Task,
        output: &mut SendBuffer,
    ) {
        let sink = std::mem::replace(&mut task.sink, Sink::Drop(Ok(Vec::new())));
        let (command, cdb) = (&task.command, task.command.cdb);
        let (work, used, is_instant) = match (task.failure, sink, task.unit.clone()) {
            (None, Sink::Stream(_, stream @ Stream::Write { through: true }), Some((unit, _))) => {
                let is_instant = unit.is_instant();
                (Work::EndStream { unit, stream }, Footprint::nothing(), is_instant)
            }
            (None, Sink::Collect(data, finish), Some((unit, begun))) => {
                let used = Footprint::of_whole(command, &unit, true);
                let work = Work::Finish { unit, begun, cdb, finish, data };
                (work, used, session.device().is_instant())
            }
            (None, Sink::Run { run, changes }, Some((unit, begun))) => {
                let used = Footprint::of_whole(command, &unit, changes);
                (Work::Run { unit, begun, cdb, run }, used, session.device().is_instant())
            }
            (failure, sink, _) => {
                let result = match (failure, sink) {
                    (Some(failure), _) => Err(failure),
                    (None, Sink::Drop(result)) => result,
                    (None, _) => Ok(Vec::new()),
                };
                return self.end_task(session, &task, result, output);
            }
        };
        if is_instant && !self.jobs.conflicts(&used) {
            let result = work.carry_out(session);
            return self.end_task(session, &task, result, output);
        }
        self.plan_for(session, &mut task, work, used);
        self.tasks.insert(task.command.task, task);
    }

    /// Responds to a task. The result has data for an initiator that sends none.
    fn end_task(
        &mut self,
        session: &Session,
        task: &Task,
        result: Result<Vec<u8>, Failure>,
        output: &mut SendBuffer,
    ) {
        self.release(task);
        let (command, unit) = (&task.command, task.unit.as_ref());
        let bytes = if task.kind == Kind::Write { task.received.min(task.end) } else { 0 };
        self.measure(unit, (task.kind, task.since), bytes, result.is_err());
        let residual = match command.writes {
            true => residual(task.wanted_len, command.write_len()),
            false => residual(0, command.read_len()),
        };
        match result {
            Ok(data) if !command.writes => self.finish_with_data(session, command, &data, output),
            Ok(_) => self.respond_status(command, status::GOOD, residual, task.r2ts, &[], output),
            Err(failure) => {
                let unit = unit.map(|(unit, _)| &**unit);
                self.fail(session, command, unit, failure, (residual, task.r2ts), output);
            }
        }
    }

    /// Takes the result of a job. Returns why the connection ends, once the output is sent.
    pub(super) fn complete(&mut self, done: Done, output: &mut SendBuffer) -> Option<Closed> {
        let session = self.session.clone()?;
        match self.jobs.end(done.id) {
            Some(Purpose::Read(reading)) => self.loaded(&session, reading, done.result, output),
            Some(Purpose::Task { tag, serial }) => {
                // An aborted task is not there, or another one has its tag.
                if self.tasks.get(&tag).is_some_and(|task| task.serial == serial)
                    && let Some(mut task) = self.tasks.remove(&tag)
                {
                    task.pending -= 1;
                    match done.result {
                        Ok(data) if data.is_empty() => {}
                        Ok(data) => task.sink = Sink::Drop(Ok(data)),
                        Err(failure) => _ = task.failure.get_or_insert(failure),
                    }
                    self.advance(&session, task, output);
                }
            }
            Some(Purpose::End) | None => {}
        }
        self.turns.has_completed = true;
        self.opens_after.take_if(|job| *job == done.id);
        note_end(&mut self.postponed, done.id);
        self.answer_due(output)
    }

    fn release(&mut self, task: &Task) {
        self.held_len -= task.held_len;
    }

    /// Completes a command with data that is not of the medium.
    fn finish_with_data(
        &mut self,
        session: &Session,
        command: &ScsiCommand,
        data: &[u8],
        output: &mut SendBuffer,
    ) {
        let expected = command.read_len();
        let residual = residual(data.len() as u64, expected);
        let sent = &data[..data.len().min(expected as usize)];
        count(&session.counters().read_bytes, sent.len());
        let max = self.settings.data_in_len_max() as usize;
        if sent.is_empty() {
            self.respond_status(command, status::GOOD, residual, 0, &[], output);
            return;
        }
        let parts = sent.chunks(max);
        let count = parts.len();
        for (index, part) in parts.enumerate() {
            let is_last = index + 1 == count;
            let data_in = DataIn {
                is_final: is_last,
                status: is_last.then_some(status::GOOD),
                residual,
                task: command.task,
                number: index as u32,
                offset: (index * max) as u32,
            };
            let (sequence, digests) = (self.sequence(), self.settings.digests);
            append(output, &Response::DataIn(data_in), sequence, digests, part);
        }
        self.status = self.status.wrapping_add(1);
    }

    /// Completes a command that has failed.
    fn fail(
        &mut self,
        session: &Session,
        command: &ScsiCommand,
        unit: Option<&Unit>,
        failure: Failure,
        (residual, data_pdus): (Residual, u32),
        output: &mut SendBuffer,
    ) {
        let (status, sense) = match failure {
            Failure::Aborted => return,
            Failure::Conflict => (status::RESERVATION_CONFLICT, Vec::new()),
            Failure::Sense(sense) => {
                (status::CHECK_CONDITION, sense_segment(session.device(), unit, sense))
            }
        };
        self.respond_status(command, status, residual, data_pdus, &sense, output);
    }

    fn respond_status(
        &mut self,
        command: &ScsiCommand,
        status: u8,
        residual: Residual,
        data_pdus: u32,
        sense: &[u8],
        output: &mut SendBuffer,
    ) {
        let response =
            ScsiResponse { task: command.task, response: 0, status, residual, data_pdus };
        self.respond(&Response::Scsi(response), sense, output);
    }

    /// Counts a command that ends now.
    fn measure(
        &self,
        unit: Option<&(Arc<Unit>, Begun)>,
        (kind, since): (Kind, Duration),
        bytes: u32,
        is_failed: bool,
    ) {
        let time = self.portal.now().saturating_sub(since);
        if let Some((unit, _)) = unit {
            unit.count(Ended { kind, time, bytes: bytes.into(), is_failed });
        }
    }
}

impl Numbers {
    /// Whether the end of a command does not widen the window.
    fn has_immediate(&self) -> bool {
        self.immediate > 0
    }

    /// Notes that all commands but `outstanding` ones have ended. Returns by how many the window
    /// grows.
    fn end(&mut self, outstanding: u32) -> u32 {
        let ended = self.begun.wrapping_sub(outstanding);
        let number = ended.wrapping_sub(self.ended);
        self.ended = ended;
        let immediate = number.min(self.immediate);
        self.immediate -= immediate;
        number - immediate
    }
}
