//! Copies between two other hosts: by the remote shell, one of them copies to the other.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

use super::place::{Place, Remote};
use super::shell::words;
use crate::args::{Compress, CpArgs, Data, Direct};

/// Returns the sources and the destination of a copy between other hosts; `None` if a place is on
/// this host.
///
/// # Errors
/// If the copy is not possible.
pub(super) fn places(sources: &[Place], target: &Place) -> Result<Option<(Vec<Remote>, Remote)>> {
    let Place::Remote(target) = target else { return Ok(None) };
    let remotes = sources.iter().filter_map(|place| match place {
        Place::Remote(remote) => Some(remote.clone()),
        Place::Local(_) | Place::Standard => None,
    });
    let remotes: Vec<Remote> = remotes.collect();
    let Some(first) = remotes.first() else { return Ok(None) };
    if remotes.len() < sources.len() || !remotes.iter().all(|it| it.is_with(first)) {
        bail!("all sources have to be on one host");
    }
    Ok(Some((remotes, target.clone())))
}

/// Lets the host of the sources copy to the host of the target, which may be the same one. Returns
/// the exit status of the `weft cp` there.
///
/// # Errors
/// If there is no `weft cp` there.
pub(super) fn run(
    args: &CpArgs,
    rsh: &str,
    patterns: &[(bool, String)],
    sources: &[Remote],
    target: &Remote,
) -> Result<ExitCode> {
    let host = &sources[0].host;
    let all = words(rsh)?;
    let (program, options) = all.split_first().context("no remote shell")?;
    let command = command(args, rsh, patterns, sources, target);
    // Without standard input the remote command cannot take what a script has for other commands.
    let mut child = Command::new(program);
    child.args(options).arg(host).arg(command).stdin(Stdio::null());
    let status = child.status().with_context(|| program.clone())?;
    match status.code() {
        // `weft cp` has no other exit statuses; those of shells are greater.
        Some(code @ 0..=3) => Ok(ExitCode::from(code as u8)),
        Some(127) => bail!("{host}: there is no {} there (--remote-weft)", args.remote_weft),
        _ => bail!("{host}: {program} ended with {status}"),
    }
}

/// Returns the command for the shell of the sources' host.
fn command(
    args: &CpArgs,
    rsh: &str,
    patterns: &[(bool, String)],
    sources: &[Remote],
    target: &Remote,
) -> OsString {
    let mut words = Vec::new();
    for (is_given, option) in [
        (args.dry_run, "--dry-run"),
        (args.resume, "--resume"),
        (args.skip_unchanged, "--skip-unchanged"),
        (args.update, "--update"),
        (args.checksum, "--checksum"),
        (args.size_only, "--size-only"),
        (args.ignore_existing, "--ignore-existing"),
        (args.fsync, "--fsync"),
        (args.delete, "--delete"),
        (args.clean, "--clean"),
        (args.force, "--force"),
        (args.delete_before, "--delete-before"),
        (args.one_file_system, "--one-file-system"),
        (args.copy_links, "--copy-links"),
        (args.inplace, "--inplace"),
        (args.remove_source_files, "--remove-source-files"),
        (args.no_whole_file, "--no-whole-file"),
        (args.whole_file, "--whole-file"),
        (args.append, "--append"),
        (args.append_verify, "--append-verify"),
        (args.verify, "--verify"),
        (args.owners, "--owners"),
        (args.numeric_ids, "--numeric-ids"),
        (args.specials, "--specials"),
        (args.xattrs, "--xattrs"),
        (args.direct == Direct::Always, "--direct"),
        (args.direct == Direct::Never, "--direct=never"),
        (args.explain, "--explain"),
        (args.fair_share, "--fair-share"),
        (args.verbose, "--verbose"),
        (args.stats, "--stats"),
        (args.json, "--json"),
        (args.quiet, "--quiet"),
    ] {
        words.extend(is_given.then(|| option.as_bytes().to_vec()));
    }
    let compress = args.compress.map(|compress| match compress {
        Compress::Auto => "--compress=auto",
        Compress::Zstd => "--compress=zstd",
        Compress::None => "--compress=none",
    });
    words.extend(compress.map(|option| option.as_bytes().to_vec()));
    // Between the two hosts, and not between this one and the first.
    let way = match args.data {
        // RDMA and the fabric have been refused.
        Data::Auto | Data::Rdma | Data::Memory | Data::Fabric => None,
        Data::Tcp => Some("--data=tcp"),
        Data::Shell => Some("--data=shell"),
    };
    let is_between = target.host != sources[0].host;
    words.extend(way.filter(|_| is_between).map(|option| option.as_bytes().to_vec()));
    if let Some(congestion) = &args.congestion {
        words.push(format!("--congestion={congestion}").into_bytes());
    }
    if args.resume {
        words.push(format!("--retry-for={}", args.retry_for).into_bytes());
    }
    words.extend(args.chmod.iter().map(|modes| format!("--chmod={modes}").into_bytes()));
    let thirds = args.link_dest.iter();
    words.extend(thirds.map(|path| [b"--link-dest=", path.as_bytes()].concat()));
    words.extend(args.backup.then(|| b"--backup".to_vec()));
    for (option, value) in [("--suffix=", &args.suffix), ("--backup-dir=", &args.backup_dir)] {
        let word = value.as_ref().map(|value| [option.as_bytes(), value.as_bytes()].concat());
        words.extend(word);
    }
    words.extend(args.timeout.map(|seconds| format!("--timeout={seconds}").into_bytes()));
    words.extend(args.max_delete.map(|most| format!("--max-delete={most}").into_bytes()));
    words.extend(args.limit.map(|limit| format!("--limit={limit}").into_bytes()));
    for (includes, pattern) in patterns {
        let option = if *includes { "--include" } else { "--exclude" };
        words.push(format!("{option}={pattern}").into_bytes());
    }
    if is_between {
        words.push(format!("--rsh={rsh}").into_bytes());
        words.push(format!("--remote-weft={}", args.remote_weft).into_bytes());
    }
    words.push(b"--".to_vec());
    words.extend(sources.iter().map(|source| own_path(&source.path)));
    words.push(match target.host == sources[0].host {
        true => own_path(&target.path),
        false if target.host.contains(':') => {
            [b"[", target.host.as_bytes(), b"]:", &target.path].concat()
        }
        false => [target.host.as_bytes(), b":", &target.path].concat(),
    });
    // The program is a command of the shell, as in a copy between this host and another one.
    let mut command = format!("{} cp", args.remote_weft).into_bytes();
    for word in words {
        command.push(b' ');
        command.extend(quoted(&word));
    }
    OsString::from_vec(command)
}

/// Returns a path of the remote user as an operand of a `weft cp` that a shell starts in the home
/// directory. The operand means no other host, no standard stream and no option.
fn own_path(path: &[u8]) -> Vec<u8> {
    match path {
        [b'/', ..] => path.to_vec(),
        [b'~', b'/', beneath_home @ ..] | beneath_home => [b"./", beneath_home].concat(),
    }
}

/// Quotes a word for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_other_weft_as_they_are() {
        for word in ["a", "", "it's", "$HOME `x` \\ \"\n", "''"] {
            let echo = [b"printf %s ", &quoted(word.as_bytes())[..]].concat();
            let output = Command::new("sh").arg("-c").arg(OsString::from_vec(echo)).output();
            assert_eq!(output.expect("a shell").stdout, word.as_bytes());
        }
    }

    #[test]
    fn paths_are_those_of_the_remote_user() {
        let own = |path: &str| String::from_utf8(own_path(path.as_bytes())).expect("text");
        for (path, operand) in [
            ("a/b", "./a/b"),
            ("/a", "/a"),
            ("./", "././"),
            ("~/", "./"),
            ("~/a", "./a"),
            ("~//a", ".//a"),
            ("-", "./-"),
            ("h:a", "./h:a"),
        ] {
            assert_eq!(own(path), operand);
        }
    }
}
