//! Where the symbolic links of a source may lead, if they are followed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, Result};

use crate::tree::{beneath, metadata};
use crate::wire::record_name::Name;

/// Where links may lead.
#[derive(Clone, Debug, Default)]
pub enum Reach {
    /// They are not followed.
    #[default]
    Nowhere,
    /// To whatever this process's user may read, except these directories, by device and inode.
    Anywhere(Vec<(u64, u64)>),
    /// To what is beneath a directory, in which the tree is at this path.
    Within(Arc<OwnedFd>, Vec<u8>),
}

impl Reach {
    /// Whether links are followed.
    #[must_use]
    pub fn follows(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// The same for the tree at a name of this one.
    #[must_use]
    pub fn at(self, name: &Name) -> Self {
        match self {
            Self::Within(root, path) => Self::Within(root, joined(&path, name.as_bytes())),
            other => other,
        }
    }

    /// Opens what a link leads to. The link has a name in a directory, and a path in the tree.
    ///
    /// # Errors
    /// An error of the kernel: `EXDEV` if it leads too far, `ELOOP` if it is not followed, or leads
    /// to a directory in which it must not end.
    pub fn open(&self, dir: impl AsFd, name: &Name, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let mut flags = flags | OFlags::CLOEXEC;
        if !flags.contains(OFlags::PATH) {
            flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
        }
        match self {
            Self::Nowhere => Err(Errno::LOOP),
            Self::Anywhere(except) => {
                let fd = openat(dir, name.as_path(), flags, Mode::empty())?;
                let stat = fstat(&fd)?;
                let is_folder = metadata::kind(&stat) == FileType::Directory;
                match is_folder && except.contains(&(stat.st_dev, stat.st_ino)) {
                    true => Err(Errno::LOOP),
                    false => Ok(fd),
                }
            }
            Self::Within(root, above) => beneath::follow(root, &joined(above, path), flags),
        }
    }
}

/// Returns the path of a name, or a path, beneath a path, which may be empty.
pub(super) fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_nowhere_else() {
        let folder = tempfile::tempdir().expect("room");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("share/a/b")).expect("room");
        fs::write(path("share/file"), "inside").expect("room");
        fs::write(path("secret"), "outside").expect("room");
        let secret = path("secret");
        for (name, target) in [
            ("inside", "../../file"),
            ("outside", "../../../secret"),
            ("around", "../../../share/file"),
            ("itself", "itself"),
            ("nothing", "none"),
            ("absolute", secret.to_str().expect("text")),
            ("by-proc", "/proc/self/cwd"),
            ("above", "../.."),
        ] {
            symlink(target, path("share/a/b").join(name)).expect("room");
        }
        let open = |path: std::path::PathBuf| OwnedFd::from(File::open(path).expect("a directory"));
        let (share, dir) = (Arc::new(open(path("share"))), open(path("share/a/b")));
        let within = Reach::Within(Arc::clone(&share), b"a".to_vec());
        let opened = |reach: &Reach, name: &str| {
            let name = Name::new(name.as_bytes()).expect("a name");
            let path = [b"b/", name.as_bytes()].concat();
            reach.open(&dir, &name, &path, OFlags::RDONLY).map(drop)
        };
        assert_eq!(opened(&within, "inside"), Ok(()));
        assert_eq!(opened(&within, "above"), Ok(()));
        for (name, errno) in [
            ("outside", Errno::XDEV),
            ("around", Errno::XDEV),
            ("absolute", Errno::XDEV),
            ("by-proc", Errno::XDEV),
            ("itself", Errno::LOOP),
            ("nothing", Errno::NOENT),
        ] {
            assert_eq!(opened(&within, name), Err(errno), "{name}");
        }
        let anywhere = Reach::Anywhere(Vec::new());
        for name in ["inside", "outside", "absolute", "above"] {
            assert_eq!(opened(&anywhere, name), Ok(()), "{name}");
            assert_eq!(opened(&Reach::Nowhere, name), Err(Errno::LOOP), "{name}");
        }
        let stat = fstat(&share).expect("open");
        let but_the_share = Reach::Anywhere(vec![(stat.st_dev, stat.st_ino)]);
        assert_eq!(opened(&but_the_share, "above"), Err(Errno::LOOP));
        assert_eq!(opened(&but_the_share, "inside"), Ok(()));
    }
}
