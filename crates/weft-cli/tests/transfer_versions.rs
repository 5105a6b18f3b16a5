//! Large files that the destination has in another version: only what differs is sent.

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use common::hosts::{Hosts, wait_until};
use common::{assert_same, fail, make_tree, noise, output, set_mtime, succeed};
use fastrand::Rng;
use serde_json::Value;

const WHOLE: usize = usize::MAX;

fn write(path: &Path, data: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("room");
    fs::write(path, data).expect("room");
}

fn set_old(path: &Path) {
    let file = File::options().write(true).open(path).expect("our own");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(5)).expect("our own");
}

/// The bytes of blocks that a copy has sent.
fn sent(said: &str) -> usize {
    let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let summary = events.find(|event| event["event"] == "summary").expect("a summary");
    usize::try_from(summary["blocks_sent"].as_u64().expect("a number")).expect("small")
}

/// Names, older versions of a file, and how many bytes of the new one have to come at most.
fn versions(new: &[u8]) -> Vec<(&'static str, Vec<u8>, usize)> {
    let mut changed = new.to_vec();
    [0, 5_000_000, new.len() - 1].into_iter().for_each(|at| changed[at] ^= 1);
    let lacks = [&new[..2_000_000], &new[2_500_000..]].concat();
    vec![
        ("changed", changed, 200_000),
        ("same", new.to_vec(), 100_000),
        ("shorter", new[..6_000_001].to_vec(), 2_200_000),
        ("longer", [new, b"something behind it"].concat(), 100_000),
        ("moved", [&b"x"[..], new].concat(), 100_000),
        ("lacks", lacks, 700_000),
        ("turned", [&new[3_000_000..], &new[..3_000_000]].concat(), 200_000),
        ("other", noise(new.len(), &mut Rng::with_seed(9)), WHOLE),
        ("small", new[..9_000].to_vec(), WHOLE),
    ]
}

#[test]
fn only_what_differs_is_sent_and_the_old_version_stays() {
    let hosts = Hosts::new(&[]);
    let new = noise(8_000_123, &mut Rng::with_seed(8));
    for (number, options) in [&[][..], &["--verify"], &["--fsync", "-u"]].into_iter().enumerate() {
        let options = [&["--no-whole-file", "-z", "--json"], options].concat();
        for (name, old, most) in versions(&new) {
            let at = |place: &str| format!("share/{name}{number}/{place}");
            for place in ["up", "down"] {
                let there = hosts.path(&at(&format!("{place}/file")));
                write(&there, &old);
                set_old(&there);
                fs::set_permissions(&there, Permissions::from_mode(0o600)).expect("our own");
                fs::hard_link(&there, there.with_file_name("other name")).expect("room");
            }
            let file = hosts.path(&at("file"));
            write(&file, &new);
            fs::set_permissions(&file, Permissions::from_mode(0o440)).expect("our own");
            let near = |place: &str| hosts.path(&at(place)).display().to_string();
            for (from, to) in [
                (near("file"), hosts.at(&at("up/file"))),
                (hosts.at(&at("file")), near("down/file")),
            ] {
                let sent = sent(&succeed(hosts.client().args(&options).args([&from, &to])));
                assert!(sent <= most, "{name}, {to}: {sent} of at most {most}");
                // A part is made of the old version or sent, and nothing is sent twice.
                assert!(sent < new.len() + 100_000, "{name}, {to}: {sent}");
                let place = to.rsplit('/').nth(1).expect("a folder");
                let folder = hosts.path(&at(place));
                assert!(fs::read(folder.join("file")).expect("a file") == new, "{name}, {to}");
                let other = fs::read(folder.join("other name")).expect("a file");
                assert!(other == old, "{name}, {to}: the old version has changed");
                let mode = fs::metadata(folder.join("file")).expect("a file").mode();
                assert_eq!(mode & 0o777, 0o440, "{name}");
                // Nothing is left beside it.
                assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 2, "{name}, {to}");
            }
        }
    }
}

/// Changes a tree as programs do that write into files, insert, append, and write anew.
fn change(folder: &Path, rng: &mut Rng) {
    for name in ["image", "log", "text", "dump"] {
        let path = folder.join(name);
        let mut bytes = fs::read(&path).expect("a file");
        match name {
            "image" => (0..40).for_each(|_| {
                let at = rng.usize(..bytes.len() / 4_096) * 4_096;
                bytes[at..at + 4_096].copy_from_slice(&noise(4_096, rng));
            }),
            "log" => bytes.extend(noise(300_000, rng)),
            "text" => (0..20).for_each(|_| {
                let at = rng.usize(..bytes.len());
                let end = (at + rng.usize(..2_000)).min(bytes.len());
                bytes.splice(at..end, noise(rng.usize(..2_000), rng));
            }),
            _ => bytes = noise(rng.usize(1 << 20..3 << 20), rng),
        }
        write(&path, &bytes);
    }
}

#[test]
fn trees_are_those_that_rsync_makes() {
    let hosts = Hosts::new(&[]);
    let mut rng = Rng::with_seed(12);
    let (from, by_rsync) = (hosts.path("from"), hosts.path("rsync"));
    make_tree(&from, 7);
    for name in ["image", "log", "text", "dump"] {
        write(&from.join(name), &noise(3_000_000, &mut rng));
    }
    let from_text = format!("{}/", from.display());
    let rsync = || {
        let mut rsync = Command::new("rsync");
        rsync.args(["-aH", "--no-whole-file", &from_text]).arg(&by_rsync);
        output(&mut rsync)
    };
    for round in 0..4 {
        // To rsync, times within one second are the same.
        for name in ["image", "log", "text", "dump", ""] {
            set_mtime(&from.join(name), 1_000_000_000 + round, 0);
        }
        let mut copy = hosts.client();
        let copy = copy.args(["-aH", "--no-whole-file", "-z", "--json", "--delete", &from_text]);
        let sent = sent(&succeed(copy.arg(hosts.at("share/to"))));
        assert!(rsync().status.success());
        assert_same(&from, &hosts.path("share/to"));
        assert_same(&by_rsync, &hosts.path("share/to"));
        assert!(round == 0 || sent < 5_000_000, "{sent} bytes of four files");
        change(&from, &mut rng);
    }
}

#[test]
fn version_that_changes_meanwhile_is_not_used() {
    let hosts = Hosts::new(&[]);
    let mut rng = Rng::with_seed(10);
    let old = noise(8 << 20, &mut rng);
    // Every part needs some of both versions.
    let mut new = old.clone();
    for at in (0..new.len()).step_by(64 << 10) {
        new[at..at + (24 << 10)].copy_from_slice(&noise(24 << 10, &mut rng));
    }
    let (near, there) = (hosts.path("near"), hosts.path("share/file"));
    write(&near, &new);
    write(&there, &old);
    set_old(&there);
    let mut copy = hosts.client();
    let copy =
        copy.args(["--no-whole-file", "--limit=512K"]).arg(&near).arg(hosts.at("share/file"));
    let copy = copy.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("weft starts");
    let is_begun = || {
        let names = fs::read_dir(hosts.path("share")).expect("a folder").flatten();
        let mut names = names.map(|it| it.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(".file.weft-"))
    };
    wait_until("the new version has begun", is_begun);
    // Another program writes into the file, which keeps its inode.
    write(&there, &noise(8 << 20, &mut rng));
    let ended = copy.wait_with_output().expect("our own");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let expected = "file: its version here has changed since it was compared: copied as a whole";
    assert_eq!(said.matches(expected).count(), 1, "{said}");
    assert!(fs::read(&there).expect("a file") == new);
    assert_eq!(fs::read_dir(hosts.path("share")).expect("a folder").count(), 1);
}

#[test]
fn files_come_whole_where_versions_are_not_wanted() {
    let hosts = Hosts::new(&[]);
    let new = noise(3_000_000, &mut Rng::with_seed(11));
    let near = hosts.path("near");
    write(&near, &new);
    for options in [&["-u"][..], &["-W", "-u"], &["--no-whole-file", "-W", "-u"], &[]] {
        let there: PathBuf = hosts.path("share/file");
        write(&there, &new);
        set_old(&there);
        let mut copy = hosts.client();
        let copy = copy.args(["-z", "--json"]).args(options).arg(&near).arg(hosts.at("share/file"));
        let sent = sent(&succeed(copy));
        assert!(sent >= new.len(), "{options:?}: {sent}");
        assert!(fs::read(&there).expect("a file") == new);
    }
    // With --inplace the file is written to, so it is no version to read from.
    let there = hosts.path("share/file");
    write(&there, &[&new[1_000..], &new[..1_000]].concat());
    set_old(&there);
    let mut copy = hosts.client();
    let copy = copy.args(["--no-whole-file", "--inplace"]).arg(&near).arg(hosts.at("share/file"));
    succeed(copy);
    assert!(fs::read(&there).expect("a file") == new);
    fail(hosts.client().args(["--no-whole-file", "-"]).arg(hosts.at("share/stream")), 2);
}
