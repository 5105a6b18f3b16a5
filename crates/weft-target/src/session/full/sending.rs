//! Sending the data of reads.

use std::sync::Arc;

use super::FullFeature;
use crate::limits::{OUTPUT_LEN_MAX, STEP_LEN};
use crate::scsi::{Ended, Failure, Kind, Sense, status};
use crate::session::job::Work;
use crate::session::jobs::{Footprint, Purpose};
use crate::session::outcome::residual;
use crate::session::portal::{OpenSession, Session};
use crate::session::stats::count;
use crate::session::task::Reading;
use crate::wire::{DataIn, Response, SendBuffer, append_with};

/// Why a part of a read is not there.
enum Unread {
    /// It has to wait for the store, or for an earlier command.
    Later,
    Failed(Sense),
}

impl FullFeature {
    /// Appends data of reads until enough is waiting to be sent. `unsent_len` bytes of `output` are
    /// not sent yet.
    pub(in crate::session) fn send_data(&mut self, output: &mut SendBuffer, unsent_len: usize) {
        let Some(session) = self.session.clone() else { return };
        let sent = output.len() - unsent_len;
        while output.len() - sent + self.jobs.reading_len() < OUTPUT_LEN_MAX
            && let Some(reading) = self.readings.pop_front()
        {
            if !reading.unit.is_aborted(reading.begun)
                && let Some(reading) = self.send_part(&session, reading, output)
            {
                self.readings.push_front(reading);
            }
        }
    }

    /// Sends the next PDU of a read. Returns the read if more can follow at once.
    fn send_part(
        &mut self,
        session: &Arc<OpenSession>,
        mut reading: Reading,
        output: &mut SendBuffer,
    ) -> Option<Reading> {
        let command = reading.command;
        let wanted = reading.range.end - reading.range.start;
        let expected = command.read_len();
        let residual = residual(wanted, expected);
        let total = wanted.min(u64::from(expected)) as u32;
        let left = total - reading.sent;
        if left == 0 {
            self.measure_read(&reading, false);
            self.respond_status(&command, status::GOOD, residual, reading.pdus, &[], output);
            return None;
        }
        let burst_left = self.settings.burst_len_max - reading.sent % self.settings.burst_len_max;
        let mut len = left.min(self.settings.data_in_len_max()).min(burst_left);
        let loaded = &reading.loaded.0[reading.loaded.1..];
        if !loaded.is_empty() {
            len = len.min(loaded.len() as u32);
        }
        let is_last = len == left;
        let data_in = DataIn {
            is_final: is_last || len == burst_left,
            status: is_last.then_some(status::GOOD),
            residual,
            task: command.task,
            number: reading.pdus,
            offset: reading.sent,
        };
        // The task is outstanding until its status is sent, and widens the window then.
        let mut sequence = self.sequence_with(1);
        if is_last && !self.numbers.has_immediate() {
            sequence.command_max = sequence.command_max.wrapping_add(1);
        }
        let (response, digests) = (Response::DataIn(data_in), self.settings.digests);
        let appended = append_with(output, &response, sequence, digests, len as usize, |space| {
            if loaded.is_empty() {
                return self.read_now(&reading, space);
            }
            space.copy_from_slice(&loaded[..space.len()]);
            Ok(())
        });
        match appended {
            Ok(()) => {}
            Err(Unread::Later) => {
                self.load(session, reading, left as usize);
                return None;
            }
            Err(Unread::Failed(sense)) => {
                self.fail_read(session, &reading, sense.into(), output);
                return None;
            }
        }
        count(&session.counters().read_bytes, len as usize);
        reading.sent += len;
        reading.pdus += 1;
        if !loaded.is_empty() {
            reading.loaded.1 += len as usize;
        }
        if is_last {
            self.measure_read(&reading, false);
            self.status = self.status.wrapping_add(1);
        }
        (!is_last).then_some(reading)
    }

    /// Reads the next bytes of a read, if that does not wait.
    fn read_now(&self, reading: &Reading, space: &mut [u8]) -> Result<(), Unread> {
        let (unit, offset) = (&reading.unit, reading.range.start + u64::from(reading.sent));
        let used = || {
            Footprint::of_part(&reading.command, unit, offset..offset + space.len() as u64, false)
        };
        if reading.flushes || !self.jobs.is_empty() && self.jobs.conflicts(&used()) {
            return Err(Unread::Later);
        }
        let read = unit.try_read(offset, space).ok_or(Unread::Later)?;
        read.map_err(Unread::Failed)
    }

    /// Plans a job for the next bytes of a read, of which `left` are not sent.
    fn load(&mut self, session: &Arc<OpenSession>, mut reading: Reading, left: usize) {
        let offset = reading.range.start + u64::from(reading.sent);
        let buffer = vec![0; left.min(STEP_LEN)];
        let (unit, begun) = (Arc::clone(&reading.unit), reading.begun);
        let end = offset + buffer.len() as u64;
        let used = Footprint::of_part(&reading.command, &unit, offset..end, false);
        let flushes = std::mem::take(&mut reading.flushes);
        let work = Work::Read { unit, begun, offset, buffer, flushes };
        self.jobs.plan(session, work, used, Purpose::Read(reading));
    }

    /// Takes what a job has read.
    pub(super) fn loaded(
        &mut self,
        session: &Session,
        mut reading: Reading,
        result: Result<Vec<u8>, Failure>,
        output: &mut SendBuffer,
    ) {
        match result {
            Ok(buffer) => {
                reading.loaded = (buffer, 0);
                self.readings.push_front(reading);
            }
            Err(failure) => self.fail_read(session, &reading, failure, output),
        }
    }

    fn fail_read(
        &mut self,
        session: &Session,
        reading: &Reading,
        failure: Failure,
        output: &mut SendBuffer,
    ) {
        self.measure_read(reading, true);
        let unit = Some(&*reading.unit);
        let counts = (residual(0, reading.command.read_len()), reading.pdus);
        self.fail(session, &reading.command, unit, failure, counts, output);
    }

    fn measure_read(&self, reading: &Reading, is_failed: bool) {
        let time = self.portal.now().saturating_sub(reading.since);
        let bytes = reading.sent.into();
        reading.unit.count(Ended { kind: Kind::Read, time, bytes, is_failed });
    }
}
