//! Converts the flags of a request to the options of both ends.

use std::thread;

use super::request::{Flags, Request};
use crate::limits::END_THREADS_MAX;
use crate::tree::apply::{ApplyOptions, DryRun};
use crate::tree::rules::{PatternError, Rules};
use crate::tree::source::{PAYLOAD_LEN_MIN, SourceOptions};

/// Returns the source's options for a request.
///
/// # Errors
/// If a pattern is invalid.
pub(super) fn source_options(request: &Request) -> Result<SourceOptions, PatternError> {
    let flags = request.flags;
    let mut rules = Rules::default();
    for (includes, pattern) in &request.patterns {
        rules.add(*includes, pattern)?;
    }
    Ok(SourceOptions {
        asks: skips(flags) || flags.has(Flags::DRY_RUN),
        verifies: flags.has(Flags::VERIFIES),
        takes_xattrs: flags.has(Flags::XATTRS),
        names_owners: flags.has(Flags::OWNERS),
        takes_special_files: false,
        rules,
        ..SourceOptions::new(PAYLOAD_LEN_MIN)
    })
}

/// Whether equal files are skipped.
fn skips(flags: Flags) -> bool {
    flags.has(Flags::SKIPS) || flags.has(Flags::RESUMES)
}

/// Returns the sink's options for a request. Only a user's own process keeps setuid and setgid; a
/// server does not create such files for clients. `has_root` tells whether the destination's
/// directory exists, which can be false only in a dry run.
#[must_use]
pub(super) fn apply_options(
    flags: Flags,
    keeps_special_bits: bool,
    has_root: bool,
) -> ApplyOptions {
    let dry_run = flags.has(Flags::DRY_RUN);
    ApplyOptions {
        keeps_owners: flags.has(Flags::OWNERS),
        keeps_special_bits,
        deletes: flags.has(Flags::DELETES),
        keeps_journal: true,
        resumes: flags.has(Flags::RESUMES),
        dry_run: dry_run.then(|| DryRun { has_root, skips: skips(flags) }),
        ..ApplyOptions::default()
    }
}

/// The number of threads that read or write files.
#[must_use]
pub(super) fn threads() -> usize {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    threads.clamp(2, END_THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_set_the_options_of_both_ends() {
        let flags = Flags::RESUMES.with(Flags::VERIFIES, true);
        let request = Request { flags, ..Request::default() };
        let options = source_options(&request).expect("no patterns");
        assert!(options.asks && options.verifies && !options.takes_xattrs);
        let options = apply_options(flags, false, true);
        assert!(options.resumes && options.keeps_journal && !options.deletes);
        assert!(!options.keeps_special_bits && !options.keeps_owners && !options.makes_devices);
        assert_eq!(options.dry_run, None);
        let options = apply_options(flags.with(Flags::DRY_RUN, true), false, false);
        assert_eq!(options.dry_run, Some(DryRun { has_root: false, skips: true }));
        let options = apply_options(Flags::DRY_RUN, false, true);
        assert_eq!(options.dry_run, Some(DryRun { has_root: true, skips: false }));
    }

    #[test]
    fn invalid_patterns_of_a_peer_are_refused() {
        let patterns = vec![(false, "[".to_owned())];
        assert!(source_options(&Request { patterns, ..Request::default() }).is_err());
    }
}
