//! Other sessions in the same root: which are alive, and what the dead ones have left.
//!
//! A session's file is recognised by its mark ([`Mark`]): a file that only has such a name, or a
//! copy of a session's file, is somebody else's, and is treated like any other file.

use std::collections::HashMap;
use std::fs::File;
use std::io::Seek;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, OFlags, StatxFlags, flock, fstat, statat, statx, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::tree::dirs::Dir;
use crate::tree::journal::{self, Contents, Mark, Origin};
use crate::tree::temporary::{self, Key, Maker};
use crate::tree::{beneath, listing, metadata};
use crate::wire::record::Time;
use crate::wire::record_name::Name;

/// Seconds after which a partial file is removed even if no copy replaces it.
const OLD_SECONDS: i64 = 7 * 24 * 3_600;
/// Seconds for which an empty file may be that of a session that has just begun.
const YOUNG_SECONDS: i64 = 60;

/// A session that has died, with its lock: nobody else removes what it has left.
#[derive(Debug)]
pub(super) struct Dead {
    file: Name,
    maker: Maker,
    /// The directories in which it has made temporary files.
    folders: Vec<Box<[u8]>>,
    /// The files that it began and did not end: their paths and temporary names.
    partial: Vec<(Box<[u8]>, Name)>,
    is_old: bool,
    _lock: OwnedFd,
}

/// Other sessions of the root.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Sessions that are alive. The names of another user's are unknown.
    alive: HashMap<u32, Option<Maker>>,
    dead: HashMap<u32, Dead>,
    /// The files of which dead sessions have left parts, and whether this session has replaced
    /// them.
    partial: HashMap<Box<[u8]>, AtomicBool>,
}

/// Whose a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// No session's.
    Nobodys,
    /// A session needs it.
    Sessions,
    /// A dead session has left a part of a file, which nothing has replaced.
    Partial,
    /// A dead session has left it, and nobody needs it.
    Garbage,
}

/// Returns the mark of a file.
pub(super) fn mark_of(file: impl AsFd, key: Key) -> Result<Mark> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let knows = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let time = stat.stx_btime;
    let born = Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Ok(Mark { key, inode: stat.stx_ino, born: if knows { born } else { Time::default() } })
}

/// Opens the file of a session, and returns it with its mark; `None` if it is none.
fn open(root: BorrowedFd<'_>, name: &Name) -> Result<Option<(File, Mark)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = beneath::open(root, name.as_path(), flags, 0)?;
    if metadata::kind(&fstat(&file)?) != FileType::RegularFile {
        return Ok(None);
    }
    let file = File::from(file);
    let Some(mark) = journal::mark_in(&file) else { return Ok(None) };
    Ok((mark_of(&file, mark.key)? == mark).then_some((file, mark)))
}

/// Whether a name is the file of a session.
pub(super) fn is_sessions_file(root: BorrowedFd<'_>, name: &Name) -> bool {
    temporary::session_itself(name).is_some() && matches!(open(root, name), Ok(Some(_)))
}

/// Whether a file has just been created and is empty.
fn is_young(root: BorrowedFd<'_>, name: &Name) -> bool {
    let stat = statat(root, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| {
        let is_file = metadata::kind(&stat) == FileType::RegularFile && stat.st_size == 0;
        is_file && stat.st_ctime.saturating_add(YOUNG_SECONDS) > metadata::now()
    })
}

impl Others {
    /// Looks at the file of session `id`, if it is one. Returns the contents of a dead session's
    /// file.
    pub(super) fn look(
        &mut self,
        root: BorrowedFd<'_>,
        name: Name,
        id: u32,
        here: Origin,
        cleans: bool,
    ) -> Option<Contents> {
        let (mut file, mark) = match open(root, &name) {
            Ok(Some(found)) => found,
            Err(Errno::ACCESS | Errno::PERM) => {
                self.alive.insert(id, None);
                return None;
            }
            _ => {
                if is_young(root, &name) {
                    self.alive.insert(id, None);
                }
                return None;
            }
        };
        let stat = fstat(&file).ok()?;
        // Another user's journal is not trusted: it could name any file.
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            self.alive.insert(id, None);
            return None;
        }
        let maker = Maker { session: id, key: mark.key };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            self.alive.insert(id, Some(maker));
            return None;
        }
        file.rewind().ok()?;
        let contents = journal::read(&file, here);
        let partial = contents.unfinished.iter();
        let partial: Vec<_> = partial.map(|it| (it.path.clone(), it.temporary.clone())).collect();
        for (path, _) in &partial {
            self.partial.entry(path.clone()).or_default();
        }
        let is_old = cleans || stat.st_mtime.saturating_add(OLD_SECONDS) < metadata::now();
        let folders = contents.folders.clone();
        let lock = file.into();
        let dead = Dead { file: name, maker, folders, partial, is_old, _lock: lock };
        self.dead.insert(id, dead);
        Some(contents)
    }

    /// Returns whose a name in a directory is. `own` makes the names of this session.
    pub(super) fn whose(&self, own: &Maker, dir: &Dir, name: &Name) -> Whose {
        if dir.is_root()
            && let Some(id) = temporary::session_itself(name)
            && (id == own.session || self.alive.contains_key(&id) || self.dead.contains_key(&id))
        {
            return Whose::Sessions;
        }
        let Some(id) = temporary::session_of(name) else { return Whose::Nobodys };
        let is_alive = |maker: &Option<Maker>| maker.is_none_or(|maker| maker.has_made(name));
        if own.has_made(name) || self.alive.get(&id).is_some_and(is_alive) {
            return Whose::Sessions;
        }
        if self.dead.is_empty() {
            return Whose::Nobodys;
        }
        let path = dir.path_of(Some(name));
        let mut partial = self
            .dead
            .values()
            .flat_map(|dead| dead.partial.iter().map(move |(of, temporary)| (dead, of, temporary)));
        if let Some((dead, of, _)) = partial.find(|(_, of, it)| beside(of, it) == path) {
            let is_needed = !dead.is_old && !self.is_replaced(of);
            return if is_needed { Whose::Partial } else { Whose::Garbage };
        }
        let is_left = self.dead.get(&id).is_some_and(|dead| dead.maker.has_made(name));
        if is_left { Whose::Garbage } else { Whose::Nobodys }
    }

    /// Records that this session has replaced an entry, so that parts of it are needed no more.
    pub(super) fn replaced(&self, dir: &Dir, name: &Name) {
        if !self.partial.is_empty()
            && let Some(is_replaced) = self.partial.get(&*dir.path_of(Some(name)))
        {
            is_replaced.store(true, Relaxed);
        }
    }

    fn is_replaced(&self, path: &[u8]) -> bool {
        self.partial.get(path).is_some_and(|it| it.load(Relaxed))
    }

    /// Removes the parts of a file that begins anew. Returns how many there were, and their bytes.
    pub(super) fn begins_anew(&self, root: BorrowedFd<'_>, path: &[u8]) -> (u64, u64) {
        if !self.partial.contains_key(path) {
            return (0, 0);
        }
        let mut removed = (0, 0);
        let all = self.dead.values().flat_map(|dead| &dead.partial);
        for (of, name) in all.filter(|(of, _)| **of == *path) {
            if let Some(bytes) = remove(root, of, name) {
                removed = (removed.0 + 1, removed.1 + bytes);
            }
        }
        removed
    }

    /// Removes what dead sessions have left and nobody needs, and their files if nothing of theirs
    /// is left.
    pub(super) fn end(&self, root: BorrowedFd<'_>) -> Result<()> {
        for dead in self.dead.values() {
            let mut is_left = false;
            for (path, name) in &dead.partial {
                if dead.is_old || self.is_replaced(path) {
                    remove(root, path, name);
                }
                is_left |= beneath::open_parent(root, path).is_ok_and(|dir| {
                    statat(&dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
                });
            }
            if is_left {
                continue;
            }
            for folder in &dead.folders {
                dead.sweep(root, folder);
            }
            match unlinkat(root, dead.file.as_path(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Dead {
    /// Removes the session's temporary files from a directory.
    fn sweep(&self, root: BorrowedFd<'_>, folder: &[u8]) {
        let Ok(dir) = beneath::open_parent(root, &[folder, b"/"].concat()) else { return };
        let mut names = Vec::new();
        // What cannot be listed has no names that could be removed.
        let _ = listing::list(&dir, &mut names);
        for (name, _) in names {
            if self.maker.has_made(&name) {
                remove_unlocked(&dir, &name);
            }
        }
    }
}

/// Returns the path of a name in the directory of another path.
fn beside(path: &[u8], name: &Name) -> Vec<u8> {
    let len = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    [&path[..len], name.as_bytes()].concat()
}

fn remove(root: BorrowedFd<'_>, path: &[u8], name: &Name) -> Option<u64> {
    temporary::session_of(name)?;
    remove_unlocked(beneath::open_parent(root, path).ok()?, name)
}

/// Removes a temporary file of a dead session, unless another session has resumed it. Returns its
/// size if it is removed.
pub(super) fn remove_unlocked(dir: impl AsFd, name: &Name) -> Option<u64> {
    let stat = statat(&dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_free = match metadata::kind(&stat) {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let lock = |fd| flock(&fd, FlockOperation::NonBlockingLockExclusive);
            beneath::open(&dir, name.as_path(), flags, 0).and_then(lock).is_ok()
        }
        // No session creates a directory with such a name.
        FileType::Directory => false,
        // Links and devices are renamed at once.
        _ => true,
    };
    if !is_free {
        return None;
    }
    // If this fails, the file is gone, or a later session removes it.
    unlinkat(&dir, name.as_path(), AtFlags::empty()).ok()?;
    Some(metadata::size_of_last(&stat))
}

#[cfg(test)]
mod tests {
    use super::super::options::ApplyOptions;
    use super::super::session::Session;
    use super::*;
    use crate::tree::dirs::Dirs;
    use std::fs;
    use std::path::Path;

    fn begin(root: &Path) -> Session {
        let root = File::open(root).expect("a directory");
        Session::begin(root.as_fd(), &ApplyOptions::default()).expect("room")
    }

    #[test]
    fn only_what_a_session_has_made_is_its_own() {
        let folder = tempfile::tempdir().expect("room");
        let name = |name: &str| Name::new(name.as_bytes()).expect("a name");
        let dirs = || Dirs::new(File::open(folder.path()).expect("a directory").into());
        let whose = |session: &Session, name: &Name| {
            session.others.whose(&session.maker, dirs().root(), name)
        };
        let one = begin(folder.path());
        let (made, file) =
            (one.maker.name_of(&name("x")), temporary::name_of_session(one.maker.session));
        assert_eq!(whose(&one, &made), Whose::Sessions);
        // A user's file has such a name, or is a copy of a session's file.
        for user in [".notes.weft-deadbeef", ".weft-00000007", ".weft-00000008"] {
            fs::write(folder.path().join(user), b"mine").expect("room");
        }
        let copy = folder.path().join(".weft-00000009");
        fs::copy(folder.path().join(file.as_path()), &copy).expect("room");
        let two = begin(folder.path());
        for user in [".notes.weft-deadbeef", ".weft-00000007", ".weft-00000008", ".weft-00000009"] {
            assert_eq!(whose(&two, &name(user)), Whose::Nobodys, "{user}");
        }
        // The first session is alive, and then it has died.
        assert_eq!([whose(&two, &made), whose(&two, &file)], [Whose::Sessions; 2]);
        drop(one);
        let three = begin(folder.path());
        assert_eq!(whose(&three, &made), Whose::Garbage);
        assert_eq!(whose(&three, &file), Whose::Sessions);
        assert_eq!(whose(&three, &name(".x.weft-00000009-0123456789abcdef")), Whose::Nobodys);
        // An empty file may be that of a session that is just beginning.
        fs::write(folder.path().join(".weft-0000000a"), b"").expect("room");
        assert_eq!(whose(&begin(folder.path()), &name(".weft-0000000a")), Whose::Sessions);
    }
}
