//! Folders that last no longer than what is tested in them.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Names of folders: this, the pid of the lab and a serial number.
const NAME_PREFIX: &str = "weft-lab-";
/// Where files are memory.
const MEMORY: &str = "/dev/shm";

/// A folder of this process' own. It is removed, with all that is in it, when this is dropped.
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

    /// Makes a folder for files that are mapped.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn in_memory(mode: u32) -> Result<Self> {
        Self::make(Path::new(MEMORY), mode)
    }

    /// Where it is.
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
        // What cannot be removed does no harm; the next lab tries again.
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

/// Removes what processes of a network namespace, by number, have left for others to find, and did
/// not take away because they were killed. The namespace is gone, and nobody else ever uses it.
pub(crate) fn remove_registries(namespace: u64) {
    let entries = fs::read_dir(MEMORY).into_iter().flatten().flatten();
    for entry in entries {
        // `weft-`, what it is, its version, the user, the network namespace, the PID namespace.
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
    fn a_folder_goes_with_all_that_is_in_it() {
        let folder = Folder::in_memory(0o700).unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "content").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn folders_of_the_dead_are_swept() {
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
    fn registries_of_a_namespace_are_removed() {
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
