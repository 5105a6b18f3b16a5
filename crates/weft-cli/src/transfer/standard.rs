//! Standard input and output as places of `weft cp`.

use std::ffi::OsStr;
use std::io::{stdin, stdout};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use weft_transfer::tree::input::Input;
use weft_transfer::tree::source::Content;
use weft_transfer::wire::record_name::Name;

use crate::args::{CpArgs, Direct};

/// The operand that means a standard stream. A file of that name is `./-`.
const STANDARD: &str = "-";

/// Whether a source is standard input.
pub(super) fn is_input(args: &CpArgs) -> bool {
    let sources = args.paths.split_last().map_or(&[][..], |(_, sources)| sources);
    sources.iter().any(|path| path == STANDARD)
}

/// Whether the destination is standard output.
pub(super) fn is_output(args: &CpArgs) -> bool {
    args.paths.last().is_some_and(|path| path == STANDARD)
}

/// Checks that the arguments fit a copy of a standard stream, if it is one.
///
/// # Errors
/// If an argument does not fit.
pub(super) fn check(args: &CpArgs) -> Result<(), String> {
    let (name, is_input) = match (is_input(args), is_output(args)) {
        (true, true) => return Err("- cannot be both the source and the destination".into()),
        (true, false) => ("standard input", true),
        (false, true) => ("standard output", false),
        (false, false) => return Ok(()),
    };
    if args.paths.len() > 2 {
        return Err(match is_input {
            true => "standard input (-) has to be the only source".into(),
            false => "standard output (-) takes a single source".into(),
        });
    }
    let ends_in_slash = |path: &OsStr| path.as_encoded_bytes().ends_with(b"/");
    if let [from, to] = &args.paths[..] {
        if is_input && ends_in_slash(to) {
            let to = to.display();
            return Err(format!("{to}: is a directory; standard input goes to a file: name it"));
        }
        if !is_input && ends_in_slash(from) {
            return Err(format!("{}: standard output takes a file", from.display()));
        }
    }
    let refused = [
        (args.dry_run, "--dry-run"),
        (args.resume, "--resume"),
        (args.skip_unchanged, "--skip-unchanged"),
        (args.update, "--update"),
        (args.checksum, "--checksum"),
        (args.size_only, "--size-only"),
        (args.ignore_existing, "--ignore-existing"),
        (args.remove_source_files, "--remove-source-files"),
        (args.no_whole_file, "--no-whole-file"),
        (args.append, "--append"),
        (args.append_verify, "--append-verify"),
        (args.relative, "--relative"),
        (args.files_from.is_some(), "--files-from"),
        (args.one_file_system, "--one-file-system"),
        (args.delete, "--delete"),
        (args.delete_before, "--delete-before"),
        (args.archive, "--archive"),
        (args.owners, "--owners"),
        (args.specials, "--specials"),
        (args.direct == Direct::Always, "--direct"),
        (args.xattrs, "--xattrs"),
        (!args.filters.0.is_empty(), "a pattern"),
    ];
    match refused.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(format!("{option} cannot be used with {name} (-)")),
        None => Ok(()),
    }
}

/// Returns standard input as the content of a copy. It gets its name from the destination.
pub(super) fn input(is_hashed: bool) -> Result<Content> {
    let fd = stdin().as_fd().try_clone_to_owned().context("standard input")?;
    let input = Input::new(fd, is_hashed).context("standard input")?;
    Ok(Content::Input(Arc::new(input), Name::new(STANDARD.as_bytes())?))
}

/// Returns standard output.
pub(super) fn output() -> Result<OwnedFd> {
    stdout().as_fd().try_clone_to_owned().context("standard output")
}
