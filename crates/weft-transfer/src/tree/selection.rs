//! A selection of paths in a tree: only they are copied, and the directories above them.

use std::collections::BTreeSet;

use crate::wire::record_name::{Name, NameError};

/// Selected paths, relative to the top of a tree. The top itself is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    paths: BTreeSet<Vec<u8>>,
    /// The directories of which the entries are selected, but not what is in these.
    listed: BTreeSet<Vec<u8>>,
    /// Whether all that is in a selected directory is selected.
    is_deep: bool,
}

impl Selection {
    /// Creates an empty selection. If it `is_deep`, all that is in selected directories is
    /// selected.
    #[must_use]
    pub fn new(is_deep: bool) -> Self {
        Self { is_deep, ..Self::default() }
    }

    /// Selects a path. Slashes at its beginning, several of them, and components `.` mean nothing.
    /// With a slash or `.` at its end, what is in the directory is selected, too.
    ///
    /// # Errors
    /// If a component is `..`, or too long.
    pub fn add(&mut self, path: &[u8]) -> Result<(), NameError> {
        let parts = path.split(|&byte| byte == b'/');
        let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
        for part in &parts {
            Name::new(part)?;
        }
        let whole = parts.join(&b'/');
        if whole.is_empty() || path.ends_with(b"/") || path.ends_with(b"/.") {
            self.listed.insert(whole.clone());
        }
        self.paths.insert(whole);
        Ok(())
    }

    /// Returns the selected paths.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(|path| &path[..])
    }

    /// Whether all that is in selected directories is selected.
    #[must_use]
    pub fn is_deep(&self) -> bool {
        self.is_deep
    }

    /// Whether the path itself is selected.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(path)
    }

    /// Whether paths in this directory are selected one by one.
    pub(crate) fn is_above(&self, path: &[u8]) -> bool {
        self.below(path).next().is_some()
    }

    /// Returns the selected names in a directory that is copied; `None` for all of them.
    pub(crate) fn names_in(&self, path: &[u8]) -> Option<Vec<Name>> {
        if self.listed.contains(path) || self.is_deep && self.is_within(path) {
            return None;
        }
        let names = self.below(path).map(|rest| {
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            &rest[..end]
        });
        let names: BTreeSet<&[u8]> = names.collect();
        Some(names.into_iter().filter_map(|name| Name::new(name).ok()).collect())
    }

    /// Whether the path or a directory above it is selected.
    fn is_within(&self, path: &[u8]) -> bool {
        let ends = (0..path.len()).filter(|&at| path[at] == b'/');
        self.has(b"") || self.has(path) || ends.into_iter().any(|end| self.has(&path[..end]))
    }

    /// Returns the rest of each selected path beneath a directory.
    fn below<'a>(&'a self, path: &[u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let prefix = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        let from = self.paths.range(prefix.clone()..);
        let rests = from.map_while(move |path| path.strip_prefix(&prefix[..]));
        rests.filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(selection: &Selection, path: &str) -> Option<Vec<String>> {
        let names = selection.names_in(path.as_bytes())?;
        Some(names.iter().map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect())
    }

    fn selection(is_deep: bool, paths: &[&str]) -> Selection {
        let mut selection = Selection::new(is_deep);
        for path in paths {
            selection.add(path.as_bytes()).expect("a path");
        }
        selection
    }

    #[test]
    fn only_selected_paths_and_those_above_them_are_copied() {
        let some = selection(true, &["/a//b/./c", "a-x", "d/"]);
        let expect = |names: &[&str]| Some(names.iter().map(|&it| it.to_owned()).collect());
        assert_eq!(names(&some, ""), expect(&["a", "a-x", "d"]));
        assert_eq!(names(&some, "a"), expect(&["b"]));
        assert_eq!(names(&some, "a/b"), expect(&["c"]));
        for whole in ["a/b/c", "a/b/c/e", "d", "d/e/f"] {
            assert_eq!(names(&some, whole), None, "{whole}");
        }
        assert!(some.is_above(b"a") && some.is_above(b"a/b") && !some.is_above(b"a-x"));
        assert!(some.has(b"a/b/c") && !some.has(b"a"));
        assert_eq!(names(&selection(true, &["."]), "any/where"), None);
    }

    #[test]
    fn directories_of_a_flat_selection_are_empty_unless_they_end_in_a_slash() {
        let some = selection(false, &["a", "b/", "c/d"]);
        assert_eq!(names(&some, "a"), Some(Vec::new()));
        assert_eq!(names(&some, "b"), None);
        assert_eq!(names(&some, "b/e"), Some(Vec::new()));
        assert_eq!(names(&some, "c/d"), Some(Vec::new()));
        assert_eq!(names(&selection(false, &["./"]), ""), None);
    }

    #[test]
    fn no_path_leads_up() {
        for path in ["..", "a/../b", "a/.."] {
            assert!(Selection::new(true).add(path.as_bytes()).is_err(), "{path}");
        }
    }
}
