//! Converts the flags of a request to the options of both ends.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::request::{Flags, Request};
use crate::compress::Compression;
use crate::end::{Carrier, Decisions};
use crate::limits::END_THREADS_MAX;
use crate::placement::Placement;
use crate::secure::Cipher;
use crate::tree::apply::{Append, ApplyOptions, DryRun, Skips};
use crate::tree::direct::When;
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
        asks: skips(request) || flags.has(Flags::DRY_RUN),
        // What is skipped has to be the same, too.
        compares_content: flags.has(Flags::CHECKSUM)
            || (flags.has(Flags::VERIFIES) && skips(request)),
        uses_versions: uses_versions(flags),
        trusts_sink: append(flags) == Some(Append::Trusted),
        verifies: flags.has(Flags::VERIFIES),
        takes_xattrs: flags.has(Flags::XATTRS),
        names_owners: flags.has(Flags::OWNERS) && !flags.has(Flags::NUMERIC_OWNERS),
        takes_special_files: flags.has(Flags::SPECIALS),
        stays_on_device: flags.has(Flags::ONE_FILE_SYSTEM),
        direct: direct(flags),
        // Sealed data passes through this process's memory.
        sends_extents: flags.has(Flags::CLEAR) || flags.has(Flags::UNSEALED),
        removals: removes(flags).then(Arc::default),
        rules,
        modes: request.extras.modes.clone(),
        ..SourceOptions::new(PAYLOAD_LEN_MIN)
    })
}

/// Whether the source removes what the sink has.
fn removes(flags: Flags) -> bool {
    flags.has(Flags::REMOVES) && !flags.has(Flags::DRY_RUN) && !flags.has(Flags::STREAM)
}

/// Returns how files that exist are appended to. Where data is verified, nothing is trusted.
fn append(flags: Flags) -> Option<Append> {
    let appends = flags.has(Flags::IN_PLACE.with(Flags::APPENDS, true));
    appends.then(|| match flags.has(Flags::TRUSTS) && !flags.has(Flags::VERIFIES) {
        true => Append::Trusted,
        false => Append::Compared,
    })
}

/// Whether parts of files may be made of the sink's versions: a file that is written to is none.
fn uses_versions(flags: Flags) -> bool {
    flags.has(Flags::VERSIONS) && !flags.has(Flags::IN_PLACE) && !flags.has(Flags::DRY_RUN)
}

/// Returns when a source compresses blocks for a request.
#[must_use]
pub(super) fn compression(flags: Flags) -> Compression {
    match flags {
        flags if !flags.has(Flags::COMPRESSES) => Compression::Never,
        flags if flags.has(Flags::COMPRESSES_ALWAYS) => Compression::Always,
        _ => Compression::Auto,
    }
}

/// Returns the decisions of a copy, for reports.
pub(super) fn decisions(
    request: &Request,
    (channels, block_size, blocks): (u16, u32, u32),
    round_trip: Option<Duration>,
    carrier: Option<Carrier>,
    (cipher, placement): (Option<Cipher>, &Placement),
    is_copied_by_kernel: bool,
) -> Decisions {
    Decisions {
        carrier,
        channels,
        block_size,
        blocks,
        round_trip,
        threads: threads(),
        placement: placement.clone(),
        cipher,
        compression: compression(request.flags),
        congestion: request.congestion.clone(),
        direct: direct(request.flags),
        is_copied_by_kernel,
    }
}

/// Returns which files this end reads or writes past the page cache.
fn direct(flags: Flags) -> When {
    match flags {
        flags if flags.has(Flags::DIRECT) => When::Always,
        flags if flags.has(Flags::CACHED) => When::Never,
        _ => When::automatic(),
    }
}

/// Whether some files are skipped, so that the source asks about each.
fn skips(request: &Request) -> bool {
    request.flags.without(Flags::ASKING) != request.flags || !request.extras.thirds.is_empty()
}

/// Returns the sink's options for a request. Only a user's own process keeps setuid and setgid, and
/// makes devices; a server does not create such files for clients. `has_root` tells whether the
/// destination's directory exists, which can be false only in a dry run.
#[must_use]
pub(super) fn apply_options(
    request: &Request,
    keeps_special_bits: bool,
    has_root: bool,
) -> ApplyOptions {
    let flags = request.flags;
    let dry_run = flags.has(Flags::DRY_RUN);
    ApplyOptions {
        keeps_owners: flags.has(Flags::OWNERS),
        numeric_owners: flags.has(Flags::NUMERIC_OWNERS),
        keeps_special_bits,
        makes_devices: flags.has(Flags::SPECIALS) && keeps_special_bits,
        deletes: flags.has(Flags::DELETES),
        deletes_max: request.extras.deletes_max,
        replaces: (flags.has(Flags::DELETES) || flags.has(Flags::FORCES))
            && !flags.has(Flags::KEEPS_EXISTING),
        in_place: flags.has(Flags::IN_PLACE),
        appends: append(flags),
        uses_versions: uses_versions(flags),
        cleans: flags.has(Flags::CLEANS),
        retries: flags.has(Flags::RETRIES) && !dry_run,
        keeps_journal: true,
        resumes: flags.has(Flags::RESUMES),
        syncs: flags.has(Flags::SYNCS),
        verifies: flags.has(Flags::VERIFIES),
        skips: Skips {
            newer: flags.has(Flags::UPDATES),
            same_size: flags.has(Flags::SIZE_ONLY),
            existing: flags.has(Flags::KEEPS_EXISTING),
        },
        direct: direct(flags),
        dry_run: dry_run.then(|| DryRun { has_root, skips: skips(request) }),
        confirms: removes(flags),
        lists: flags.has(Flags::LISTS) && (!dry_run || flags.has(Flags::ONLY_DELETES)),
        only_deletes: dry_run && flags.has(Flags::ONLY_DELETES),
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
    use crate::job::extras::Extras;
    use crate::tree::modes::Modes;

    fn apply_options(flags: Flags, keeps_special_bits: bool, has_root: bool) -> ApplyOptions {
        let request = Request { flags, ..Request::default() };
        super::apply_options(&request, keeps_special_bits, has_root)
    }

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
        assert!(matches!(options.direct, When::Beyond(_)));
        assert!(options.verifies && !options.syncs && options.skips == Skips::default());
        let replacing = Flags::DELETES.with(Flags::FORCES, true);
        assert!(apply_options(replacing, false, true).replaces);
        let leaving = replacing.with(Flags::KEEPS_EXISTING, true);
        assert!(!apply_options(leaving, false, true).replaces);
        let options = apply_options(Flags::SYNCS.with(Flags::UPDATES, true), false, true);
        assert!(options.syncs && options.skips == Skips { newer: true, ..Skips::default() });
        for (flags, asks, compares_content) in [
            (Flags::default(), false, false),
            (Flags::UPDATES, true, false),
            (Flags::SIZE_ONLY, true, false),
            (Flags::KEEPS_EXISTING, true, false),
            (Flags::CHECKSUM, true, true),
            (Flags::VERIFIES, false, false),
            (Flags::VERIFIES.with(Flags::SKIPS, true), true, true),
        ] {
            let options = source_options(&Request { flags, ..Request::default() });
            let options = options.expect("no patterns");
            assert_eq!((options.asks, options.compares_content), (asks, compares_content));
        }
        for (flags, is_own, makes_devices) in [
            (Flags::SPECIALS, true, true),
            (Flags::SPECIALS, false, false),
            (Flags::default(), true, false),
        ] {
            assert_eq!(apply_options(flags, is_own, true).makes_devices, makes_devices);
        }
        let options = apply_options(Flags::CACHED, false, true);
        assert_eq!(options.direct, When::Never);
        let appends = Flags::IN_PLACE.with(Flags::APPENDS, true);
        let trusts = appends.with(Flags::TRUSTS, true);
        for (flags, append) in [
            (Flags::APPENDS, None),
            (appends, Some(Append::Compared)),
            (trusts, Some(Append::Trusted)),
            (trusts.with(Flags::VERIFIES, true), Some(Append::Compared)),
        ] {
            assert_eq!(apply_options(flags, false, true).appends, append);
            let options = source_options(&Request { flags, ..Request::default() });
            let options = options.expect("no patterns");
            assert_eq!(options.trusts_sink, append == Some(Append::Trusted));
            assert!(options.asks);
        }
        let options = apply_options(Flags::DIRECT, false, true);
        assert_eq!(options.direct, When::Always);
        let options = apply_options(flags.with(Flags::DRY_RUN, true), false, false);
        assert_eq!(options.dry_run, Some(DryRun { has_root: false, skips: true }));
        let options = apply_options(Flags::DRY_RUN, false, true);
        assert_eq!(options.dry_run, Some(DryRun { has_root: true, skips: false }));
    }

    #[test]
    fn extras_set_the_options_of_both_ends() {
        let modes = Modes::parse("600").expect("modes");
        let extras = Extras { modes: modes.clone(), deletes_max: Some(7), ..Extras::default() };
        let request = Request { extras, ..Request::default() };
        assert_eq!(source_options(&request).expect("no patterns").modes, modes);
        assert_eq!(super::apply_options(&request, false, true).deletes_max, Some(7));
        assert_eq!(apply_options(Flags::DELETES, false, true).deletes_max, None);
    }

    #[test]
    fn invalid_patterns_of_a_peer_are_refused() {
        let patterns = vec![(false, "[".to_owned())];
        assert!(source_options(&Request { patterns, ..Request::default() }).is_err());
    }
}
