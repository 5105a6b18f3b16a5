//! Keeps what is replaced or deleted, under another name or in another directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, fchmod, fchown, fstat, linkat, mkdirat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::process::geteuid;

use crate::tree::dirs::{Dir, Dirs};
use crate::tree::{beneath, metadata};
use crate::wire::record_name::Name;

/// Where what is replaced or deleted is kept.
#[derive(Debug)]
pub struct Backup {
    suffix: Box<[u8]>,
    folder: Option<Folder>,
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
    pub fn new(suffix: &[u8], folder: Option<Folder>) -> Result<Self> {
        let is_name = suffix.is_empty() || Name::new(&[b"x", suffix].concat()).is_ok();
        match (suffix.is_empty() && folder.is_none()) || !is_name {
            true => Err(Errno::INVAL),
            false => Ok(Self { suffix: suffix.into(), folder }),
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
        dirs: &Dirs,
        dir: &Arc<Dir>,
        fd: impl AsFd,
        name: &Name,
    ) -> Result<()> {
        match statat(&fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if metadata::kind(&stat) != FileType::Directory => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        }
        let place = self.free_place(dirs, dir, name)?;
        let (to, new) = (&*place.dir, place.name.as_path());
        match linkat(&fd, name.as_path(), to, new, AtFlags::empty()) {
            // Not everything can be linked everywhere.
            Err(Errno::PERM | Errno::NOTSUP | Errno::MLINK) => {
                renameat(&fd, name.as_path(), to, new)
            }
            linked => linked,
        }
    }

    /// Moves an entry away, which is no directory.
    pub(super) fn take(
        &self,
        dirs: &Dirs,
        dir: &Arc<Dir>,
        fd: impl AsFd,
        name: &Name,
    ) -> Result<()> {
        let stat = statat(&fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?;
        if metadata::kind(&stat) == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        let place = self.free_place(dirs, dir, name)?;
        renameat(fd, name.as_path(), &*place.dir, place.name.as_path())
    }

    /// Returns where an entry is kept, and removes an earlier one there: a rename between two names
    /// of one file would leave both.
    fn free_place(&self, dirs: &Dirs, dir: &Arc<Dir>, name: &Name) -> Result<Place> {
        let name = [name.as_bytes(), &self.suffix].concat();
        let name = Name::new(&name).map_err(|_| Errno::NAMETOOLONG)?;
        let dir = match &self.folder {
            Some(folder) => Arc::new(folder.beneath(dirs, dir)?),
            None => dirs.open(dir)?,
        };
        match unlinkat(&*dir, name.as_path(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Place { dir, name }),
            Err(error) => Err(error),
        }
    }
}

impl Folder {
    /// Opens the directory for what was in one of the destination. It is made with the mode and
    /// owner of that one.
    fn beneath(&self, dirs: &Dirs, dir: &Arc<Dir>) -> Result<OwnedFd> {
        let mut fd = beneath::open_dir(&self.base, Path::new("."))?;
        for name in &self.names {
            fd = open(&fd, name, 0o777)?.0;
        }
        let mut chain = vec![dir];
        while let Some((parent, _)) = chain.last().and_then(|dir| dir.place()) {
            chain.push(parent);
        }
        for dir in chain.into_iter().rev() {
            let Some((_, name)) = dir.place() else { continue };
            let (new, is_new) = open(&fd, name, 0o700)?;
            if is_new {
                let like = fstat(&*dirs.open(dir)?)?;
                if geteuid().is_root() {
                    let uid = rustix::fs::Uid::from_raw(like.st_uid);
                    let gid = rustix::fs::Gid::from_raw(like.st_gid);
                    fchown(&new, Some(uid), Some(gid))?;
                }
                fchmod(&new, Mode::from_raw_mode(like.st_mode & 0o1777 | 0o300))?;
            }
            fd = new;
        }
        Ok(fd)
    }
}

/// Opens a directory, and returns whether it has been made.
fn open(dir: &OwnedFd, name: &Name, mode: u32) -> Result<(OwnedFd, bool)> {
    match beneath::open_dir(dir, name.as_path()) {
        Err(Errno::NOENT) => {}
        opened => return Ok((opened?, false)),
    }
    let made = mkdirat(dir, name.as_path(), Mode::from_raw_mode(mode));
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    Ok((beneath::open_dir(dir, name.as_path())?, made.is_ok()))
}
