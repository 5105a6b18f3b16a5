//! `weft cp` and `weft serve` as processes: trees are copied identically in both directions, killed
//! copies resume, and nobody reads or writes what is not shared.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use common::hosts::{Hosts, wait_until};
use common::{Tree, assert_same, fail, make_tree, noise, set_mtime, succeed, tree, weft, written};
use fastrand::Rng;

/// Returns the journals in a destination: the files of sessions that are running or were
/// interrupted.
fn journals(sink: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(sink).into_iter().flatten().flatten();
    let is_journal = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".weft-"))
    };
    names.map(|name| name.path()).filter(is_journal).collect()
}

/// Returns whether no session writes there: each holds a lock on its journal while it runs. This
/// reads the kernel's list, because a lock taken by the test could block a new session.
fn is_left(sink: &Path) -> bool {
    let inodes: Vec<String> = journals(sink)
        .iter()
        .filter_map(|path| Some(format!(":{}", fs::metadata(path).ok()?.ino())))
        .collect();
    let locks = fs::read_to_string("/proc/locks").expect("the kernel's list");
    let mut files = locks.lines().filter_map(|line| line.split_whitespace().nth(5));
    !files.any(|file| inodes.iter().any(|inode| file.ends_with(&inode[..])))
}

#[test]
fn random_trees_are_copied_identically_between_hosts_and_locally() {
    let hosts = Hosts::new(&[]);
    for seed in 0..3 {
        let from = hosts.path(&format!("from{seed}"));
        make_tree(&from, seed);
        let (there, back) = (format!("there{seed}"), hosts.path(&format!("back{seed}")));
        let content = from.join("");
        let way = ["--data=fabric", "--data=tcp", "--data=auto"][seed as usize % 3];
        succeed(hosts.client().arg(way).arg(&content).arg(hosts.at(&format!("share/{there}"))));
        assert_same(&from, &hosts.path("share").join(&there));
        succeed(hosts.client().arg(way).arg(hosts.at(&format!("share/{there}/"))).arg(&back));
        assert_same(&from, &back);
        let here = hosts.path(&format!("here{seed}"));
        succeed(hosts.client().arg("--verify").arg(&from).arg(&here));
        assert_same(&from, &here.join(from.file_name().expect("a name")));
    }
}

#[test]
fn destinations_follow_the_rules_of_cp() {
    let hosts = Hosts::new(&[]);
    let file = hosts.path("file");
    fs::write(&file, "one").expect("room");
    // To a new name, then into a directory, then over an existing file.
    succeed(hosts.client().arg(&file).arg(hosts.at("share/new")));
    fs::create_dir(hosts.path("share/dir")).expect("room");
    succeed(hosts.client().arg(&file).arg(hosts.at("share/dir")));
    fs::write(&file, "other").expect("room");
    succeed(hosts.client().arg(&file).arg(hosts.at("share/new")));
    let read = |name: &str| fs::read_to_string(hosts.path(name)).expect("a file");
    assert_eq!((read("share/new"), read("share/dir/file")), ("other".into(), "one".into()));
    // A directory keeps its name, and a second copy with the same arguments goes to the same place.
    for _ in 0..2 {
        succeed(hosts.client().arg(hosts.at("share/dir")).arg(hosts.path("made")));
        assert_eq!(read("made/dir/file"), "one");
        assert!(!hosts.path("made/dir/dir").exists());
    }
    succeed(hosts.client().arg(hosts.at("share/new")).arg(hosts.path("renamed")));
    assert_eq!(read("renamed"), "other");
    // Several sources, and the content of a directory.
    let two = [hosts.at("share/new"), hosts.at("share/dir")];
    succeed(hosts.client().args(&two).arg(hosts.path("both")));
    assert_eq!((read("both/new"), read("both/dir/file")), ("other".into(), "one".into()));
    succeed(hosts.client().arg(hosts.at("share/dir/")).arg(hosts.path("content")));
    assert_eq!(read("content/file"), "one");
    let missing = hosts.client().arg(hosts.at("share/none")).arg(hosts.path("x")).output();
    assert_eq!(missing.expect("weft starts").status.code(), Some(1));
    fail(hosts.client().arg("only-one"), 2);
}

#[test]
fn copying_into_or_over_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("dir/sub")).expect("room");
    fs::write(path("dir/file"), "x").expect("room");
    fs::hard_link(path("dir/file"), path("other-name")).expect("room");
    let before = tree(folder.path());
    for (from, to) in [
        ("dir", "dir/sub"),
        ("dir", "dir/sub/"),
        ("dir/", "dir/sub"),
        ("dir/", "dir"),
        ("dir", "."),
        ("dir/file", "dir/file"),
        ("dir/file", "other-name"),
    ] {
        let mut copy = weft(&path("../home"));
        copy.current_dir(folder.path()).args(["cp", from, to]);
        let text = fail(&mut copy, 1);
        assert!(text.contains("itself") || text.contains("the same"), "{from} {to}: {text}");
        assert_eq!(tree(folder.path()), before, "{from} {to}");
    }
    let mut copy = weft(&path("../home"));
    succeed(copy.current_dir(folder.path()).args(["cp", "dir/file", "dir/sub"]));
}

#[test]
fn skip_delete_and_exclude_options_work_together() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    make_tree(&from, 9);
    let to = hosts.at("share/to");
    succeed(hosts.client().arg(from.join("")).arg(&to));
    fs::write(hosts.path("share/to/more"), "x").expect("room");
    fs::write(from.join("skip.o"), "x").expect("room");
    set_mtime(&from, 1, 2);
    let report = succeed(
        hosts
            .client()
            .args(["-u", "--delete", "--json", "--exclude", "*.o"])
            .arg(from.join(""))
            .arg(&to),
    );
    let summary = report.lines().last().expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(summary).expect("JSON");
    assert_eq!((&summary["copied"], &summary["deleted"]), (&0.into(), &1.into()), "{summary}");
    fs::remove_file(from.join("skip.o")).expect("it is there");
    set_mtime(&from, 1, 2);
    assert_same(&from, &hosts.path("share/to"));
}

/// Returns the summary of a copy with `--json`.
fn summary(said: &str) -> serde_json::Value {
    serde_json::from_str(said.lines().last().expect("a summary")).expect("JSON")
}

/// Returns how many bytes of blocks there were, and how many were sent.
fn counts(summary: &serde_json::Value) -> (u64, u64) {
    let count = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{summary}"));
    (count("blocks_plain"), count("blocks_sent"))
}

#[test]
fn compressed_copy_is_the_same_in_both_directions_and_sends_less() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    make_tree(&from, 5);
    let text = "a line of a log that is like the one before\n".repeat(100_000);
    fs::write(from.join("log"), &text).expect("room");
    fs::write(from.join("noise"), noise(3_000_000, &mut Rng::with_seed(1))).expect("room");
    let copies = |options: &[&str], name: &str| {
        let there = hosts.path("share").join(name);
        let mut copy = hosts.client();
        copy.arg("--json").args(options).arg(from.join("")).arg(hosts.at(&format!("share/{name}")));
        let up = summary(&succeed(&mut copy));
        assert_same(&from, &there);
        let back = hosts.path(&format!("back-{name}"));
        let mut copy = hosts.client();
        copy.arg("--json").args(options).arg(hosts.at(&format!("share/{name}/"))).arg(&back);
        let down = summary(&succeed(&mut copy));
        assert_same(&from, &back);
        [up, down].map(|it| counts(&it))
    };
    for (options, name) in
        [(&["--compress=zstd"][..], "a"), (&["--compress=zstd", "--verify"], "v")]
    {
        for (plain, sent) in copies(options, name) {
            assert!(sent + 4_000_000 < plain && sent > 3_000_000, "{sent} of {plain}");
        }
    }
    for counts in copies(&[], "n") {
        assert_eq!(counts, (0, 0));
    }
    // The first eight blocks are compressed in any case; the limit makes them 256 KiB long.
    let mut copy = hosts.client();
    copy.args(["--json", "--compress=auto", "--limit", "2M"])
        .arg(from.join("log"))
        .arg(hosts.at("share/log"));
    let (plain, sent) = counts(&summary(&succeed(&mut copy)));
    assert!(sent + 2_000_000 < plain, "{sent} of {plain}");
    assert_eq!(fs::read_to_string(hosts.path("share/log")).expect("a file"), text);
}

/// Each path with the attributes that the kernel updates on any change: inode, mode, time of the
/// last change of the content, and of the attributes.
type Touched = BTreeMap<String, (u64, u32, (i64, i64), (i64, i64))>;

fn touched(folder: &Path) -> Touched {
    let (mut all, mut queue) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = queue.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            let names = fs::read_dir(&path).expect("a directory");
            queue.extend(names.map(|name| name.expect("a name").path()));
        }
        let name = path.strip_prefix(folder).expect("beneath").to_string_lossy().into_owned();
        let (mtime, ctime) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        all.insert(name, (meta.ino(), meta.mode(), mtime, ctime));
    }
    all
}

/// Returns the changes of a folder, in the terms of a dry run.
fn changes(before: &Touched, after: &Touched) -> BTreeMap<String, &'static str> {
    let mut all = BTreeMap::new();
    for (path, now) in after {
        match before.get(path) {
            None => all.insert(path.clone(), "copy"),
            Some(then) if then.0 != now.0 => all.insert(path.clone(), "update"),
            Some(then) if (then.1, then.2) != (now.1, now.2) => {
                all.insert(path.clone(), "attributes")
            }
            Some(_) => None,
        };
    }
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    all.extend(gone.map(|path| (path.clone(), "delete")));
    all
}

/// Parses the JSON output of a dry run. Returns the planned action for each path, and the summary.
fn plan(said: &str) -> (BTreeMap<String, String>, serde_json::Value) {
    let (mut all, mut summary) = (BTreeMap::new(), serde_json::Value::Null);
    for line in said.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match &text("event")[..] {
            "plan" => assert_eq!(all.insert(text("path"), text("action")), None, "{line}"),
            "summary" => summary = event,
            other => panic!("{other}"),
        }
    }
    (all, summary)
}

/// Changes a part of a folder at random, so that another copy has work to do.
fn disturb(folder: &Path, rng: &mut Rng) {
    let mut paths: Vec<PathBuf> = tree(folder).into_keys().collect();
    paths.reverse();
    for path in paths.iter().filter(|path| !path.as_os_str().is_empty()) {
        let path = folder.join(path);
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        match rng.u8(..8) {
            0 if !meta.is_dir() => fs::remove_file(&path).expect("our own"),
            1 => set_mtime(&path, 5, 5),
            2 if !meta.is_symlink() => {
                fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("our own");
            }
            3 if meta.is_file() => {
                fs::remove_file(&path).expect("our own");
                symlink("elsewhere", &path).expect("room");
            }
            4 if meta.is_dir() => {
                fs::create_dir(path.join("more")).expect("room");
                fs::write(path.join("more/of it"), "x").expect("room");
            }
            5 if meta.is_symlink() => {
                fs::remove_file(&path).expect("our own");
                fs::write(&path, "x").expect("room");
            }
            _ => {}
        }
    }
}

#[test]
fn dry_run_says_what_the_copy_then_does_and_touches_nothing() {
    let hosts = Hosts::new(&[]);
    let mut rng = Rng::with_seed(4);
    for (round, options) in
        [&["-u", "--delete"][..], &["--delete"], &["-u"], &["--resume", "--exclude", "*a*"]]
            .into_iter()
            .enumerate()
    {
        let from = hosts.path(&format!("share/from{round}"));
        make_tree(&from, 20 + round as u64);
        for way in ["here", "there", "back", "new"] {
            let name = format!("to{round}-{way}");
            let to = hosts.path("share").join(&name);
            if way != "new" {
                succeed(hosts.client().arg(from.join("")).arg(&to));
                disturb(&to, &mut rng);
            }
            let copy = |more: &[&str]| {
                let mut copy = hosts.client();
                copy.args(options).args(more);
                match way {
                    "back" => copy.arg(hosts.at(&format!("share/from{round}/"))),
                    _ => copy.arg(from.join("")),
                };
                match way {
                    "there" => copy.arg(hosts.at(&format!("share/{name}"))),
                    _ => copy.arg(&to),
                };
                copy
            };
            let (source, before) = (touched(&from), touched(&to));
            let (planned, summary) = plan(&succeed(&mut copy(&["-n", "--json"])));
            let text = succeed(&mut copy(&["--dry-run"]));
            assert_eq!(source, touched(&from), "{way}");
            assert_eq!(before, touched(&to), "{way}");
            let did = succeed(&mut copy(&["--json"]));
            let after = touched(&to);
            let mut expected = changes(&before, &after);
            let planned: BTreeMap<String, &str> =
                planned.iter().map(|(path, action)| (path.clone(), &action[..])).collect();
            // A change of the attributes of a file with several names is reported for one of the
            // names.
            let reported = planned.iter().filter(|(_, action)| **action == "attributes");
            let reported: BTreeMap<u64, &String> =
                reported.map(|(path, _)| (after[path].0, path)).collect();
            expected.retain(|path, action| {
                let name = after.get(path).and_then(|it| reported.get(&it.0));
                *action != "attributes" || name.is_none_or(|name| *name == path)
            });
            assert_eq!(planned, expected, "{way} {options:?}");
            assert!(expected.len() > 5, "{expected:?}");
            let last = did.lines().last().expect("a summary");
            let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
            for field in ["copied", "bytes", "unchanged", "deleted", "failed"] {
                assert_eq!(summary[field], last[field], "{field} {way} {options:?}");
            }
            assert_eq!((&summary["dry_run"], &last["dry_run"]), (&true.into(), &false.into()));
            // The text output has one line for each change, and a summary.
            assert_eq!(text.lines().count(), planned.len() + 1, "{text}");
            assert!(text.lines().last().is_some_and(|it| it.starts_with("would copy ")), "{text}");
        }
    }
}

#[test]
fn dry_run_finds_what_is_in_the_way_and_makes_no_destination() {
    let hosts = Hosts::new(&[]);
    let (from, to) = (hosts.path("from"), hosts.path("to"));
    fs::create_dir_all(from.join("folder")).expect("room");
    fs::write(from.join("file"), "x").expect("room");
    fs::create_dir_all(to.join("file")).expect("room");
    fs::write(to.join("folder"), "x").expect("room");
    let before = touched(&to);
    for options in [&["-n"][..], &[]] {
        let text = fail(hosts.client().args(options).arg(from.join("")).arg(&to), 3);
        assert!(text.contains("file: a directory has its name"), "{text}");
        assert!(text.contains("folder: something that is no directory has its name"), "{text}");
        if options == ["-n"] {
            assert_eq!(before, touched(&to));
        }
    }
    // A single file gets the destination's name, or goes into a directory.
    for (place, path) in [("new", "new"), ("", "file")] {
        let to = hosts.path("share").join(place);
        let said = succeed(hosts.client().arg("-n").arg(from.join("file")).arg(to));
        assert!(said.starts_with(&format!("copy       {path}\n")), "{said}");
        let to = hosts.at(&format!("share/{place}"));
        let said = succeed(hosts.client().arg("-n").arg(from.join("file")).arg(to));
        assert!(said.starts_with(&format!("copy       {path}\n")), "{said}");
    }
    assert_eq!(touched(&hosts.path("share")).len(), 1);
    // A dry run reports an impossible destination as an error, too.
    fail(hosts.client().arg("-n").arg(from.join("file")).arg(hosts.path("none/new")), 1);
}

/// Returns whether the name belongs to a file that is being written.
fn is_temporary(path: &Path) -> bool {
    let is_own = |part: &OsStr| part.as_bytes().windows(6).any(|it| it == b".weft-");
    path.iter().any(is_own)
}

/// Returns a file that has its final name but not all of its bytes.
fn half_written(folder: &Path, expected: &Tree) -> Option<PathBuf> {
    tree(folder).into_iter().find_map(|(path, seen)| {
        let is_file = seen.0 & 0o170_000 == 0o100_000;
        let is_whole = expected.get(&path).is_some_and(|it| it.2 == seen.2);
        (is_file && !is_temporary(&path) && !is_whole).then_some(path)
    })
}

/// How often a copy is killed in an ordinary run.
const KILLS: u64 = 6;

fn number_of(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// `WEFT_COPIES_KILLS` says how often a copy is killed. With it, trees and moments are new each
/// time, and follow from the seed that is printed; `WEFT_COPIES_SEED` repeats them.
#[test]
fn killed_copies_leave_no_partial_file_and_resume() {
    let kills = number_of("WEFT_COPIES_KILLS");
    let fresh = kills.map(|_| u64::from(fastrand::u32(..)));
    let seed = number_of("WEFT_COPIES_SEED").or(fresh).unwrap_or(4);
    if let Some(kills) = kills {
        // Not held back by the test runner, so that a crash does not lose it.
        let line = format!("WEFT_COPIES_SEED={seed} WEFT_COPIES_KILLS={kills}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    let mut rng = Rng::with_seed(seed);
    for round in 0..kills.unwrap_or(KILLS) {
        let hosts = Hosts::new(&[]);
        let from = hosts.path("from");
        make_tree(&from, rng.u64(..));
        fs::write(from.join("large"), noise(40_000_000, &mut rng)).expect("room");
        let expected = tree(&from);
        let is_push = round % 2 == 0;
        let way = if round / 2 % 2 == 0 { "--data=fabric" } else { "--data=tcp" };
        let (near, remote) = (hosts.path("near"), hosts.at("share/to"));
        let (sources, sink) = if is_push {
            (vec![from.join("").into_os_string(), remote.into()], hosts.path("share/to"))
        } else {
            fs::rename(&from, hosts.path("share/from")).expect("one file system");
            let source = hosts.at("share/from/").into();
            (vec![source, near.clone().into_os_string()], near)
        };
        let mut copy = hosts
            .client()
            .args(["-q", way])
            .args(&sources)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weft starts");
        let enough = rng.u64(..44_000_000);
        wait_until("some bytes are there, or all", || {
            let has_begun = !journals(&sink).is_empty();
            (has_begun && written(&sink) >= enough) || copy.try_wait().expect("our own").is_some()
        });
        copy.kill().expect("our own");
        copy.wait().expect("our own");
        if sink.exists()
            && let Some(path) = half_written(&sink, &expected)
        {
            panic!("round {round}: {} is cut", path.display());
        }
        wait_until("the session that was broken off has ended", || is_left(&sink));
        let from = if is_push { from } else { hosts.path("share/from") };
        succeed(hosts.client().args(["--resume", "-q"]).args(&sources));
        assert_same(&from, &sink);
    }
}

/// A relay to a server that counts the clients' bytes, and stops forwarding at a limit.
struct Relay {
    port: u16,
    server: AtomicU64,
    sent: AtomicU64,
    limit: AtomicU64,
}

impl Relay {
    fn new(server: u16, limit: u64) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let relay = Arc::new(Self {
            port: listener.local_addr().expect("it is bound").port(),
            server: AtomicU64::new(server.into()),
            sent: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        });
        let it = Arc::clone(&relay);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, it) = (client.expect("a client"), Arc::clone(&it));
                let port = u16::try_from(it.server.load(SeqCst)).expect("a port");
                let server = TcpStream::connect(("127.0.0.1", port)).expect("the server");
                let (mut from, mut to) = (
                    server.try_clone().expect("a descriptor"),
                    client.try_clone().expect("a descriptor"),
                );
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    // Also if the server is killed while the relay holds bytes back.
                    let _ = to.shutdown(Shutdown::Both);
                });
                thread::spawn(move || it.pass(client, server));
            }
        });
        relay
    }

    fn pass(&self, mut client: TcpStream, mut server: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(len @ 1..) = client.read(&mut bytes) {
            if self.sent.fetch_add(len as u64, SeqCst) >= self.limit.load(SeqCst) {
                // The connection stays open, but silent.
                return std::mem::forget((client, server));
            }
            if server.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    }
}

/// Returns how many bytes of partial files the journals list.
fn journaled(sink: &Path) -> u64 {
    const PART: u8 = 3;
    let mut all = 0;
    for journal in journals(sink) {
        let bytes = fs::read(journal).unwrap_or_default();
        let mut rest = &bytes[..];
        while let Some((len, behind)) = rest.split_first_chunk::<4>() {
            let len = u32::from_be_bytes(*len) as usize;
            // The last record may be half written.
            let Some(record) = behind.get(4..4 + len) else { break };
            if record.first() == Some(&PART) {
                // The record: kind, file, offset, length.
                let len = record[13..21].first_chunk().expect("8 bytes");
                all += u64::from_be_bytes(*len);
            }
            rest = &behind[4 + len..];
        }
    }
    all
}

#[test]
fn journaled_bytes_of_a_killed_server_are_not_sent_again() {
    const LEN: usize = 128 << 20;
    let mut hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    make_tree(&from, 7);
    fs::write(from.join("large"), noise(LEN, &mut Rng::with_seed(1))).expect("room");
    let tree_len = written(&from) - LEN as u64;
    // The relay lets only a part through, so the copy cannot be complete when the server is killed.
    let relay = Relay::new(hosts.port, tree_len + (96 << 20));
    let to = format!("127.0.0.1:{}//share/to", relay.port);
    let mut copy = hosts
        .client()
        .arg("-q")
        .arg(from.join(""))
        .arg(&to)
        .stderr(Stdio::null())
        .spawn()
        .expect("weft starts");
    let sink = hosts.path("share/to");
    wait_until("much of the large file is in the journal", || journaled(&sink) > 32 << 20);
    hosts.restart();
    let status = copy.wait().expect("our own");
    assert_eq!(status.code(), Some(1), "the copy cannot be whole");
    let expected = tree(&from);
    assert_eq!(half_written(&sink, &expected), None);
    let kept = journaled(&sink);
    relay.server.store(hosts.port.into(), SeqCst);
    relay.sent.store(0, SeqCst);
    relay.limit.store(u64::MAX, SeqCst);
    succeed(hosts.client().args(["--resume", "-q"]).arg(from.join("")).arg(&to));
    assert_same(&from, &sink);
    let sent = relay.sent.load(SeqCst);
    // Messages, names and block headers are sent in addition to the data.
    let most = LEN as u64 + tree_len - kept + (2 << 20);
    println!("{LEN} and {tree_len} bytes, {kept} kept, {sent} sent");
    assert!(sent <= most, "{sent} bytes were sent, {kept} were there");
}

#[test]
fn holes_of_a_sparse_file_are_preserved() {
    const LEN: u64 = 20 << 30;
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    let mut file = File::create(&from).expect("room");
    for at in [0, 7 << 30, LEN - 5_000] {
        file.seek(SeekFrom::Start(at)).expect("a file");
        file.write_all(&noise(5_000, &mut Rng::with_seed(at))).expect("room");
    }
    succeed(hosts.client().arg(&from).arg(hosts.path("here")));
    succeed(hosts.client().arg(&from).arg(hosts.at("share/there")));
    for path in [hosts.path("here"), hosts.path("share/there")] {
        let copy = File::open(&path).expect("a file");
        let meta = copy.metadata().expect("a file");
        assert_eq!(meta.len(), LEN);
        assert!(meta.blocks() * 512 <= 256 << 10, "{} bytes on the disk", meta.blocks() * 512);
        for at in [0, 7 << 30, LEN - 5_000] {
            let mut found = vec![0; 5_000];
            std::os::unix::fs::FileExt::read_exact_at(&copy, &mut found, at).expect("a file");
            assert_eq!(found, noise(5_000, &mut Rng::with_seed(at)), "at {at}");
        }
    }
}

#[test]
fn two_concurrent_copies_to_one_destination_both_succeed() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    make_tree(&from, 11);
    fs::write(from.join("large"), noise(20_000_000, &mut Rng::with_seed(2))).expect("room");
    for round in 0..5 {
        let to = hosts.at(&format!("share/to{round}"));
        let copies: Vec<Child> = (0..2)
            .map(|_| {
                let mut copy = hosts.client();
                copy.arg("-q").arg(from.join("")).arg(&to).stderr(Stdio::piped());
                copy.spawn().expect("weft starts")
            })
            .collect();
        for copy in copies {
            let output = copy.wait_with_output().expect("our own");
            assert!(output.status.success(), "round {round}: {output:?}");
        }
        assert_same(&from, &hosts.path("share").join(format!("to{round}")));
    }
}

#[test]
fn paths_outside_the_share_are_refused() {
    let hosts = Hosts::new(&[]);
    fs::write(hosts.path("secret"), "x").expect("room");
    symlink(hosts.path(""), hosts.path("share/up")).expect("room");
    for path in ["share/../secret", "secret", "share/up/secret", "/secret", "share/up/"] {
        let mut fetch = hosts.client();
        fail(fetch.arg(hosts.at(path)).arg(hosts.path("got")), 1);
        assert!(!hosts.path("got").join("secret").exists(), "{path}");
        let mut send = hosts.client();
        fail(send.arg(hosts.path("secret")).arg(hosts.at(&format!("{path}/written"))), 1);
    }
    assert!(!hosts.path("written").exists() && !hosts.path("secret/written").exists());
    // The link itself is copied as a link.
    succeed(hosts.client().arg(hosts.at("share/up")).arg(hosts.path("link")));
    assert!(hosts.path("link").is_symlink());
}

#[test]
fn data_goes_in_clear_only_where_both_ends_want_it() {
    let said = |hosts: &Hosts, options: &[&str]| {
        let mut copy = hosts.client();
        let copy = copy.arg("--explain").args(options);
        succeed(copy.arg(hosts.path("from").join("")).arg(hosts.at("share/to")))
    };
    let hosts = Hosts::new(&[]);
    make_tree(&hosts.path("from"), 1);
    let mut copy = hosts.client();
    let copy = copy.arg("--clear").arg(hosts.path("from"));
    let text = fail(copy.arg(hosts.at("share/to")), 1);
    assert!(text.contains("--allow-clear"), "{text}");
    assert!(!hosts.path("share/to").exists());
    let hosts = Hosts::new(&["--allow-clear"]);
    make_tree(&hosts.path("from"), 2);
    let text = said(&hosts, &["--data=tcp"]);
    assert!(!text.contains("encryption: none"), "{text}");
    fs::remove_dir_all(hosts.path("share/to")).expect("our own");
    let text = said(&hosts, &["--data=tcp", "--clear", "--verify"]);
    assert!(text.contains("encryption: none, as --clear asks"), "{text}");
    assert_same(&hosts.path("from"), &hosts.path("share/to"));
    succeed(hosts.client().arg("--clear").arg(hosts.at("share/to/")).arg(hosts.path("back")));
    assert_same(&hosts.path("from"), &hosts.path("back"));
    // A remote shell encrypts or does not, whatever weft does.
    fail(hosts.client().args(["--clear", "-e", "ssh", "a", "b:c"]), 2);
}

#[test]
fn data_goes_through_shared_memory_where_it_can_and_the_copy_says_so() {
    let hosts = Hosts::new(&[]);
    make_tree(&hosts.path("from"), 5);
    // This end shares no memory, like a process of another user.
    let apart = |command: &mut Command| {
        command.env("WEFT_TRANSPORT", "tcp");
    };
    let both_ways = |name: &str, options: &[&str], change: &dyn Fn(&mut Command)| {
        let (there, back) = (hosts.at(&format!("share/{name}")), hosts.path(&format!("{name}2")));
        let copy = |from: &OsStr, to: &OsStr| {
            let mut copy = hosts.client();
            change(&mut copy);
            succeed(copy.arg("--explain").args(options).arg(from).arg(to))
        };
        let said = [
            copy(hosts.path("from").join("").as_ref(), there.as_ref()),
            copy(format!("{there}/").as_ref(), back.as_ref()),
        ];
        assert_same(&hosts.path("from"), &hosts.path("share").join(name));
        assert_same(&hosts.path("from"), &back);
        said
    };
    for said in both_ways("memory", &["--data=memory"], &|_| ()) {
        assert!(said.contains("encryption: none, as the data stays on this host"), "{said}");
        assert!(said.trim_end().ends_with("; data through shared memory"), "{said}");
    }
    for said in both_ways("tcp", &[], &|_| ()) {
        assert!(said.contains("data: by TCP") && !said.contains("encryption: none"), "{said}");
        assert!(!said.contains("shared memory"), "{said}");
    }
    for said in both_ways("back", &["--data=memory"], &apart) {
        assert!(said.contains("data: by TCP") && !said.contains("encryption: none"), "{said}");
        let why = "data by TCP (shared memory is not possible: the two ends share no memory";
        assert_eq!(said.matches(why).count(), 1, "{said}");
    }
    // The same operations by a network are sealed.
    for said in both_ways("network", &["--data=fabric"], &apart) {
        assert!(said.contains("data: by iWARP") && !said.contains("encryption: none"), "{said}");
    }
    let mut copy = hosts.client();
    let copy = copy.args(["--json", "--data=memory"]);
    let said = succeed(copy.arg(hosts.at("share/tcp")).arg(hosts.path("x")));
    assert_eq!(summary(&said)["data"], "memory", "{said}");
    for data in ["--data=fabric", "--data=memory"] {
        fail(hosts.client().args([data, "-e", "ssh", "a", "b:c"]), 2);
    }
}

#[test]
fn unknown_clients_and_writes_to_read_only_shares_are_refused() {
    let hosts = Hosts::new(&["--read-only"]);
    fs::write(hosts.path("share/file"), "x").expect("room");
    let fetch = |home: &str, options: &[&str]| {
        let mut command = weft(&hosts.path(home));
        command.arg("cp").args(options).arg(hosts.at("share/file")).arg(hosts.path("got"));
        command
    };
    let text = fail(&mut fetch("client", &[]), 1);
    assert!(text.contains("is not known"), "{text}");
    fail(&mut fetch("stranger", &["--accept-new"]), 1);
    assert!(!hosts.path("got").exists());
    succeed(&mut fetch("client", &["--accept-new"]));
    // The server is known now.
    succeed(&mut fetch("client", &[]));
    let text = fail(hosts.client().arg(hosts.path("got")).arg(hosts.at("share/new")), 1);
    assert!(text.contains("reading only"), "{text}");
    assert!(!hosts.path("share/new").exists());
    // A server with another key at the same address is not trusted.
    let known = hosts.path("client/weft/known-servers");
    let text = fs::read_to_string(&known).expect("a file");
    let key = text.trim().chars().rev().collect::<String>();
    let changed = if key.starts_with('0') { "1" } else { "0" };
    let text = format!("{}{changed}\n", &text.trim()[..text.trim().len() - 1]);
    fs::write(&known, text).expect("our own");
    let text = fail(&mut fetch("client", &["--accept-new"]), 1);
    assert!(text.contains("another key"), "{text}");
}

#[test]
fn full_quota_refuses_what_does_not_fit_and_copies_the_rest() {
    let hosts = Hosts::new(&["--quota", "10MB", "--quota-files", "12"]);
    let from = hosts.path("from");
    fs::create_dir(&from).expect("room");
    let data = noise(6_000_000, &mut Rng::with_seed(1));
    for (name, len) in [("large", 6_000_000), ("other", 5_000_000), ("small", 1_000)] {
        fs::write(from.join(name), &data[..len]).expect("room");
    }
    let copy = |options: &[&str]| {
        let mut copy = hosts.client();
        copy.args(options).arg(from.join("")).arg(hosts.at("share/to"));
        copy
    };
    let text = fail(&mut copy(&[]), 3);
    assert!(text.contains("exceeds the quota of the shared directory, 10000000 bytes"), "{text}");
    let to = hosts.path("share/to");
    // One of the two large files fits, and the small one in any case.
    assert!(to.join("large").exists() != to.join("other").exists());
    assert_eq!(fs::read(to.join("small")).expect("a file"), &data[..1_000]);
    assert!(journals(&to).is_empty());
    // Files that are replaced make room for the new ones only afterwards.
    let text = fail(&mut copy(&[]), 3);
    assert!(text.contains("quota"), "{text}");
    // Room that other programs make counts for the next copy.
    for name in ["large", "other"] {
        let _ = fs::remove_file(to.join(name));
    }
    fs::remove_file(from.join("other")).expect("it is there");
    succeed(&mut copy(&["-u"]));
    assert_eq!(fs::read(to.join("large")).expect("a file"), data);
    // A stream has no size, and is refused when it has become too long.
    let (large, stream) = (File::open(from.join("large")).expect("a file"), "share/to/stream");
    let mut stdin = hosts.client();
    let text = fail(stdin.args(["-", &hosts.at(stream)]).stdin(large), 3);
    assert!(
        text.contains("exceeds the quota of the shared directory") && !hosts.path(stream).exists(),
        "{text}"
    );
    // The number of names, too: the directory, two files, and nine more.
    let names = hosts.path("names");
    fs::create_dir(&names).expect("room");
    for number in 0..10 {
        match number % 3 {
            0 => fs::write(names.join(number.to_string()), "x").expect("room"),
            1 => symlink("x", names.join(number.to_string())).expect("room"),
            _ => fs::create_dir(names.join(number.to_string())).expect("room"),
        }
    }
    let mut more = hosts.client();
    let text = fail(more.arg(names.join("")).arg(hosts.at("share/to")), 3);
    assert_eq!(text.matches("directory, 12 files, directories and links").count(), 1, "{text}");
    assert_eq!(fs::read_dir(&to).expect("a folder").count(), 11);
    // What is there can be replaced one by one.
    succeed(hosts.client().arg("-u").arg(from.join("small")).arg(hosts.at("share/to")));
    fs::remove_file(to.join("large")).expect("it is there");
    let small = ["small", "small"].map(|name| from.join(name));
    fs::write(&small[0], "new").expect("room");
    succeed(hosts.client().arg(&small[1]).arg(hosts.at("share/to")));
    assert_eq!(fs::read(to.join("small")).expect("a file"), b"new");
    // A quota is one of directories.
    let mut serve = weft(&hosts.path("server"));
    fail(serve.args(["serve", "--stdio", "--quota", "1G"]), 2);
}

#[test]
fn copy_that_was_broken_off_goes_on_within_its_quota() {
    // Twice the file would not fit.
    let mut hosts = Hosts::new(&["--quota", "50MB"]);
    let from = hosts.path("from");
    fs::create_dir(&from).expect("room");
    let data = noise(40_000_000, &mut Rng::with_seed(3));
    fs::write(from.join("large"), &data).expect("room");
    let copy = |hosts: &Hosts, options: &[&str]| {
        let mut copy = hosts.client();
        copy.args(options).arg(from.join("")).arg(hosts.at("share/to"));
        copy
    };
    for options in [&["--resume"][..], &[]] {
        let mut slow =
            copy(&hosts, &["--limit", "4M"]).stderr(Stdio::null()).spawn().expect("weft");
        wait_until("a part is written", || written(&hosts.path("share")) > 4 << 20);
        hosts.restart();
        assert!(!slow.wait().expect("our own").success());
        assert!(!hosts.path("share/to/large").exists());
        succeed(&mut copy(&hosts, options));
        assert!(fs::read(hosts.path("share/to/large")).expect("a file") == data);
        fs::remove_file(hosts.path("share/to/large")).expect("it is there");
    }
}

#[test]
fn direct_copies_are_the_same_and_go_on() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    make_tree(&from, 12);
    for (number, len) in [1 << 20, (1 << 20) + 1, 5_000_001, 20_000_000].into_iter().enumerate() {
        let data = noise(len, &mut Rng::with_seed(number as u64));
        fs::write(from.join(format!("large{number}")), data).expect("room");
    }
    set_mtime(&from, 1, 2);
    let there = hosts.at("share/there");
    succeed(hosts.client().arg("--direct").arg(from.join("")).arg(&there));
    assert_same(&from, &hosts.path("share/there"));
    let back = hosts.path("back");
    let there = format!("{there}/");
    succeed(hosts.client().args(["--direct", "--verify", "-z"]).arg(&there).arg(&back));
    assert_same(&from, &back);
    succeed(hosts.client().arg("--direct").arg(from.join("")).arg(hosts.path("here")));
    assert_same(&from, &hosts.path("here"));
    // Killed in the middle, and resumed.
    let mut slow = hosts.client();
    slow.args(["--direct", "--limit", "4M"]).arg(from.join("")).arg(hosts.at("share/slow"));
    let mut slow = slow.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("weft");
    let share = hosts.path("share/slow");
    wait_until("a part is written", || written(&share) > 2 << 20);
    slow.kill().expect("our own");
    slow.wait().expect("our own");
    wait_until("the server notices", || is_left(&share));
    let mut resume = hosts.client();
    succeed(resume.args(["--direct", "--resume"]).arg(from.join("")).arg(hosts.at("share/slow")));
    assert_same(&from, &share);
}

#[test]
fn direct_copies_of_files_whose_file_system_refuses_say_so() {
    // Files of proc cannot be read directly, and are larger than they claim to be, so the largest
    // file of a refusing file system that exists everywhere is one of the kernel's in sysfs.
    let large = ["/sys/kernel/btf/vmlinux"].into_iter().map(Path::new);
    let large = large.filter(|path| fs::metadata(path).is_ok_and(|meta| meta.len() >= 1 << 20));
    let folder = tempfile::tempdir().expect("a folder");
    for path in large {
        let mut copy = weft(&folder.path().join("home"));
        let copy = copy.args(["cp", "--direct"]).arg(path).arg(folder.path().join("to"));
        let output = copy.output().expect("weft starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("refuses direct I/O").count(), 1, "{text}");
        let [from, to] = [path, &folder.path().join("to")].map(fs::read);
        assert!(from.expect("a file") == to.expect("a file"));
    }
}

#[test]
fn explanation_says_how_a_copy_is_made() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    fs::write(&from, "x").expect("room");
    let explain = |options: &[&str], to: &OsStr| {
        succeed(hosts.client().arg("--explain").args(options).arg(&from).arg(to))
    };
    let (there, here) = (hosts.at("share/to"), hosts.path("here"));
    let said = explain(&["--data=tcp", "--compress=auto", "--direct"], there.as_ref());
    for line in [
        "data: by TCP, 2 connections",
        "processors: all, as the data goes through no network device of this copy",
        "blocks: 1.00 MiB, at most 32 at each end",
        "compression: by Zstandard, while that is faster than the network",
        "files: large ones past the page cache",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    assert!(said.contains("encryption: AES-128-GCM") || said.contains("ChaCha20"), "{said}");
    for stage in ["reading", "compression and encryption", "sending", "what bounded the rate"] {
        assert!(said.lines().any(|said| said.starts_with(&format!("{stage}: "))), "{said}");
    }
    let text = succeed(hosts.client().arg("--explain").arg(&there).arg(hosts.path("back")));
    for stage in ["decryption and decompression: 2 connections", "writing: "] {
        assert!(text.lines().any(|said| said.starts_with(stage)), "{text}");
    }
    let said = explain(&["--data=memory"], there.as_ref());
    for line in [
        "data: through shared memory, 2 connections",
        "encryption: none, as the data stays on this host",
        "compression: none",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    // A limit makes blocks small, and needs the bytes.
    let said = explain(&["--limit", "1M"], here.as_ref());
    assert!(said.contains("blocks: 128.00 KiB") && said.contains("files: through"), "{said}");
    let said = explain(&["--json"], here.as_ref());
    let first: &str = said.lines().next().expect("an event");
    for part in [r#""data":"process""#, r#""cipher":null"#, r#""copied_by_kernel":true"#] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(said.contains(r#""stages":[{"#) && said.contains(r#""work":"read""#), "{said}");
    // What `cp` writes to standard output stays the file alone.
    let output = hosts
        .client()
        .args(["--explain", "--data=memory", &there, "-"])
        .output()
        .expect("weft starts");
    assert_eq!(output.stdout, b"x");
    assert!(String::from_utf8_lossy(&output.stderr).contains("data: through shared memory"));
}

/// Each process that encrypts would measure the processor for 25 ms.
#[test]
fn library_of_tls_takes_its_random_numbers_from_the_kernel() {
    let program = fs::read(common::WEFT).expect("a file");
    assert!(!String::from_utf8_lossy(&program).contains("jent_entropy_init"));
}
