//! A file of records whose contents are not looked at.

use super::append::begin;
use super::effects::Unfit;
use super::error::LogError;
use super::files::{Files, LogFile};
use super::record::{FileHeader, RecordHeader};
use super::recover::recover;

/// A file with the format of a log and records of any content. A record is there as a whole or not
/// at all, whenever the power is lost.
#[derive(Debug)]
pub struct Journal {
    files: Box<dyn Files>,
    name: String,
    file: Box<dyn LogFile>,
    header: FileHeader,
    /// The number of the next record.
    next: u64,
    /// Where it begins.
    end: u64,
    has_failed: bool,
}

impl Journal {
    /// Opens a journal, or begins one. Hands out the records that it has.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written, is damaged, or `each` does not accept a record.
    pub fn open(
        mut files: Box<dyn Files>,
        mut each: impl FnMut(&[u8]) -> Result<(), Unfit>,
    ) -> Result<Self, LogError> {
        let name = files.name();
        let found = files.open().map_err(LogError::io(&name, "open"))?;
        let (file, header, next, end) = match found {
            Some(mut file) => {
                let recovered = recover(&name, &mut *file, &mut each)?;
                (file, recovered.header, recovered.next, recovered.end)
            }
            None => {
                let begun = begin(&mut *files, 1, |_| Ok(()));
                let (file, header, next) = begun.map_err(LogError::io(&name, "write"))?;
                (file, header, next, header.snapshot_end)
            }
        };
        let mut this = Self { files, name, file, header, next, end, has_failed: false };
        if this.header.is_old() {
            // Nothing is added that servers of the file's version would refuse.
            let mut records = Vec::new();
            this.read(|record| {
                records.push(record.to_vec());
                Ok(())
            })?;
            this.replace(&records)?;
        }
        Ok(this)
    }

    /// Adds a record. It is on disk on return.
    ///
    /// # Errors
    ///
    /// If the kernel refuses. It is not known then whether the record is on disk, and each later
    /// call fails.
    pub fn append(&mut self, record: &[u8]) -> Result<(), LogError> {
        self.check()?;
        self.has_failed = true;
        let head = RecordHeader::of(self.next, record).encode(self.header.salt);
        let bytes = [&head, record].concat();
        self.file.write_at(&bytes, self.end).map_err(LogError::io(&self.name, "write"))?;
        self.file.sync().map_err(LogError::io(&self.name, "write to disk"))?;
        self.next += 1;
        self.end += bytes.len() as u64;
        self.has_failed = false;
        Ok(())
    }

    /// Replaces all records. The new ones are on disk on return; before, the old ones are.
    ///
    /// # Errors
    ///
    /// If the kernel refuses. It is not known then which ones are on disk, and each later call
    /// fails.
    pub fn replace(&mut self, records: &[Vec<u8>]) -> Result<(), LogError> {
        self.check()?;
        self.has_failed = true;
        let begun = begin(&mut *self.files, self.next, |write| {
            records.iter().try_for_each(|record| write(record))
        });
        let (file, header, next) = begun.map_err(LogError::io(&self.name, "replace"))?;
        (self.file, self.header, self.next, self.end) = (file, header, next, header.snapshot_end);
        self.has_failed = false;
        Ok(())
    }

    /// Hands out all records again.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or `each` does not accept one.
    pub fn read(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), Unfit>,
    ) -> Result<(), LogError> {
        self.check()?;
        recover(&self.name, &mut *self.file, &mut each).map(drop)
    }

    fn check(&self) -> Result<(), LogError> {
        if self.has_failed { Err(LogError::Failed(self.name.clone())) } else { Ok(()) }
    }
}
