//! `weft cp` gives rsync's results where it has rsync's semantics: which names patterns exclude,
//! what `--delete` keeps, what options leave as it is, what a missing source means, and what a dry
//! run prints.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use weft_lab::copied::{Place, contents, names, whole};
use weft_lab::{Finished, Program, ensure_data, kept, locate, note_skip, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Random sets of rules.
const ROUNDS: u64 = 30;
const MANY_ROUNDS: u64 = 500;

const FOLDERS: [&str; 4] = ["a", "ab", "foo", "b.o"];
const FILES: [&str; 6] = ["b", "a.o", "bo", "a b", "a*", "x"];

/// Makes a tree with few distinct names, so that short patterns match often. A name is a directory
/// in every tree or in none.
fn make_tree(folder: &Path, rng: &mut Rng, depth: usize) -> Result<()> {
    fs::create_dir_all(folder)?;
    for name in FOLDERS.iter().filter(|_| depth > 0) {
        if rng.bool() {
            make_tree(&folder.join(name), rng, depth - 1)?;
        }
    }
    for name in FILES {
        match rng.u8(..4) {
            0 | 1 => fs::write(folder.join(name), name)?,
            2 => symlink("nowhere", folder.join(name))?,
            _ => {}
        }
    }
    Ok(())
}

fn pattern(rng: &mut Rng) -> String {
    const PARTS: [&str; 21] = [
        "a",
        "b",
        "o",
        ".",
        "*",
        "*",
        "**",
        "?",
        "/",
        "/",
        "[ab]",
        "[!a]",
        "[a-f]",
        "foo",
        "\\*",
        "*.o",
        "***",
        "/***",
        "**/",
        "[[:alpha:]]",
        " ",
    ];
    loop {
        let parts = (0..rng.usize(1..5)).map(|_| PARTS[rng.usize(..PARTS.len())]);
        let pattern: String = parts.collect();
        if !pattern.trim_matches('/').is_empty() && !pattern.contains("//") {
            return pattern;
        }
    }
}

#[test]
fn rules_leave_out_and_protect_what_those_of_rsync_do() -> Result<()> {
    compare_rules(0..ROUNDS)
}

/// Each run has new rules, unless `WEFT_LAB_SEED` repeats those of a run that has failed.
#[test]
#[ignore = "soak: new rules in each run"]
fn any_rules_leave_out_and_protect_what_those_of_rsync_do() -> Result<()> {
    let seed = std::env::var("WEFT_LAB_SEED").ok().map(|seed| seed.parse()).transpose()?;
    let first = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("WEFT_LAB_SEED={first}");
    compare_rules(first..first + MANY_ROUNDS)
}

fn compare_rules(seeds: Range<u64>) -> Result<()> {
    let least = 2 * (seeds.end - seeds.start) as usize;
    let rsync = locate("rsync")?;
    let place = Place::new()?;
    let (mut left_out, mut protected) = (0, 0);
    for seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let [from, by_weft, by_rsync] =
            ["from", "weft", "rsync"].map(|name| place.path(&format!("{seed}-{name}")));
        make_tree(&from, &mut rng, 2)?;
        // Both destinations start with the same tree, which differs from the source.
        let other = rng.fork();
        for to in [&by_weft, &by_rsync] {
            make_tree(to, &mut other.clone(), 2)?;
        }
        let mut rules = Vec::new();
        for _ in 0..rng.usize(1..5) {
            let (option, rule) = match rng.u8(..3) {
                0 => ("--include", '+'),
                _ => ("--exclude", '-'),
            };
            let pattern = pattern(&mut rng);
            match rng.u8(..5) {
                0 => rules.extend(["-f".to_owned(), format!("{rule} {pattern}")]),
                1 => rules.push(format!("--filter={rule}_{pattern}")),
                // What the pattern says of itself counts more.
                2 => {
                    let other = if rule == '+' { "--exclude" } else { "--include" };
                    rules.extend([other.to_owned(), format!("{rule} {pattern}")]);
                }
                _ => rules.extend([option.to_owned(), pattern]),
            }
        }
        let [in_from, before] = [names(&from)?, names(&by_weft)?];
        // A source without a trailing slash puts its name in front of its paths.
        let from = if seed % 3 == 0 { from } else { from.join("") };
        let copy = |program: Program, to: &Path| {
            let program = program.args(["--delete"]).args(&rules).arg(&from).arg(to);
            program.run(TIMEOUT).and_then(Finished::success).map(drop)
        };
        copy(Program::plain(&rsync).arg("-a"), &by_rsync)?;
        copy(place.weft()?.arg("-q"), &by_weft)?;
        let (found, expected) = (names(&by_weft)?, names(&by_rsync)?);
        ensure_data!(found == expected, "seed {seed}, {rules:?}: {found:?}, not {expected:?}");
        if seed % 3 != 0 {
            left_out += in_from.iter().filter(|path| !expected.contains(path)).count();
            let is_other = |path: &&PathBuf| expected.contains(path) && !in_from.contains(path);
            protected += before.iter().filter(is_other).count();
        }
    }
    let are_many = left_out > least && protected > least;
    ensure!(are_many, "{left_out} left out, {protected} protected");
    Ok(())
}

/// Converts the output of rsync's dry run to Weft's form. `rsync --itemize-changes` begins each
/// line with eleven letters.
fn itemized(stdout: &str) -> BTreeMap<String, &'static str> {
    let mut all = BTreeMap::new();
    for line in stdout.lines() {
        let Some((what, path)) = line.split_at_checked(12) else { continue };
        let action = match what.as_bytes() {
            [b'*', ..] => "delete",
            [b'.', ..] => "attributes",
            [_, _, b'+', ..] => "copy",
            _ => "update",
        };
        let path = path.split(" -> ").next().unwrap_or(path);
        let path = path.split(" => ").next().unwrap_or(path);
        all.insert(path.to_owned(), action);
    }
    all
}

/// Returns the changes that a copy, or a dry run, lists.
fn listed(stdout: &str) -> BTreeMap<String, &str> {
    let actions = ["copy", "update", "attributes", "delete"];
    let lines = stdout.lines().filter_map(|line| line.split_at_checked(11));
    let lines = lines.map(|(action, path)| (path.to_owned(), action.trim_end()));
    lines.filter(|(_, action)| actions.contains(action)).collect()
}

/// Returns the number that follows a text of the output.
fn number(stdout: &str, text: &str) -> Result<u64> {
    let (_, rest) = stdout.split_once(text).with_context(|| format!("{text}: {stdout}"))?;
    let rest = rest.trim_start_matches([':', ' ']);
    let digits: String = rest.chars().take_while(|it| it.is_ascii_digit() || *it == ',').collect();
    Ok(digits.replace(',', "").parse()?)
}

#[test]
fn dry_run_says_what_that_of_rsync_does() -> Result<()> {
    let rsync = locate("rsync")?;
    let place = Place::new()?;
    let mut all = BTreeMap::<&str, usize>::new();
    for seed in 0..20 {
        let mut rng = Rng::with_seed(1_000 + seed);
        let [from, to] = ["from", "to"].map(|name| place.path(&format!("{seed}-{name}")));
        make_tree(&from, &mut rng, 3)?;
        let copy = Program::plain(&rsync).arg("-a").arg(from.join("")).arg(&to);
        copy.run(TIMEOUT)?.success()?;
        for path in names(&to)? {
            let path = to.join(path);
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            match rng.u8(..6) {
                0 if meta.is_dir() => fs::remove_dir_all(&path)?,
                0 => fs::remove_file(&path)?,
                1 if meta.is_file() => {
                    File::options().write(true).open(&path)?.set_modified(UNIX_EPOCH)?;
                }
                2 if !meta.is_symlink() => {
                    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
                }
                3 if meta.is_dir() => fs::write(path.join("more"), "x")?,
                4 if meta.is_symlink() => {
                    fs::remove_file(&path)?;
                    symlink("elsewhere", &path)?;
                }
                _ => {}
            }
        }
        let args = |program: Program| program.args(["--delete"]).arg(from.join("")).arg(&to);
        let stdout = args(Program::plain(&rsync).args(["-ani", "--modify-window=-1"]))
            .run(TIMEOUT)?
            .success()?
            .stdout;
        let expected = itemized(&stdout);
        let stdout =
            args(place.weft()?.args(["-n", "--skip-unchanged"])).run(TIMEOUT)?.success()?.stdout;
        let found = listed(&stdout);
        ensure!(found == expected, "seed {seed}: {found:#?}, not {expected:#?}");
        // The copy then lists the same, and has the same totals.
        let by_rsync = args(Program::plain(&rsync).args(["-an", "--stats", "--modify-window=-1"]));
        let by_rsync = by_rsync.run(TIMEOUT)?.success()?.stdout;
        let copy = args(place.weft()?.args(["-v", "--stats", "--skip-unchanged"]));
        let by_weft = copy.run(TIMEOUT)?.success()?.stdout;
        let made = listed(&by_weft);
        ensure!(made == expected, "seed {seed}: {made:#?}, not {expected:#?}");
        for (ours, theirs) in [
            ("files copied", "Number of regular files transferred"),
            ("bytes of files copied", "Total transferred file size"),
            ("entries deleted", "Number of deleted files"),
            ("entries at the source", "Number of files"),
        ] {
            let [ours, theirs] = [number(&by_weft, ours)?, number(&by_rsync, theirs)?];
            ensure!(ours == theirs, "seed {seed}: {by_weft}, not {by_rsync}");
        }
        for action in found.into_values() {
            *all.entry(expected.values().find(|it| **it == action).unwrap_or(&"")).or_default() +=
                1;
        }
    }
    ensure!(all.len() == 4 && all.values().all(|count| *count > 20), "{all:?}");
    Ok(())
}

/// With a server either end lists what the sink does.
#[test]
fn copy_lists_what_a_dry_run_says_in_both_directions() -> Result<()> {
    let place = Place::served(&[])?;
    for seed in 0..4 {
        let mut rng = Rng::with_seed(2_000 + seed);
        let [from, to] = ["from", "to"].map(|name| format!("{seed}-{name}"));
        make_tree(&place.path(&from), &mut rng, 3)?;
        make_tree(&place.path(&to), &mut rng, 3)?;
        fs::write(place.path(&from).join("one"), "one")?;
        fs::hard_link(place.path(&from).join("one"), place.path(&from).join("other"))?;
        let near = |name: &str| place.path(name).display().to_string();
        let [from, to] = match seed % 2 == 0 {
            true => [near(&from), place.at(&to)],
            false => [place.at(&from), near(&to)],
        };
        let copy = |options: &[&str]| -> Result<Finished> {
            let copy = place.weft()?.args(["--delete"]).args(options);
            copy.arg(format!("{from}/")).arg(&to).run(TIMEOUT)?.success()
        };
        let plan = copy(&["-n"])?.stdout;
        let options: &[&str] = if seed < 2 { &["-v"] } else { &["-i", "--json"] };
        let stdout = copy(options)?.stdout;
        let count = stdout.matches("\"event\":\"change\"").count();
        let (made, expected) = (listed(&stdout), listed(&plan));
        let is_same = if seed < 2 { made == expected } else { count == expected.len() };
        ensure!(expected.len() > 20 && is_same, "seed {seed}: {stdout}, not {expected:#?}");
        // Quiet is quiet.
        ensure!(copy(&["-qv"])?.stdout.is_empty());
    }
    Ok(())
}

/// Makes a tree of files that are the same, older, newer, of equal size or missing in another one.
fn make_versions(one: &Path, other: &Path, rng: &mut Rng) -> Result<()> {
    for folder in [one, other] {
        fs::create_dir_all(folder.join("below"))?;
    }
    for number in 0..40 {
        let name = format!("{}{number}", if number % 3 == 0 { "below/" } else { "" });
        for (folder, is_there) in [(one, true), (other, rng.u8(..6) > 0)] {
            let path = folder.join(&name);
            if !is_there {
                continue;
            }
            if rng.u8(..8) == 0 {
                symlink(format!("nowhere{}", rng.u8(..2)), path)?;
                continue;
            }
            // Few contents, sizes and times, so that each combination is frequent.
            fs::write(&path, &b"aabbb"[rng.usize(..3)..][..rng.usize(1..3)])?;
            let time = UNIX_EPOCH + Duration::from_secs(1_000 + rng.u64(..3));
            File::options().write(true).open(&path)?.set_modified(time)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600 + 0o44 * rng.u32(..2)))?;
        }
    }
    // New entries would give the folders of one destination another time.
    for folder in [one, other] {
        File::open(folder.join("below"))?.set_modified(UNIX_EPOCH)?;
    }
    Ok(())
}

#[test]
fn options_leave_as_it_is_what_those_of_rsync_do() -> Result<()> {
    let rsync = locate("rsync")?;
    for place in [Place::new()?, Place::served(&[])?] {
        let options = [
            (&["--skip-unchanged"][..], &[][..]),
            (&["-u"], &["-u"]),
            (&["-c"], &["-c"]),
            (&["--size-only"], &["--size-only"]),
            (&["--ignore-existing"], &["--ignore-existing"]),
            (&["-u", "-c"], &["-u", "-c"]),
            (&["-u", "--delete"], &["-u", "--delete"]),
        ];
        for (number, (by_weft, by_rsync)) in options.into_iter().enumerate() {
            for seed in 0..5 {
                let mut rng = Rng::with_seed(seed);
                let [from, one, other] = ["from", "weft", "rsync"]
                    .map(|name| place.path(&format!("{number}-{seed}-{name}")));
                make_versions(&from, &one, &mut rng)?;
                let same = Program::plain(&rsync).arg("-a").arg(one.join("")).arg(&other);
                same.run(TIMEOUT)?.success()?;
                let to = place.at(&format!("{number}-{seed}-weft"));
                let copy = place.weft()?.arg("-q").args(by_weft);
                copy.arg(from.join("")).arg(to).run(TIMEOUT)?.success()?;
                let copy = Program::plain(&rsync).arg("-a").args(by_rsync);
                copy.arg(from.join("")).arg(&other).run(TIMEOUT)?.success()?;
                let (found, expected) = (contents(&one)?, contents(&other)?);
                ensure_data!(
                    found == expected,
                    "{by_weft:?}, seed {seed}: {found:#?}, not {expected:#?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn missing_source_does_not_keep_the_others_from_being_copied() -> Result<()> {
    let rsync = locate("rsync")?;
    for place in [Place::new()?, Place::served(&[])?] {
        fs::create_dir_all(place.path("from/b"))?;
        fs::write(place.path("from/a"), "a")?;
        fs::write(place.path("from/b/c"), "c")?;
        let sources = ["from/a", "from/missing", "none/at/all", "from/b"];
        let by_rsync = Program::plain(&rsync).arg("-a").args(sources.map(|name| place.path(name)));
        let finished = by_rsync.arg(place.path("rsync/")).run(TIMEOUT)?;
        ensure!(finished.status.code() == Some(23), "{}", finished.error("rsync"));
        // Up, and down.
        for (to, is_up) in [("up", true), ("down", false)] {
            let near = |name: &str| place.path(name).display().to_string();
            let at = |name: &str| if is_up { near(name) } else { place.at(name) };
            let destination = if is_up { place.at(to) } else { near(to) };
            let copy = place.weft()?.args(sources.map(at)).arg(&destination);
            let finished = copy.run(TIMEOUT)?;
            ensure!(finished.status.code() == Some(3), "{}", finished.error("some are missing"));
            for missing in ["missing: cannot be read", "all: cannot be read"] {
                let count = finished.stderr.matches(missing).count();
                ensure!(count == 1, "{missing}: {}", finished.stderr);
            }
            let (found, expected) = (contents(&place.path(to))?, contents(&place.path("rsync"))?);
            ensure_data!(found == expected, "{found:#?}, not {expected:#?}");
            // A single source that is missing is a copy that has failed.
            let copy = place.weft()?.arg(at("from/missing")).arg(destination);
            let finished = copy.run(TIMEOUT)?;
            ensure!(finished.status.code() == Some(1), "{}", finished.error("nothing is there"));
        }
    }
    Ok(())
}

#[test]
fn of_several_sources_the_first_decides_as_in_rsync() -> Result<()> {
    let rsync = locate("rsync")?;
    for place in [Place::new()?, Place::served(&[])?] {
        for (seed, name) in (1..).zip(["one", "two", "three"]) {
            make_tree(&place.path(name), &mut Rng::with_seed(seed), 2)?;
            // It has parts, and it is other text in each of them.
            fs::write(place.path(name).join("large"), name.repeat(1 << 20))?;
            fs::write(place.path(name).join("x"), name)?;
        }
        let sources = ["one/", "two/", "three/x", "three/", "one/"];
        let by_rsync = Program::plain(&rsync).arg("-a").args(sources.map(|name| place.path(name)));
        by_rsync.arg(place.path("rsync/")).run(TIMEOUT)?.success()?;
        for (to, is_up) in [("up", true), ("down", false)] {
            let near = |name: &str| place.path(name).display().to_string();
            let at = |name: &str| if is_up { near(name) } else { place.at(name) };
            let destination = if is_up { place.at(to) } else { near(to) };
            for options in [&[][..], &["--skip-unchanged"]] {
                let copy = place.weft()?.arg("-q").args(options).args(sources.map(at));
                copy.arg(&destination).run(TIMEOUT)?.success()?;
                let files = |folder: &str| -> Result<Vec<_>> {
                    let all = contents(&place.path(folder))?.into_iter();
                    Ok(all.map(|(path, (bytes, ..))| (path, bytes)).collect())
                };
                let (found, expected) = (files(to)?, files("rsync")?);
                ensure_data!(found == expected, "{to}, {options:?}: other files or contents");
            }
        }
    }
    Ok(())
}

/// Returns the calls that sync something, in a copy by this program.
fn syncs(place: &Place, copy: &[&str]) -> Result<Vec<String>> {
    let log = place.path("strace");
    let trace = Program::plain(locate("strace")?).args(["-f", "-qq", "-y", "-e"]);
    let calls =
        "trace=sync,syncfs,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,unlinkat";
    let trace = trace.arg(calls).arg("-o").arg(&log).args(copy);
    trace.env("XDG_CONFIG_HOME", place.path("config")).run(TIMEOUT)?.success()?;
    let text = fs::read_to_string(log)?;
    let is_call = |line: &&str| ["sync", "rename", "unlink"].iter().any(|it| line.contains(it));
    Ok(text.lines().filter(is_call).map(str::to_owned).collect())
}

#[test]
fn nothing_is_synced_unless_that_is_asked_for() -> Result<()> {
    let place = Place::new()?;
    fs::create_dir_all(place.path("from/below"))?;
    fs::write(place.path("from/small"), "small")?;
    fs::write(place.path("from/below/large"), vec![7; 3 << 20])?;
    let [weft, from, to] = [weft()?, place.path("from/"), place.path("to/")];
    let [weft, from, to] = [&weft, &from, &to].map(|path| path.display().to_string());
    let is_sync = |line: &&String| line.contains("sync");
    let rsync = locate("rsync")?.display().to_string();
    let by_rsync = syncs(&place, &[&rsync, "-a", &from, &to])?;
    ensure!(by_rsync.iter().all(|line| !is_sync(&line)), "{by_rsync:#?}");
    for options in [&[][..], &["--limit=100M"], &["--resume"]] {
        let copy = [&[&weft, "cp", "-q"], options, &[&from, &to]].concat();
        let calls = syncs(&place, &copy)?;
        ensure!(calls.iter().all(|line| !is_sync(&line)), "{options:?}: {calls:#?}");
    }
    // With a limit the data goes through this process, otherwise the kernel copies it.
    for options in [&["--fsync"][..], &["--fsync", "--limit=100M"]] {
        let new = format!("new{}", options.len());
        let to = place.path(&new).display().to_string();
        let calls = syncs(&place, &[&[&weft, "cp", "-q"], options, &[&from, &to]].concat())?;
        let at = |call: &str, name: &str| {
            let is_it = |line: &String| line.contains(call) && line.contains(name);
            calls.iter().position(is_it)
        };
        for file in ["small", "large"] {
            let synced = at("sync(", &format!("/.{file}.weft-"));
            let renamed = at("rename", &format!("\"{file}\""));
            let is_before = synced.is_some() && synced < renamed;
            ensure!(is_before, "{file}: {calls:#?}");
        }
        let folder = place.root().display();
        for path in [format!("<{folder}>"), format!("<{to}>"), format!("<{to}/below>")] {
            ensure!(at("fsync(", &path).is_some(), "{path}: {calls:#?}");
        }
    }
    // What is deleted and replaced at the end is synced, too.
    let to = place.path("to");
    fs::create_dir_all(to.join("below/extra"))?;
    fs::remove_file(to.join("small"))?;
    fs::create_dir(to.join("small"))?;
    let to = to.display().to_string();
    let copy = [&weft, "cp", "-q", "--fsync", "--delete", &from, &to];
    let calls = syncs(&place, &copy)?;
    for (name, folder) in [("extra", format!("<{to}/below>")), ("small", format!("<{to}>"))] {
        let is_it = |line: &String| line.contains("unlink") && line.contains(name);
        let removed = calls.iter().rposition(is_it);
        let is_it = |line: &String| line.contains("fsync(") && line.contains(&folder);
        let synced = calls.iter().rposition(is_it);
        ensure!(removed.is_some() && removed < synced, "{name}: {calls:#?}");
    }
    Ok(())
}

/// Makes a tree with entries of all types that this user may make.
fn make_all_types(folder: &Path) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    fs::create_dir_all(folder.join("below/empty"))?;
    fs::write(folder.join("a.o"), vec![7; 300_000])?;
    fs::write(folder.join("below/b"), "b")?;
    fs::hard_link(folder.join("a.o"), folder.join("below/hard"))?;
    symlink("below/b", folder.join("link"))?;
    drop(UnixListener::bind(folder.join("socket"))?);
    let special = |name: &str, kind, device| {
        mknodat(CWD, folder.join(name), kind, Mode::from_raw_mode(0o640), device)
    };
    special("below/pipe", FileType::Fifo, 0)?;
    if is_root {
        special("null", FileType::CharacterDevice, makedev(1, 3))?;
        chown(folder.join("below/b"), Some(UID), Some(UID))?;
        chown(folder.join("below"), Some(UID), Some(UID))?;
    }
    fs::set_permissions(folder.join("below/b"), Permissions::from_mode(0o4604))?;
    File::open(folder.join("below"))?.set_modified(UNIX_EPOCH + Duration::from_secs(5))?;
    Ok(())
}

#[test]
fn options_that_people_type_make_the_same_tree_as_with_rsync_and_cp() -> Result<()> {
    let rsync = locate("rsync")?.display().to_string();
    let place = Place::new()?;
    make_all_types(&place.path("from"))?;
    let from = place.path("from/");
    for (number, words) in [
        &["-aH"][..],
        &["-rlptgoD", "--hard-links"],
        &["-azHAX"],
        &["-aHSWhP", "--partial"],
        &["-aH", "--progress", "--numeric-ids"],
        &["-aH", "--bwlimit=100000", "--delete-after"],
        &["--archive", "-H", "--exclude", "*.o", "-u"],
        &["-rltogDH", "--perms", "--delete-during", "-c"],
    ]
    .into_iter()
    .enumerate()
    {
        let [weft, rival] = ["weft", "rsync"].map(|name| place.path(&format!("{name}{number}")));
        // The second time, something is there already.
        for _ in 0..2 {
            let copy = place.weft()?.arg("-q").args(words).arg(&from).arg(&weft);
            copy.run(TIMEOUT)?.success()?;
            let copy = Program::plain(&rsync).arg("-q").args(words).arg(&from).arg(&rival);
            copy.run(TIMEOUT)?.success()?;
            let (found, expected) = (whole(&weft)?, whole(&rival)?);
            ensure_data!(found == expected, "{words:?}: {found:#?}, not {expected:#?}");
            for to in [&weft, &rival] {
                let pipe = to.join("below/pipe");
                fs::set_permissions(&pipe, Permissions::from_mode(0o600))?;
                fs::remove_file(to.join("socket"))?;
                fs::write(to.join("socket"), "none")?;
                fs::remove_file(to.join("link"))?;
            }
        }
    }
    let copy = place.weft()?.arg("-aq").arg(&from).arg(place.path("as-cp"));
    copy.run(TIMEOUT)?.success()?;
    let copy = Program::plain("cp").arg("-a").arg(place.path("from")).arg(place.path("cp"));
    copy.run(TIMEOUT)?.success()?;
    let (found, expected) = (whole(&place.path("as-cp"))?, whole(&place.path("cp"))?);
    ensure_data!(found == expected, "{found:#?}, not {expected:#?}");
    Ok(())
}

/// Makes a tree of which some is selected.
fn make_selected(folder: &Path) -> Result<()> {
    for below in ["a/b/deep/er", "a/empty", "e/f", "i"] {
        fs::create_dir_all(folder.join(below))?;
    }
    for name in ["a/b/c", "a/b/deep/x", "a/b-x", "a/d", "e/f/g", "e/f/x y", "h", "i/j"] {
        fs::write(folder.join(name), name)?;
    }
    fs::hard_link(folder.join("h"), folder.join("a/hard"))?;
    symlink("e", folder.join("link"))?;
    for (number, name) in ["a", "a/b", "e", "e/f", "."].into_iter().enumerate() {
        let time = UNIX_EPOCH + Duration::from_secs(1_000 + number as u64);
        File::open(folder.join(name))?.set_modified(time)?;
        fs::set_permissions(folder.join(name), Permissions::from_mode(0o750 + number as u32))?;
    }
    Ok(())
}

/// What the destination has before the copy.
fn make_others(folder: &Path) -> Result<()> {
    for name in ["a/b/extra/more", "a/extra", "e/extra", "extra"] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, "extra")?;
        File::options().write(true).open(path)?.set_modified(UNIX_EPOCH)?;
    }
    for name in ["a/b/extra", "a/b", "a", "e", "."] {
        File::open(folder.join(name))?.set_modified(UNIX_EPOCH)?;
    }
    Ok(())
}

#[test]
fn selected_paths_are_copied_as_by_rsync() -> Result<()> {
    let rsync = locate("rsync")?;
    for place in [Place::new()?, Place::served(&[])?] {
        let from = place.path("from");
        make_selected(&from)?;
        fs::write(place.path("list"), "/a//b/c\n# e\n\n; e\ne/f/x y\nh\ni/\na/empty\nlink\n")?;
        fs::write(place.path("zero"), "a/b\0h\0")?;
        fs::write(place.path("all"), ".\n")?;
        fs::write(place.path("marked"), "a/./b\n")?;
        let path = |name: &str| place.path(name).display().to_string();
        let [list, zero, all, marked] = ["list", "zero", "all", "marked"].map(path);
        let absolute = format!("{}/./a/b", path("from"));
        for (number, (words, status)) in [
            (&["-aHR", "a/b/c"][..], 0),
            (&["-aHR", "a/b", "h", "a/hard"], 0),
            (&["-aHR", "a/./b/deep/"], 0),
            (&["-aHR", "--delete", "a/b", "e/f/g"], 0),
            (&["-aHR", "--delete", "."], 0),
            (&["-aHR", &absolute], 0),
            (&["-aHR", "--exclude=c", "--include=*/", "a", "e/f"], 0),
            (&["-aH", "--relative", "a/none", "none/at/all", "a/d"], 3),
            (&["-aH", "--files-from", &list, "."], 0),
            (&["-aHr", "--files-from", &list, "."], 0),
            (&["-aHr", "--delete", "--files-from", &list, "."], 0),
            (&["-aH", "-0", "--files-from", &zero, "./"], 0),
            (&["-aHr", "-0", "--files-from", &zero, &path("from")], 0),
            (&["-aH", "--files-from", &all, "."], 0),
        ]
        .into_iter()
        .enumerate()
        {
            let [weft, rival] = ["weft", "rsync"].map(|name| format!("{name}{number}"));
            for to in [&weft, &rival] {
                make_others(&place.path(to))?;
            }
            let copy = place.weft()?.arg("-q").args(words).arg(place.at(&weft)).directory(&from);
            let finished = copy.run(TIMEOUT)?;
            ensure!(finished.status.code() == Some(status), "{}", finished.error("weft"));
            let copy = Program::plain(&rsync).args(["-q", "--modify-window=-1"]).args(words);
            let finished = copy.arg(place.path(&rival)).directory(&from).run(TIMEOUT)?;
            let expected = if status == 0 { 0 } else { 23 };
            ensure!(finished.status.code() == Some(expected), "{}", finished.error("rsync"));
            let (found, expected) = (whole(&place.path(&weft))?, whole(&place.path(&rival))?);
            ensure_data!(found == expected, "{words:?}: {found:#?}, not {expected:#?}");
        }
        // What is beneath a link is nowhere, and a copy over itself is none.
        let copy = |words: &[&str]| -> Result<Finished> {
            let copy = place.weft()?.args(words);
            copy.directory(&from).run(TIMEOUT)
        };
        let finished = copy(&["-qR", "link/f/g", "h", &place.at("beneath")])?;
        let is_said = finished.stderr.contains("link: cannot be read at the source");
        ensure!(is_said && finished.status.code() == Some(3), "{}", finished.error("a link"));
        ensure!(names(&place.path("beneath"))? == [Path::new("h")]);
        for (words, status) in [
            (&["-R", "h", &path("from")][..], 1),
            (&["-R", "a", &place.at("from/a/b")], 1),
            (&["-R", "h", "/etc/hostname", &place.at("to")], 2),
            (&["-R", "a/../h", &place.at("to")], 2),
            (&["--files-from", &list, ".", "a", &place.at("to")], 2),
            (&["--files-from", &marked, ".", &place.at("to")], 2),
            (&["--files-from", "/none", ".", &place.at("to")], 2),
            (&["-R", "127.0.0.1:share/h", "to"], 2),
        ] {
            let finished = copy(words)?;
            ensure!(finished.status.code() == Some(status), "{}", finished.error("refused"));
        }
        ensure!(!place.path("to").exists() && !from.join("a/b/a").exists());
    }
    Ok(())
}

/// A pipe that is there stays, since a program may read it.
#[test]
fn special_files_that_are_there_stay_and_servers_make_no_devices() -> Result<()> {
    let place = Place::served(&[])?;
    make_all_types(&place.path("from"))?;
    let is_root = rustix::process::geteuid().is_root();
    let copy = || anyhow::Ok(place.weft()?.arg("-aq").arg(place.path("from/")).arg(place.at("to")));
    let finished = copy()?.run(TIMEOUT)?;
    let text = "null: cannot be created: Operation not permitted";
    let is_said = finished.stderr.contains(text) == is_root;
    let status = finished.status.code();
    ensure!(is_said && status == Some(3 * i32::from(is_root)), "{}", finished.error("a device"));
    ensure!(!place.path("to/null").exists());
    let inode = || anyhow::Ok(fs::symlink_metadata(place.path("to/below/pipe"))?.ino());
    let before = inode()?;
    fs::set_permissions(place.path("to/below/pipe"), Permissions::from_mode(0o600))?;
    let plan = copy()?.args(["-n", "--exclude=null", "--skip-unchanged"]);
    let stdout = plan.run(TIMEOUT)?.success()?.stdout;
    ensure!(stdout == "attributes below/pipe\n", "{stdout}");
    copy()?.run(TIMEOUT)?;
    ensure!(inode()? == before);
    let mode = fs::symlink_metadata(place.path("to/below/pipe"))?.mode();
    ensure_data!(mode & 0o777 == 0o640, "{mode:o}");
    Ok(())
}

#[test]
fn options_of_rsync_that_weft_has_not_are_refused_with_what_to_use() -> Result<()> {
    let place = Place::new()?;
    fs::write(place.path("from"), "from")?;
    for (words, advice) in [
        (&["--partial-dir=parts"][..], "--resume"),
        (&["-C"], "--exclude"),
        (&["--rsync-path=weft"], "--remote-weft"),
        (&["-oy"], "--link-dest"),
    ] {
        for json in [&[][..], &["--json"]] {
            let copy = place.weft()?.args(words).args(json);
            let finished = copy.arg(place.path("from")).arg(place.path("to")).run(TIMEOUT)?;
            let is_refused = finished.status.code() == Some(2) && finished.stderr.contains(advice);
            ensure!(is_refused, "{}", finished.error("refused"));
            let is_event = finished.stdout.contains("\"event\":\"failed\"") != json.is_empty();
            ensure!(is_event && !place.path("to").exists(), "{}", finished.stdout);
        }
    }
    for (words, text) in [(&["-h"][..], "Usage: weft cp"), (&["--version"], "weft")] {
        let finished = Program::plain(weft()?).arg("cp").args(words).run(TIMEOUT)?.success()?;
        ensure!(finished.stdout.contains(text), "{}", finished.stdout);
    }
    Ok(())
}

const UID: u32 = 65_534;

/// Returns the setuid, setgid and sticky bits of all entries of a folder.
fn special_bits(folder: &Path) -> Result<BTreeMap<PathBuf, u32>> {
    let all = contents(folder)?.into_iter();
    Ok(all.map(|(path, (_, mode, _))| (path, mode & 0o7000)).collect())
}

/// Makes entries with each of the special bits.
fn make_special(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("folder"))?;
    fs::create_dir_all(folder.join("sticky"))?;
    for name in ["setuid", "setgid", "both", "plain", "folder/both"] {
        fs::write(folder.join(name), name)?;
    }
    for (name, mode) in [
        ("setuid", 0o4755),
        ("setgid", 0o2755),
        ("both", 0o6711),
        ("folder/both", 0o6755),
        ("folder", 0o2775),
        ("sticky", 0o1777),
    ] {
        fs::set_permissions(folder.join(name), Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[test]
fn special_bits_are_kept_as_by_cp_and_otherwise_said_once() -> Result<()> {
    let place = Place::new()?;
    make_special(&place.path("from"))?;
    let said = |finished: &Finished| finished.stderr.matches("has not kept").count();
    // Their owner, which may be root.
    let cp = Program::plain("cp").args(["-rp"]).arg(place.path("from")).arg(place.path("cp"));
    cp.run(TIMEOUT)?.success()?;
    let expected = special_bits(&place.path("cp"))?;
    ensure!(expected.values().filter(|bits| **bits > 0).count() == 6, "{expected:?}");
    let copy = place.weft()?.arg(place.path("from/")).arg(place.path("own"));
    let finished = copy.run(TIMEOUT)?.success()?;
    let found = special_bits(&place.path("own"))?;
    ensure_data!(found == expected, "{found:#?}, not {expected:#?}");
    ensure!(said(&finished) == 0, "{}", finished.stderr);
    // A server makes no files setuid or setgid, and says so once.
    let served = Place::served(&[])?;
    make_special(&served.path("from"))?;
    let copy = served.weft()?.arg(served.path("from/")).arg(served.at("to"));
    let finished = copy.run(TIMEOUT)?.success()?;
    let found = special_bits(&served.path("to"))?;
    let is_right = |(path, bits): (&PathBuf, &u32)| match path.to_str() {
        Some("folder" | "sticky") => expected[path] == *bits,
        _ => *bits == 0,
    };
    ensure_data!(found.iter().all(is_right), "{found:#?}");
    let text = "a server sets them for nobody; nor have 3 other entries";
    let is_said = said(&finished) == 1 && finished.stderr.contains(text);
    ensure!(is_said, "{}", finished.stderr);
    if !rustix::process::geteuid().is_root() {
        println!("without root, files of other users are not tested");
        return Ok(());
    }
    // Another user's files, copied by root: setuid must not become that of root.
    for name in names(&place.path("from"))? {
        let path = place.path("from").join(name);
        let mode = fs::metadata(&path)?.permissions();
        chown(&path, Some(UID), Some(UID))?;
        fs::set_permissions(&path, mode)?;
    }
    let copy = place.weft()?.arg(place.path("from/")).arg(place.path("root"));
    let finished = copy.run(TIMEOUT)?.success()?;
    let found = special_bits(&place.path("root"))?;
    let is_safe = |bits: &u32| *bits & 0o6000 == 0;
    ensure_data!(found.values().all(is_safe), "{found:#?}");
    let is_said = said(&finished) == 1 && finished.stderr.contains("the owner is another one");
    ensure!(is_said, "{}", finished.stderr);
    // A second copy has nothing to do.
    let copy = place.weft()?.args(["-n", "--skip-unchanged"]).arg(place.path("from/"));
    let finished = copy.arg(place.path("root")).run(TIMEOUT)?.success()?;
    ensure!(finished.stdout.lines().count() == 1, "{}", finished.stdout);
    let copy = place.weft()?.args(["--owners"]).arg(place.path("from/")).arg(place.path("owners"));
    let finished = copy.run(TIMEOUT)?.success()?;
    let found = special_bits(&place.path("owners"))?;
    ensure_data!(found == expected, "{found:#?}, not {expected:#?}");
    ensure!(said(&finished) == 0, "{}", finished.stderr);
    Ok(())
}

#[test]
#[ignore = "soak: rsync's own tests, a minute"]
fn tests_of_rsync_pass_with_weft_in_its_place() -> Result<()> {
    let source = kept("fetched")?.join("rsync-suite/source");
    if !source.exists() {
        note_skip("tests_of_rsync", "rsync-suite was not fetched: run scripts/fetch");
        return Ok(());
    }
    let place = Place::new()?;
    fs::create_dir(place.path("suite"))?;
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/rsync_suite.py");
    let suite = Program::plain(suite).arg(source).arg(weft()?);
    let finished = suite.arg(place.path("suite")).run(6 * TIMEOUT)?.success()?;
    println!("{}", finished.stdout);
    Ok(())
}
