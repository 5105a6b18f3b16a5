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
    /// name until then.
    pub(super) fn keep(
        &self,
        around: Around<'_>,
        dir: &Arc<Dir>,
        fd: impl AsFd,
        name: &Name,
    ) -> Result<(), Failure> {
        match statat(&fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if metadata::kind(&stat) != FileType::Directory => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
        let place = self.free_place(around, dir, name)?;
        let (to, new) = (&*place.dir, place.name.as_path());
        let kept = match linkat(&fd, name.as_path(), to, new, AtFlags::empty()) {
            // Not everything can be linked everywhere.
            Err(Errno::PERM | Errno::NOTSUP | Errno::MLINK) => {
                renameat(&fd, name.as_path(), to, new)
            }
            linked => linked,
        };
        kept.map_err(failed)
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
    /// of one file would leave both.
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
        match unlinkat(&*dir, name.as_path(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Place { dir, name }),
            Err(error) => Err(failed(error)),
        }
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
    if let (Some(quota), Err(_)) = (around.quota, made) {
        quota.refund(0, 1);
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
