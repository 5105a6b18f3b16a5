//! What a source is asked to send.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::tree::input::Input;
use crate::tree::reach::Reach;
use crate::tree::selection::Selection;
use crate::wire::record_name::Name;

/// A name that was asked for and cannot be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The last component of its path; `None` if it has none.
    pub name: Option<Name>,
    /// Why.
    pub errno: Errno,
}

/// A file or directory to copy.
#[derive(Debug)]
pub struct Start {
    /// An open directory. Nothing outside of it is read, except by links that are followed.
    pub directory: OwnedFd,
    /// The name in it to copy. If `None`, it is the directory itself.
    pub name: Option<Name>,
    /// The name at the sink, if it differs. The directory itself is the sink's root if it has none.
    pub new_name: Option<Name>,
    /// Of the directory itself: what is copied of it; `None` for all. The sink's root keeps its
    /// attributes then, unless the directory is selected.
    pub selection: Option<Arc<Selection>>,
    /// Where links may lead that are followed: what they lead to is copied in their place.
    pub links: Reach,
}

impl Start {
    /// The contents and attributes of a directory.
    #[must_use]
    pub fn contents(directory: OwnedFd) -> Self {
        Self { directory, name: None, new_name: None, selection: None, links: Reach::Nowhere }
    }

    /// An entry of a directory.
    #[must_use]
    pub fn entry(directory: OwnedFd, name: Name) -> Self {
        Self { name: Some(name), ..Self::contents(directory) }
    }
}

/// The content that a source sends.
#[derive(Debug)]
pub enum Content {
    /// Files and directories.
    Entries(Vec<Start>),
    /// The bytes of an input, as a file of this name.
    Input(Arc<Input>, Name),
}

impl From<Vec<Start>> for Content {
    fn from(starts: Vec<Start>) -> Self {
        Self::Entries(starts)
    }
}

impl Content {
    /// Sets the name at the sink of an input or of a single entry.
    pub fn rename(&mut self, new_name: Name) {
        match self {
            Self::Entries(starts) => {
                if let [start] = &mut starts[..] {
                    start.new_name = Some(new_name);
                }
            }
            Self::Input(_, name) => *name = new_name,
        }
    }
}

/// Counters of the planned entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Entries, including directories and links.
    pub entries: u64,
    /// Bytes of files, wanted or not.
    pub bytes: u64,
    /// Names that could not be read.
    pub problems: u64,
    /// Whether the walk is complete, so that the counters are final.
    pub is_complete: bool,
}
