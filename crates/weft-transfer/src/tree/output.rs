//! Writes one file in order to a descriptor, such as standard output.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};

use crate::tree::apply::{ApplyError, Problem, Step, Summary};
use crate::tree::hash;
use crate::wire::record::{Kind, Record, Status, Tail};
use crate::wire::record_table::{self, Placed};

/// Zeros that stand for a hole.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The file cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// A block is invalid.
    #[error(transparent)]
    Block(#[from] ApplyError),
    /// The descriptor takes no more bytes.
    #[error("standard output: {0}")]
    Write(#[from] Errno),
    /// The data has another digest than at the source.
    #[error("the data is not that of the source: it was damaged on its way")]
    Damaged,
    /// The reader of a pipe has closed it.
    #[error("standard output: its reader has gone before the end of the file")]
    NoReader,
}

/// The writer of one file. It takes the blocks in the order of their numbers.
#[derive(Debug)]
pub struct Output {
    fd: OwnedFd,
    file: State,
    summary: Summary,
    problem: Option<Problem>,
    is_finished: bool,
}

#[derive(Debug)]
enum State {
    /// No file has come.
    Expected,
    /// Parts of a file are missing.
    Begun { number: u64, size: Option<u64>, at: u64, tail: Option<Tail> },
    /// The file has ended, or cannot be read at the source.
    Ended,
}

impl Output {
    /// Creates a writer to this descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let (file, summary) = (State::Expected, Summary::default());
        Self { fd, file, summary, problem: None, is_finished: false }
    }

    /// Writes the data of the next block.
    ///
    /// # Errors
    /// If the block is invalid, or its data cannot be written.
    pub fn apply(&mut self, payload: &[u8], table_len: usize) -> Result<(), OutputError> {
        let placed = record_table::parse(payload, table_len).map_err(ApplyError::from)?;
        for Placed { record, data } in placed {
            self.take(record, data, payload)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        record: Record,
        data: Range<usize>,
        payload: &[u8],
    ) -> Result<(), OutputError> {
        if self.is_finished {
            return Err(ApplyError::AfterFinish.into());
        }
        match record {
            Record::Nothing | Record::Owner { .. } => {}
            Record::Entry(entry) => {
                if entry.kind != Kind::File || !matches!(self.file, State::Expected) {
                    return Err(ApplyError::NotAsked(entry.number).into());
                }
                let (number, size) = (entry.number, (!entry.is_unsized).then_some(entry.size));
                self.file = State::Begun { number, size, at: 0, tail: None };
            }
            Record::Whole { entry, tail, .. } => {
                if !matches!(self.file, State::Expected) {
                    return Err(ApplyError::NotAsked(entry.number).into());
                }
                self.file = State::Ended;
                let data = &payload[data][..tail.size as usize];
                if let Status::Failed { errno } = tail.status {
                    self.fail(Step::Source, Some(errno));
                } else if tail.hash.is_some_and(|hash| *blake3::hash(data).as_bytes() != hash) {
                    return Err(OutputError::Damaged);
                } else {
                    self.write(data)?;
                    self.succeed(tail);
                }
            }
            Record::Data { file, offset, len, digest } => {
                self.advance(file, offset, len.into())?;
                let data = &payload[data];
                if digest.is_some_and(|digest| hash::of_part(offset, data).0 != digest) {
                    return Err(OutputError::Damaged);
                }
                self.write(data)?;
            }
            Record::Hole { file, offset, len } => {
                self.advance(file, offset, len)?;
                let mut left = len;
                while left > 0 {
                    let part = left.min(ZEROS.len() as u64);
                    self.write(&ZEROS[..part as usize])?;
                    left -= part;
                }
            }
            Record::End { file, tail } => match &mut self.file {
                State::Begun { number, size, tail: end @ None, .. }
                    if *number == file && size.is_none_or(|size| tail.size <= size) =>
                {
                    *end = Some(tail);
                }
                _ => return Err(ApplyError::NoFile(file).into()),
            },
            Record::Problem { errno, .. } => {
                self.file = State::Ended;
                self.fail(Step::Source, Some(errno));
            }
            Record::Copy { file, .. } => return Err(ApplyError::NotHere(file).into()),
            Record::Differs { file, .. } | Record::VersionPart { file, .. } => {
                return Err(ApplyError::NoFile(file).into());
            }
            Record::Offer(entry) => return Err(ApplyError::NotAsked(entry.number).into()),
            Record::DirectoryEnd { directory, .. }
            | Record::Keep { directory, .. }
            | Record::Special { directory, .. } => {
                return Err(ApplyError::NoDirectory(directory).into());
            }
            Record::Finish { .. } => {
                self.is_finished = true;
                self.end_file()?;
            }
        }
        Ok(())
    }

    /// Records that a part of the file has come, which must be the next one.
    fn advance(&mut self, file: u64, offset: u64, len: u64) -> Result<(), OutputError> {
        match &mut self.file {
            State::Begun { number, size, at, .. }
                if *number == file
                    && *at == offset
                    && size.is_none_or(|size| len <= size - *at) =>
            {
                *at += len;
                Ok(())
            }
            _ => Err(ApplyError::Part { file, offset, len }.into()),
        }
    }

    fn end_file(&mut self) -> Result<(), OutputError> {
        match std::mem::replace(&mut self.file, State::Ended) {
            State::Begun { size, at, tail: Some(tail), .. } => {
                match tail.status {
                    Status::Failed { errno } => self.fail(Step::Source, Some(errno)),
                    // Bytes that the file does not have any more were written as zeros.
                    _ if at != size.unwrap_or(tail.size)
                        || size.is_some_and(|it| it != tail.size) =>
                    {
                        self.fail(Step::Incomplete, None)
                    }
                    _ => self.succeed(tail),
                }
                Ok(())
            }
            State::Begun { number, .. } => Err(ApplyError::NoFile(number).into()),
            State::Expected => Err(ApplyError::NoFinish.into()),
            State::Ended => Ok(()),
        }
    }

    fn succeed(&mut self, tail: Tail) {
        self.summary.copied = 1;
        self.summary.bytes = tail.size;
        if tail.status == Status::Changed {
            self.summary.failed = 1;
            self.problem = Some(Problem { step: Step::Changed, errno: None });
        }
    }

    fn fail(&mut self, step: Step, errno: Option<u32>) {
        let errno = errno.map(|errno| Errno::from_raw_os_error(errno as i32));
        self.summary.failed = 1;
        self.problem.get_or_insert(Problem { step, errno });
    }

    /// Returns the result, and the problem of the file if there is one.
    ///
    /// # Errors
    /// If the end of the tree has not come.
    pub fn finish(self) -> Result<(Summary, Option<Problem>), OutputError> {
        if !self.is_finished {
            return Err(ApplyError::NoFinish.into());
        }
        Ok((self.summary, self.problem))
    }

    fn write(&self, data: &[u8]) -> Result<(), OutputError> {
        let mut rest = data;
        while !rest.is_empty() {
            match write(&self.fd, rest) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Another process has made the pipe nonblocking.
                    let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)];
                    match poll(&mut fds, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(Errno::PIPE) => return Err(OutputError::NoReader),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::record::{Entry, ROOT, Time};
    use crate::wire::record_name::Name;
    use std::fs::File;
    use std::io::Read;

    fn entry(number: u64, size: u64) -> Box<Entry> {
        Box::new(Entry {
            number,
            parent: ROOT,
            name: Name::new(b"file").ok(),
            kind: Kind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: Time::default(),
            size,
            is_linked: false,
            is_unsized: false,
            xattrs: None,
            hash: None,
        })
    }

    fn data(file: u64, offset: u64, len: u32) -> Record {
        Record::Data { file, offset, len, digest: None }
    }

    fn end(file: u64, status: Status, size: u64) -> Record {
        Record::End { file, tail: Tail { status, size, hash: None } }
    }

    fn whole(len: u32, size: u64, hash: Option<[u8; 32]>) -> Record {
        let tail = Tail { status: Status::Good, size, hash };
        Record::Whole { entry: entry(1, size), len, tail }
    }

    type Written = Result<(Summary, Option<Problem>), OutputError>;

    /// Writes the records, each in a block with data of `a`, and returns the result and the bytes.
    fn output(records: &[Record]) -> (Written, Vec<u8>) {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        let mut output = Output::new(to);
        let mut write = || {
            for record in records {
                let mut payload = Vec::new();
                record.emit(&mut payload);
                let table_len = payload.len();
                payload.resize(table_len + record.data_len(), b'a');
                output.apply(&payload, table_len)?;
            }
            Ok(())
        };
        let written = write();
        let result = written.and_then(|()| output.finish());
        let mut bytes = Vec::new();
        File::from(from).read_to_end(&mut bytes).expect("a pipe");
        (result, bytes)
    }

    #[test]
    fn parts_and_holes_of_a_file_are_written_in_order() {
        let (result, bytes) = output(&[
            Record::Owner { is_group: false, id: 0, name: b"root"[..].into() },
            Record::Entry(entry(1, 4097)),
            data(1, 0, 1024),
            // The end may come before the last parts.
            end(1, Status::Good, 4097),
            Record::Hole { file: 1, offset: 1024, len: 3072 },
            data(1, 4096, 1),
            Record::Finish { entries: 1 },
        ]);
        let summary = Summary { copied: 1, bytes: 4097, ..Summary::default() };
        assert_eq!(result, Ok((summary, None)));
        assert_eq!(bytes, [&[b'a'; 1024][..], &[0; 3072], b"a"].concat());
        // A file that has become shorter is written up to its end if that is known before.
        let (result, bytes) = output(&[whole(9, 7, None), Record::Finish { entries: 1 }]);
        assert_eq!((result.map(|(it, _)| it.bytes), &bytes[..]), (Ok(7), &b"aaaaaaa"[..]));
    }

    #[test]
    fn failures_of_the_source_are_reported() {
        let failed = Status::Failed { errno: 5 };
        let problem = |step, errno| Some(Problem { step, errno });
        let begun = || [Record::Entry(entry(1, 10)), data(1, 0, 10)];
        let unreadable = Record::Problem { directory: ROOT, name: None, errno: 5 };
        for (records, expected) in [
            (vec![unreadable], problem(Step::Source, Some(Errno::IO))),
            ([&begun()[..], &[end(1, failed, 0)]].concat(), problem(Step::Source, Some(Errno::IO))),
            // Ten bytes were written, but the file has only nine.
            (
                [&begun()[..], &[end(1, Status::Changed, 9)]].concat(),
                problem(Step::Incomplete, None),
            ),
            (
                vec![Record::Entry(entry(1, 10)), end(1, Status::Good, 10)],
                problem(Step::Incomplete, None),
            ),
        ] {
            let records = [records, vec![Record::Finish { entries: 1 }]].concat();
            let (result, _) = output(&records);
            let summary = Summary { failed: 1, ..Summary::default() };
            assert_eq!(result, Ok((summary, expected)), "{records:?}");
        }
        let changed = [&begun()[..], &[end(1, Status::Changed, 10)]].concat();
        let (result, _) = output(&[changed, vec![Record::Finish { entries: 1 }]].concat());
        let summary = Summary { copied: 1, bytes: 10, failed: 1, ..Summary::default() };
        assert_eq!(result, Ok((summary, problem(Step::Changed, None))));
    }

    #[test]
    fn peer_sends_exactly_one_file_in_order() {
        let begin = || Record::Entry(entry(1, 2048));
        let finish = Record::Finish { entries: 1 };
        let directory = Entry { kind: Kind::Directory, size: 0, ..*entry(1, 0) };
        for records in [
            vec![finish.clone()],
            vec![begin()],
            vec![begin(), finish.clone()],
            vec![begin(), begin()],
            vec![whole(1, 1, None), whole(1, 1, None)],
            vec![whole(1, 1, None), data(1, 0, 1)],
            vec![data(1, 0, 1)],
            vec![begin(), data(2, 0, 1)],
            vec![begin(), data(1, 1024, 1)],
            vec![begin(), data(1, 0, 1024), data(1, 0, 1024)],
            vec![begin(), data(1, 0, 2049)],
            vec![begin(), Record::Hole { file: 1, offset: 0, len: 2049 }],
            vec![begin(), end(1, Status::Good, 2049)],
            vec![begin(), end(1, Status::Good, 1), end(1, Status::Good, 1)],
            vec![Record::Entry(Box::new(directory))],
            vec![Record::Offer(entry(1, 1))],
            vec![begin(), Record::Copy { file: 1, offset: 0, len: 1 }],
            vec![Record::DirectoryEnd { directory: 1, is_complete: true }],
            vec![whole(1, 1, None), finish.clone(), finish],
        ] {
            let (result, _) = output(&records);
            assert!(matches!(result, Err(OutputError::Block(_))), "{records:?}: {result:?}");
        }
    }

    #[test]
    fn damaged_data_is_not_written() {
        let digest = Some([1; 32]);
        let part = Record::Data { file: 1, offset: 0, len: 5, digest };
        for records in [vec![whole(5, 5, digest)], vec![Record::Entry(entry(1, 5)), part]] {
            assert_eq!(output(&records), (Err(OutputError::Damaged), Vec::new()));
        }
    }
}
