//! Work that waits for a store: a session plans it, any thread carries it out, and the session
//! takes the result.

use std::sync::Arc;

use super::portal::{OpenSession, Session};
use crate::scsi::{self, Begun, Failure, Finish, Run, Stream, Unit};

/// Work of one connection that may wait for a store.
///
/// Its result goes to [`Connection::complete`](super::Connection::complete) of that connection. One
/// that is dropped instead must go with its connection.
#[derive(Debug)]
pub struct Job {
    pub(super) id: JobId,
    pub(super) session: Arc<OpenSession>,
    pub(super) work: Work,
}

/// A job among those of its connection. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct JobId(pub(super) u64);

/// A job that has ended.
#[derive(Debug)]
pub struct Done {
    pub(super) id: JobId,
    /// Bytes that were read, or data for the initiator.
    pub(super) result: Result<Vec<u8>, Failure>,
}

/// The work of a job.
#[derive(Debug)]
pub(super) enum Work {
    /// Fills a buffer from an offset of the unit.
    Read { unit: Arc<Unit>, begun: Begun, offset: u64, buffer: Vec<u8>, flushes: bool },
    /// Handles bytes of a stream that starts at `start` and belong at `offset`.
    Stream {
        unit: Arc<Unit>,
        begun: Begun,
        stream: Stream,
        start: u64,
        offset: u64,
        bytes: Vec<u8>,
        /// They complete the stream.
        is_last: bool,
    },
    /// Completes a stream.
    EndStream { unit: Arc<Unit>, stream: Stream },
    /// Carries out a command without data of the initiator.
    Run { unit: Arc<Unit>, begun: Begun, cdb: [u8; 16], run: Run },
    /// Carries out a command with its data.
    Finish { unit: Arc<Unit>, begun: Begun, cdb: [u8; 16], finish: Finish, data: Vec<u8> },
    /// Waits for the steps that have begun.
    WaitForSteps(Vec<Arc<Unit>>),
    /// Waits for what the session that this one replaces has begun.
    Replace(Arc<Session>),
}

impl Job {
    /// Carries the job out, and waits for the store. Once the session is closed nothing happens.
    #[must_use]
    pub fn run(self) -> Done {
        let Self { id, session, work } = self;
        let guard = session.work();
        // The session before has to end, be this one closed or not: a later one relies on it.
        let result = if guard.is_some() || matches!(work, Work::Replace(_)) {
            work.carry_out(&session)
        } else {
            Err(Failure::Aborted)
        };
        drop(guard);
        // A new session of the initiator need not wait for this one any more.
        drop(session);
        Done { id, result }
    }

    /// Has the job carried out by a thread that waits for its unit, or for sessions. `then` gets
    /// the result there. A job is handed out once: its thread does not look for another node.
    pub fn start(self, then: impl FnOnce(Done) + Send + 'static) {
        let session = Arc::clone(&self.session);
        let (unit, range) = match &self.work {
            Work::Read { unit, offset, buffer, .. } => (Some(unit), Some((*offset, buffer.len()))),
            Work::Stream { unit, offset, bytes, .. } => (Some(unit), Some((*offset, bytes.len()))),
            Work::EndStream { unit, .. } | Work::Run { unit, .. } | Work::Finish { unit, .. } => {
                (Some(unit), None)
            }
            Work::WaitForSteps(units) => (units.first().filter(|_| units.len() == 1), None),
            Work::Replace(_) => (None, None),
        };
        let unit = unit.cloned();
        let range = range.map(|(offset, len)| (offset, len as u64));
        let workers = unit.as_ref().map_or_else(|| session.workers(), |unit| unit.workers(range));
        workers.run(move || then(self.run()));
    }
}

impl Work {
    /// Carries the work out, in the work of its session.
    pub(super) fn carry_out(self, session: &OpenSession) -> Result<Vec<u8>, Failure> {
        let done = |()| Vec::new();
        match self {
            Self::Read { unit, begun, offset, mut buffer, flushes } => {
                if unit.is_aborted(begun) {
                    return Err(Failure::Aborted);
                }
                if flushes {
                    unit.flush()?;
                }
                unit.read(offset, &mut buffer)?;
                Ok(buffer)
            }
            Self::Stream { unit, begun, stream, start, offset, bytes, is_last } => {
                unit.stream(begun, stream, start, offset, &bytes)?;
                if is_last {
                    unit.end_stream(stream)?;
                }
                Ok(Vec::new())
            }
            Self::EndStream { unit, stream } => Ok(unit.end_stream(stream).map(done)?),
            Self::Run { unit, begun, cdb, run } => {
                scsi::run(session.device(), &unit, (&session.nexus, begun), &cdb, run)
            }
            Self::Finish { unit, begun, cdb, finish, data } => {
                let nexus = (&session.nexus, begun);
                scsi::finish(session.device(), &unit, nexus, &cdb, finish, &data).map(done)
            }
            Self::WaitForSteps(units) => {
                units.iter().for_each(|unit| unit.wait_for_steps());
                Ok(Vec::new())
            }
            Self::Replace(before) => {
                session.replace(&before);
                Ok(Vec::new())
            }
        }
    }
}
