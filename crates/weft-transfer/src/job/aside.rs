//! Directories besides the destination: one for what is replaced, and those with equal files.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::extras::{Extras, Keeps};
use super::places::{Destination, PlaceError};
use crate::limits::DEPTH_MAX;
use crate::tree::apply::{Backup, Folder};
use crate::tree::beneath;
use crate::wire::record_name::Name;

impl Destination {
    /// Adds the directories that a request names. They are this process's user's.
    ///
    /// # Errors
    /// If one cannot be used.
    pub(super) fn with_own_asides(self, extras: &Extras) -> Result<Self, PlaceError> {
        self.add(extras, &Beside::Own)
    }

    /// Adds the directories that a request names, which are beneath a share. The destination is at
    /// this path of the share.
    ///
    /// # Errors
    /// If one cannot be used.
    pub(super) fn with_shared_asides(
        self,
        share: BorrowedFd<'_>,
        path: &[Name],
        extras: &Extras,
    ) -> Result<Self, PlaceError> {
        let path = match &self.new_name {
            Some(_) => path.split_last().map_or(path, |(_, above)| above),
            None => path,
        };
        self.add(extras, &Beside::Share(share, path))
    }

    fn add(mut self, extras: &Extras, beside: &Beside<'_>) -> Result<Self, PlaceError> {
        if !self.is_there {
            return Ok(self);
        }
        let to = self.root.as_fd();
        let thirds = extras.thirds.iter().map(|third| {
            let Folder { base, names, .. } = beside.find(to, third)?;
            Ok(names.is_empty().then_some(base))
        });
        let thirds = thirds.collect::<Result<_, PlaceError>>()?;
        if let Some(keeps) = &extras.keeps {
            let folder = keeps.folder.as_deref().map(|path| beside.find(to, path)).transpose()?;
            self.backup = Some(Box::new(backup(keeps, folder)?));
        }
        self.thirds = thirds;
        Ok(self)
    }
}

/// Whose directories the paths of a request name.
enum Beside<'a> {
    /// Those of this process's user.
    Own,
    /// Those of a share, in which the destination is at this path.
    Share(BorrowedFd<'a>, &'a [Name]),
}

impl Beside<'_> {
    /// Finds a directory by a path from the destination. It need not exist.
    fn find(&self, to: BorrowedFd<'_>, path: &[u8]) -> Result<Folder, PlaceError> {
        match self {
            Self::Own => own_folder(to, path),
            Self::Share(share, at) => shared_folder(*share, at, path),
        }
    }
}

fn backup(keeps: &Keeps, folder: Option<Folder>) -> Result<Backup, PlaceError> {
    Backup::new(&keeps.suffix, folder).map_err(|_| PlaceError::Suffix)
}

/// Finds a directory by a path from another one, with links and `..` as this user means them. It
/// need not exist.
fn own_folder(from: BorrowedFd<'_>, path: &[u8]) -> Result<Folder, PlaceError> {
    let path = Path::new(OsStr::from_bytes(path));
    let mut existing = path;
    let mut names = Vec::new();
    let base = loop {
        let at = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(from, at, flags, Mode::empty()) {
            Ok(base) => break base,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let name = existing.file_name().ok_or(PlaceError::Path)?;
        names.push(Name::new(name.as_bytes()).map_err(|_| PlaceError::Path)?);
        existing = existing.parent().ok_or(PlaceError::Path)?;
    };
    names.reverse();
    let is_within =
        path.components().all(|it| matches!(it, Component::Normal(_) | Component::CurDir));
    let within = path.components().filter(|it| matches!(it, Component::Normal(_)));
    let within: Vec<&[u8]> = within.map(|it| it.as_os_str().as_bytes()).collect();
    let is_destination = names.is_empty() && within.is_empty() && is_within;
    if is_destination {
        return Err(PlaceError::Same("another directory is meant, and this is the destination"));
    }
    Ok(Folder { base, names, path: is_within.then(|| within.join(&b'/')) })
}

/// Finds a directory by a path from a directory of a share, or from its top if the path begins with
/// a slash, without links. It need not exist.
fn shared_folder(share: BorrowedFd<'_>, from: &[Name], path: &[u8]) -> Result<Folder, PlaceError> {
    let mut all = if path.starts_with(b"/") { Vec::new() } else { from.to_vec() };
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(all.pop().ok_or(PlaceError::Path)?),
            part => all.push(Name::new(part).map_err(|_| PlaceError::Path)?),
        }
    }
    if all.len() >= DEPTH_MAX {
        return Err(PlaceError::Path);
    }
    if all == from {
        return Err(PlaceError::Same("another directory is meant, and this is the destination"));
    }
    let mut base = beneath::open_dir(share, Path::new("."))?;
    let mut names = all.iter();
    let names = loop {
        let rest = names.as_slice();
        let Some(name) = names.next() else { break rest };
        match beneath::open_dir(&base, name.as_path()) {
            Ok(next) => base = next,
            Err(Errno::NOENT) => break rest,
            Err(error) => return Err(error.into()),
        }
    };
    let within = all.strip_prefix(from).filter(|within| !within.is_empty());
    let path = within.map(Name::joined);
    Ok(Folder { base, names: names.to_vec(), path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).expect("a directory").into()
    }

    fn name(name: &str) -> Name {
        Name::new(name.as_bytes()).expect("a name")
    }

    #[test]
    fn folder_of_a_client_stays_in_the_share() {
        let folder = tempfile::tempdir().expect("room");
        fs::create_dir_all(folder.path().join("share/a/b")).expect("room");
        symlink("..", folder.path().join("share/link")).expect("room");
        let share = open(&folder.path().join("share"));
        let find = |path: &str| {
            let from = [name("a"), name("b")];
            let found = shared_folder(share.as_fd(), &from, path.as_bytes()).ok();
            found.map(|Folder { names, path, .. }| (names, path))
        };
        let new = |new: &str| vec![name(new)];
        assert_eq!(find("old"), Some((new("old"), Some(b"old".to_vec()))));
        assert_eq!(find("old/x/."), Some((vec![name("old"), name("x")], Some(b"old/x".to_vec()))));
        assert_eq!(find("../old"), Some((new("old"), None)));
        assert_eq!(find("/old"), Some((new("old"), None)));
        assert_eq!(find("../../a"), Some((vec![], None)));
        for refused in ["", ".", "../b", "../../../x", "..//../..", "/link/x", "../../link"] {
            assert_eq!(find(refused), None, "{refused}");
        }
    }

    #[test]
    fn own_folder_is_anywhere() {
        let folder = tempfile::tempdir().expect("room");
        fs::create_dir_all(folder.path().join("to")).expect("room");
        fs::create_dir(folder.path().join("other")).expect("room");
        symlink("../other", folder.path().join("to/link")).expect("room");
        let to = open(&folder.path().join("to"));
        let find = |path: &Path| {
            let found = own_folder(to.as_fd(), path.as_os_str().as_bytes()).ok();
            found.map(|Folder { names, path, .. }| (names.len(), path))
        };
        assert_eq!(find(Path::new("old/x")), Some((2, Some(b"old/x".to_vec()))));
        assert_eq!(find(Path::new("../other")), Some((0, None)));
        assert_eq!(find(Path::new("../old")), Some((1, None)));
        assert_eq!(find(Path::new("link/x")), Some((1, Some(b"link/x".to_vec()))));
        assert_eq!(find(&folder.path().join("other/x")), Some((1, None)));
        assert_eq!(find(Path::new(".")), None);
    }
}
