//! Which names of a tree are copied: rules in the manner of rsync.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

/// Rules in their order. The first that fits a path decides; a path that none fits is included.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    includes: bool,
    only_directories: bool,
    matcher: GlobMatcher,
}

/// A pattern that cannot be understood.
#[derive(Clone, Debug, thiserror::Error)]
#[error("pattern `{pattern}`: {why}")]
pub struct PatternError {
    pattern: String,
    why: String,
}

impl Rules {
    /// Adds a rule behind the others.
    ///
    /// `*` and `?` stand for anything but `/`, `**` for anything; `[…]` and `{…,…}` for one of
    /// several. A pattern that begins with `/` fits from the top of the tree on, another one at
    /// any depth. A pattern that ends in `/` fits directories only. What is in a directory that
    /// is left out is not looked at.
    ///
    /// # Errors
    /// If the pattern cannot be understood.
    pub fn add(&mut self, includes: bool, pattern: &str) -> Result<(), PatternError> {
        let error = |why: String| PatternError { pattern: pattern.into(), why };
        let body = pattern.strip_suffix('/').unwrap_or(pattern);
        let glob = match body.strip_prefix('/') {
            Some(anchored) => anchored.to_owned(),
            None => format!("**/{body}"),
        };
        if body.trim_matches('/').is_empty() {
            return Err(error("it names nothing".into()));
        }
        let glob = GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build();
        let matcher = glob.map_err(|e| error(e.kind().to_string()))?.compile_matcher();
        let only_directories = pattern.ends_with('/');
        self.rules.push(Rule { includes, only_directories, matcher });
        Ok(())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a path, relative to the top of the tree, is copied.
    #[must_use]
    pub fn include(&self, path: &[u8], is_directory: bool) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let fits =
            |rule: &&Rule| (is_directory || !rule.only_directories) && rule.matcher.is_match(path);
        self.rules.iter().find(fits).is_none_or(|rule| rule.includes)
    }
}

#[cfg(test)]
mod tests {
    use super::Rules;

    fn rules(list: &[(bool, &str)]) -> Rules {
        let mut rules = Rules::default();
        for (includes, pattern) in list {
            rules.add(*includes, pattern).unwrap();
        }
        rules
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(&[(true, "keep.o"), (false, "*.o"), (false, "/top"), (false, "build/")]);
        for (path, is_directory, expected) in [
            ("keep.o", false, true),
            ("a/keep.o", false, true),
            ("x.o", false, false),
            ("a/b/x.o", false, false),
            ("top", false, false),
            ("a/top", false, true),
            ("build", true, false),
            ("a/build", true, false),
            ("build", false, true),
            ("other", false, true),
        ] {
            assert_eq!(rules.include(path.as_bytes(), is_directory), expected, "{path}");
        }
    }

    #[test]
    fn a_star_stops_at_a_slash_and_two_do_not() {
        let rules = rules(&[(false, "/a/*/c"), (false, "/x/**/z"), (false, "b?[0-9]")]);
        for (path, expected) in [
            ("a/b/c", false),
            ("a/b/b/c", true),
            ("x/z", false),
            ("x/y/y/z", false),
            ("bb1", false),
            ("bbb", true),
        ] {
            assert_eq!(rules.include(path.as_bytes(), false), expected, "{path}");
        }
    }

    #[test]
    fn names_that_are_no_text_are_matched_too() {
        let rules = rules(&[(false, "*.tmp")]);
        assert!(!rules.include(b"a\xff\n/\xfe.tmp", false));
        assert!(rules.include(b"\xfe.tm", false));
        assert!(Rules::default().add(false, "[").is_err());
        assert!(Rules::default().add(false, "/").is_err());
    }
}
