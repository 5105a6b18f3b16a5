//! Copies within one process, in which the kernel copies the data of files.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::{
    Events, Folders, PAYLOAD, assert_same, break_off_anywhere, copy, noise, open, random_tree,
};
use fastrand::Rng;
use weft_transfer::tree::apply::{Applier, ApplyOptions, Step};
use weft_transfer::tree::job::Job;
use weft_transfer::tree::kernel_copy::KernelCopies;
use weft_transfer::tree::source::{Next, Source, SourceOptions};

/// A small payload, so that small files too are copied by the kernel.
const SMALL_PAYLOAD: usize = 64 << 10;

/// Returns options that let the kernel copy, and the counter of copied bytes.
fn by_kernel(payload_len: usize) -> (SourceOptions, Arc<AtomicU64>) {
    let copied = Arc::<AtomicU64>::default();
    let counter = Arc::clone(&copied);
    let copies = KernelCopies::new(move |len| {
        counter.fetch_add(len, SeqCst);
    });
    let options =
        SourceOptions { copies: Some(Arc::new(copies)), ..SourceOptions::new(payload_len) };
    (options, copied)
}

fn asking() -> SourceOptions {
    SourceOptions { asks: true, takes_xattrs: true, ..by_kernel(SMALL_PAYLOAD).0 }
}

/// Fills all blocks before any is applied, calls `change` in between, and returns the problems.
fn copy_after(from: &Path, to: &Path, change: impl FnOnce()) -> Vec<(String, Step)> {
    let (options, _) = by_kernel(PAYLOAD);
    let events = Arc::new(Events::default());
    let applier = Applier::begin(open(to), ApplyOptions::default(), Arc::clone(&events) as _);
    let mut applier = applier.unwrap().copying(options.copies.clone());
    let mut source = Source::new(common::contents_of(from), options);
    let mut blocks = Vec::new();
    while let Next::Job(job) = source.next_job() {
        let mut payload = vec![1; PAYLOAD];
        let filled = Job::fill(*job, &mut payload);
        payload.truncate(filled.len);
        blocks.push((payload, filled.table_len));
    }
    change();
    for (payload, table_len) in blocks {
        for task in applier.apply(&payload, table_len).unwrap() {
            assert!(task.run(&payload).is_none());
        }
    }
    applier.finish().unwrap();
    events.problems()
}

#[test]
fn random_trees_are_kept() {
    let mut all = 0;
    for seed in 0..30 {
        let Folders { from, to, folder: _folder } = &Folders::new();
        random_tree(from, &mut Rng::with_seed(seed));
        let (options, copied) = by_kernel(SMALL_PAYLOAD);
        for options in [SourceOptions { takes_xattrs: true, ..options }, asking()] {
            let (summary, events, _) = copy(from, to, options, ApplyOptions::default());
            assert_eq!((events.problems(), summary.failed), (vec![], 0), "seed {seed}");
            assert_same(from, to);
        }
        all += copied.load(SeqCst);
    }
    assert!(all > 1 << 20, "the kernel has copied {all} bytes");
}

#[test]
fn data_of_large_files_is_in_no_block_and_holes_stay() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let dense = 40_000_001;
    fs::write(from.join("dense"), noise(dense, 1)).unwrap();
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.set_len(1 << 34).unwrap();
    for at in [0, 1 << 20, (1 << 33) + 4096] {
        sparse.write_all_at(&noise(300_000, at), at).unwrap();
    }
    let (options, copied) = by_kernel(PAYLOAD);
    let (summary, events, bytes) = copy(from, to, options, ApplyOptions::default());
    assert_eq!((events.problems(), bytes), (vec![], 0));
    assert_eq!(summary.bytes, dense as u64 + (1 << 34));
    let copied = copied.load(SeqCst);
    assert!((dense as u64 + 900_000..dense as u64 + 1_000_000).contains(&copied), "{copied}");
    assert!(fs::read(from.join("dense")).unwrap() == fs::read(to.join("dense")).unwrap());
    let (one, other) = (fs::metadata(from.join("sparse")), fs::metadata(to.join("sparse")));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.len(), one.mtime_nsec()), (other.len(), other.mtime_nsec()));
    assert!(other.blocks() <= one.blocks() + 64, "{} of {}", other.blocks(), one.blocks());
    let there = File::open(to.join("sparse")).unwrap();
    for at in [0, 1 << 20, (1 << 33) + 4096] {
        let mut data = vec![0; 300_001];
        there.read_exact_at(&mut data, at).unwrap();
        assert!(data[..300_000] == noise(300_000, at) && data[300_000] == 0, "at {at}");
    }
}

#[test]
fn many_files_in_one_directory_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for number in 0..300 {
        // Odd lengths: the next file of the block still begins at a whole grain.
        let len = 20_000 + 17 * usize::from(number as u8);
        fs::write(from.join(format!("{number}")), noise(len, number)).unwrap();
    }
    let (options, copied) = by_kernel(SMALL_PAYLOAD);
    let (summary, events, bytes) = copy(from, to, options, ApplyOptions::default());
    assert_eq!((events.problems(), bytes), (vec![], 0));
    assert_eq!((summary.copied, summary.bytes), (300, copied.load(SeqCst)));
    assert_same(from, to);
}

#[test]
fn copy_that_is_broken_off_anywhere_goes_on() {
    break_off_anywhere(asking);
}

#[test]
fn files_that_change_before_the_kernel_reads_them_are_reported() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let large = noise(3 << 20, 1);
    for name in ["grows", "other", "rewritten", "shrinks"] {
        fs::write(from.join(name), &large).unwrap();
    }
    let problems = copy_after(from, to, || {
        let open = |name: &str| File::options().write(true).open(from.join(name)).unwrap();
        open("grows").set_len(4 << 20).unwrap();
        open("shrinks").set_len((1 << 20) + 5).unwrap();
        open("rewritten").write_all_at(b"new", 5).unwrap();
        common::set_mtime(&from.join("rewritten"), 1, 2);
    });
    let expected = ["grows", "rewritten", "shrinks"];
    assert_eq!(problems, expected.map(|name| (name.to_owned(), Step::Changed)));
    for (name, len) in [("grows", 3 << 20), ("shrinks", (1 << 20) + 5), ("other", 3 << 20)] {
        assert!(fs::read(to.join(name)).unwrap() == large[..len], "{name}");
    }
    assert_eq!(&fs::read(to.join("rewritten")).unwrap()[5..8], b"new");
}

#[test]
fn files_on_another_file_system_are_kept() {
    let Folders { from, folder, .. } = &Folders::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let is_other = |one: &Path, other: &Path| {
        fs::metadata(one).unwrap().dev() != fs::metadata(other).unwrap().dev()
    };
    assert!(is_other(folder.path(), memory.path()), "set TMPDIR to another file system");
    random_tree(from, &mut Rng::with_seed(3));
    fs::write(from.join("large"), noise(40 << 20, 1)).unwrap();
    let (options, copied) = by_kernel(SMALL_PAYLOAD);
    let options = SourceOptions { takes_xattrs: false, ..options };
    let (summary, events, bytes) = copy(from, memory.path(), options, ApplyOptions::default());
    assert_eq!((events.problems(), summary.failed), (vec![], 0));
    assert!(bytes > 0 && copied.load(SeqCst) > 0, "after a refusal the source sends the data");
    assert!(
        fs::read(from.join("large")).unwrap() == fs::read(memory.path().join("large")).unwrap()
    );
}
