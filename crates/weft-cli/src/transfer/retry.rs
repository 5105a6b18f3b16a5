//! The second try of entries that failed in the first one: files that changed while they were read,
//! and those for which there was no room before others were deleted.

use std::collections::BTreeSet;

use weft_transfer::end::Outcome;
use weft_transfer::job::{Flags, Request};

use crate::limits::{RETRY_BYTES_MAX, RETRY_PATTERNS_MAX};

/// A second try.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) request: Request,
    /// The number of entries that it copies; `None` if it copies all once more.
    count: Option<u64>,
}

/// Plans the second try of a request of which `again` entries have failed. The known ones are at
/// these paths of the destination. `is_named` means that they begin with the names of the sources.
pub(super) fn plan(request: &Request, paths: &[Vec<u8>], again: u64, is_named: bool) -> Retry {
    let flags = request.flags.without(Flags::RETRIES).without(Flags::VERSIONS);
    let is_known = paths.len() as u64 == again && paths.iter().all(|path| !path.is_empty());
    // The only source may have another name at the destination.
    let is_source_itself = is_named && paths.iter().any(|path| !path.contains(&b'/'));
    let patterns = if is_known && !is_source_itself { patterns(paths) } else { None };
    let Some(patterns) = patterns else {
        return Retry { request: Request { flags, ..request.clone() }, count: None };
    };
    let replaces = flags.has(Flags::DELETES);
    let flags = flags.without(Flags::DELETES).with(Flags::FORCES, replaces);
    Retry { request: Request { flags, patterns, ..request.clone() }, count: Some(again) }
}

/// Returns patterns that include only these paths; `None` if they would be too many.
fn patterns(paths: &[Vec<u8>]) -> Option<Vec<(bool, String)>> {
    let mut included = BTreeSet::new();
    for path in paths {
        let path = escaped(str::from_utf8(path).ok()?);
        let ends = path.match_indices('/').map(|(at, _)| at);
        included.extend(ends.map(|end| format!("/{}/", &path[..end])));
        included.insert(format!("/{path}"));
    }
    let bytes: usize = included.iter().map(String::len).sum();
    if included.len() > RETRY_PATTERNS_MAX || bytes > RETRY_BYTES_MAX {
        return None;
    }
    let included = included.into_iter().map(|pattern| (true, pattern));
    Some(included.chain([(false, "*".to_owned())]).collect())
}

/// Returns a pattern that fits only this path.
fn escaped(path: &str) -> String {
    // A backslash is special only in a pattern that has one of the others.
    if !path.contains(['*', '?', '[']) {
        return path.to_owned();
    }
    let mut pattern = String::new();
    for letter in path.chars() {
        if matches!(letter, '*' | '?' | '[' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

impl Retry {
    /// Returns the outcome of both tries.
    pub(super) fn outcome(&self, first: Outcome, second: Outcome) -> Outcome {
        let deleted = first.deleted + second.deleted;
        let Some(count) = self.count else { return Outcome { deleted, ..second } };
        let missing = count.saturating_sub(second.copied + second.unchanged + second.failed);
        Outcome {
            copied: first.copied + second.copied,
            bytes: first.bytes + second.bytes,
            unchanged: first.unchanged,
            deleted,
            failed: first.failed + second.failed + missing,
            warnings: first.warnings + second.warnings,
            again: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let flags = Flags::DELETES.with(Flags::RETRIES, true);
        Request { flags, patterns: vec![(false, "x".into())], ..Request::default() }
    }

    #[test]
    fn second_try_names_what_failed_if_it_can() {
        let paths = [b"a/b*\\c".to_vec(), b"d".to_vec(), b"a/e\\f".to_vec()];
        let Retry { request: again, count } = plan(&request(), &paths, 3, false);
        assert_eq!((count, again.flags), (Some(3), Flags::FORCES));
        let patterns: Vec<_> =
            again.patterns.iter().map(|(includes, it)| (*includes, &it[..])).collect();
        let expected =
            [(true, "/a/"), (true, "/a/b\\*\\\\c"), (true, "/a/e\\f"), (true, "/d"), (false, "*")];
        assert_eq!(patterns, expected);
    }

    #[test]
    fn second_try_copies_all_if_names_do_not_suffice() {
        let one = [b"a".to_vec()];
        let many: Vec<Vec<u8>> = (0..300).map(|at| at.to_string().into_bytes()).collect();
        for (paths, again, is_named) in [
            (&one[..], 2, false),
            (&one, 1, true),
            (&[b"\xff".to_vec()], 1, false),
            (&[Vec::new()], 1, false),
            (&many, 300, false),
        ] {
            let Retry { request: whole, count } = plan(&request(), paths, again, is_named);
            assert_eq!((count, whole.flags), (None, Flags::DELETES), "{paths:?}");
            assert_eq!(whole.patterns, request().patterns);
        }
    }

    #[test]
    fn outcomes_of_both_tries_count() {
        let first = Outcome { copied: 5, bytes: 50, failed: 1, deleted: 2, ..Outcome::default() };
        let second = Outcome { copied: 1, bytes: 10, failed: 1, ..Outcome::default() };
        let some = plan(&request(), &[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()], 3, false);
        let both = some.outcome(first, second);
        assert_eq!((both.copied, both.bytes, both.failed, both.deleted), (6, 60, 3, 2));
        let whole = plan(&request(), &[], 3, false);
        let both = whole.outcome(first, second);
        assert_eq!((both.copied, both.bytes, both.failed, both.deleted), (1, 10, 1, 2));
    }
}
