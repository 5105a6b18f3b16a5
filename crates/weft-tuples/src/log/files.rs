//! The functions of a file system that a log needs.

use std::fmt::Debug;
use std::io;

/// A file. What is written to it is on disk after [`Self::sync`] only.
pub trait LogFile: Debug {
    /// Returns its length in bytes.
    ///
    /// # Errors
    ///
    /// Those of `fstat`.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from this many bytes behind the start on.
    ///
    /// # Errors
    ///
    /// Those of `pread`, and if there are too few bytes.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// Those of `pwrite`. Some bytes may be written.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file.
    ///
    /// # Errors
    ///
    /// Those of `ftruncate`.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Returns when all bytes and the length are on disk.
    ///
    /// # Errors
    ///
    /// Those of `fdatasync`. Then it is not known what is on disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// Where the file of a log is. Nobody else uses it.
pub trait Files: Debug {
    /// Names the file for messages.
    fn name(&self) -> String;

    /// Opens the file. `None` if there is none.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>>;

    /// Makes another file, which is empty and not yet the one of the log.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    fn create(&mut self) -> io::Result<Box<dyn LogFile>>;

    /// Makes the file of the last [`Self::create`] the one of the log. That is on disk on return.
    ///
    /// # Errors
    ///
    /// Those of `rename` and `fsync`. Then either file may be found by [`Self::open`].
    fn install(&mut self) -> io::Result<()>;

    /// Returns random bytes.
    ///
    /// # Errors
    ///
    /// Those of `getrandom`.
    fn random(&mut self) -> io::Result<[u8; 8]>;
}
