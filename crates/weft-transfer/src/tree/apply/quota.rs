//! Quotas: limits of the bytes and names in a directory tree.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::{Errno, Result};

use crate::tree::dirs::Dirs;
use crate::tree::{beneath, listing, metadata};
use weft_sys::lock;

use super::dead;
use super::report::Full;

/// The size of a tree, or the limit of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The sizes of all files, holes included.
    pub bytes: u64,
    /// Files, directories and links.
    pub names: u64,
}

/// The quota of a tree, which all sessions share that write to it. Sessions charge what they
/// create. The first one counts what is there, so changes by other programs count from the next
/// time on that no session writes.
#[derive(Debug)]
pub struct Quota {
    root: OwnedFd,
    state: Mutex<State>,
    /// Held while one name takes the place of another one, or a file gets another name: what was
    /// replaced is refunded once.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct State {
    most: Usage,
    used: Usage,
    sessions: usize,
}

impl Quota {
    /// Creates the quota of an open directory.
    #[must_use]
    pub fn new(root: OwnedFd, most: Usage) -> Arc<Self> {
        let used = Usage { bytes: 0, names: 0 };
        let state = Mutex::new(State { most, used, sessions: 0 });
        Arc::new(Self { root, state, turn: Mutex::default() })
    }

    /// Changes the limit, also for sessions that have begun.
    pub fn limit(&self, most: Usage) {
        lock(&self.state).most = most;
    }

    /// Begins a session.
    ///
    /// # Errors
    /// If the tree cannot be counted.
    pub fn begin(self: &Arc<Self>) -> Result<QuotaSession> {
        let mut state = lock(&self.state);
        if state.sessions == 0 {
            state.used = count(&self.root)?;
        }
        state.sessions += 1;
        Ok(QuotaSession(Arc::clone(self)))
    }
}

/// A session's use of a quota.
#[derive(Debug)]
pub struct QuotaSession(Arc<Quota>);

impl Drop for QuotaSession {
    fn drop(&mut self) {
        lock(&self.0.state).sessions -= 1;
    }
}

impl QuotaSession {
    /// Charges for what is about to be created.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn charge(&self, bytes: u64, names: u64) -> std::result::Result<(), Full> {
        let mut state = lock(&self.0.state);
        let (most, used) = (state.most, &mut state.used);
        let bytes = used.bytes.saturating_add(bytes);
        let names = used.names.saturating_add(names);
        // A tree that is over its quota already may still lose and replace.
        if bytes > most.bytes && bytes > used.bytes {
            return Err(Full::Bytes(most.bytes));
        }
        if names > most.names && names > used.names {
            return Err(Full::Names(most.names));
        }
        *used = Usage { bytes, names };
        Ok(())
    }

    /// Takes back the charge for what has been removed.
    pub fn refund(&self, bytes: u64, names: u64) {
        let used = &mut lock(&self.0.state).used;
        used.bytes = used.bytes.saturating_sub(bytes);
        used.names = used.names.saturating_sub(names);
    }

    /// Waits until no other session gives names to files.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.turn)
    }
}

/// Counts what is in a tree. Journals do not count.
fn count(root: &OwnedFd) -> Result<Usage> {
    let dirs = Dirs::new(beneath::open_dir(root, std::path::Path::new("."))?);
    let mut used = Usage { bytes: 0, names: 0 };
    let mut queue = vec![Arc::clone(dirs.root())];
    let mut linked = HashSet::new();
    let mut names = Vec::new();
    while let Some(dir) = queue.pop() {
        let fd = match dirs.open(&dir) {
            Ok(fd) => fd,
            // It was removed meanwhile, or its owner lets nobody in.
            Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => return Err(error),
        };
        listing::list(&*fd, &mut names)?;
        for (name, _) in names.drain(..) {
            if dead::is_sessions_file(fd.as_fd(), &name) {
                continue;
            }
            let Ok(stat) = statat(fd.as_fd(), name.as_path(), AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            used.names += 1;
            match metadata::kind(&stat) {
                FileType::Directory => queue.push(dirs.child(&dir, name)?),
                FileType::RegularFile
                    if stat.st_nlink == 1 || linked.insert((stat.st_dev, stat.st_ino)) =>
                {
                    used.bytes = used.bytes.saturating_add(metadata::size(&stat));
                }
                _ => {}
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::super::options::ApplyOptions;
    use super::super::session::Session;
    use super::*;
    use std::fs;

    #[test]
    fn existing_files_count_and_removed_ones_are_free_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).expect("room");
        fs::write(path("sub/file"), [1; 100]).expect("room");
        fs::hard_link(path("sub/file"), path("link")).expect("room");
        // The file of a session does not count, and one that only has such a name does.
        let root = || OwnedFd::from(fs::File::open(folder.path()).expect("a folder"));
        let options = ApplyOptions::default();
        let _session = Session::begin(root().as_fd(), &options).expect("room");
        fs::write(path(".weft-00000001"), [1; 10]).expect("room");
        std::os::unix::fs::symlink("sub", path("symlink")).expect("room");
        assert_eq!(count(&root()), Ok(Usage { bytes: 110, names: 5 }));
        let quota = Quota::new(root(), Usage { bytes: 160, names: 6 });
        let session = quota.begin().expect("a tree");
        assert_eq!(session.charge(51, 0), Err(Full::Bytes(160)));
        assert_eq!(session.charge(0, 2), Err(Full::Names(6)));
        assert_eq!(session.charge(50, 1), Ok(()));
        // Another session shares the quota, and does not count again.
        let other = quota.begin().expect("a tree");
        assert_eq!((other.charge(1, 0), other.charge(0, 0)), (Err(Full::Bytes(160)), Ok(())));
        session.refund(50, 0);
        assert_eq!(other.charge(u64::MAX, 0), Err(Full::Bytes(160)));
        assert_eq!(other.charge(50, 0), Ok(()));
        // Both notice that the limit changes.
        quota.limit(Usage { bytes: 161, names: 6 });
        assert_eq!((other.charge(1, 0), session.charge(1, 0)), (Ok(()), Err(Full::Bytes(161))));
        drop((session, other));
        fs::remove_file(path("symlink")).expect("it is there");
        assert_eq!(quota.begin().expect("a tree").charge(50, 2), Ok(()));
    }
}
