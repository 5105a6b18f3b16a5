//! Where a measurement copies: the files, the user's keys and the path between the ends.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::load::Load;
use crate::{Folder, Namespace, NamespacePair, Program, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The loads of many files: the files in each folder, the bytes of a file.
const FILES: usize = 1_000;
const SMALL_LEN: usize = 4 << 10;

/// A folder in memory with the files to copy and with a user's keys, and the path between the ends.
#[derive(Debug)]
pub struct Place {
    pub(super) folder: Folder,
    /// The user's public key.
    pub(super) key: String,
    /// The two hosts; `None` is loopback.
    pair: Option<NamespacePair>,
}

impl Place {
    /// Creates the keys and the files of `loads`.
    ///
    /// # Errors
    ///
    /// If the files do not fit into memory, or `weft` does not run.
    pub fn new(loads: &[Load]) -> Result<Self> {
        Self::between(None, loads)
    }

    /// As [`Place::new`], with servers in the left one of two namespaces and clients in the right
    /// one.
    ///
    /// # Errors
    ///
    /// As [`Place::new`].
    pub fn between(pair: Option<NamespacePair>, loads: &[Load]) -> Result<Self> {
        let folder = Folder::in_memory(0o700)?;
        let key = String::new();
        let mut place = Self { folder, key, pair };
        let stdout = place.weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        stdout.trim().clone_into(&mut place.key);
        for load in loads {
            place.fill(*load)?;
        }
        Ok(place)
    }

    fn fill(&self, load: Load) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut noise = vec![0; 16 << 20];
        random.fill(&mut noise);
        let top = self.path(&load.folder());
        fs::create_dir(&top)?;
        match load {
            Load::Large(len) | Load::Changed(len) => {
                let mut file = fs::File::create(top.join("file"))?;
                let mut left = len;
                while left > 0 {
                    let part = left.min(noise.len());
                    file.write_all(&noise[..part])?;
                    left -= part;
                }
                if let Load::Changed(_) = load {
                    older(&top.join("file"), &self.path("older"))?;
                }
            }
            Load::Small(files) => {
                for folder in 0..files / FILES {
                    let path = top.join(folder.to_string());
                    fs::create_dir(&path)?;
                    for file in 0..FILES {
                        let bytes = &noise[file * SMALL_LEN..][..SMALL_LEN];
                        fs::write(path.join(file.to_string()), bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts what the destination has of a load into an empty folder.
    pub(super) fn prepare(&self, load: Load, to: &Path) -> Result<()> {
        if let Load::Changed(_) = load {
            fs::copy(self.path("older"), to.join("file"))?;
        }
        Ok(())
    }

    /// The address of clients.
    pub(super) fn client_address(&self) -> Ipv4Addr {
        self.pair.as_ref().map_or(Ipv4Addr::LOCALHOST, |pair| pair.right.ipv4)
    }

    /// The address of servers.
    pub(super) fn address(&self) -> Ipv4Addr {
        self.pair.as_ref().map_or(Ipv4Addr::LOCALHOST, |pair| pair.left.ipv4)
    }

    /// The namespace of servers.
    pub(super) fn left(&self) -> Option<&Namespace> {
        self.pair.as_ref().map(|pair| &pair.left)
    }

    /// The namespace of clients.
    pub(super) fn right(&self) -> Option<&Namespace> {
        self.pair.as_ref().map(|pair| &pair.right)
    }

    /// Returns the `weft` command with this user's keys.
    pub(super) fn weft(&self) -> Result<Program> {
        Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config")))
    }
}

/// Writes the older version of a file: one part in a hundred of each MiB is another one, and some
/// bytes near the beginning are missing.
fn older(file: &Path, to: &Path) -> Result<()> {
    let mut bytes = fs::read(file)?;
    for part in bytes.chunks_mut(1 << 20) {
        let len = part.len() / 100;
        part[..len].iter_mut().for_each(|byte| *byte = !*byte);
    }
    bytes.drain(100_000..101_000);
    Ok(fs::write(to, bytes)?)
}
