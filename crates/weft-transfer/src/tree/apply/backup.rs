//! Keeps what is replaced or deleted, under another name or in another directory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{
    AtFlags, FileType, Mode, fchmod, fchown, fstat, linkat, mkdirat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::limits::BACKUP_DIRECTORIES_OPEN_MAX;
use crate::tree::dirs::{Becomes, Dir, Dirs};
use crate::tree::{beneath, metadata};
use crate::wire::record_name::Name;
use weft_sys::lock;

use super::quota::QuotaSession;
use super::report::{Failure, Full, Step};

/// Where what is replaced or deleted is kept.
#[derive(Debug)]
pub struct Backup {
    suffix: Box<[u8]>,
    folder: Option<Folder>,
    /// The open directories in the folder, with those of the destination that they are like. The
    /// last one that was used comes last.
    open: Mutex<VecDeque<(Arc<Dir>, Arc<OwnedFd>)>>,
}

/// A directory for what is replaced, which is made when something is.
#[derive(Debug)]
pub struct Folder {
    /// A directory that exists, and the names beneath it that may not.
    pub base: OwnedFd,
    /// The names from there to the directory.
    pub names: Vec<Name>,
    /// Its path, if it is in the destination: what is there is not deleted.
    pub path: Option<Vec<u8>>,
}

/// The tree of a copy, and the quota that it is charged to.
#[derive(Clone, Copy)]
pub(super) struct Around<'context> {
    pub(super) dirs: &'context Dirs,
    pub(super) quota: Option<&'context QuotaSession>,
}

impl Around<'_> {
    /// Takes back a charge, if there is a quota.
    fn refund(&self, bytes: u64, names: u64) {
        if let Some(quota) = self.quota {
            quota.refund(bytes, names);
        }
    }
}

/// Where one entry is kept.
#[derive(Debug)]
struct Place {
    dir: Arc<OwnedFd>,
    name: Name,
}

impl Backup {
    /// Keeps entries under their names with a suffix, in this directory or beside their successors.
    ///
    /// # Errors
    /// If neither gives them other names, or the suffix cannot end a name.
    pub fn new(suffix: &[u8], folder: Option<Folder>) -> Result<Self, Errno> {
        let is_name = suffix.is_empty() || Name::new(&[b"x", suffix].concat()).is_ok();
        match (suffix.is_empty() && folder.is_none()) || !is_name {
            true => Err(Errno::INVAL),
            false => Ok(Self { suffix: suffix.into(), folder, open: Mutex::default() }),
        }
    }

    /// Whether entries stay in their directories, which therefore do not keep their times.
    pub(super) fn is_beside(&self) -> bool {
        self.folder.is_none()
    }

    /// Whether a path is the directory for what is replaced.
    pub(super) fn is_folder(&self, path: &[u8]) -> bool {
        let folder = self.folder.as_ref().and_then(|folder| folder.path.as_deref());
        folder.is_some_and(|folder| folder == path)
    }

    /// Whether a name is one that this copy, or an earlier one, has given.
    pub(super) fn has_given(&self, name: &Name) -> bool {
        self.folder.is_none() && name.as_bytes().ends_with(&self.suffix)
    }

    /// Keeps an entry whose name another one is about to get, unless it is a directory. It has its
    /// name until then, if it can be linked and a quota has room for both names. Returns how many
    /// names it is charged for beyond the one that it had, to be refunded when that is another
    /// one's.
    pub(super) fn keep(
        &self,
        around: Around<'_>,
        dir: &Arc<Dir>,
        fd: impl AsFd,
        name: &Name,
    ) -> Result<u64, Failure> {
        match statat(&fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if metadata::kind(&stat) != FileType::Directory => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(0),
            Err(error) => return Err(failed(error)),
        }
        let place = self.free_place(around, dir, name)?;
        let (to, new) = (&*place.dir, place.name.as_path());
        if around.quota.is_none_or(|quota| quota.charge(0, 1).is_ok()) {
            match linkat(&fd, name.as_path(), to, new, AtFlags::empty()) {
                Ok(()) => return Ok(1),
                // Not everything can be linked everywhere.
                Err(Errno::PERM | Errno::NOTSUP | Errno::MLINK) => around.refund(0, 1),
                Err(error) => {
                    around.refund(0, 1);
                    return Err(failed(error));
                }
            }
        }
        renameat(&fd, name.as_path(), to, new).map(|()| 0).map_err(failed)
    }

    /// Moves an entry away, which is no directory.
    pub(super) fn take(
        &self,
        around: Around<'_>,
        dir: &Arc<Dir>,
        fd: impl AsFd,
        name: &Name,
    ) -> Result<(), Failure> {
        let stat = statat(&fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if metadata::kind(&stat) == FileType::Directory {
            return Err(failed(Errno::ISDIR));
        }
        let place = self.free_place(around, dir, name)?;
        renameat(fd, name.as_path(), &*place.dir, place.name.as_path()).map_err(failed)
    }

    /// Returns where an entry is kept, and removes an earlier one there: a rename between two names
    /// of one file would leave both. In the directory for what is replaced, an empty directory
    /// goes, too.
    fn free_place(
        &self,
        around: Around<'_>,
        dir: &Arc<Dir>,
        name: &Name,
    ) -> Result<Place, Failure> {
        let name = [name.as_bytes(), &self.suffix].concat();
        let name = Name::new(&name).map_err(|_| failed(Errno::NAMETOOLONG))?;
        let dir = match &self.folder {
            Some(folder) => self.beneath(folder, around, dir)?,
            None => around.dirs.open(dir).map_err(failed)?,
        };
        let earlier = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
        let removed = match unlinkat(&*dir, name.as_path(), AtFlags::empty()) {
            Err(Errno::ISDIR) if self.folder.is_some() => {
                unlinkat(&*dir, name.as_path(), AtFlags::REMOVEDIR)
            }
            Err(Errno::ISDIR) => Err(Errno::EXIST),
            removed => removed,
        };
        match (removed, earlier) {
            (Ok(()), Ok(earlier)) => around.refund(metadata::size_of_last(&earlier), 1),
            (Ok(()) | Err(Errno::NOENT), _) => {}
            (Err(error), _) => return Err(failed(error)),
        }
        Ok(Place { dir, name })
    }

    /// Opens the directory for what was in one of the destination. It is made with the mode and
    /// owner of that one, or with those that it will get.
    fn beneath(
        &self,
        folder: &Folder,
        around: Around<'_>,
        dir: &Arc<Dir>,
    ) -> Result<Arc<OwnedFd>, Failure> {
        let (mut chain, mut at) = (Vec::new(), dir);
        let mut fd = loop {
            if let Some(fd) = self.opened(at) {
                break fd;
            }
            chain.push(at);
            let Some((parent, _)) = at.place() else { break folder.open(around)? };
            at = parent;
        };
        for dir in chain.into_iter().rev() {
            if let Some((_, name)) = dir.place() {
                let (new, is_new) = open(around, &fd, name, 0o700)?;
                if is_new {
                    make_like(&new, around, dir).map_err(failed)?;
                }
                fd = Arc::new(new);
            }
            let mut open = lock(&self.open);
            if open.len() == BACKUP_DIRECTORIES_OPEN_MAX {
                open.pop_front();
            }
            open.push_back((Arc::clone(dir), Arc::clone(&fd)));
        }
        Ok(fd)
    }

    /// Returns the open directory for what was in one of the destination.
    fn opened(&self, dir: &Arc<Dir>) -> Option<Arc<OwnedFd>> {
        let mut open = lock(&self.open);
        let at = open.iter().position(|(it, _)| Arc::ptr_eq(it, dir))?;
        let found = open.remove(at)?;
        let fd = Arc::clone(&found.1);
        open.push_back(found);
        Some(fd)
    }
}

impl Folder {
    /// Opens the directory for what was at the top of the destination.
    fn open(&self, around: Around<'_>) -> Result<Arc<OwnedFd>, Failure> {
        let mut fd = beneath::open_dir(&self.base, Path::new(".")).map_err(failed)?;
        for name in &self.names {
            fd = open(around, &fd, name, 0o777)?.0;
        }
        Ok(Arc::new(fd))
    }
}

/// Gives a new directory the mode and owner that one of the destination has, or will get.
fn make_like(new: &OwnedFd, around: Around<'_>, dir: &Arc<Dir>) -> Result<(), Errno> {
    let stat = fstat(&*around.dirs.open(dir)?)?;
    let there = Becomes { mode: metadata::mode(&stat), owner: Some((stat.st_uid, stat.st_gid)) };
    let Becomes { mode, owner } = dir.becomes().unwrap_or(there);
    if geteuid().is_root()
        && let Some((uid, gid)) = owner.or(there.owner)
    {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        fchown(new, Some(uid), Some(gid))?;
    }
    // This process has to put files there.
    fchmod(new, Mode::from_raw_mode((mode & 0o1777 | 0o300).into()))
}

/// Opens a directory, and returns whether it has been made.
fn open(
    around: Around<'_>,
    dir: &OwnedFd,
    name: &Name,
    mode: u32,
) -> Result<(OwnedFd, bool), Failure> {
    match beneath::open_dir(dir, name.as_path()) {
        Err(Errno::NOENT) => {}
        opened => return Ok((opened.map_err(failed)?, false)),
    }
    let charged = around.quota.map_or(Ok(()), |quota| quota.charge(0, 1));
    charged.map_err(Full::failure)?;
    let made = mkdirat(dir, name.as_path(), Mode::from_raw_mode(mode));
    if made.is_err() {
        around.refund(0, 1);
    }
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed(error)),
    }
    Ok((beneath::open_dir(dir, name.as_path()).map_err(failed)?, made.is_ok()))
}

/// Returns an error as the failure of an entry that is to be kept.
fn failed(error: Errno) -> Failure {
    (Step::Keep, error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::quota::{Quota, Usage};
    use super::super::report::Full;
    use super::*;

    #[test]
    fn what_is_kept_counts_while_it_has_both_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = || OwnedFd::from(fs::File::open(folder.path()).expect("a folder"));
        let (path, name) = (|name| folder.path().join(name), Name::new(b"file").expect("a name"));
        let backup = Backup::new(b"~", None).expect("a suffix");
        let dirs = Dirs::new(root());
        for (names, is_linked, has_earlier) in
            [(3, true, false), (2, false, false), (4, true, true), (3, true, true)]
        {
            fs::write(path("file"), [1; 10]).expect("room");
            if has_earlier {
                fs::write(path("file~"), [2; 50]).expect("room");
            }
            let quota = Quota::new(root(), Usage { bytes: 100, names });
            let quota = quota.begin().expect("a tree");
            // What is about to get the name.
            quota.charge(10, 1).expect("room");
            let around = Around { dirs: &dirs, quota: Some(&quota) };
            let more = backup.keep(around, dirs.root(), root(), &name).expect("a quota");
            assert_eq!((more, path("file").exists()), (u64::from(is_linked), is_linked));
            assert_eq!(fs::read(path("file~")).expect("it is kept"), [1; 10]);
            // Its bytes and both names count, and those of the earlier one do not.
            let left = names - 2 - more;
            assert_eq!(quota.charge(81, 0), Err(Full::Bytes(100)), "{names}");
            assert_eq!(quota.charge(0, left + 1), Err(Full::Names(names)));
            assert_eq!(quota.charge(80, left), Ok(()));
            let _ = fs::remove_file(path("file"));
            fs::remove_file(path("file~")).expect("it is there");
        }
    }

    #[test]
    fn only_an_empty_directory_among_what_is_kept_makes_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = || OwnedFd::from(fs::File::open(folder.path()).expect("a folder"));
        let (path, name) = (|name| folder.path().join(name), Name::new(b"file").expect("a name"));
        let dirs = Dirs::new(root());
        let around = Around { dirs: &dirs, quota: None };
        let take = |backup: &Backup| {
            let taken = backup.take(around, dirs.root(), root(), &name);
            taken.map_err(|(_, error)| error)
        };
        let names = vec![Name::new(b"kept").expect("a name")];
        let aside = Folder { base: root(), names, path: None };
        let aside = Backup::new(b"", Some(aside)).expect("a directory");
        fs::create_dir_all(path("kept/file/sub")).expect("room");
        fs::write(path("file"), "it").expect("room");
        assert_eq!(take(&aside), Err(Errno::NOTEMPTY));
        fs::remove_dir(path("kept/file/sub")).expect("it is there");
        assert_eq!(take(&aside), Ok(()));
        assert_eq!(fs::read(path("kept/file")).expect("it is kept"), b"it");
        // A directory of the destination stays.
        fs::write(path("file"), "it").expect("room");
        fs::create_dir(path("file~")).expect("room");
        assert_eq!(take(&Backup::new(b"~", None).expect("a suffix")), Err(Errno::EXIST));
        assert!(path("file").exists() && path("file~").is_dir());
    }
}
