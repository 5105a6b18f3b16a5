//! Units as they are written on the command line: `STORE[,OPTION]...`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use weft_target::cache::Cache;
use weft_target::scsi::{Options, Unit, serial};
use weft_target::store::{Cached, Direct, File, Null, Ram, Store};

use super::kept::StateDirectory;
use crate::args::bytes;
use crate::output;

/// The options of a unit.
const OPTIONS: &str = "lun=N, block=BYTES, read-only, removable, write-back, direct";

/// What all units of a process share.
#[derive(Debug, Default)]
pub(super) struct UnitResources {
    /// Where persistent reservations are kept.
    pub(super) kept: Option<Arc<StateDirectory>>,
    /// The cache of blocks.
    pub(super) cache: Option<Arc<Cache>>,
}

/// A parsed unit.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The number, if it is given.
    pub(super) number: Option<u8>,
    /// How it behaves.
    pub(super) options: Options,
    /// Where its blocks are.
    pub(super) store: Place,
}

/// Where the blocks of a unit are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file or on a block device.
    Path(PathBuf),
    /// The same, without the kernel's page cache if that is possible.
    Direct(PathBuf),
    /// In memory, of this many bytes.
    Ram(u64),
    /// Nowhere.
    Null(u64),
}

impl Place {
    /// Parses a store without options.
    pub(super) fn parse(text: &OsStr) -> Result<Self> {
        Ok(match text.to_str().and_then(|text| text.split_once(':')) {
            Some(("ram", size)) => Self::Ram(len(size)?),
            Some(("null", size)) => Self::Null(len(size)?),
            _ => Self::Path(text.into()),
        })
    }

    /// The same file without the kernel's page cache.
    ///
    /// # Errors
    ///
    /// If it is no file.
    pub(super) fn direct(self) -> Result<Self> {
        match self {
            Self::Path(path) | Self::Direct(path) => Ok(Self::Direct(path)),
            Self::Ram(_) | Self::Null(_) => bail!("direct: {self} is no file"),
        }
    }

    /// The file or device.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) | Self::Direct(path) => Some(path),
            Self::Ram(_) | Self::Null(_) => None,
        }
    }

    /// Whether both are the same place, also by paths that only look different.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let real = |path: &Path| fs::canonicalize(path).ok();
        match (self.path(), other.path()) {
            (Some(one), Some(other)) => {
                one == other || real(one).is_some_and(|path| real(other) == Some(path))
            }
            _ => self == other,
        }
    }

    /// The same place, with a path that starts at `directory` unless it is absolute.
    pub(super) fn within(self, directory: &Path) -> Self {
        match self {
            Self::Path(path) => Self::Path(directory.join(path)),
            Self::Direct(path) => Self::Direct(directory.join(path)),
            other => other,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) | Self::Direct(path) => path.display().fmt(f),
            Self::Ram(len) => write!(f, "ram:{len}"),
            Self::Null(len) => write!(f, "null:{len}"),
        }
    }
}

/// Parses a unit. A comma in a path is doubled.
pub(super) fn parse(text: &OsStr) -> Result<Parsed> {
    let mut parts = split(text.as_bytes());
    let store = parts.remove(0);
    let store = Place::parse(&store)?;
    let mut parsed = Parsed { number: None, options: Options::default(), store };
    for part in parts {
        let part = part.to_str().with_context(|| format!("{}: no option", part.display()))?;
        match part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value))) {
            ("lun", Some(number)) => {
                parsed.number = Some(number.parse().context("lun is a number from 0 to 255")?);
            }
            ("block", Some(len)) => {
                let len: u32 = len.parse().context("block is a number of bytes")?;
                parsed.options.block_len = block_len(len)?;
            }
            ("read-only", None) => parsed.options.is_read_only = true,
            ("removable", None) => parsed.options.is_removable = true,
            ("write-back", None) => parsed.options.write_back = true,
            ("direct", None) => parsed.store = parsed.store.direct()?,
            _ => bail!("{part}: options are {OPTIONS}"),
        }
    }
    Ok(parsed)
}

/// Checks the length of a block.
pub(super) fn block_len(len: u32) -> Result<u32> {
    let is_valid = len.is_power_of_two() && (512..=4_096).contains(&len);
    ensure!(is_valid, "block is 512, 1024, 2048 or 4096");
    Ok(len)
}

/// Splits at single commas. There is always a first part.
fn split(text: &[u8]) -> Vec<OsString> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b',' && bytes.next_if_eq(&b',').is_none() {
            parts.push(Vec::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(byte);
        }
    }
    parts.iter().map(|part| OsStr::from_bytes(part).to_owned()).collect()
}

/// A length such as `10G`.
fn len(text: &str) -> Result<u64> {
    bytes(text).map_err(|error| anyhow!("{text}: {error}"))
}

impl Parsed {
    /// Opens the store, behind the cache unless it is in memory itself, and restores the persistent
    /// reservations that are kept.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or is shorter than a block, if its reservations cannot be read, or
    /// if the cache has another unit with the same file.
    pub(super) fn open(self, target: &str, number: u8, shared: &UnitResources) -> Result<Unit> {
        let options = self.options;
        let store: Box<dyn Store> = match self.store {
            Place::Path(path) => Box::new(File::open(&path, options.is_read_only)?),
            Place::Direct(path) => open_direct(&path, options.is_read_only)?,
            Place::Ram(len) => Box::new(Ram::new(len)?),
            Place::Null(len) => Box::new(Null::new(len)),
        };
        ensure!(store.len() >= u64::from(options.block_len), "it is shorter than a block");
        let store = match &shared.cache {
            Some(cache) if !store.is_instant() => Box::new(Cached::new(store, Arc::clone(cache))?),
            _ => store,
        };
        let unit = Unit::new(serial(target, number), options, store);
        match &shared.kept {
            Some(state) => state.restore(unit, target, number),
            None => Ok(unit),
        }
    }
}

/// Opens a file without the kernel's page cache; with it, and a message, if that is not possible.
fn open_direct(path: &Path, is_read_only: bool) -> io::Result<Box<dyn Store>> {
    match Direct::open(path, is_read_only) {
        Ok(store) => Ok(Box::new(store)),
        Err(why) => {
            let store = File::open(path, is_read_only)?;
            let path = path.display();
            output::complain(format_args!("{path}: no direct I/O, but the page cache: {why}"));
            Ok(Box::new(store))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Parsed {
        parse(OsStr::new(text)).unwrap()
    }

    #[test]
    fn stores_and_options_are_parsed() {
        let unit = parsed("ram:3g,lun=7,block=4096,removable");
        assert_eq!((unit.store, unit.number), (Place::Ram(3 << 30), Some(7)));
        assert_eq!((unit.options.block_len, unit.options.is_removable), (4_096, true));
        assert_eq!(parsed("a,,b,read-only").store, Place::Path("a,b".into()));
        assert!(parsed("a,,b,read-only").options.is_read_only);
        assert_eq!(parsed("a,direct,lun=1").store, Place::Direct("a".into()));
        assert_eq!(parsed("ram").store, Place::Path("ram".into()));
    }

    #[test]
    fn unknown_options_and_values_are_errors() {
        for text in [
            "a,",
            "a,lun",
            "a,lun=256",
            "a,block=513",
            "a,block=8192",
            "a,x=1",
            "ram:1x",
            "null:99999999999999999999",
            "ram:-1",
            "a,read-only=1",
            "a,direct=1",
            "ram:1M,direct",
        ] {
            assert!(parse(OsStr::new(text)).is_err(), "{text}");
        }
    }
}
