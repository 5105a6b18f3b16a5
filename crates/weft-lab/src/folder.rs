//! Temporary folders.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Prefix of a folder's name. The pid of the lab and a serial number follow.
const NAME_PREFIX: &str = "weft-lab-";
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// A temporary folder. Dropping it removes the folder and its content.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder whose path is short enough for the address of a Unix socket in it, wherever
    /// the workspace is.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn new(mode: u32) -> Result<Self> {
        Self::make(&env::temp_dir(), mode)
    }

    /// Makes a folder in memory, for files that processes map.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn in_memory(mode: u32) -> Result<Self> {
        Self::make(Path::new(MEMORY), mode)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn make(parent: &Path, mode: u32) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| [&env::temp_dir(), Path::new(MEMORY)].into_iter().for_each(sweep));
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{NAME_PREFIX}{}-{serial}", process::id()));
        let made = DirBuilder::new().mode(mode).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, a later lab removes the folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of labs that were killed.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX));
        let owner = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path()); // Another lab may have swept it first.
        }
    }
}

/// Removes the registries that killed processes of a deleted network namespace have left.
/// `namespace` is the inode number of the namespace.
pub(crate) fn remove_registries(namespace: u64) {
    let entries = fs::read_dir(MEMORY).into_iter().flatten().flatten();
    for entry in entries {
        // The name has: `weft-` and the kind, version, user, network namespace, PID namespace.
        let name = entry.file_name();
        let name = name.to_str().filter(|name| name.starts_with("weft-"));
        let found = name.and_then(|name| name.split('.').nth(2)?.parse().ok());
        if found == Some(namespace) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_folder_is_removed_with_its_content() {
        let folder = Folder::in_memory(0o700).unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "content").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn sweep_removes_only_folders_of_dead_processes() {
        let parent = Folder::new(0o700).unwrap();
        let of = |owner: &str| parent.path().join(format!("{NAME_PREFIX}{owner}-0"));
        // Beyond the largest process number that Linux has.
        let (dead, alive) = (of("4194305"), of(&process::id().to_string()));
        let other = parent.path().join("weft-lab-other");
        for path in [&dead, &alive, &other] {
            fs::create_dir(path).unwrap();
        }
        sweep(parent.path());
        assert_eq!([dead, alive, other].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn only_the_registries_of_the_given_namespace_are_removed() {
        let of = |namespace: u64| {
            let name = format!("weft-sockets-0.0.{namespace}.{}", process::id());
            Path::new(MEMORY).join(name)
        };
        let (gone, stays) = (of(1), of(2));
        let pipe = Path::new(MEMORY).join(format!("{}.alarm-1", gone.display()));
        for path in [&gone, &stays, &pipe] {
            fs::write(path, "").unwrap();
        }
        remove_registries(1);
        let left = [&gone, &stays, &pipe].map(|path| path.exists());
        fs::remove_file(stays).unwrap();
        assert_eq!(left, [false, true, false]);
    }
}
