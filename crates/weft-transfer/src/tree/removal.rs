//! Entries of the source that are removed when the sink has them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, OFlags, Stat, fstat, statat, unlinkat};
use rustix::io::Errno;

use crate::limits::REMOVALS_WAITING_MAX;
use crate::tree::dirs::{Dir, Dirs};
use crate::tree::metadata;
use crate::wire::record::Time;
use crate::wire::record_name::Name;
use weft_sys::lock;

/// The entries that wait until the sink has them, by their numbers.
#[derive(Debug, Default)]
pub struct Removals {
    waiting: Mutex<HashMap<u64, Removable>>,
    /// Entries that are not removed because too many others wait.
    kept: AtomicU64,
}

/// A name that is removed if it still has what was sent.
#[derive(Debug)]
pub(crate) struct Removable {
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Name,
    /// The name is a link that is followed. The link is removed then.
    pub(crate) is_followed: bool,
    pub(crate) sent: Sent,
}

/// What an entry was when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    id: (u64, u64),
    /// Type and mode.
    mode: u32,
    size: u64,
    mtime: Time,
    /// When anything of it was changed; the removal of another name of the file changes it, too.
    ctime: Option<(i64, i64)>,
}

/// Why an entry stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kept {
    /// It is not what was sent.
    #[error("stays at the source, as it has changed since")]
    Changed,
    /// The kernel does not remove it.
    #[error("cannot be removed at the source: {0}")]
    System(Errno),
}

impl From<&Stat> for Sent {
    fn from(stat: &Stat) -> Self {
        let is_alone = stat.st_nlink == 1;
        Self {
            id: (stat.st_dev, stat.st_ino),
            mode: stat.st_mode,
            size: metadata::size(stat),
            mtime: metadata::mtime(stat),
            ctime: is_alone.then_some((stat.st_ctime, stat.st_ctime_nsec)),
        }
    }
}

impl Sent {
    /// Whether an entry is still what was sent.
    fn is_still(&self, stat: &Stat) -> bool {
        let now = Self::from(stat);
        // Of a file that had several names, others may be gone.
        *self == now || self.ctime.is_none() && *self == Self { ctime: None, ..now }
    }
}

impl Removals {
    /// Notes an entry that is sent, or that is sent in another state than it was noted in.
    pub(crate) fn note(&self, number: u64, removable: Removable) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < REMOVALS_WAITING_MAX || waiting.contains_key(&number) {
            waiting.insert(number, removable);
        } else {
            self.kept.fetch_add(1, Relaxed);
        }
    }

    /// Notes that an open file is sent, which was noted when it was found.
    pub(crate) fn opened(&self, number: u64, stat: &Stat) {
        if let Some(removable) = lock(&self.waiting).get_mut(&number) {
            removable.sent = Sent::from(stat);
        }
    }

    /// Removes an entry that the sink has. Of others, none is removed.
    ///
    /// # Errors
    /// Its path, and why it stays.
    pub fn remove(&self, number: u64) -> Result<(), (Vec<u8>, Kept)> {
        let Some(removable) = lock(&self.waiting).remove(&number) else { return Ok(()) };
        let path = || removable.dir.path_of(Some(&removable.name));
        match removable.remove() {
            // Another name, or another copy, has led to it.
            Ok(()) | Err(Kept::System(Errno::NOENT)) => Ok(()),
            Err(kept) => Err((path(), kept)),
        }
    }

    /// Entries that stay because too many others waited.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }
}

impl Removable {
    fn remove(&self) -> Result<(), Kept> {
        let system = Kept::System;
        let dir = self.dirs.open(&self.dir).map_err(system)?;
        let stat = match self.is_followed {
            true => self.dirs.follow(&self.dir, &self.name, OFlags::PATH).and_then(fstat),
            false => statat(&*dir, self.name.as_path(), AtFlags::SYMLINK_NOFOLLOW),
        };
        // The next call removes what has the name then.
        if !self.sent.is_still(&stat.map_err(system)?) {
            return Err(Kept::Changed);
        }
        unlinkat(&*dir, self.name.as_path(), AtFlags::empty()).map_err(system)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn write(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            fs::write(folder.path().join(name), name).expect("room");
        }
        folder
    }

    /// Notes the files of a folder as they are.
    fn noted(folder: &Path, names: &[&str]) -> Removals {
        let root = fs::File::open(folder).expect("a folder");
        let (dirs, removals) = (Arc::new(Dirs::new(root.into())), Removals::default());
        for (number, name) in names.iter().enumerate() {
            let name = Name::new(name.as_bytes()).expect("a name");
            let fd = dirs.open(dirs.root()).expect("open");
            let stat = statat(&*fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).expect("there");
            let (dirs, dir) = (Arc::clone(&dirs), Arc::clone(dirs.root()));
            let sent = Sent::from(&stat);
            let removable = Removable { dirs, dir, name, is_followed: false, sent };
            removals.note(number as u64, removable);
        }
        removals
    }

    #[test]
    fn what_the_sink_has_is_removed_once() {
        let folder = write(&["a", "b"]);
        let removals = noted(folder.path(), &["a", "b"]);
        let is_there = |name: &str| folder.path().join(name).exists();
        assert_eq!(removals.remove(0), Ok(()));
        assert!(!is_there("a") && is_there("b"));
        // What has its name now is another entry, and 7 was none.
        fs::write(folder.path().join("a"), "a").expect("room");
        assert_eq!((removals.remove(0), removals.remove(7)), (Ok(()), Ok(())));
        assert!(is_there("a") && is_there("b"));
    }

    #[test]
    fn what_has_changed_since_stays() {
        let names = ["written", "replaced", "moded", "gone"];
        let folder = write(&names);
        let removals = noted(folder.path(), &names);
        let path = |name: &str| folder.path().join(name);
        let time = fs::metadata(path("written")).and_then(|it| it.modified()).expect("a time");
        fs::write(path("written"), "WRITTEN").expect("room");
        let file = fs::File::options().write(true).open(path("written")).expect("there");
        file.set_modified(time).expect("our own");
        fs::write(path("other"), "replaced").expect("room");
        fs::rename(path("other"), path("replaced")).expect("room");
        fs::set_permissions(path("moded"), Permissions::from_mode(0o600)).expect("our own");
        fs::remove_file(path("gone")).expect("there");
        for (number, name) in names[..3].iter().enumerate() {
            let kept = removals.remove(number as u64);
            assert_eq!(kept, Err((name.as_bytes().to_vec(), Kept::Changed)));
            assert!(path(name).exists());
        }
        assert_eq!(removals.remove(3), Ok(()));
    }

    #[test]
    fn all_names_of_a_file_are_removed() {
        let folder = write(&["a"]);
        fs::hard_link(folder.path().join("a"), folder.path().join("b")).expect("room");
        let removals = noted(folder.path(), &["a", "b"]);
        assert_eq!((removals.remove(0), removals.remove(1)), (Ok(()), Ok(())));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
