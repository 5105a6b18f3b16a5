//! The directories beneath a root, of which a bounded number is open.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

use crate::limits::{DEPTH_MAX, DIRECTORIES_CACHED_MAX};
use crate::tree::beneath;
use crate::tree::reach::Reach;
use crate::wire::record_name::Name;
use weft_sys::lock;

/// A directory: its name and its parent. It is opened when needed.
#[derive(Debug)]
pub struct Dir {
    place: Option<(Arc<Self>, Name)>,
    depth: usize,
    /// It is a link that is followed.
    is_followed: bool,
    /// The mode and the owner that it will get, for what is made like it before that.
    becomes: OnceLock<Becomes>,
    fd: Mutex<Option<Arc<OwnedFd>>>,
}

/// What a directory gets when what is in it is complete.
#[derive(Clone, Copy, Debug)]
pub struct Becomes {
    /// The mode.
    pub mode: u16,
    /// The user and the group, if they are set.
    pub owner: Option<(u32, u32)>,
}

impl Dir {
    /// Sets what it will get, once.
    pub fn will_become(&self, becomes: Becomes) {
        // The first directory of this name counts.
        let _ = self.becomes.set(becomes);
    }

    /// Returns what it will get, if that is known.
    #[must_use]
    pub fn becomes(&self) -> Option<Becomes> {
        self.becomes.get().copied()
    }

    /// Returns the path from the root to a name in this directory.
    #[must_use]
    pub fn path_of(&self, name: Option<&Name>) -> Vec<u8> {
        let mut parts: Vec<&Name> = name.into_iter().collect();
        let mut dir = self;
        while let Some((parent, name)) = &dir.place {
            parts.push(name);
            dir = parent;
        }
        let parts: Vec<&[u8]> = parts.iter().rev().map(|name| name.as_bytes()).collect();
        parts.join(&b'/')
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.place.is_none()
    }

    /// Returns the parent directory and the name in it; `None` for the root.
    #[must_use]
    pub fn place(&self) -> Option<(&Arc<Self>, &Name)> {
        self.place.as_ref().map(|(parent, name)| (parent, name))
    }

    fn cached(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.fd).clone()
    }

    fn set(&self, fd: Option<Arc<OwnedFd>>) {
        *lock(&self.fd) = fd;
    }
}

/// All directories beneath one root.
#[derive(Debug)]
pub struct Dirs {
    root: Arc<Dir>,
    reach: Reach,
    /// The open directories except the root, the least recently opened first.
    open: Mutex<VecDeque<Arc<Dir>>>,
}

impl Dirs {
    /// Creates the set for an open root, in which no links are followed.
    #[must_use]
    pub fn new(root: OwnedFd) -> Self {
        Self::with_links(root, Reach::Nowhere)
    }

    /// Creates the set for an open root, with links that may lead that far.
    #[must_use]
    pub fn with_links(root: OwnedFd, reach: Reach) -> Self {
        let (fd, becomes) = (Mutex::new(Some(Arc::new(root))), OnceLock::new());
        let root = Dir { place: None, depth: 1, is_followed: false, becomes, fd };
        Self { root: Arc::new(root), reach, open: Mutex::default() }
    }

    /// Whether links are followed.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.reach.follows()
    }

    /// Opens what a link in a directory leads to.
    ///
    /// # Errors
    /// An error of [`Reach::open`], or if the directory cannot be opened.
    pub fn follow(&self, dir: &Arc<Dir>, name: &Name, flags: OFlags) -> Result<OwnedFd> {
        let fd = self.open(dir)?;
        self.reach.open(&*fd, name, &dir.path_of(Some(name)), flags)
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &Arc<Dir> {
        &self.root
    }

    /// Returns a directory in another one. It need not exist.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it is nested too deeply.
    pub fn child(&self, parent: &Arc<Dir>, name: Name) -> Result<Arc<Dir>> {
        self.below(parent, name, false)
    }

    /// Returns the directory to which a link in another one leads. It need not exist.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it is nested too deeply.
    pub fn followed(&self, parent: &Arc<Dir>, name: Name) -> Result<Arc<Dir>> {
        self.below(parent, name, true)
    }

    fn below(&self, parent: &Arc<Dir>, name: Name, is_followed: bool) -> Result<Arc<Dir>> {
        if parent.depth == DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let depth = parent.depth + 1;
        let (place, becomes) = (Some((Arc::clone(parent), name)), OnceLock::new());
        Ok(Arc::new(Dir { place, depth, is_followed, becomes, fd: Mutex::new(None) }))
    }

    /// Opens the directory. It stays open at least as long as the result lives.
    ///
    /// # Errors
    /// If it or one of its parents cannot be opened; `ELOOP` if one is a link that is not followed.
    pub fn open(&self, dir: &Arc<Dir>) -> Result<Arc<OwnedFd>> {
        let mut closed = Vec::new();
        let mut at = dir;
        let mut fd = loop {
            if let Some(fd) = at.cached() {
                break fd;
            }
            let (parent, name) = at.place().ok_or(Errno::BADF)?;
            closed.push((at, name));
            at = parent;
        };
        if closed.is_empty() {
            return Ok(fd);
        }
        for (at, name) in closed.iter().rev() {
            fd = Arc::new(match at.is_followed {
                true => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    self.reach.open(&fd, name, &at.path_of(None), flags)?
                }
                false => beneath::open_dir(&fd, name.as_path())?,
            });
        }
        let mut open = lock(&self.open);
        if let Some(fd) = dir.cached() {
            return Ok(fd);
        }
        if open.len() == DIRECTORIES_CACHED_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.set(None);
        }
        dir.set(Some(Arc::clone(&fd)));
        open.push_back(Arc::clone(dir));
        Ok(fd)
    }
}
