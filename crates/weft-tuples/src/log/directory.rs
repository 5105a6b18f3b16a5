//! A directory with a log.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::error::LogError;
use super::files::{Files, LogFile};

/// A directory, which no other server uses while this one lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// It is locked, and makes the names in it safe.
    directory: File,
}

impl Directory {
    /// Opens a directory, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// If that fails, or another server uses it.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let name = path.display().to_string();
        let directory = open(path).map_err(LogError::io(&name, "open"))?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(LogError::Locked(name)),
            Err(error) => Err(LogError::io(&name, "lock")(error.into())),
            Ok(()) => Ok(Self { path: path.to_owned(), directory }),
        }
    }

    fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    fn new_log(&self) -> PathBuf {
        self.path.join("log.new")
    }
}

fn open(path: &Path) -> io::Result<File> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let directory = File::open(path)?;
    let is_directory = directory.metadata()?.is_dir();
    if is_directory { Ok(directory) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

impl Files for Directory {
    fn name(&self) -> String {
        self.log().display().to_string()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        match OpenOptions::new().read(true).write(true).open(self.log()) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        Ok(Box::new(options.open(self.new_log())?))
    }

    fn install(&mut self) -> io::Result<()> {
        fs::rename(self.new_log(), self.log())?;
        self.directory.sync_all()
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        let mut bytes = [0; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
        }
        Ok(bytes)
    }
}

impl LogFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
