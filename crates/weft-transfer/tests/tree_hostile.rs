//! A hostile peer, or links that appear during a copy, can neither change anything outside of the
//! sink's directory nor read anything outside of the source's.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;
#[path = "../../../fuzz/src/transfer_tree.rs"]
#[allow(unreachable_pub, dead_code)] // A module of a library there.
mod tree;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use common::{Events, Folders, Session, copy, noise, open};
use fastrand::Rng;
use tree::Surroundings;
use weft_transfer::tree::apply::{Applier, ApplyError, ApplyOptions, Step};
use weft_transfer::tree::source::SourceOptions;
use weft_transfer::wire::record::{Entry, Kind, Record, Status, Tail, Time, Xattr};
use weft_transfer::wire::record_name::Name;

/// Returns blocks of valid records whose names and numbers often collide.
fn random_input(rng: &mut Rng) -> Vec<u8> {
    let mut input = vec![rng.u8(..), 0, 0];
    let mut next = 1;
    for _ in 0..rng.usize(1..5) {
        let (mut table, mut data) = (Vec::new(), Vec::new());
        for _ in 0..rng.usize(1..12) {
            let record = random_record(rng, &mut next);
            data.extend(noise(record.data_len(), 1));
            record.emit(&mut table);
        }
        input.extend_from_slice(&(table.len() as u16).to_be_bytes());
        input.extend_from_slice(&((table.len() + data.len()) as u16).to_be_bytes());
        input.extend(table);
        input.extend(data);
    }
    input
}

fn random_record(rng: &mut Rng, next: &mut u64) -> Record {
    let some_file = |rng: &mut Rng, next: u64| rng.u64(..next + 1);
    let tail = |rng: &mut Rng, size| {
        let status = match rng.u8(..6) {
            0 => Status::Changed,
            1 => Status::Failed { errno: rng.u32(..5000) },
            _ => Status::Good,
        };
        Tail { status, size, hash: (rng.u8(..8) == 0).then_some([1; 32]) }
    };
    let name = |rng: &mut Rng| {
        let names = [
            "link",
            "abs",
            "dir",
            "file",
            "up",
            "new",
            "..a",
            ".weft-00000001",
            ".weft-12345678",
            ".file.weft-00000001",
            "LINK",
        ];
        Name::new(rng.choice(names).unwrap().as_bytes()).unwrap()
    };
    match rng.u8(..20) {
        0..10 => {
            let number = *next;
            *next += 1;
            let kind = match rng.u8(..12) {
                0..4 => Kind::Directory,
                4 => Kind::Symlink {
                    target: rng.choice([&b"../outside"[..], b"/etc", b"dir"]).unwrap().into(),
                },
                5 => Kind::HardLink { target: rng.u64(..number) },
                6 => Kind::Fifo,
                7 => Kind::CharacterDevice { major: 1, minor: 3 },
                _ => Kind::File,
            };
            let is_file = kind == Kind::File;
            let xattr = || Xattr { name: b"user.x"[..].into(), value: b"y"[..].into() };
            let is_unsized = is_file && rng.u8(..4) == 0;
            let entry = Box::new(Entry {
                number,
                parent: rng.u64(..number.min(4)),
                name: Some(name(rng)),
                kind,
                mode: rng.u16(..0o10000),
                uid: rng.u32(..3),
                gid: rng.u32(..3),
                mtime: Time { seconds: rng.i64(..), nanoseconds: rng.u32(..1_000_000_000) },
                atime: Time { seconds: rng.i64(..), nanoseconds: 0 },
                size: if is_unsized { 0 } else { rng.u64(..5000) },
                is_linked: !is_unsized && rng.bool(),
                is_unsized,
                xattrs: (rng.u8(..8) == 0).then(|| vec![xattr(); rng.usize(..2)]),
                hash: None,
            });
            match rng.u8(..4) {
                0 if is_file && !is_unsized => Record::Offer(entry),
                1 | 2 if is_file && !is_unsized => {
                    let len = rng.u32(..2000);
                    let size = rng.u64(..=u64::from(len));
                    Record::Whole { entry, len, tail: tail(rng, size) }
                }
                _ => Record::Entry(entry),
            }
        }
        10..13 => {
            let (file, offset) = (some_file(rng, *next), 1024 * rng.u64(..4));
            Record::Data { file, offset, len: rng.u32(..2000), digest: None }
        }
        13 => {
            let (file, offset, len) = (some_file(rng, *next), 0, rng.u64(..5000));
            // A copy ends the session, so it is rare.
            match rng.u8(..8) {
                0 => Record::Copy { file, offset, len },
                1 => Record::Differs { file, offset, len },
                2 => {
                    let (len, data_len) = (rng.u32(..5000), rng.u32(..2000));
                    Record::VersionPart { file, offset, len, data_len, digest: [0; 32] }
                }
                _ => Record::Hole { file, offset, len },
            }
        }
        14..16 => {
            let size = rng.u64(..5000);
            Record::End { file: some_file(rng, *next), tail: tail(rng, size) }
        }
        16 => Record::DirectoryEnd { directory: rng.u64(..4), is_complete: rng.bool() },
        17 => Record::Keep { directory: rng.u64(..4), name: name(rng) },
        18 => Record::Problem {
            directory: rng.u64(..4),
            name: Some(name(rng)),
            errno: rng.u32(..5000),
        },
        _ if rng.u8(..4) == 0 => Record::Finish { entries: 0 },
        _ => Record::Owner { is_group: rng.bool(), id: rng.u32(..3), name: b"root"[..].into() },
    }
}

#[test]
fn peer_in_another_process_cannot_ask_for_a_copy() {
    let Folders { to, folder: _folder, .. } = &Folders::new();
    let entry = Entry {
        number: 1,
        parent: 0,
        name: Some(Name::new(b"file").unwrap()),
        kind: Kind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        atime: Time::default(),
        size: 5000,
        is_linked: false,
        is_unsized: false,
        xattrs: None,
        hash: None,
    };
    let mut table = Vec::new();
    Record::Entry(Box::new(entry)).emit(&mut table);
    Record::Copy { file: 1, offset: 0, len: 5000 }.emit(&mut table);
    let events = Arc::new(Events::default());
    let mut applier = Applier::begin(open(to), ApplyOptions::default(), events as _).unwrap();
    let applied = applier.apply(&table, table.len());
    assert!(matches!(applied, Err(ApplyError::NotHere(1))), "{applied:?}");
}

#[test]
fn nothing_outside_changes_whatever_the_peer_sends() {
    for seed in 0..1_500 {
        let folder = tempfile::tempdir().unwrap();
        tree::apply(&random_input(&mut Rng::with_seed(seed)), folder.path());
    }
}

/// Stops the other thread, even if a check fails.
struct Over<'flag>(&'flag AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs `act` while another thread replaces the directories by links to `outside` and restores
/// them.
fn while_links_appear(places: &[&Path], outside: &Path, act: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                for place in places {
                    let aside = place.with_extension("aside");
                    // The copy may have created or removed an entry at this path.
                    let _ = fs::rename(place, &aside);
                    let _ = symlink(outside, place);
                    thread::yield_now();
                    let _ = fs::remove_file(place);
                    let _ = fs::rename(&aside, place);
                }
            }
        });
        let _over = Over(&is_over);
        act();
    });
}

#[test]
fn no_race_of_links_leads_out_of_the_sink() {
    let folder = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    for dir in ["dir", "dir/dir", "other"] {
        fs::create_dir(source.path().join(dir)).unwrap();
        for file in 0..20 {
            fs::write(source.path().join(dir).join(format!("{file}")), b"written").unwrap();
        }
        fs::write(source.path().join(dir).join("file"), b"written").unwrap();
        fs::write(source.path().join(dir).join("large"), noise(300_000, 1)).unwrap();
    }
    let surroundings = Surroundings::new(folder.path());
    let root = surroundings.root();
    let (dir, deeper) = (root.join("dir"), root.join("dir/dir"));
    let deleting = ApplyOptions { deletes: true, ..ApplyOptions::default() };
    while_links_appear(&[&dir, &deeper], &surroundings.outside_folder(), || {
        for round in 0..60 {
            let asks = round % 2 == 0;
            let options = SourceOptions { asks, ..SourceOptions::new(64 << 10) };
            let session = Session::new(source.path(), &root, options, deleting);
            // The root changes all the time, so any number of problems may occur.
            let _ = session.finish();
        }
    });
    surroundings.check();
}

#[test]
fn no_race_of_links_leads_out_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let surroundings = Surroundings::new(folder.path());
    let root = surroundings.root();
    fs::create_dir(root.join("dir/dir/more")).unwrap();
    for file in 0..20 {
        fs::write(root.join("dir").join(format!("{file}")), b"inside").unwrap();
    }
    let (dir, deeper) = (root.join("dir"), root.join("dir/dir"));
    let outside = blake3::hash(b"outside");
    while_links_appear(&[&dir, &deeper], &surroundings.outside_folder(), || {
        for round in 0..200 {
            let to = tempfile::tempdir().unwrap();
            let asks = round % 2 == 0;
            let options = SourceOptions { asks, ..SourceOptions::new(64 << 10) };
            copy(&root, to.path(), options, ApplyOptions::default());
            for (path, seen) in common::seen(to.path()) {
                let is_from_outside = seen.is_file_with(outside.as_bytes());
                assert!(!is_from_outside, "{} is from outside", path.display());
            }
        }
    });
}

#[test]
fn a_full_disk_is_reported_for_each_file_that_it_stops() {
    let folder = Folders::new();
    let mount = |options: &str| {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "weft-test"]).arg(&folder.to);
        command.status().is_ok_and(|status| status.success())
    };
    if !mount("size=2m,nr_inodes=50") {
        return eprintln!("without the right to mount, a full disk is not tested");
    }
    struct Unmount<'path>(&'path Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            // A failure to unmount cannot be handled here.
            let _ = std::process::Command::new("umount").arg(self.0).status();
        }
    }
    let unmount = Unmount(&folder.to);
    for file in 0..5 {
        fs::write(folder.from.join(format!("a-{file}")), noise(1000, file)).unwrap();
    }
    fs::write(folder.from.join("b-large"), noise(3 << 20, 1)).unwrap();
    fs::write(folder.from.join("c-large"), noise(100_000, 1)).unwrap();
    for file in 0..100 {
        fs::write(folder.from.join(format!("d-{file}")), b"x").unwrap();
    }
    for keeps_journal in [false, true] {
        let apply = ApplyOptions { keeps_journal, ..ApplyOptions::default() };
        let options = SourceOptions::new(256 << 10);
        let (summary, events, _) = copy(&folder.from, &folder.to, options, apply);
        let problems = events.problems();
        assert_eq!(problems[0], ("b-large".into(), Step::Write));
        assert!(problems[1..].iter().all(|(name, _)| name.starts_with("d-")), "{problems:?}");
        assert_eq!(summary.copied + summary.failed, 107);
        assert!(summary.copied > 30 && summary.failed > 50, "{summary:?}");
        for entry in fs::read_dir(&folder.to).unwrap() {
            let name = entry.unwrap().file_name();
            let copied = fs::read(folder.to.join(&name)).unwrap();
            assert!(copied == fs::read(folder.from.join(&name)).unwrap(), "{name:?}");
        }
        for entry in fs::read_dir(&folder.to).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    drop(unmount);
}
