//! Rules that select the names to copy, like rsync's `--include` and `--exclude`.

use super::pattern::Pattern;
pub use super::pattern::PatternError;

/// An ordered list of rules. The first one that matches a path decides; a path without a match is
/// included.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(bool, Pattern)>,
}

impl Rules {
    /// Appends a rule that includes or excludes the names that the pattern matches. The contents of
    /// an excluded directory are not visited.
    ///
    /// # Errors
    /// If the pattern is invalid.
    pub fn add(&mut self, includes: bool, pattern: &str) -> Result<(), PatternError> {
        self.rules.push((includes, Pattern::new(pattern)?));
        Ok(())
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a path relative to the top of the tree is included.
    #[must_use]
    pub fn include(&self, path: &[u8], is_directory: bool) -> bool {
        self.decide(path, is_directory).unwrap_or(true)
    }

    /// Whether a rule includes or excludes a path; `None` if none matches it.
    #[must_use]
    pub fn decide(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let first = self.rules.iter().find(|(_, pattern)| pattern.fits(path, is_directory));
        first.map(|(includes, _)| *includes)
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
    fn the_first_matching_rule_decides() {
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
    fn names_that_are_not_utf_8_are_matched() {
        let rules = rules(&[(false, "*.tmp")]);
        assert!(!rules.include(b"a\xff\n/\xfe.tmp", false));
        assert!(rules.include(b"\xfe.tm", false));
        assert!(Rules::default().add(false, "[").is_err());
        assert!(Rules::default().add(false, "/").is_err());
    }
}
