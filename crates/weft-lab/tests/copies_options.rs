//! Options of `weft cp` that change what is copied, and how, leave the tree that those of rsync
//! leave: on one host, to a server and from one, and by a remote shell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Result, ensure};
use fastrand::Rng;
use weft_lab::copied::{Place, Seen, contents, names};
use weft_lab::sockets::until;
use weft_lab::{Finished, Program, defect, ensure_data, locate, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The exit status if entries of the tree could not be copied.
const INCOMPLETE: i32 = 3;

/// Which ends of a copy are at a server, or are reached by a remote shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Local,
    Upload,
    Download,
    ToShell,
    FromShell,
}

const WAYS: [Way; 5] = [Way::Local, Way::Upload, Way::Download, Way::ToShell, Way::FromShell];

/// A remote shell that runs the command here. The test itself may run by ssh.
const SHELL: &str = "#!/bin/sh\nunset SSH_CONNECTION\nshift\nexec sh -c \"$*\"\n";

impl Way {
    fn place(self) -> Result<Place> {
        match self {
            Self::Local => Place::new(),
            Self::Upload | Self::Download => Place::served(&[]),
            Self::ToShell | Self::FromShell => {
                let place = Place::new()?;
                fs::write(place.path("shell"), SHELL)?;
                fs::set_permissions(place.path("shell"), Permissions::from_mode(0o755))?;
                Ok(place)
            }
        }
    }

    /// Copies between two paths of a place.
    fn copy(self, place: &Place, options: &[&str], from: &str, to: &str) -> Result<Finished> {
        let near = |name: &str| place.path(name).display().to_string();
        // A path keeps the slash at its end.
        let near = |name: &str| match name.strip_suffix('/') {
            Some(name) => format!("{}/", near(name)),
            None => near(name),
        };
        let remote = |name: &str| format!("host:{}", near(name));
        let (from, to) = match self {
            Self::Local => (near(from), near(to)),
            Self::Upload => (near(from), place.at(to)),
            Self::Download => (place.at(from), near(to)),
            Self::ToShell => (near(from), remote(to)),
            Self::FromShell => (remote(from), near(to)),
        };
        let mut copy = place.weft()?;
        if matches!(self, Self::ToShell | Self::FromShell) {
            copy = copy.arg("--remote-weft").arg(weft()?).arg("--rsh").arg(place.path("shell"));
        }
        copy.arg("-q").args(options).arg(from).arg(to).run(TIMEOUT)
    }
}

/// Copies by rsync between two paths of a place.
fn rsync(place: &Place, options: &[&str], from: &str, to: &str) -> Result<Finished> {
    let near = |name: &str| format!("{}/{name}", place.path("").display());
    let copy = Program::plain(locate("rsync")?).arg("-rlptH").args(options);
    copy.arg(near(from)).arg(near(to)).run(TIMEOUT)
}

/// Checks that two folders of a place have the same.
fn check_same(place: &Place, found: &str, expected: &str, what: &str) -> Result<()> {
    let (found, expected) = (contents(&place.path(found))?, contents(&place.path(expected))?);
    let all: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let other = all.into_iter().find(|name| found.get(*name) != expected.get(*name));
    let Some(other) = other else { return Ok(()) };
    // Contents may be long.
    let show = |seen: Option<&Seen>| match seen {
        Some((bytes, mode, mtime)) => {
            let start = bytes[..bytes.len().min(100)].escape_ascii();
            format!("{} bytes, {mode:o}, {mtime}: {start}", bytes.len())
        }
        None => "nothing".to_owned(),
    };
    let (found, expected) = (show(found.get(other)), show(expected.get(other)));
    Err(defect(format!("{what}: {}: {found}; not {expected}", other.display())))
}

/// Makes files and directories with random modes, which their owner may read.
fn make_modes(folder: &Path, rng: &mut Rng) -> Result<()> {
    fs::create_dir_all(folder)?;
    for number in 0..12 {
        let (file, below) = (folder.join(format!("f{number}")), folder.join(format!("d{number}")));
        fs::write(&file, "file")?;
        fs::create_dir(&below)?;
        fs::write(below.join("file"), "file")?;
        for path in [below.join("file"), file] {
            fs::set_permissions(path, Permissions::from_mode(0o400 | rng.u32(..0o1000)))?;
        }
        fs::set_permissions(below, Permissions::from_mode(0o700 | rng.u32(..0o2000)))?;
    }
    symlink("f0", folder.join("link"))?;
    Ok(())
}

/// Random items of modes, as users of chmod write them.
fn modes(rng: &mut Rng) -> String {
    let pick = |rng: &mut Rng, from: &[&str]| from[rng.usize(..from.len())].to_owned();
    let item = |rng: &mut Rng| {
        let mut item = pick(rng, &["", "", "D", "F"]);
        if rng.u8(..4) == 0 {
            return item + &pick(rng, &["755", "644", "1777", "0700", "7"]);
        }
        item += &pick(rng, &["", "u", "g", "o", "a", "ug", "go", "uo"]);
        item += &pick(rng, &["+", "-", "="]);
        item + &pick(rng, &["", "r", "w", "x", "X", "rw", "rwX", "rX", "t", "wt", "u", "g", "o"])
    };
    let items: Vec<String> = (0..rng.usize(1..4)).map(|_| item(rng)).collect();
    items.join(",")
}

#[test]
fn modes_are_changed_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let (place, mut rng) = (way.place()?, Rng::with_seed(7));
        make_modes(&place.path("from"), &mut rng)?;
        for number in 0..25 {
            // The owner must be able to look at what is there.
            let modes = [modes(&mut rng), modes(&mut rng)];
            let options = modes.each_ref().map(|modes| format!("--chmod={modes}"));
            let options = [&options[0], &options[1], "--chmod=u+r,Du+wx"];
            let [weft, rival] = ["weft", "rsync"].map(|name| format!("{name}{number}"));
            rsync(&place, &options, "from/", &rival)?.success()?;
            way.copy(&place, &options, "from/", &weft)?.success()?;
            check_same(&place, &weft, &rival, &format!("{way:?}, {options:?}"))?;
        }
        // What is there gets the modes, too.
        let options = ["--chmod=D711,F640"];
        rsync(&place, &options, "from/", "rsync0")?.success()?;
        let again = [&options[..], &["--skip-unchanged"]].concat();
        way.copy(&place, &again, "from/", "weft0")?.success()?;
        check_same(&place, "weft0", "rsync0", &format!("{way:?}, again"))?;
        for wrong in ["--chmod=u", "--chmod=8", "--chmod=", "--chmod=u+ru"] {
            let refused = way.copy(&place, &[wrong], "from/", "none")?;
            ensure!(refused.status.code() == Some(2), "{}", refused.error("refused"));
            ensure!(!place.path("none").exists());
        }
    }
    Ok(())
}

/// Makes a destination with nineteen entries that the source does not have: twelve files and seven
/// directories.
fn make_extras(folder: &Path) -> Result<()> {
    for name in ["a/b/c", "a/d", "e", "both/x", "both/y"] {
        fs::create_dir_all(folder.join(name))?;
    }
    for name in ["1", "2", "a/3", "a/4", "a/b/5", "a/b/c/6", "a/d/7", "e/8", "both/x/9", "both/10"]
    {
        fs::write(folder.join(name), name)?;
    }
    for name in ["both/11", "both/y/12", "both/y/13"] {
        fs::write(folder.join(name), name)?;
    }
    Ok(())
}

#[test]
fn no_more_is_deleted_than_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        fs::create_dir_all(place.path("from/both"))?;
        fs::write(place.path("from/file"), "file")?;
        fs::write(place.path("from/both/10"), "as before")?;
        for (number, (most, more)) in [
            (0, &[][..]),
            (1, &[]),
            (5, &["--delete-before"]),
            (18, &[]),
            (19, &[]),
            (19, &["--delete-before"]),
            (50, &[]),
        ]
        .into_iter()
        .enumerate()
        {
            let [weft, rival] = ["weft", "rsync"].map(|name| format!("{name}{number}"));
            for to in [&weft, &rival] {
                make_extras(&place.path(to))?;
            }
            let limit = format!("--max-delete={most}");
            let options = [&["--delete", &limit], more].concat();
            let by_rsync = rsync(&place, &options, "from/", &rival)?;
            let plan = way.copy(&place, &[&options[..], &["-n"]].concat(), "from/", &weft)?;
            let by_weft = way.copy(&place, &options, "from/", &weft)?;
            let [found, expected] = [&weft, &rival].map(|to| names(&place.path(to)));
            let (found, expected) = (found?, expected?);
            let what = format!("{way:?}, {options:?}");
            // The order of deletions may differ.
            let [count, expected_count] = [found.len(), expected.len()];
            ensure_data!(count == expected_count, "{what}: {found:#?}, not {expected:#?}");
            let expected = match by_rsync.status.code() {
                Some(0) => 0,
                Some(25) => INCOMPLETE,
                _ => return Err(by_rsync.error("rsync")),
            };
            ensure!(by_weft.status.code() == Some(expected), "{}", by_weft.error(&what));
            ensure!(plan.status.code() == Some(expected), "{}", plan.error(&what));
            let is_said = by_weft.stderr.contains("(--max-delete)");
            ensure!(is_said == (expected != 0), "{what}: {}", by_weft.stderr);
            ensure_data!(fs::read(place.path(&weft).join("both/10"))? == b"as before", "{what}");
        }
    }
    Ok(())
}

/// Makes a tree with links of all kinds. What they lead to is in `share`, where nothing is missing.
fn make_links(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("tree/below/deep"))?;
    fs::create_dir_all(folder.join("beside/more"))?;
    for name in ["tree/file", "tree/below/deep/file", "beside/one", "beside/more/two"] {
        fs::write(folder.join(name), name)?;
        let time = UNIX_EPOCH + Duration::from_secs(name.len() as u64);
        File::options().write(true).open(folder.join(name))?.set_modified(time)?;
    }
    fs::write(folder.join("beside/large"), vec![7; 3 << 20])?;
    fs::hard_link(folder.join("beside/one"), folder.join("beside/more/hard"))?;
    for (target, name) in [
        ("file", "tree/to-file"),
        ("below", "tree/to-folder"),
        ("../../beside", "tree/below/outside"),
        ("../../beside/large", "tree/below/large"),
        ("to-file", "tree/to-link"),
        ("../beside/more/hard", "tree/hard"),
        ("../tree/file", "beside/back"),
    ] {
        symlink(target, folder.join(name))?;
    }
    fs::set_permissions(folder.join("beside/more"), Permissions::from_mode(0o750))?;
    Ok(())
}

#[test]
fn links_are_followed_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        make_links(&place.path("from"))?;
        let skips = ["-L", "--skip-unchanged"];
        for (number, (options, from, to)) in [
            (&["-L"][..], "from/tree/", ""),
            (&["-L"], "from/tree", "/"),
            (&["-L", "--delete"], "from/tree/to-folder", "/"),
            (&["-L"], "from/tree/to-folder/", ""),
            (&["-L"], "from/tree/to-link", "/"),
            (&["-L", "--exclude=outside/", "--exclude=to-file"], "from/tree/", ""),
            (&["-L", "--exclude=/below/*"], "from/tree/", ""),
        ]
        .into_iter()
        .enumerate()
        {
            let [weft, rival] = ["weft", "rsync"].map(|name| format!("{name}{number}"));
            for to in [&weft, &rival] {
                fs::create_dir_all(place.path(to))?;
            }
            for by_weft in [options, &[options, &skips].concat()] {
                rsync(&place, options, from, &format!("{rival}{to}"))?.success()?;
                way.copy(&place, by_weft, from, &format!("{weft}{to}"))?.success()?;
                check_same(&place, &weft, &rival, &format!("{way:?}, {by_weft:?}, {from}"))?;
            }
        }
        // A link that leads nowhere is said, and nothing is deleted.
        symlink("nowhere", place.path("from/tree/dangling"))?;
        for options in [&["-L", "--delete"][..], &["-L", "--delete", "--exclude=dangling"]] {
            let is_whole = options.len() == 3;
            for to in ["weft0", "rsync0"] {
                fs::write(place.path(to).join("extra"), "extra")?;
            }
            let by_rsync = rsync(&place, options, "from/tree/", "rsync0")?;
            let status = by_rsync.status.code();
            ensure!(status == Some(if is_whole { 0 } else { 23 }), "{}", by_rsync.error("rsync"));
            let by_weft = way.copy(&place, options, "from/tree/", "weft0")?;
            let expected = if is_whole { 0 } else { INCOMPLETE };
            ensure!(by_weft.status.code() == Some(expected), "{}", by_weft.error("weft"));
            ensure!(by_weft.stderr.contains("dangling") != is_whole, "{}", by_weft.stderr);
            ensure!(place.path("weft0/extra").exists() != is_whole);
            fs::remove_file(place.path("from/tree/dangling"))?;
            check_same(&place, "weft0", "rsync0", &format!("{way:?}, {options:?}"))?;
            symlink("nowhere", place.path("from/tree/dangling"))?;
        }
    }
    Ok(())
}

/// Links that lead to a directory above them end where they begin again, also in the destination.
#[test]
fn links_that_lead_to_where_they_are_end() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        fs::create_dir_all(place.path("from/a/b"))?;
        fs::write(place.path("from/a/b/file"), "file")?;
        symlink("..", place.path("from/a/b/up"))?;
        symlink(".", place.path("from/a/itself"))?;
        let finished = way.copy(&place, &["-L"], "from/", "to")?;
        ensure!(finished.status.code() == Some(INCOMPLETE), "{}", finished.error("loops"));
        ensure!(finished.stderr.matches("Too many levels").count() == 2, "{}", finished.stderr);
        let found = names(&place.path("to"))?;
        ensure_data!(found == ["a", "a/b", "a/b/file"].map(Path::new), "{found:?}");
    }
    let place = Place::new()?;
    fs::create_dir_all(place.path("from"))?;
    fs::create_dir_all(place.path("to/below"))?;
    symlink("../to", place.path("from/to"))?;
    fs::write(place.path("from/file"), "file")?;
    let finished = Way::Local.copy(&place, &["-L"], "from/", "to/below")?;
    ensure!(finished.status.code() == Some(INCOMPLETE), "{}", finished.error("itself"));
    let found = names(&place.path("to"))?;
    ensure_data!(found == ["below", "below/file"].map(Path::new), "{found:?}");
    Ok(())
}

/// A server does not follow links out of what it shares.
#[test]
fn links_at_a_server_lead_nowhere_outside() -> Result<()> {
    let place = Place::served(&[])?;
    let outside = Place::new()?;
    fs::write(outside.path("secret"), "secret")?;
    fs::create_dir_all(place.path("from/below"))?;
    fs::write(place.path("from/file"), "file")?;
    symlink(outside.path("secret"), place.path("from/absolute"))?;
    symlink(outside.path(""), place.path("from/folder"))?;
    symlink("/proc/self/root", place.path("from/below/root"))?;
    let depth = outside.path("").components().count();
    let above = "../".repeat(depth + 8);
    let secret = format!("{above}{}", outside.path("secret").display());
    symlink(&secret, place.path("from/below/relative"))?;
    let finished = Way::Download.copy(&place, &["-L"], "from/", "to")?;
    ensure!(finished.status.code() == Some(INCOMPLETE), "{}", finished.error("links"));
    ensure!(
        finished.stderr.matches("Invalid cross-device link").count() == 4,
        "{}",
        finished.stderr
    );
    let found = names(&place.path("to"))?;
    ensure_data!(found == ["below", "file"].map(Path::new), "{found:?}");
    // The same by its own name, and as a stream.
    for name in ["from/absolute", "from/folder", "from/below/root"] {
        let finished = Way::Download.copy(&place, &["-L"], name, "by-name")?;
        ensure!(finished.status.code() != Some(0), "{}", finished.error(name));
        let stream = place.weft()?.arg("-L").arg(place.at(name)).arg("-").run(TIMEOUT)?;
        ensure!(stream.status.code() == Some(1), "{}", stream.error(name));
        ensure_data!(!stream.stdout.contains("secret"), "{name}");
    }
    Ok(())
}

/// A host that does not answer any more counts as lost. Its server is stopped in the middle of a
/// copy, so that its kernel goes on to acknowledge what comes.
#[test]
fn host_that_is_silent_counts_as_lost() -> Result<()> {
    let mut place = Place::served(&[])?;
    fs::write(place.path("from"), vec![7; 64 << 20])?;
    let copy = place.weft()?.args(["-q", "--timeout=2", "--limit=1M"]);
    let copy = copy.arg(place.path("from")).arg(place.at("to")).start()?;
    let is_begun = || -> Result<bool> {
        Ok(names(&place.path(""))?
            .iter()
            .any(|path| path.display().to_string().contains(".to.weft-")))
    };
    until("the copy begins", || Ok(is_begun()?.then_some(())))?;
    place.stop_server()?;
    let finished = copy.wait(TIMEOUT)?;
    ensure!(finished.status.code() == Some(1), "{}", finished.error("lost"));
    ensure!(finished.stderr.contains("no sign of life"), "{}", finished.stderr);
    Ok(())
}

/// Makes a tree of which some is in another one, with other contents.
fn make_backed_up(from: &Path, to: &Path) -> Result<()> {
    for folder in ["below", "only-from", "becomes-folder"] {
        fs::create_dir_all(from.join(folder))?;
    }
    for folder in ["below/deep", "only-to/below"] {
        fs::create_dir_all(to.join(folder))?;
    }
    for name in ["a", "below/b", "same", "only-from/c", "long"] {
        fs::write(from.join(name), format!("new {name}"))?;
    }
    for name in ["a", "a~", "below/b", "becomes-link", "only-to/d", "only-to/below/e", "extra"] {
        fs::write(to.join(name), format!("old {name}"))?;
    }
    fs::write(to.join("same"), "new same")?;
    fs::hard_link(to.join("extra"), to.join("below/hard"))?;
    for (target, link) in [("a", from.join("becomes-link")), ("a", from.join("link"))] {
        symlink(target, link)?;
    }
    symlink("b", to.join("link"))?;
    fs::set_permissions(to.join("a"), Permissions::from_mode(0o604))?;
    // A directory gets the mode of the source, and so does the one for what was in it.
    fs::set_permissions(from.join("below"), Permissions::from_mode(0o750))?;
    fs::set_permissions(to.join("below"), Permissions::from_mode(0o711))?;
    fs::set_permissions(to.join("only-to"), Permissions::from_mode(0o731))?;
    for (folder, seconds) in [(from, 9), (to, 5)] {
        for name in ["a", "below/b", "same"] {
            let seconds = if name == "same" { 9 } else { seconds };
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(folder.join(name))?.set_modified(time)?;
        }
    }
    Ok(())
}

/// What there is in a folder. Directories have any times, since names are made in them.
fn without_times_of_folders(folder: &Path) -> Result<BTreeMap<PathBuf, Seen>> {
    let timeless = |(path, (bytes, mode, time)): (PathBuf, Seen)| {
        let time = if folder.join(&path).is_dir() { 0 } else { time };
        (path, (bytes, mode, time))
    };
    Ok(contents(folder)?.into_iter().map(timeless).collect())
}

#[test]
fn what_is_replaced_is_kept_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        for (number, (options, folder)) in [
            (&["-b"][..], None),
            (&["--backup", "--suffix=.old"], None),
            (&["-b", "--delete"], None),
            (&["-b", "--delete", "--exclude=a~"], None),
            (&["-b", "--backup-dir=../kept", "--delete"], Some("kept")),
            (&["--backup-dir=kept/here"], None),
            (&["--backup-dir=../kept/deep", "--suffix=.1"], Some("kept")),
            (&["--delete", "--backup-dir=ABSOLUTE"], Some("absolute")),
        ]
        .into_iter()
        .enumerate()
        {
            let [from, weft, rival] =
                ["from", "weft", "rsync"].map(|name| format!("{name}{number}"));
            make_backed_up(&place.path(&from), &place.path(&weft))?;
            if options.contains(&"--delete") {
                fs::write(place.path(&weft).join("becomes-folder"), "old file")?;
            }
            if folder.is_some() && options.contains(&"--delete") {
                fs::write(place.path(&from).join("becomes-file"), "new file")?;
                fs::create_dir(place.path(&weft).join("becomes-file"))?;
                fs::write(place.path(&weft).join("becomes-file/f"), "old file")?;
            }
            let copy = Program::plain("cp").arg("-a").arg(place.path(&weft));
            copy.arg(place.path(&rival)).run(TIMEOUT)?.success()?;
            // The second time, there are backups.
            for round in 0..2 {
                if round > 0 {
                    fs::write(place.path(&from).join("a"), "newer")?;
                    fs::remove_file(place.path(&from).join("only-from/c"))?;
                }
                let mut kept = Vec::new();
                for by_weft in [false, true] {
                    let absolute = match (by_weft, way) {
                        (true, Way::Upload) => "/absolute".to_owned(),
                        _ => place.path("absolute").display().to_string(),
                    };
                    let options = options.iter().map(|it| it.replace("ABSOLUTE", &absolute));
                    let options: Vec<String> = options.collect();
                    let options: Vec<&str> = options.iter().map(String::as_str).collect();
                    if let Some(folder) = folder {
                        // There is none the first time.
                        drop(fs::remove_dir_all(place.path(folder)));
                    }
                    let from = format!("{from}/");
                    match by_weft {
                        true => way.copy(&place, &options, &from, &weft)?,
                        false => rsync(&place, &[&["-I"], &options[..]].concat(), &from, &rival)?,
                    }
                    .success()?;
                    let to = if by_weft { &weft } else { &rival };
                    for folder in [Some(to.as_str()), folder].into_iter().flatten() {
                        kept.push(without_times_of_folders(&place.path(folder))?);
                    }
                }
                let (expected, found) = kept.split_at(kept.len() / 2);
                let what = format!("{way:?}, {options:?}, {round}");
                ensure_data!(found == expected, "{what}: {found:#?}, not {expected:#?}");
            }
        }
        // A server keeps nothing outside of what it shares, and backups have names of their own.
        let mut wrong = vec![&["-b", "--suffix="][..], &["-b", "--suffix=/x"]];
        if way == Way::Upload {
            wrong.push(&["--backup-dir=../../kept"]);
        }
        for options in wrong {
            let finished = way.copy(&place, options, "from0/", "weft0")?;
            ensure!(
                finished.status.code() == Some(1),
                "{options:?}: {}",
                finished.error("refused")
            );
        }
    }
    Ok(())
}

/// The paths of a folder's files that are names of files of another one.
fn linked(folder: &Path, other: &Path) -> Result<Vec<PathBuf>> {
    let inode = |path: PathBuf| fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let mut all = names(folder)?;
    all.retain(|path| {
        let is_file = folder.join(path).symlink_metadata().is_ok_and(|it| it.is_file());
        is_file && inode(folder.join(path)) == inode(other.join(path))
    });
    Ok(all)
}

#[test]
fn equal_files_of_another_directory_are_linked_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        let from = place.path("from");
        fs::create_dir_all(from.join("below"))?;
        for name in ["same", "below/same", "larger", "newer", "mode", "there", "only"] {
            fs::write(from.join(name), name)?;
            let time = UNIX_EPOCH + Duration::from_secs(7);
            File::options().write(true).open(from.join(name))?.set_modified(time)?;
        }
        fs::hard_link(from.join("same"), from.join("hard"))?;
        symlink("same", from.join("link"))?;
        let copy = Program::plain("cp").arg("-a").arg(&from).arg(place.path("before"));
        copy.run(TIMEOUT)?.success()?;
        let before = place.path("before");
        fs::remove_file(before.join("only"))?;
        fs::write(before.join("larger"), "of another size")?;
        File::options().write(true).open(before.join("newer"))?.set_modified(UNIX_EPOCH)?;
        fs::set_permissions(before.join("mode"), Permissions::from_mode(0o600))?;
        for to in ["weft", "rsync"] {
            fs::create_dir(place.path(to))?;
            fs::write(place.path(to).join("there"), "something else")?;
        }
        let options = ["--link-dest=../none", "--link-dest=../before"];
        rsync(&place, &options, "from/", "rsync")?.success()?;
        let finished = way.copy(&place, &options, "from/", "weft")?.success()?;
        ensure!(finished.stderr.contains("--link-dest"), "{}", finished.stderr);
        check_same(&place, "weft", "rsync", &format!("{way:?}"))?;
        let [found, expected] = ["weft", "rsync"].map(|to| linked(&place.path(to), &before));
        let (found, expected) = (found?, expected?);
        ensure_data!(found == expected, "{way:?}: {found:?}, not {expected:?}");
        ensure!(expected.contains(&PathBuf::from("below/same")) && expected.len() == 4);
        // A link in the place of the directory, or in it, leads nowhere.
        symlink("before", place.path("to-before"))?;
        fs::create_dir(place.path("odd"))?;
        symlink("../before/below", place.path("odd/below"))?;
        let odd = way.copy(&place, &["--link-dest=../odd"], "from/", "other")?.success()?;
        ensure!(linked(&place.path("other"), &before)?.is_empty(), "{}", odd.error("linked"));
        if way == Way::Upload {
            for outside in ["--link-dest=../to-before", "--link-dest=../../before"] {
                let finished = way.copy(&place, &[outside], "from/", "none")?;
                ensure!(finished.status.code() == Some(1), "{}", finished.error(outside));
            }
        }
    }
    Ok(())
}

/// Files of rules, and rules that forget others, select what they do with rsync.
#[test]
fn files_of_rules_select_as_with_rsync() -> Result<()> {
    let place = Place::new()?;
    fs::create_dir_all(place.path("from/below"))?;
    for name in ["a.o", "b.c", "c.h", "below/a.o", "below/keep.o", "below/x"] {
        fs::write(place.path("from").join(name), name)?;
    }
    let path = |name: &str| place.path(name).display().to_string();
    fs::write(place.path("more"), "- *.h\n")?;
    let text = format!("# A comment.\n+ keep.o\n\n. {}\nexclude *.o\n", path("more"));
    fs::write(place.path("rules"), text)?;
    fs::write(place.path("itself"), format!("merge {}\n", path("itself")))?;
    let rules = path("rules");
    for (number, options) in [
        &["-f", &format!(". {rules}")][..],
        &["--filter", &format!("merge_{rules}"), "--exclude=x"],
        &["--exclude=*", "-f!", "-f", "- b.c"],
        &["-f- *.c", "--filter=clear"],
    ]
    .into_iter()
    .enumerate()
    {
        let [weft, rival] = ["weft", "rsync"].map(|name| format!("{name}{number}"));
        rsync(&place, options, "from/", &rival)?.success()?;
        Way::Local.copy(&place, options, "from/", &weft)?.success()?;
        check_same(&place, &weft, &rival, &format!("{options:?}"))?;
    }
    let endless = format!("-f. {}", path("itself"));
    for wrong in [&endless, "-f: .rules", "-f-r x", "--filter=P x"] {
        let refused = Way::Local.copy(&place, &[wrong], "from/", "none")?;
        ensure!(!refused.status.success() && !place.path("none").exists(), "{wrong}");
    }
    Ok(())
}

#[test]
fn files_are_written_in_place_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        let from = place.path("from");
        fs::create_dir(&from)?;
        let large: Vec<u8> = (0..1_000_000_u32).flat_map(|word| word.to_ne_bytes()).collect();
        for (name, bytes) in [
            ("shorter", &b"new"[..]),
            ("longer", b"new and longer"),
            ("large", &large),
            ("large-before", b"small"),
            ("empty", b""),
            ("new", b"new"),
            ("link", b"no link"),
            ("hard", b"of several names"),
        ] {
            fs::write(from.join(name), bytes)?;
        }
        let holes = File::create(from.join("holes"))?;
        holes.set_len(8 << 20)?;
        let mut expected = Vec::new();
        for to in ["weft", "rsync"] {
            let to = place.path(to);
            fs::create_dir(&to)?;
            for name in ["shorter", "longer", "large", "hard", "empty"] {
                fs::write(to.join(name), "what was there before")?;
            }
            fs::write(to.join("large-before"), &large)?;
            fs::write(to.join("holes"), vec![7; 9 << 20])?;
            fs::hard_link(to.join("hard"), to.join("other name"))?;
            symlink("elsewhere", to.join("link"))?;
            fs::write(to.join("elsewhere"), "not to be touched")?;
            File::options().write(true).open(to.join("elsewhere"))?.set_modified(UNIX_EPOCH)?;
            expected.push(
                names(&to)?
                    .into_iter()
                    .map(|name| {
                        let meta = fs::symlink_metadata(to.join(&name))?;
                        Ok((name, meta.ino()))
                    })
                    .collect::<Result<BTreeMap<_, _>>>()?,
            );
        }
        rsync(&place, &["--inplace", "-I"], "from/", "rsync")?.success()?;
        way.copy(&place, &["--inplace"], "from/", "weft")?.success()?;
        check_same(&place, "weft", "rsync", &format!("{way:?}"))?;
        // The same files have stayed, and the same ones are new.
        let kept = |to: &str, before: &BTreeMap<PathBuf, u64>| -> Result<Vec<PathBuf>> {
            let mut kept = names(&place.path(to))?;
            kept.retain(|name| {
                let meta = fs::symlink_metadata(place.path(to).join(name));
                // A new file may have the number of the link that it replaces.
                let is_other = name == Path::new("link");
                !is_other && meta.is_ok_and(|meta| before.get(name) == Some(&meta.ino()))
            });
            Ok(kept)
        };
        let (found, expected) = (kept("weft", &expected[0])?, kept("rsync", &expected[1])?);
        ensure_data!(found == expected, "{way:?}: {found:?}, not {expected:?}");
        ensure!(expected.len() == 9, "{expected:?}");
        ensure!(names(&place.path("weft"))?.len() == 11);
    }
    Ok(())
}

/// Makes files, some of which begin with what others have.
fn make_shorter(from: &Path, to: &Path, rng: &mut Rng) -> Result<()> {
    fs::create_dir_all(from.join("below"))?;
    fs::create_dir_all(to.join("below"))?;
    for number in 0..40 {
        let most = if number % 4 == 0 { 3 << 20 } else { 9_000 };
        let mut bytes = vec![0; rng.usize(..most)];
        rng.fill(&mut bytes);
        let name = format!("{}f{number}", if number % 2 == 0 { "below/" } else { "" });
        let mut before = bytes[..rng.usize(..=bytes.len())].to_vec();
        match number % 10 {
            // What is there differs, is longer, or is nothing.
            0 | 1 => before.iter_mut().take(rng.usize(1..2_000)).for_each(|it| *it ^= 1),
            2 => before.resize(bytes.len() + rng.usize(..3), 7),
            3 => before.clear(),
            4 => before = bytes.clone(),
            _ => {}
        }
        fs::write(from.join(&name), &bytes)?;
        let file = File::options().write(true).open(from.join(&name))?;
        if number % 5 == 0 {
            // A hole behind the end of what is there.
            file.set_len(bytes.len() as u64 + 300_000)?;
        }
        file.set_modified(UNIX_EPOCH + Duration::from_secs(9))?;
        file.set_permissions(Permissions::from_mode(0o640))?;
        if number != 5 {
            fs::write(to.join(&name), &before)?;
            let file = File::options().write(true).open(to.join(&name))?;
            file.set_modified(UNIX_EPOCH + Duration::from_secs(if number == 4 { 9 } else { 5 }))?;
        }
    }
    for (name, text) in [("link", "a file"), ("hard", "of two names"), ("empty", "")] {
        fs::write(from.join(name), text)?;
    }
    fs::hard_link(from.join("hard"), from.join("other name"))?;
    fs::write(to.join("hard"), "of two")?;
    fs::hard_link(to.join("hard"), to.join("elsewhere"))?;
    fs::write(to.join("empty"), "what is there")?;
    symlink("hard", to.join("link"))?;
    Ok(())
}

#[test]
fn files_are_appended_to_as_by_rsync() -> Result<()> {
    for (number, way) in WAYS.into_iter().enumerate() {
        let (place, mut rng) = (way.place()?, Rng::with_seed(number as u64));
        for options in [&["--append"][..], &["--append-verify"], &["--append", "--verify"]] {
            for folder in ["from", "weft", "rsync"] {
                drop(fs::remove_dir_all(place.path(folder)));
            }
            make_shorter(&place.path("from"), &place.path("weft"), &mut rng)?;
            let copy = Program::plain("cp").arg("-a").arg(place.path("weft"));
            copy.arg(place.path("rsync")).run(TIMEOUT)?.success()?;
            let inode = || fs::metadata(place.path("weft/f1")).map(|it| it.ino());
            let before = inode()?;
            // Contents that are the same are the same to --verify, whatever their times.
            let of_rsync = if options.len() > 1 { &["--append-verify", "-c"] } else { options };
            rsync(&place, of_rsync, "from/", "rsync")?.success()?;
            let plan =
                way.copy(&place, &[options, &["-n"]].concat(), "from/", "weft")?.success()?;
            way.copy(&place, options, "from/", "weft")?.success()?;
            check_same(&place, "weft", "rsync", &format!("{way:?}, {options:?}"))?;
            ensure!(before == inode()?, "the file is another one");
            ensure_data!(
                fs::read(place.path("weft/elsewhere"))? == b"of two names",
                "another name"
            );
            // What would be appended to was said.
            let is_planned = plan.stdout.contains("f6") && !plan.stdout.contains("empty");
            ensure!(is_planned, "{}", plan.stdout);
        }
    }
    Ok(())
}

/// A file grows from its beginning to its end, so that the next copy goes on there.
#[test]
fn append_that_is_killed_leaves_a_beginning() -> Result<()> {
    for way in [Way::Local, Way::Upload] {
        let (place, mut rng) = (way.place()?, Rng::with_seed(3));
        let mut bytes = vec![0; 24 << 20];
        rng.fill(&mut bytes);
        // A hole in what is appended.
        bytes[9 << 20..10 << 20].fill(0);
        fs::write(place.path("from"), &bytes)?;
        let hole = Program::plain("fallocate").args(["--dig-holes"]).arg(place.path("from"));
        hole.run(TIMEOUT)?.success()?;
        let (mut len, mut kills) = (1_500_001_u64, 0);
        fs::write(place.path("to"), &bytes[..len as usize])?;
        while len < bytes.len() as u64 {
            let to = if way == Way::Local {
                place.path("to").display().to_string()
            } else {
                place.at("to")
            };
            let copy = place.weft()?.args(["-q", "--append", "--limit=16M"]);
            let mut copy = copy.arg(place.path("from")).arg(to).start()?;
            let most = (len + (5 << 20)).min(bytes.len() as u64);
            until("something is appended", || {
                let is_much = fs::metadata(place.path("to"))?.len() >= most;
                Ok((is_much || !copy.is_running()?).then_some(()))
            })?;
            // The last one may have ended by itself.
            kills += u32::from(copy.kill().is_ok());
            // A server may still write what it has received: the same bytes as the next copy.
            let after = fs::read(place.path("to"))?;
            ensure_data!(bytes.starts_with(&after), "{way:?}: {} bytes", after.len());
            ensure!(after.len() as u64 > len, "{way:?}: nothing was appended");
            len = after.len() as u64;
        }
        ensure!(kills > 2, "{kills} kills");
        way.copy(&place, &["--append"], "from", "to")?.success()?;
        ensure_data!(fs::read(place.path("to"))? == bytes, "{way:?}");
    }
    Ok(())
}

/// Makes a tree with entries of all types, and a destination that has some of them in other states.
fn make_moved(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(from.join("below/empty"))?;
    fs::create_dir_all(to.join("below"))?;
    let names = ["new", "below/new", "same", "below/newer", "older", "longer", "skipped.o"];
    for name in names {
        fs::write(from.join(name), name)?;
    }
    fs::write(from.join("large"), vec![7; 3 << 20])?;
    for (name, text, seconds) in [
        ("same", "same", 9),
        ("below/newer", "something newer", 12),
        ("older", "older than there", 5),
        ("longer", "longer than there", 5),
        ("large", "short", 5),
    ] {
        fs::write(to.join(name), text)?;
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(to.join(name))?.set_modified(time)?;
    }
    for name in names.iter().chain(&["large"]) {
        let time = UNIX_EPOCH + Duration::from_secs(9);
        File::options().write(true).open(from.join(name))?.set_modified(time)?;
    }
    fs::hard_link(from.join("new"), from.join("below/of two names"))?;
    symlink("new", from.join("link"))?;
    symlink("below", from.join("to-folder"))?;
    symlink("nowhere", from.join("dangling"))?;
    let pipe = Program::plain("mkfifo").arg(from.join("pipe")).run(TIMEOUT)?;
    pipe.success().map(drop)
}

#[test]
fn source_files_are_removed_as_by_rsync() -> Result<()> {
    for way in WAYS {
        let place = way.place()?;
        for options in [
            &["--specials"][..],
            &["-u", "--specials"],
            &["--skip-unchanged", "--fsync", "--exclude=*.o", "--exclude=pipe"],
            &["--ignore-existing", "--specials"],
            &["--append", "--specials"],
            &["--specials", "--chmod=F600"],
            // Whether a link is removed before what it leads to depends on the order.
            &["-L", "--exclude=dangling", "--exclude=pipe", "--exclude=/link"],
            &["-c", "--specials", "--inplace"],
        ] {
            for folder in ["from", "weft", "rsync", "rsync-from"] {
                drop(fs::remove_dir_all(place.path(folder)));
            }
            make_moved(&place.path("from"), &place.path("weft"))?;
            for (one, other) in [("weft", "rsync"), ("from", "rsync-from")] {
                let copy = Program::plain("cp").arg("-a").arg(place.path(one));
                copy.arg(place.path(other)).run(TIMEOUT)?.success()?;
            }
            let what = format!("{way:?}, {options:?}");
            let options = [&["--remove-source-files"], options].concat();
            let plan = way.copy(&place, &[&options[..], &["-n"]].concat(), "from/", "weft")?;
            plan.success()?;
            check_same(&place, "from", "rsync-from", &format!("{what}, planned"))?;
            let of_rsync: Vec<_> =
                options.iter().copied().filter(|it| *it != "--skip-unchanged").collect();
            rsync(&place, &of_rsync, "rsync-from/", "rsync")?.success()?;
            way.copy(&place, &options, "from/", "weft")?.success()?;
            check_same(&place, "weft", "rsync", &what)?;
            let [found, expected] = ["from", "rsync-from"].map(|it| names(&place.path(it)));
            let (found, expected) = (found?, expected?);
            ensure_data!(found == expected, "{what}: {found:?} stay, not {expected:?}");
        }
    }
    Ok(())
}

/// Makes many files whose contents are their names.
fn make_many(folder: &Path, count: usize) -> Result<()> {
    fs::create_dir_all(folder)?;
    (0..count).try_for_each(|number| {
        let text = format!("{number:08}").repeat(4_000);
        anyhow::Ok(fs::write(folder.join(number.to_string()), text)?)
    })
}

/// Checks that each of many files is at the source or at the destination, whole. Returns how many
/// are at the source.
fn check_many(from: &Path, to: &Path, count: usize) -> Result<usize> {
    let mut stay = 0;
    for number in 0..count {
        let text = format!("{number:08}").repeat(4_000);
        let [here, there] = [from, to].map(|it| fs::read(it.join(number.to_string())).ok());
        let is_here = here.as_deref() == Some(text.as_bytes());
        let is_there = there.as_deref() == Some(text.as_bytes());
        ensure_data!(is_here || is_there, "{number} is lost");
        ensure_data!(there.is_none() || is_there, "{number} is not whole");
        stay += usize::from(is_here);
    }
    Ok(stay)
}

/// Whatever happens to a copy, a file is removed only if the destination has it.
#[test]
fn no_source_file_is_lost() -> Result<()> {
    const COUNT: usize = 600;
    let removing = ["-q", "--remove-source-files", "--limit=4M"];
    for (options, way) in [
        (&[][..], Way::Upload),
        (&["--fsync"], Way::Upload),
        (&[], Way::Download),
        (&["--fsync"], Way::Download),
        (&["--resume"], Way::Local),
    ] {
        let place = way.place()?;
        make_many(&place.path("from"), COUNT)?;
        let (mut from, mut to) = (place.path("from/").display().to_string(), place.at("to"));
        if way == Way::Download {
            (from, to) = (place.at("from/"), place.path("to").display().to_string());
        }
        let copy = place.weft()?.args(removing).args(options).arg(&from).arg(&to).start()?;
        until("a quarter is copied", || {
            let count = names(&place.path("to")).unwrap_or_default().len();
            Ok((count >= COUNT / 4).then_some(()))
        })?;
        copy.kill()?;
        let stay = check_many(&place.path("from"), &place.path("to"), COUNT)?;
        let is_synced = options.contains(&"--fsync");
        ensure_data!(!is_synced || stay == COUNT, "{way:?}: removed before the end: {stay}");
        // Twice at once.
        let copies: Vec<_> = (0..2)
            .map(|_| place.weft()?.args(&removing[..2]).args(options).arg(&from).arg(&to).start())
            .collect::<Result<_>>()?;
        for copy in copies {
            // One may miss what the other one has removed.
            let status = copy.wait(TIMEOUT)?.status.code();
            ensure!(matches!(status, Some(0 | INCOMPLETE)), "{way:?}: {status:?}");
        }
        check_many(&place.path("from"), &place.path("to"), COUNT)?;
        way.copy(&place, &["--remove-source-files"], "from/", "to")?.success()?;
        let stay = check_many(&place.path("from"), &place.path("to"), COUNT)?;
        ensure!(stay == 0 && place.path("from").is_dir(), "{way:?}: {stay} stay");
    }
    Ok(())
}

/// What the destination has no room for stays, and so does what changes, and what a server keeps.
#[test]
fn what_is_not_copied_stays_at_the_source() -> Result<()> {
    let place = Place::served(&["--quota=1M"])?;
    let outside = Place::new()?;
    make_many(&outside.path("from"), 60)?;
    let copy = place.weft()?.args(["-q", "--remove-source-files"]);
    let full = copy.arg(outside.path("from/")).arg(place.at("to")).run(TIMEOUT)?;
    ensure!(full.status.code() == Some(INCOMPLETE), "{}", full.error("no room"));
    let stay = check_many(&outside.path("from"), &place.path("to"), 60)?;
    ensure!((20..60).contains(&stay), "{stay} stay");
    // A file that is written to while it is read.
    let place = Place::new()?;
    fs::write(place.path("log"), vec![7; 8 << 20])?;
    let copy = place.weft()?.args(["-q", "--remove-source-files", "--limit=4M"]);
    let copy = copy.arg(place.path("log")).arg(place.path("to")).start()?;
    let is_begun =
        |names: &[PathBuf]| names.iter().any(|it| it.display().to_string().contains(".to.weft-"));
    until("the copy begins", || Ok(is_begun(&names(&place.path(""))?).then_some(())))?;
    fs::write(place.path("more"), vec![8; 9 << 20])?;
    let more = fs::read(place.path("more"))?;
    let mut log = File::options().append(true).open(place.path("log"))?;
    std::io::Write::write_all(&mut log, &more)?;
    let changed = copy.wait(TIMEOUT)?;
    ensure!(changed.status.code() == Some(INCOMPLETE), "{}", changed.error("it has changed"));
    ensure_data!(fs::metadata(place.path("log"))?.len() == 17 << 20, "the log is lost");
    // A server that lets its clients read only.
    let place = Place::served(&["--read-only"])?;
    make_many(&place.path("from"), 3)?;
    let refused = Way::Download.copy(&place, &["--remove-source-files"], "from/", "to")?;
    ensure!(refused.status.code() == Some(1), "{}", refused.error("refused"));
    ensure_data!(check_many(&place.path("from"), &place.path("to"), 3)? == 3, "removed");
    let mirror = Way::Local.copy(&place, &["--remove-source-files", "--delete"], "from/", "to")?;
    ensure!(mirror.status.code() == Some(2), "{}", mirror.error("refused"));
    Ok(())
}
