//! Which names of a tree are copied: rules as those of rsync's `--include` and `--exclude`.

use super::pattern::Pattern;
pub use super::pattern::PatternError;

/// Rules in their order. The first that fits a path decides; a path that none fits is included.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(bool, Pattern)>,
}

impl Rules {
    /// Adds a rule behind the others: names that the pattern fits are included, or left out. What
    /// is in a directory that is left out is not looked at.
    ///
    /// # Errors
    /// If the pattern cannot be understood.
    pub fn add(&mut self, includes: bool, pattern: &str) -> Result<(), PatternError> {
        self.rules.push((includes, Pattern::new(pattern)?));
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
        let first = self.rules.iter().find(|(_, pattern)| pattern.fits(path, is_directory));
        first.is_none_or(|(includes, _)| *includes)
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
    fn names_that_are_no_text_are_matched_too() {
        let rules = rules(&[(false, "*.tmp")]);
        assert!(!rules.include(b"a\xff\n/\xfe.tmp", false));
        assert!(rules.include(b"\xfe.tm", false));
        assert!(Rules::default().add(false, "[").is_err());
        assert!(Rules::default().add(false, "/").is_err());
    }
}
