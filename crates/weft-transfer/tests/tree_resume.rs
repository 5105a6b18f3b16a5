//! A copy that is interrupted at any point can be resumed, with the same result as an uninterrupted
//! one.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;

use common::{
    Folders, Session, assert_same, break_off_anywhere, copy, damage, journaling, noise, partial,
    random_tree, set_mtime,
};
use fastrand::Rng;
use weft_transfer::tree::apply::{ApplyOptions, Event, Step};
use weft_transfer::tree::source::SourceOptions;

/// A small payload, so that a small file needs many blocks.
const SMALL_PAYLOAD: usize = 64 << 10;

fn asking() -> SourceOptions {
    SourceOptions {
        asks: true,
        verifies: true,
        takes_xattrs: true,
        ..SourceOptions::new(SMALL_PAYLOAD)
    }
}

#[test]
fn random_trees_are_kept() {
    for seed in 0..30 {
        let Folders { from, to, folder: _folder } = &Folders::new();
        random_tree(from, &mut Rng::with_seed(seed));
        for options in [SourceOptions { asks: false, ..asking() }, asking()] {
            let (summary, events, _) = copy(from, to, options, ApplyOptions::default());
            assert_eq!((events.problems(), summary.failed), (vec![], 0), "seed {seed}");
            assert_same(from, to);
        }
    }
}

#[test]
fn a_copy_that_is_broken_off_anywhere_goes_on() {
    break_off_anywhere(asking);
}

#[test]
fn blocks_in_the_journal_are_not_sent_again() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let len = 4 << 20;
    fs::write(from.join("file"), noise(len, 1)).unwrap();
    let mut session = Session::new(from, to, asking(), journaling());
    let mut sent = 0;
    while sent < 2 << 20 {
        assert!(session.step());
        sent = session.bytes;
    }
    drop(session);
    let verifying = ApplyOptions { verifies: true, ..journaling() };
    let (summary, events, bytes) = copy(from, to, asking(), verifying);
    assert_eq!((sent + bytes, summary.bytes), (len as u64, len as u64));
    // The hash of the whole file is known, although an earlier session hashed a part.
    let hash = blake3::hash(&fs::read(from.join("file")).unwrap());
    let event = Event::Copied { size: len as u64, hash: Some(hash.into()) };
    assert_eq!(events.0.lock().unwrap()[..], [(b"file".to_vec(), event)]);
    assert_same(from, to);
}

#[test]
fn damaged_pieces_of_a_partial_file_are_sent_again() {
    for (verifies, has_hole) in [(false, false), (true, false), (false, true)] {
        let Folders { from, to, folder: _folder } = &Folders::new();
        let file = File::create_new(from.join("file")).unwrap();
        file.set_len(56 << 20).unwrap();
        let start = if has_hole { 8 << 20 } else { 0 };
        file.write_all_at(&noise((56 << 20) - start, 1), start as u64).unwrap();
        let options = || SourceOptions { verifies, ..asking() };
        let mut session = Session::new(from, to, options(), journaling());
        while session.bytes + (start as u64) < 50 << 20 {
            assert!(session.step());
        }
        drop(session);
        let partial = partial(to);
        // The first two pieces are different, the others are as they were.
        damage(&partial, 5 << 20);
        damage(&partial, 31 << 20);
        let apply = ApplyOptions { verifies, ..journaling() };
        let (summary, events, bytes) = copy(from, to, options(), apply);
        assert_eq!((events.problems(), summary.copied), (vec![], 1));
        assert_same(from, to);
        assert!((36 << 20..39 << 20).contains(&(bytes + start as u64)), "{bytes}");
    }
}

/// Another file of the same name, size and time has replaced the source.
#[test]
fn partial_file_of_another_source_is_not_used() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let mut files = Vec::new();
    for (folder, seed) in [("one", 1), ("two", 2)] {
        let path = from.join(folder).join("file");
        fs::create_dir(from.join(folder)).unwrap();
        fs::write(&path, noise(4 << 20, seed)).unwrap();
        set_mtime(&path, 1_000, 5);
        files.push(path);
    }
    let [one, two] = ["one", "two"].map(|folder| from.join(folder));
    Session::new(&one, to, asking(), journaling()).break_off(8, &mut Rng::with_seed(1));
    let options = SourceOptions { verifies: false, ..asking() };
    let (summary, events, bytes) = copy(&two, to, options, journaling());
    assert_eq!((events.problems(), summary.bytes), (vec![], bytes));
    assert_same(&two, to);
}

#[test]
fn file_that_is_damaged_on_its_way_to_the_disk_does_not_get_its_name() {
    for is_resumed in [false, true] {
        let Folders { from, to, folder: _folder } = &Folders::new();
        fs::write(from.join("file"), noise(4 << 20, 1)).unwrap();
        let verifying = || ApplyOptions { verifies: true, ..journaling() };
        if is_resumed {
            Session::new(from, to, asking(), verifying()).break_off(8, &mut Rng::with_seed(1));
        }
        let mut session = Session::new(from, to, asking(), verifying());
        // The source has compared what there is when it sends more.
        while session.bytes == 0 {
            assert!(session.step());
        }
        damage(&partial(to), 0);
        let (summary, events, _) = session.finish();
        assert_eq!(events.problems(), [("file".into(), Step::Verify)]);
        assert_eq!(summary.unwrap().failed, 1);
        assert!(!to.join("file").exists());
    }
}

#[test]
fn a_file_that_changed_meanwhile_starts_anew() {
    for change in 0..3 {
        let Folders { from, to, folder: _folder } = &Folders::new();
        fs::write(from.join("file"), noise(4 << 20, 1)).unwrap();
        Session::new(from, to, asking(), journaling()).break_off(8, &mut Rng::with_seed(1));
        match change {
            0 => fs::write(from.join("file"), noise(4 << 20, 2)).unwrap(),
            1 => fs::write(from.join("file"), noise(3 << 20, 2)).unwrap(),
            _ => fs::remove_file(from.join("file")).unwrap(),
        }
        // The part of a file that is not there any more goes like any other file.
        let apply = ApplyOptions { deletes: change == 2, ..journaling() };
        let (summary, events, bytes) = copy(from, to, asking(), apply);
        assert_eq!((events.problems(), summary.bytes), (vec![], bytes));
        assert_same(from, to);
    }
}

#[test]
fn a_file_that_changes_after_it_was_asked_about_starts_anew() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("file"), noise(4 << 20, 1)).unwrap();
    Session::new(from, to, asking(), journaling()).break_off(8, &mut Rng::with_seed(1));
    let mut session = Session::new(from, to, asking(), journaling());
    assert!(session.step());
    fs::write(from.join("file"), noise(4 << 20, 2)).unwrap();
    let (summary, events, bytes) = session.finish();
    assert_eq!((events.problems(), summary.unwrap().bytes), (vec![], bytes));
    assert_eq!(bytes, 4 << 20);
    assert_same(from, to);
}

#[test]
fn another_run_removes_what_a_broken_one_left() {
    for seed in 0..10 {
        let mut rng = Rng::with_seed(seed);
        let Folders { from, to, folder: _folder } = &Folders::new();
        random_tree(from, &mut rng);
        fs::write(from.join("large"), noise(3 << 20, 1)).unwrap();
        let keeps_journal = rng.bool();
        let apply = ApplyOptions { keeps_journal, ..ApplyOptions::default() };
        let steps = rng.usize(..12);
        Session::new(from, to, asking(), apply).break_off(steps, &mut rng);
        let (_, events, _) = copy(from, to, asking(), ApplyOptions::default());
        assert_eq!(events.problems(), []);
        assert_same(from, to);
    }
}

#[test]
fn a_session_that_lives_keeps_its_files() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("file"), noise(4 << 20, 1)).unwrap();
    let mut one = Session::new(from, to, asking(), journaling());
    for _ in 0..6 {
        assert!(one.step());
    }
    let (_, events, bytes) = copy(from, to, asking(), journaling());
    assert_eq!((events.problems(), bytes), (vec![], 4 << 20));
    let (summary, events, _) = one.finish();
    assert_eq!((events.problems(), summary.unwrap().copied), (vec![], 1));
    assert_same(from, to);
}

/// Returns the names in a folder.
fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Breaks off a copy whose large file is not complete, and leaves its partial file.
fn leave_partial(from: &Path, to: &Path) -> OsString {
    fs::write(from.join("large"), noise(4 << 20, 1)).unwrap();
    Session::new(from, to, asking(), journaling()).break_off(8, &mut Rng::with_seed(1));
    let is_partial = |name: &&OsString| name.as_bytes().starts_with(b".large.weft-");
    names(to).iter().find(is_partial).unwrap().clone()
}

#[test]
fn partial_files_stay_until_their_own_file_is_copied() {
    let Folders { from, to, folder } = &Folders::new();
    let partial = leave_partial(from, to);
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("small"), b"x").unwrap();
    for apply in [journaling(), ApplyOptions { resumes: false, ..journaling() }] {
        let (_, events, _) = copy(&other, to, asking(), apply);
        assert_eq!((events.problems(), to.join(&partial).exists()), (vec![], true));
    }
    fs::remove_file(to.join("small")).unwrap();
    let (_, events, bytes) = copy(from, to, asking(), journaling());
    assert_eq!((events.problems(), bytes < 4 << 20), (vec![], true), "{bytes}");
    assert_eq!(names(to), ["large"]);
}

#[test]
fn partial_files_are_removed_if_they_are_old_or_not_wanted() {
    for how in 0..3 {
        let Folders { from, to, folder } = &Folders::new();
        let partial = leave_partial(from, to);
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        let mut apply = ApplyOptions { resumes: false, ..journaling() };
        match how {
            0 => apply.cleans = true,
            1 => apply.deletes = true,
            _ => {
                let is_journal = |name: &&OsString| name.as_bytes().starts_with(b".weft-");
                let journal = names(to).iter().find(is_journal).unwrap().clone();
                set_mtime(&to.join(journal), 1_000_000_000, 0);
            }
        }
        let (_, events, _) = copy(&other, to, asking(), apply);
        assert_eq!((events.problems(), names(to)), (vec![], vec![]), "{how}: {partial:?}");
    }
}

#[test]
fn files_with_names_like_wefts_are_copied_and_kept() {
    let Folders { from, to, folder } = &Folders::new();
    let kept = [".mine.weft-deadbeef", ".weft-0badcafe", ".old.weft-00000001-0123456789abcdef"];
    for name in kept {
        fs::write(from.join(name), name).unwrap();
        let path = to.join(format!("{name}0").replace("-0", "-1").replace("f0", "f"));
        fs::write(path, b"here").unwrap();
    }
    // A tree in which a copy was broken off is copied with all that is left of it.
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    leave_partial(&other, from);
    let here = names(to);
    let (summary, events, _) = copy(from, to, asking(), journaling());
    assert_eq!((events.problems(), summary.failed), (vec![], 0));
    assert!(here.iter().all(|name| names(to).contains(name)), "{here:?}, {:?}", names(to));
    assert!(names(from).iter().all(|name| names(to).contains(name)));
    let deleting = ApplyOptions { deletes: true, ..journaling() };
    let (_, events, _) = copy(from, to, asking(), deleting);
    assert_eq!((events.problems(), names(to)), (vec![], names(from)));
}

#[test]
fn file_without_sense_is_no_journal() {
    let Folders { from, to, folder } = &Folders::new();
    fs::write(from.join("file"), noise(100_000, 1)).unwrap();
    fs::write(folder.path().join(".x.weft-00000000"), b"outside").unwrap();
    fs::write(to.join(".weft-00000000"), noise(5000, 1)).unwrap();
    symlink("/etc/passwd", to.join(".weft-00000001")).unwrap();
    fs::create_dir(to.join(".weft-00000002")).unwrap();
    let before = names(to);
    let (_, events, _) = copy(from, to, asking(), journaling());
    assert_eq!(events.problems(), []);
    assert_eq!(names(to), [&before[..], &["file".into()]].concat());
    assert!(folder.path().join(".x.weft-00000000").exists());
}
