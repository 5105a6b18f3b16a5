//! Full feature phase: commands, data, task management, text and logout.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::addresses::Addresses;
use super::closed::Closed;
use super::login::LoggedIn;
use super::portal::{Portal, Session, Wake};
use super::settings::Settings;
use super::stats::count;
use super::task::{DataSequence, Reading, Sink, Task};
use crate::limits::{COMMAND_WINDOW, HELD_LEN_MAX, OUTPUT_LEN_MAX, TEXT_LEN_MAX};
use crate::scsi::{self, Begun, Device, Ended, Failure, Kind, Plan, Sense, Stream, Unit, status};
use crate::wire::{
    AsyncMessage, DataIn, DataOut, Digests, LogoutResponse, NO_TAG, NopIn, NopOut, Pdu, R2t,
    Reject, Request, Residual, Response, ScsiCommand, ScsiResponse, Sequence, TaskRequest,
    TaskResponse, Text, TextResponse, Unparsed, append, append_with, logout_response, pairs,
    push_pair, reject_reason, task_response,
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
    session: Option<Arc<Session>>,
    /// The iSCSI name of the initiator.
    initiator: String,
    settings: Settings,
    /// The next command number.
    expected_command: u32,
    /// The next status number.
    status: u32,
    /// Commands that wait for data, by their tags.
    tasks: HashMap<u32, Task>,
    /// Commands whose data is being sent, in the order in which they came.
    readings: VecDeque<Reading>,
    /// Bytes that tasks collect.
    held_len: usize,
    next_transfer: u32,
    /// The text of a request that goes on, and the answer that is left to send.
    text: Vec<u8>,
    answer: Vec<u8>,
}

impl Drop for FullFeature {
    fn drop(&mut self) {
        match &self.session {
            Some(session) => self.portal.remove(session),
            None => self.portal.end_discovery(),
        }
    }
}

impl FullFeature {
    /// Opens the session of an initiator at `from`. `numbers` are the next command number and the
    /// next status number. `None` if there are too many sessions.
    pub(super) fn new(
        portal: &Arc<Portal>,
        from: SocketAddr,
        logged_in: LoggedIn,
        numbers: (u32, u32),
        wake: Wake,
    ) -> Option<Self> {
        let LoggedIn { initiator, target, settings } = logged_in;
        let name = initiator.name.clone();
        let session = match target {
            Some(target) => Some(portal.open(target.device(), initiator, from, wake)?),
            None if portal.begin_discovery() => None,
            None => return None,
        };
        let (expected_command, status) = numbers;
        Some(Self {
            portal: Arc::clone(portal),
            session,
            initiator: name,
            settings,
            expected_command,
            status,
            tasks: HashMap::new(),
            readings: VecDeque::new(),
            held_len: 0,
            next_transfer: 1,
            text: Vec::new(),
            answer: Vec::new(),
        })
    }

    /// Asks the initiator to log out within this many seconds.
    pub(super) fn ask_to_log_out(&mut self, seconds: u16, output: &mut Vec<u8>) {
        self.respond(&Response::Async(AsyncMessage { time: seconds }), &[], output);
    }

    /// The session, unless it is one of discovery.
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
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
        output: &mut Vec<u8>,
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
            Request::Logout(logout) => {
                let response = match logout.reason {
                    0 | 1 => logout_response::CLOSED,
                    _ => logout_response::NO_RECOVERY,
                };
                let (time_to_wait, time_to_retain) = (0, 0);
                let task = logout.task;
                let response = LogoutResponse { response, task, time_to_wait, time_to_retain };
                self.respond(&Response::Logout(response), &[], output);
                if logout.reason <= 1 {
                    return Ok(Some(Closed::LoggedOut));
                }
            }
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
        let (is_immediate, number) = match request {
            Request::Nop(nop) => (nop.is_immediate, nop.command_number),
            Request::Scsi(command) => (command.is_immediate, command.command_number),
            Request::Task(request) => (request.is_immediate, request.command_number),
            Request::Text(text) => (text.is_immediate, text.command_number),
            Request::Logout(logout) => (logout.is_immediate, logout.command_number),
            Request::Login(_) | Request::DataOut(_) | Request::Snack(_) => return Ok(true),
        };
        if is_immediate {
            return Ok(true);
        }
        let ahead = number.wrapping_sub(self.expected_command);
        let window = self.sequence().command_max.wrapping_sub(self.expected_command);
        if ahead > window || window == u32::MAX {
            return Ok(false);
        }
        if ahead != 0 {
            // One connection delivers in order, and nothing is sent again on it.
            return Err(Closed::Protocol("a command number is missing"));
        }
        self.expected_command = self.expected_command.wrapping_add(1);
        Ok(true)
    }

    fn sequence(&self) -> Sequence {
        let outstanding = (self.tasks.len() + self.readings.len()) as u32;
        let free = COMMAND_WINDOW.saturating_sub(outstanding);
        Sequence {
            status: self.status,
            expected_command: self.expected_command,
            command_max: self.expected_command.wrapping_add(free).wrapping_sub(1),
        }
    }

    /// Appends a response that has a status number.
    fn respond(&mut self, response: &Response, data: &[u8], output: &mut Vec<u8>) {
        append(output, response, self.sequence(), self.settings.digests, data);
        self.status = self.status.wrapping_add(1);
    }

    fn reject(&mut self, reason: u8, pdu: &Pdu<'_>, output: &mut Vec<u8>) {
        self.respond(&Response::Reject(Reject { reason }), pdu.header, output);
    }

    fn ping(&mut self, nop: &NopOut, data: &[u8], output: &mut Vec<u8>) {
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
        output: &mut Vec<u8>,
    ) -> Result<(), Closed> {
        if request.transfer == NO_TAG {
            // A new exchange; what is left of another one is dropped.
            self.text.clear();
            self.answer.clear();
        }
        if self.text.len() + pdu.data.len() > TEXT_LEN_MAX {
            self.reject(reject_reason::OUT_OF_RESOURCES, pdu, output);
            return Ok(());
        }
        self.text.extend_from_slice(pdu.data);
        if !request.continues && !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            let pairs = pairs(&text)?;
            let mut keys = HashSet::new();
            // A key that came again and again would have a long answer each time.
            if !pairs.iter().all(|(key, _)| keys.insert(*key)) {
                self.reject(reject_reason::PROTOCOL_ERROR, pdu, output);
                return Ok(());
            }
            for (key, value) in pairs {
                self.answer_key(key, value, context);
            }
        }
        let len = self.answer.len().min(self.settings.send_len_max as usize);
        let answer: Vec<u8> = self.answer.drain(..len).collect();
        let is_over = self.answer.is_empty() && !request.continues && request.is_final;
        let response = TextResponse {
            is_final: is_over,
            continues: !self.answer.is_empty(),
            lun: request.lun,
            task: request.task,
            transfer: if is_over { NO_TAG } else { 1 },
        };
        self.respond(&Response::Text(response), &answer, output);
        Ok(())
    }

    fn answer_key(&mut self, key: &str, value: &str, context: &Context<'_>) {
        if key != "SendTargets" {
            push_pair(&mut self.answer, key, "NotUnderstood");
            return;
        }
        // Discovery may ask for all, a normal session for its own target (RFC 7143, appendix C).
        let own = self.session.as_ref().map(|session| session.device().name().to_owned());
        for target in context.portal.targets() {
            let device = target.device();
            let is_own = own.as_deref() == Some(device.name());
            let wanted = match value {
                "All" => own.is_none(),
                "" => is_own,
                name => device.name().eq_ignore_ascii_case(name) && (own.is_none() || is_own),
            };
            let access = target.access();
            let is_visible = access.admits_address(context.addresses.remote.ip())
                && access.admits_name(&self.initiator);
            if wanted && is_visible {
                push_pair(&mut self.answer, "TargetName", device.name());
                let address = format!("{},1", context.addresses.local);
                push_pair(&mut self.answer, "TargetAddress", &address);
            }
        }
    }

    fn command(
        &mut self,
        session: &Session,
        command: &ScsiCommand,
        pdu: &Pdu<'_>,
        output: &mut Vec<u8>,
    ) -> Result<(), Closed> {
        if self.tasks.contains_key(&command.task)
            || self.readings.iter().any(|reading| reading.command.task == command.task)
        {
            self.reject(reject_reason::TASK_IN_PROGRESS, pdu, output);
            return Ok(());
        }
        if self.tasks.len() + self.readings.len() >= 2 * COMMAND_WINDOW as usize {
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
            Ok(Plan::Read(range)) if !command.writes => {
                let Some((unit, begun)) = unit else { return Ok(()) };
                let (command, sent, pdus) = (*command, 0, 0);
                let reading = Reading { command, unit, begun, range, sent, pdus, since };
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

    /// Starts a command with data from the initiator, be it wanted or not.
    fn start_write(
        &mut self,
        session: &Session,
        (command, since): (&ScsiCommand, Duration),
        unit: Option<(Arc<Unit>, Begun)>,
        plan: Result<Plan, Failure>,
        pdu: &Pdu<'_>,
        output: &mut Vec<u8>,
    ) {
        let expected = u64::from(command.write_len());
        let (sink, wanted_len) = match plan {
            Ok(Plan::Stream(range, stream)) if range.end - range.start > expected => {
                let wanted = range.end - range.start;
                match &unit {
                    // The blocks that come are handled.
                    Some((unit, _)) if expected % u64::from(unit.options().block_len) == 0 => {
                        (Sink::Stream(range.start..range.start + expected, stream), wanted)
                    }
                    // A part of a block cannot be.
                    _ => (Sink::Drop(Err(Sense::INVALID_INFORMATION_UNIT.into())), wanted),
                }
            }
            Ok(Plan::Receive(len, _)) if len as u64 > expected => {
                (Sink::Drop(Err(Sense::INVALID_INFORMATION_UNIT.into())), len as u64)
            }
            Ok(Plan::Stream(range, stream)) => {
                let len = range.end - range.start;
                (Sink::Stream(range, stream), len)
            }
            Ok(Plan::Receive(len, _)) if self.held_len + len > HELD_LEN_MAX => {
                (Sink::Drop(Err(Sense::INTERNAL_FAILURE.into())), len as u64)
            }
            Ok(Plan::Receive(len, finish)) => {
                self.held_len += len;
                (Sink::Collect(Vec::with_capacity(len), finish), len as u64)
            }
            // The initiator expects no data, and gets none.
            Ok(Plan::Read(_)) => (Sink::Drop(Ok(Vec::new())), 0),
            Ok(Plan::Finished(data)) => (Sink::Drop(Ok(data)), 0),
            Err(failure) => (Sink::Drop(Err(failure)), 0),
        };
        let end = match &sink {
            Sink::Stream(..) | Sink::Collect(..) => wanted_len.min(expected) as u32,
            Sink::Drop(_) => 0,
        };
        let unsolicited_end = self.settings.first_burst_len.min(command.expected_len);
        let mut task = Task {
            command: *command,
            unit,
            sink,
            failure: None,
            wanted_len,
            received: 0,
            end,
            sequence: DataSequence::unsolicited(command, unsolicited_end),
            r2ts: 0,
            since,
        };
        task.take(0, pdu.data);
        self.advance(session, task, output);
    }

    fn data_out(
        &mut self,
        session: &Session,
        data: &DataOut,
        pdu: &Pdu<'_>,
        output: &mut Vec<u8>,
    ) -> Result<(), Closed> {
        // Data of an aborted task may still be on its way.
        let Some(mut task) = self.tasks.remove(&data.task) else { return Ok(()) };
        let sequence = &mut task.sequence;
        let end = u64::from(data.offset) + pdu.data.len() as u64;
        let is_short = data.is_final && data.transfer != NO_TAG && end < u64::from(sequence.end);
        let is_valid = !sequence.is_over
            && data.transfer == sequence.transfer
            && data.number == sequence.number
            && data.offset == task.received
            && end <= u64::from(sequence.end)
            && !is_short;
        if !is_valid {
            // The command ends; what else comes for it is ignored (RFC 7143, section 7.9).
            task.failure = Some(Sense::DATA_SEQUENCE.into());
            self.finish_write(session, task, output);
            return Ok(());
        }
        count(&session.counters().written_bytes, pdu.data.len());
        sequence.number = sequence.number.wrapping_add(1);
        sequence.is_over = data.is_final;
        task.take(data.offset, pdu.data);
        self.advance(session, task, output);
        Ok(())
    }

    /// Asks for more data of a task, or finishes it.
    fn advance(&mut self, session: &Session, mut task: Task, output: &mut Vec<u8>) {
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
        self.finish_write(session, task, output);
    }

    /// The sequence numbers while this many tasks more than are in the tables are outstanding.
    fn sequence_with(&self, more: u32) -> Sequence {
        let sequence = self.sequence();
        Sequence { command_max: sequence.command_max.wrapping_sub(more), ..sequence }
    }

    fn finish_write(&mut self, session: &Session, task: Task, output: &mut Vec<u8>) {
        self.release(&task);
        let (command, unit) = (&task.command, task.unit.as_ref());
        let kind = match task.sink {
            Sink::Stream(_, Stream::Write { .. }) => Kind::Write,
            _ => Kind::Other,
        };
        let bytes = if kind == Kind::Write { task.received.min(task.end) } else { 0 };
        let done = match (task.failure, task.sink) {
            (Some(failure), _) => Err(failure),
            (None, Sink::Drop(result)) => result.map(|_| ()),
            (None, Sink::Stream(_, stream)) => match unit {
                Some((unit, _)) => unit.end_stream(stream).map_err(Failure::Sense),
                None => Ok(()),
            },
            (None, Sink::Collect(data, finish)) => match unit {
                Some((unit, begun)) => scsi::finish(
                    session.device(),
                    unit,
                    (&session.nexus, *begun),
                    &command.cdb,
                    finish,
                    &data,
                ),
                None => Ok(()),
            },
        };
        let residual = residual(task.wanted_len, command.write_len());
        self.measure(unit, (kind, task.since), bytes, done.is_err());
        match done {
            Ok(()) => self.respond_status(command, status::GOOD, residual, task.r2ts, &[], output),
            Err(failure) => {
                let unit = unit.map(|(unit, _)| &**unit);
                self.fail(session, command, unit, failure, (residual, task.r2ts), output);
            }
        }
    }

    fn release(&mut self, task: &Task) {
        if let Sink::Collect(..) = &task.sink {
            self.held_len -= task.end as usize;
        }
    }

    /// Completes a command with data that is not of the medium.
    fn finish_with_data(
        &mut self,
        session: &Session,
        command: &ScsiCommand,
        data: &[u8],
        output: &mut Vec<u8>,
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
            append(
                output,
                &Response::DataIn(data_in),
                self.sequence(),
                self.settings.digests,
                part,
            );
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
        output: &mut Vec<u8>,
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
        output: &mut Vec<u8>,
    ) {
        let response =
            ScsiResponse { task: command.task, response: 0, status, residual, data_pdus };
        self.respond(&Response::Scsi(response), sense, output);
    }

    /// Appends data of reads until enough is waiting to be sent. Of `output` the first `sent` bytes
    /// are gone.
    pub(super) fn send_data(&mut self, output: &mut Vec<u8>, sent: usize) {
        let Some(session) = self.session.clone() else { return };
        while output.len() - sent < OUTPUT_LEN_MAX
            && let Some(mut reading) = self.readings.pop_front()
        {
            if reading.unit.is_aborted(reading.begun) {
                continue;
            }
            if self.send_part(&session, &mut reading, output) {
                self.readings.push_front(reading);
            }
        }
    }

    /// Sends the next PDU of a read. Returns whether more are to follow.
    fn send_part(
        &mut self,
        session: &Session,
        reading: &mut Reading,
        output: &mut Vec<u8>,
    ) -> bool {
        let command = reading.command;
        let wanted = reading.range.end - reading.range.start;
        let expected = command.read_len();
        let residual = residual(wanted, expected);
        let total = wanted.min(u64::from(expected)) as u32;
        let left = total - reading.sent;
        if left == 0 {
            self.measure_read(reading, false);
            self.respond_status(&command, status::GOOD, residual, reading.pdus, &[], output);
            return false;
        }
        let burst_left = self.settings.burst_len_max - reading.sent % self.settings.burst_len_max;
        let len = left.min(self.settings.data_in_len_max()).min(burst_left);
        let is_last = len == left;
        let data_in = DataIn {
            is_final: is_last || len == burst_left,
            status: is_last.then_some(status::GOOD),
            residual,
            task: command.task,
            number: reading.pdus,
            offset: reading.sent,
        };
        // The task is still outstanding until its status is sent.
        let sequence = self.sequence_with(u32::from(!is_last));
        let offset = reading.range.start + u64::from(reading.sent);
        let (response, digests) = (Response::DataIn(data_in), self.settings.digests);
        let appended = append_with(output, &response, sequence, digests, len as usize, |space| {
            reading.unit.read(offset, space)
        });
        if let Err(sense) = appended {
            self.measure_read(reading, true);
            let (unit, counts) =
                (Some(&*reading.unit), (self::residual(0, expected), reading.pdus));
            self.fail(session, &command, unit, sense.into(), counts, output);
            return false;
        }
        count(&session.counters().read_bytes, len as usize);
        reading.sent += len;
        reading.pdus += 1;
        if is_last {
            self.measure_read(reading, false);
            self.status = self.status.wrapping_add(1);
        }
        !is_last
    }

    fn measure_read(&self, reading: &Reading, is_failed: bool) {
        let time = self.portal.now().saturating_sub(reading.since);
        let bytes = reading.sent.into();
        reading.unit.count(Ended { kind: Kind::Read, time, bytes, is_failed });
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

    /// Handles a task management request (RFC 7143, section 11.5). Returns why the connection ends.
    fn manage(
        &mut self,
        session: &Session,
        request: &TaskRequest,
        output: &mut Vec<u8>,
    ) -> Option<Closed> {
        let device = session.device();
        let nexus = session.nexus.id;
        let unit = device.unit(request.lun);
        let mut closed = None;
        let response = match (request.function, &unit) {
            (1, _) => self.abort(request),
            (2 | 4 | 5, None) => task_response::NO_UNIT,
            (function @ (2 | 4 | 5), Some(unit)) => {
                self.abort_all(|other| other.is_some_and(|other| Arc::ptr_eq(other, unit)));
                match function {
                    4 => device.clear_tasks(unit, nexus),
                    5 => device.reset_unit(unit),
                    _ => {}
                }
                task_response::COMPLETE
            }
            (6 | 7, _) => {
                self.abort_all(|_| true);
                device.reset();
                if request.function == 7 {
                    // A cold reset ends all sessions.
                    self.portal.close_all(device);
                    closed = Some(Closed::Replaced);
                }
                task_response::COMPLETE
            }
            (8, _) => task_response::NO_REASSIGNMENT,
            _ => task_response::NOT_SUPPORTED,
        };
        let response = TaskResponse { task: request.task, response };
        self.respond(&Response::Task(response), &[], output);
        closed
    }

    fn abort(&mut self, request: &TaskRequest) -> u8 {
        let tag = request.referenced;
        if let Some(task) = self.tasks.remove(&tag) {
            self.release(&task);
            return task_response::COMPLETE;
        }
        let before = self.readings.len();
        self.readings.retain(|reading| reading.command.task != tag);
        // A command that is complete is no task any more (RFC 7143, section 11.5.1).
        if self.readings.len() < before { task_response::COMPLETE } else { task_response::NO_TASK }
    }

    fn abort_all(&mut self, wanted: impl Fn(Option<&Arc<Unit>>) -> bool) {
        let aborted: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, task)| wanted(task.unit.as_ref().map(|(unit, _)| unit)))
            .map(|(tag, _)| *tag)
            .collect();
        for tag in aborted {
            if let Some(task) = self.tasks.remove(&tag) {
                self.release(&task);
            }
        }
        self.readings.retain(|reading| !wanted(Some(&reading.unit)));
    }
}

impl Task {
    /// Handles data at an offset of the command's data.
    fn take(&mut self, offset: u32, data: &[u8]) {
        let wanted = data.len().min(self.end.saturating_sub(offset) as usize);
        let useful = &data[..wanted];
        self.received = offset + data.len() as u32;
        if self.failure.is_some() || self.is_aborted() {
            return;
        }
        match (&mut self.sink, &self.unit) {
            (Sink::Stream(range, stream), Some((unit, begun))) if !useful.is_empty() => {
                let at = range.start + u64::from(offset);
                self.failure = unit.stream(*begun, *stream, range.start, at, useful).err();
            }
            (Sink::Collect(collected, _), _) => collected.extend_from_slice(useful),
            _ => {}
        }
    }

    fn is_aborted(&self) -> bool {
        self.unit.as_ref().is_some_and(|(unit, begun)| unit.is_aborted(*begun))
    }
}

fn plan(
    session: &Session,
    unit: Option<&(Arc<Unit>, Begun)>,
    command: &ScsiCommand,
    pdu: &Pdu<'_>,
) -> Result<Plan, Failure> {
    // Longer descriptor blocks, which no command here has, come in an additional header segment.
    if !pdu.additional.is_empty() {
        return Err(Sense::INVALID_OPERATION.in_cdb(0, 7).into());
    }
    let device = session.device();
    match unit {
        Some((unit, begun)) => {
            let nexus = (&session.nexus, *begun);
            scsi::plan(device, unit, nexus, &command.cdb, command.write_len())
        }
        None => scsi::plan_without_unit(device, session.nexus.id, &command.cdb),
    }
}

impl ScsiCommand {
    /// The bytes that the initiator expects to receive.
    fn read_len(&self) -> u32 {
        if self.reads && !self.writes { self.expected_len } else { 0 }
    }

    /// The bytes that the initiator is going to send.
    fn write_len(&self) -> u32 {
        if self.writes { self.expected_len } else { 0 }
    }
}

fn residual(wanted: u64, expected: u32) -> Residual {
    let clamp = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    match u64::from(expected) {
        expected if wanted < expected => Residual::Underflow(clamp(expected - wanted)),
        expected if wanted > expected => Residual::Overflow(clamp(wanted - expected)),
        _ => Residual::None,
    }
}

/// The data segment of a failed command's response (RFC 7143, section 11.4.7).
fn sense_segment(device: &Device, unit: Option<&Unit>, sense: Sense) -> Vec<u8> {
    let sense = device.sense_bytes(unit, sense);
    let mut segment = (sense.len() as u16).to_be_bytes().to_vec();
    segment.extend(sense);
    segment
}
