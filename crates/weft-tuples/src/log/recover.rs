//! The state from a log.

use super::effects::Unfit;
use super::error::LogError;
use super::files::LogFile;
use super::record::{FileHeader, RecordHeader};
use crate::limits::SEARCH_LEN;

/// A last record that was not written to its end. Nobody has seen its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Where it began.
    pub offset: u64,
    /// How many bytes were there.
    pub len: u64,
}

/// The result of reading a log.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) header: FileHeader,
    /// The number of the next record.
    pub(super) next: u64,
    /// Where it begins.
    pub(super) end: u64,
    pub(super) cut: Option<Cut>,
}

/// Hands out the contents of all records of a file. The file is as it was afterwards, but what is
/// left of a record that was not complete is cut off, and all else is on disk.
pub(super) fn recover(
    name: &str,
    file: &mut dyn LogFile,
    each: &mut dyn FnMut(&[u8]) -> Result<(), Unfit>,
) -> Result<Recovered, LogError> {
    let len = file.size().map_err(LogError::io(name, "read the size"))?;
    let foreign = || LogError::Foreign(name.to_owned());
    let mut bytes = [0; FileHeader::LEN];
    if len < FileHeader::LEN as u64 {
        return Err(foreign());
    }
    file.read_at(&mut bytes, 0).map_err(LogError::io(name, "read"))?;
    let header = FileHeader::decode(&bytes).map_err(|_| foreign())?;
    if !header.is_known() {
        return Err(LogError::Version { name: name.to_owned(), version: header.version });
    }
    let mut walk = Walk { name, file, header, len, next: header.first, end: bytes.len() as u64 };
    let mut last = None;
    while let Some(effects) = walk.record()? {
        let offset = walk.end;
        if each(&effects).is_err() {
            return Err(LogError::Impossible { name: name.to_owned(), offset });
        }
        walk.end += (RecordHeader::LEN + effects.len()) as u64;
        walk.next += 1;
        last = Some((offset, effects));
    }
    let Walk { next, end, .. } = walk;
    let cut = (end < len).then_some(Cut { offset: end, len: len - end });
    // After an error of fdatasync the last record can be in memory alone, and the kernel does not
    // write it any more. It is written again.
    if let Some((offset, effects)) = last {
        let head = RecordHeader::of(next - 1, &effects).encode(header.salt);
        let written = file.write_at(&[head, effects].concat(), offset);
        written.map_err(LogError::io(name, "write"))?;
    }
    file.truncate(end).map_err(LogError::io(name, "cut the file"))?;
    file.sync().map_err(LogError::io(name, "write to disk"))?;
    Ok(Recovered { header, next, end, cut })
}

struct Walk<'a> {
    name: &'a str,
    file: &'a dyn LogFile,
    header: FileHeader,
    len: u64,
    next: u64,
    end: u64,
}

impl Walk<'_> {
    /// Reads the effects of the next record. `None` if there is none, or the last one is torn.
    fn record(&self) -> Result<Option<Vec<u8>>, LogError> {
        if self.end == self.len && self.end >= self.header.snapshot_end {
            return Ok(None);
        }
        let damaged = || LogError::Damaged { name: self.name.to_owned(), offset: self.end };
        match self.whole_record()? {
            Some((number, effects)) if number == self.next => Ok(Some(effects)),
            // A record was lost, or repeated.
            Some(_) => Err(damaged()),
            // The server writes nothing behind a record that is not on disk.
            None if self.end < self.header.snapshot_end || self.is_followed()? => Err(damaged()),
            None => Ok(None),
        }
    }

    /// Reads a record with the right checksums.
    fn whole_record(&self) -> Result<Option<(u64, Vec<u8>)>, LogError> {
        let start = self.end + RecordHeader::LEN as u64;
        if start > self.len {
            return Ok(None);
        }
        let mut head = [0; RecordHeader::LEN];
        self.read(&mut head, self.end)?;
        let Ok(head) = RecordHeader::decode(&head, self.header.salt) else { return Ok(None) };
        let Some(len) = usize::try_from(head.len).ok().filter(|_| head.len <= self.len - start)
        else {
            return Ok(None);
        };
        let mut effects = vec![0; len];
        self.read(&mut effects, start)?;
        Ok(head.is_of(&effects).then_some((head.number, effects)))
    }

    /// Whether a later record follows somewhere behind the present place.
    fn is_followed(&self) -> Result<bool, LogError> {
        let mut bytes = Vec::new();
        let mut at = self.end + 1;
        while self.len.saturating_sub(at) >= RecordHeader::LEN as u64 {
            let len = (self.len - at).min(SEARCH_LEN as u64);
            // It is at most the constant.
            bytes.resize(len as usize, 0);
            self.read(&mut bytes, at)?;
            let is_later = |bytes: &[u8]| {
                let head = RecordHeader::decode(bytes, self.header.salt);
                head.is_ok_and(|head| head.number > self.next)
            };
            if bytes.windows(RecordHeader::LEN).any(is_later) {
                return Ok(true);
            }
            at += len - RecordHeader::LEN as u64 + 1;
        }
        Ok(false)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), LogError> {
        self.file.read_at(bytes, offset).map_err(LogError::io(self.name, "read"))
    }
}
