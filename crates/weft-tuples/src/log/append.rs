//! Writes the log.

use std::io;

use super::effects::{encode, replay};
use super::error::LogError;
use super::files::{Files, LogFile};
use super::record::{FileHeader, RecordHeader, VERSION};
use super::recover::{Cut, recover};
use crate::limits::{EFFECT_LEN_MAX, LOG_LEN_MAX};
use crate::model::{Effect, Service};

/// Writes a record.
type Write<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// A log that is open for records.
#[derive(Debug)]
pub struct Log {
    files: Box<dyn Files>,
    name: String,
    file: Box<dyn LogFile>,
    header: FileHeader,
    /// The number of the next record.
    next: u64,
    /// Where it begins.
    end: u64,
    /// Records of this length in all are replaced by a snapshot.
    len_max: u64,
    cut: Option<Cut>,
    has_failed: bool,
}

impl Log {
    /// Opens a log, or begins one, and brings a service to the state that the log has led to. The
    /// service must be empty. It records its effects from now on.
    ///
    /// # Errors
    ///
    /// If the log cannot be read or written, or is damaged.
    pub fn open(mut files: Box<dyn Files>, service: &mut Service) -> Result<Self, LogError> {
        let name = files.name();
        let found = files.open().map_err(LogError::io(&name, "open"))?;
        let (file, header, next, end, cut) = match found {
            Some(mut file) => {
                let recovered =
                    recover(&name, &mut *file, &mut |effects| replay(effects, service))?;
                (file, recovered.header, recovered.next, recovered.end, recovered.cut)
            }
            None => {
                let begun = begin(&mut *files, 1, |write| snapshot(service, write));
                let (file, header, next) = begun.map_err(LogError::io(&name, "write"))?;
                (file, header, next, header.snapshot_end, None)
            }
        };
        service.record();
        let (len_max, has_failed) = (LOG_LEN_MAX, false);
        Ok(Self { files, name, file, header, next, end, len_max, cut, has_failed })
    }

    /// Replaces records by a snapshot when they are longer than this in all, and longer than the
    /// last snapshot.
    #[must_use]
    pub fn with_len_max(mut self, len_max: u64) -> Self {
        self.len_max = len_max;
        self
    }

    /// The bytes that were cut off when the log was opened.
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Writes the effects of all operations of a service since the last call. They are on disk on
    /// return; before that, nobody may learn of them.
    ///
    /// # Errors
    ///
    /// If the kernel refuses. It is not known then whether the effects are on disk. Nobody may
    /// learn of them, and each later call fails.
    pub fn commit(&mut self, service: &mut Service) -> Result<(), LogError> {
        if self.has_failed {
            return Err(LogError::Failed(self.name.clone()));
        }
        let effects = service.take_effects();
        if effects.is_empty() {
            return Ok(());
        }
        let written = if self.header.is_old() {
            // Nothing is added that servers of the file's version would refuse: the state with the
            // effects is the beginning of another file.
            self.begin_anew(service)
        } else {
            self.append(&effects).and_then(|()| self.shorten(service))
        };
        self.has_failed = written.is_err();
        written
    }

    fn append(&mut self, effects: &[Effect]) -> Result<(), LogError> {
        let record = record(self.header.salt, self.next, effects);
        let written = self.file.write_at(&record, self.end);
        written.map_err(LogError::io(&self.name, "write"))?;
        self.file.sync().map_err(LogError::io(&self.name, "write to disk"))?;
        self.next += 1;
        self.end += record.len() as u64;
        Ok(())
    }

    /// Begins another file if the records have become too long.
    fn shorten(&mut self, service: &Service) -> Result<(), LogError> {
        let snapshot_end = self.header.snapshot_end;
        if self.end - snapshot_end <= self.len_max.max(snapshot_end) {
            return Ok(());
        }
        self.begin_anew(service)
    }

    /// Begins another file with a snapshot.
    fn begin_anew(&mut self, service: &Service) -> Result<(), LogError> {
        let begun = begin(&mut *self.files, self.next, |write| snapshot(service, write));
        let (file, header, next) = begun.map_err(LogError::io(&self.name, "write a snapshot"))?;
        (self.file, self.header, self.next, self.end) = (file, header, next, header.snapshot_end);
        Ok(())
    }
}

/// Writes a file with a snapshot, whose records `snapshot` hands over, and makes it the one of the
/// log. `first` is the number of its first record. Returns that of the next one, too.
pub(super) fn begin(
    files: &mut dyn Files,
    first: u64,
    snapshot: impl FnOnce(Write<'_>) -> io::Result<()>,
) -> io::Result<(Box<dyn LogFile>, FileHeader, u64)> {
    let salt = files.random()?;
    let mut file = files.create()?;
    let (mut next, mut end) = (first, FileHeader::LEN as u64);
    snapshot(&mut |record| {
        let head = RecordHeader::of(next, record).encode(salt);
        file.write_at(&head, end)?;
        file.write_at(record, end + head.len() as u64)?;
        next += 1;
        end += (head.len() + record.len()) as u64;
        Ok(())
    })?;
    let header = FileHeader { version: VERSION, salt, first, snapshot_end: end };
    file.write_at(&header.encode(), 0)?;
    file.sync()?;
    files.install()?;
    Ok((file, header, next))
}

/// Hands over the records of a service's snapshot.
fn snapshot(service: &Service, write: Write<'_>) -> io::Result<()> {
    let mut effects = Vec::new();
    service.snapshot(|effect| -> io::Result<()> {
        encode(&mut effects, &effect);
        if effects.len() >= EFFECT_LEN_MAX {
            write(&effects)?;
            effects.clear();
        }
        Ok(())
    })?;
    if effects.is_empty() { Ok(()) } else { write(&effects) }
}

/// The bytes of a record.
fn record(salt: [u8; 8], number: u64, effects: &[Effect]) -> Vec<u8> {
    let mut bytes = vec![0; RecordHeader::LEN];
    effects.iter().for_each(|effect| encode(&mut bytes, effect));
    let head = RecordHeader::of(number, &bytes[RecordHeader::LEN..]);
    bytes[..RecordHeader::LEN].copy_from_slice(&head.encode(salt));
    bytes
}
