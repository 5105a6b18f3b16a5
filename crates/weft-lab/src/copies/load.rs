//! What a measurement copies.

use std::fmt;

use anyhow::{Context as _, Result};
use rustix::fs::statvfs;

const GIB: usize = 1 << 30;

/// The files that a measurement copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// One file of this many bytes.
    Large(usize),
    /// Such a file of which the destination has an older version: one part in a hundred of its
    /// bytes, in one place of each MiB, is another one, and some bytes are missing near its
    /// beginning.
    Changed(usize),
    /// This many files of 4 KiB.
    Small(usize),
}

impl Load {
    /// Returns a load of one file: of 1 GiB, or of 256 MiB if `/dev/shm` has no room for 5 GiB.
    ///
    /// # Errors
    ///
    /// If `statvfs` of `/dev/shm` fails.
    pub fn large() -> Result<Self> {
        let memory = statvfs("/dev/shm").context("/dev/shm")?;
        let has_room = memory.f_bavail.saturating_mul(memory.f_frsize) > 5 * GIB as u64;
        Ok(Self::Large(if has_room { GIB } else { GIB / 4 }))
    }

    pub(super) fn folder(self) -> String {
        match self {
            Self::Large(len) => format!("large-{len}"),
            Self::Changed(len) => format!("changed-{len}"),
            Self::Small(files) => format!("small-{files}"),
        }
    }

    /// Returns how much is copied, in bytes or files.
    pub fn amount(self) -> f64 {
        match self {
            Self::Large(amount) | Self::Changed(amount) | Self::Small(amount) => amount as f64,
        }
    }

    /// Formats the rate of a copy that took `seconds`.
    pub fn show(self, seconds: f64) -> String {
        match self {
            Self::Large(len) | Self::Changed(len) if (len as f64) < 1e8 * seconds => {
                format!("{:.1} MB/s", len as f64 / seconds / 1e6)
            }
            Self::Large(len) | Self::Changed(len) => {
                format!("{:.2} GB/s", len as f64 / seconds / 1e9)
            }
            Self::Small(files) => format!("{:.1} k files/s", files as f64 / seconds / 1e3),
        }
    }

    /// Formats the processor time for each GiB or each file.
    pub fn show_cpu(self, seconds: f64) -> String {
        match self {
            Self::Large(len) | Self::Changed(len) => {
                format!("{:.2} s/GiB", seconds * GIB as f64 / len as f64)
            }
            Self::Small(files) => format!("{:.1} us/file", seconds * 1e6 / files as f64),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Large(len) if len % GIB == 0 => write!(f, "one file of {} GiB", len / GIB),
            Self::Large(len) => write!(f, "one file of {} MiB", len >> 20),
            Self::Changed(len) => write!(f, "one file of {} MiB, 1 % changed", len >> 20),
            Self::Small(files) => write!(f, "{},000 files of 4 KiB", files / 1_000),
        }
    }
}
