//! A copy that is interrupted at any point can be resumed, with the same result as an uninterrupted
//! one.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{
    Folders, Session, assert_same, break_off_anywhere, copy, journaling, noise, random_tree,
};
use fastrand::Rng;
use weft_transfer::tree::apply::{ApplyOptions, Event};
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
    let (summary, events, bytes) = copy(from, to, asking(), journaling());
    assert_eq!((sent + bytes, summary.bytes), (len as u64, len as u64));
    // The hash of the whole file is known, although an earlier session hashed a part.
    let hash = blake3::hash(&fs::read(from.join("file")).unwrap());
    let event = Event::Copied { size: len as u64, hash: Some(hash.into()) };
    assert_eq!(events.0.lock().unwrap()[..], [(b"file".to_vec(), event)]);
    assert_same(from, to);
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
        let (summary, events, bytes) = copy(from, to, asking(), journaling());
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

/// A session was killed after it created a file and before it renamed it.
#[test]
fn temporary_entries_of_a_dead_session_are_removed() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for folder in [from, to] {
        fs::create_dir(folder.join("below")).unwrap();
    }
    fs::write(to.join(".weft-00000000"), b"").unwrap();
    fs::write(to.join("below/.file.weft-00000000"), b"begun").unwrap();
    symlink("nowhere", to.join("below/.link.weft-00000000")).unwrap();
    symlink("nowhere", to.join(".link.weft-00000000")).unwrap();
    // The session of this link is not known to be dead.
    symlink("nowhere", to.join("below/.link.weft-00000001")).unwrap();
    let (_, events, _) = copy(from, to, asking(), journaling());
    assert_eq!(events.problems(), []);
    let left = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name()).collect()
    };
    assert_eq!(
        (left(to), left(&to.join("below"))),
        (vec!["below".into()], vec![".link.weft-00000001".into()])
    );
}

#[test]
fn journal_of_another_user_or_without_sense_is_ignored() {
    let Folders { from, to, folder } = &Folders::new();
    fs::write(from.join("file"), noise(100_000, 1)).unwrap();
    fs::write(folder.path().join(".x.weft-00000000"), b"outside").unwrap();
    fs::write(to.join(".weft-00000000"), noise(5000, 1)).unwrap();
    symlink("/etc/passwd", to.join(".weft-00000001")).unwrap();
    fs::create_dir(to.join(".weft-00000002")).unwrap();
    let (_, events, _) = copy(from, to, asking(), journaling());
    assert_eq!(events.problems(), []);
    assert!(!to.join(".weft-00000000").exists());
    assert!(folder.path().join(".x.weft-00000000").exists());
}
