//! `weft ls`: lists shares and directories of other hosts.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Error, Result, bail};
use serde_json::{Value, json};
use weft_sys::lock;
use weft_transfer::end::{Found, Observer};
use weft_transfer::job::{CopyDirection, CopyTask, DataWay, DownloadTo, Flags, Over, Request};
use weft_transfer::tree::apply::EntryKind;
use weft_transfer::wire::record::Time;

use super::place::{self, By, Place, Remote};
use super::server::Server;
use super::shell::Shell;
use crate::args::LsArgs;
use crate::output;

/// The exit status if some of it could not be read.
const INCOMPLETE: u8 = 3;

/// Collects what the other end has.
#[derive(Default)]
struct Listing {
    found: Mutex<Vec<Found>>,
}

impl Observer for Listing {
    fn problem(&self, path: &[u8], text: &str, _: bool) {
        let path = String::from_utf8_lossy(path);
        let of = if path.is_empty() { String::new() } else { format!("{path}: ") };
        output::complain(output::printable(&format!("{of}{text}")));
    }

    fn found(&self, found: &Found) {
        lock(&self.found).push(found.clone());
    }
}

/// Lists a place. The exit status is 3 if some of it could not be read.
///
/// # Errors
/// If the place cannot be listed.
pub(crate) fn run(args: &LsArgs) -> Result<ExitCode> {
    let by = if args.rsh.is_some() { By::Shell } else { By::Server };
    let Place::Remote(remote) = place::parse(&args.place, by).map_err(Error::msg)? else {
        bail!("{}: is on this host: use ls", args.place.display());
    };
    let is_content = is_content(&remote, by);
    let pattern = if is_content { "/*/*" } else { "/*/*/*" };
    let listing = Arc::<Listing>::default();
    let task = CopyTask {
        request: Request {
            flags: Flags::DRY_RUN.with(Flags::SPECIALS, true),
            patterns: vec![(false, pattern.to_owned())],
            paths: vec![remote.path.clone()],
            ..Request::default()
        },
        observer: Arc::clone(&listing) as _,
        missing: Vec::new(),
        progress: Arc::default(),
        limit: None,
        is_fair: false,
        silence: None,
        compresses_between_hosts: false,
        versions_between_hosts: false,
        sysfs: "/sys".into(),
    };
    let to = CopyDirection::Download(DownloadTo::Listing);
    let finished = match &args.rsh {
        None => {
            let server = Server::new(&remote, args.accept_new)?;
            server.result(task.with_server(server.at(), to, Over::Tcp))?
        }
        Some(rsh) => {
            let started = Shell::start(rsh, &remote.host, &args.remote_weft);
            let (shell, control) = started.with_context(|| remote.host.clone())?;
            let finished = task.by_shell(control, to, DataWay::Shell, true);
            shell.end(finished.with_context(|| remote.host.clone()))?
        }
    };
    let found = std::mem::take(&mut *lock(&listing.found));
    let text: String =
        entries(found, is_content).iter().map(|entry| shown(entry, args) + "\n").collect();
    output::print(&text)?;
    let is_whole = finished.outcome.failed == 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Whether the other end sends what is in the directory, and not the entry with its name.
fn is_content(remote: &Remote, by: By) -> bool {
    let path = &remote.path[..];
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    path.ends_with(b"/")
        || match by {
            // The first component is the name of the share.
            By::Server => parts.count() < 2,
            By::Shell => matches!(path, b"." | b".." | b"~") || path.ends_with(b"/."),
        }
}

/// Returns the entries to print, in the order of their names: what is in the place if it is a
/// directory, and otherwise the place itself.
fn entries(mut found: Vec<Found>, is_content: bool) -> Vec<Found> {
    let is_top = |found: &Found| !found.path.contains(&b'/');
    found.retain(|found| !found.path.is_empty());
    if !is_content && found.iter().any(|it| is_top(it) && it.kind == EntryKind::Directory) {
        found.retain(|found| !is_top(found));
        for Found { path, .. } in &mut found {
            let name = path.iter().position(|&byte| byte == b'/').map_or(0, |at| at + 1);
            path.drain(..name);
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn shown(found: &Found, args: &LsArgs) -> String {
    if args.json {
        return event(found).to_string();
    }
    let Found { kind, size, mode, mtime, target, path } = found;
    let slash = if *kind == EntryKind::Directory { "/" } else { "" };
    let name = format!("{}{slash}", String::from_utf8_lossy(path));
    if !args.long {
        return output::printable(&name);
    }
    let letter = match kind {
        EntryKind::File | EntryKind::HardLink => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Special => 's',
    };
    let arrow = target.as_ref().map(|target| format!(" -> {}", String::from_utf8_lossy(target)));
    let text = format!("{name}{}", arrow.unwrap_or_default());
    let (mode, time) = (letters(*mode), date(*mtime));
    format!("{letter}{mode} {size:>12} {time} {}", output::printable(&text))
}

fn event(found: &Found) -> Value {
    let Found { kind, size, mode, mtime, target, path } = found;
    let kind = match kind {
        EntryKind::File | EntryKind::HardLink => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Special => "special",
    };
    let target = target.as_ref().map(|target| String::from_utf8_lossy(target));
    json!({"path": String::from_utf8_lossy(path), "kind": kind, "size": size, "mode": mode,
        "mtime": mtime.seconds, "mtime_nanoseconds": mtime.nanoseconds, "target": target})
}

/// Returns a mode as `ls` prints it.
fn letters(mode: u16) -> String {
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    let mut text = String::new();
    for (at, (bit, with, without)) in special.into_iter().enumerate() {
        let three = mode >> (6 - 3 * at);
        text.push(if three & 4 > 0 { 'r' } else { '-' });
        text.push(if three & 2 > 0 { 'w' } else { '-' });
        text.push(match (mode & bit > 0, three & 1 > 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns a time in UTC.
pub(super) fn date(time: Time) -> String {
    const DAY: i64 = 24 * 60 * 60;
    let (days, second) = (time.seconds.div_euclid(DAY), time.seconds.rem_euclid(DAY));
    // Years begin in March here, so that a leap day is the last one. Day 0 is the first of March of
    // the year 0, from which an era has 400 years.
    let day = days + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_709_210_096, "2024-02-29 12:34:56"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-62_167_219_200, "0000-01-01 00:00:00"),
        ] {
            assert_eq!(date(Time { seconds, nanoseconds: 0 }), expected);
        }
        // A server may say anything.
        for seconds in [i64::MIN, i64::MAX] {
            assert!(!date(Time { seconds, nanoseconds: 0 }).is_empty());
        }
    }

    #[test]
    fn modes_are_printed_as_by_ls() {
        for (mode, expected) in [
            (0o644, "rw-r--r--"),
            (0o4755, "rwsr-xr-x"),
            (0o2640, "rw-r-S---"),
            (0o1777, "rwxrwxrwt"),
            (0o1000, "--------T"),
        ] {
            assert_eq!(letters(mode), expected);
        }
    }
}
