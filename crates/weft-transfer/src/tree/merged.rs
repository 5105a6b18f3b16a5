//! Paths that several sources have: as in rsync, the first source decides, and directories are
//! merged.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use rustix::io::Errno;

use super::content::Start;

/// A path. Hashes take less memory, and nobody finds two paths with one.
type Key = [u8; 16];

/// What has been sent of sources that may have paths in common. It has an entry of some 20 bytes
/// for each, and none where all sources have names of their own.
#[derive(Debug)]
pub(super) struct Merged(Option<HashMap<Key, bool>>);

impl Merged {
    /// Nothing of these sources has been sent.
    pub(super) fn of<'a>(starts: impl ExactSizeIterator<Item = &'a Start>) -> Self {
        let (count, mut names) = (starts.len(), HashSet::new());
        let mut all = starts.map(|start| start.new_name.as_ref().or(start.name.as_ref()));
        let are_apart = count < 2 || all.all(|name| name.is_some_and(|name| names.insert(name)));
        Self((!are_apart).then(HashMap::new))
    }

    /// Whether an entry with this path is sent: the first one is, and so are other directories if
    /// that is one.
    ///
    /// # Errors
    /// `EEXIST` for a directory if the first one is none.
    pub(super) fn is_sent(&mut self, path: &[u8], is_directory: bool) -> Result<bool, Errno> {
        let Some(sent) = &mut self.0 else { return Ok(true) };
        let hash = blake3::hash(path);
        let key = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        match sent.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(is_directory);
                Ok(true)
            }
            Entry::Occupied(first) if is_directory && !first.get() => Err(Errno::EXIST),
            Entry::Occupied(_) => Ok(is_directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::wire::record_name::Name;

    fn merged(names: &[Option<&str>]) -> Merged {
        let start = |name: &Option<&str>| {
            let directory = File::open("/").expect("a directory").into();
            let name = name.map(|name| Name::new(name.as_bytes()).expect("a name"));
            Start { name, ..Start::contents(directory) }
        };
        let starts: Vec<_> = names.iter().map(start).collect();
        Merged::of(starts.iter())
    }

    #[test]
    fn only_sources_that_may_share_paths_are_compared() {
        for (names, are_apart) in [
            (&[][..], true),
            (&[None], true),
            (&[Some("a"), Some("b")], true),
            (&[Some("a"), Some("b"), Some("a")], false),
            (&[None, Some("a")], false),
            (&[None, None], false),
        ] {
            assert_eq!(merged(names).0.is_none(), are_apart, "{names:?}");
        }
    }

    #[test]
    fn first_entry_is_sent_and_directories_are_merged() {
        let mut merged = merged(&[None, None]);
        for (path, is_directory, is_sent) in [
            ("file", false, Ok(true)),
            ("file", false, Ok(false)),
            ("file", true, Err(Errno::EXIST)),
            ("dir", true, Ok(true)),
            ("dir", true, Ok(true)),
            ("dir", false, Ok(false)),
            ("dir/file", false, Ok(true)),
        ] {
            assert_eq!(merged.is_sent(path.as_bytes(), is_directory), is_sent, "{path}");
        }
    }
}
