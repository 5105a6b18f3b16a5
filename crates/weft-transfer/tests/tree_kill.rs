//! A copy whose process is killed at any time can be resumed.
//!
//! This test has its own program, because a forked child shares the locks of sessions.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use common::{Folders, assert_same, copy, noise, random_tree, session_files};
use fastrand::Rng;
use weft_transfer::tree::apply::ApplyOptions;
use weft_transfer::tree::source::SourceOptions;

fn asking() -> SourceOptions {
    SourceOptions { asks: true, verifies: true, takes_xattrs: true, ..SourceOptions::new(64 << 10) }
}

fn journaling() -> ApplyOptions {
    ApplyOptions { keeps_journal: true, resumes: true, ..ApplyOptions::default() }
}

#[test]
fn a_copy_that_is_killed_goes_on() {
    // The test starts its own program and kills that.
    if let Some(paths) = env::var_os("WEFT_TEST_COPY") {
        let (from, to) = (Path::new(&paths).join("from"), Path::new(&paths).join("to"));
        copy(&from, &to, asking(), journaling());
        return;
    }
    let folders = Folders::new();
    let Folders { from, to, folder } = &folders;
    let mut rng = Rng::with_seed(1);
    random_tree(from, &mut rng);
    for file in 0..3 {
        fs::write(from.join(format!("large-{file}")), noise(6 << 20, file)).unwrap();
    }
    for _ in 0..200 {
        fs::write(from.join(format!("small-{}", rng.u64(..))), noise(3000, 1)).unwrap();
    }
    let mut kills = 0;
    for round in 0..12 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_copy_that_is_killed_goes_on"])
            .env("WEFT_TEST_COPY", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The child is killed when its journal has grown further, or it has ended.
        let goal = 1 << (round + 6);
        let start = Instant::now();
        loop {
            let written: u64 = session_files(to)
                .iter()
                .filter_map(|path| fs::metadata(path).ok())
                .map(|m| m.len())
                .sum();
            let is_over = start.elapsed() > Duration::from_secs(60);
            if written > goal || is_over || child.try_wait().unwrap().is_some() {
                break;
            }
            thread::yield_now();
        }
        kills += usize::from(child.try_wait().unwrap().is_none());
        // The child may have ended just now.
        let _ = child.kill();
        child.wait().unwrap();
    }
    eprintln!("killed {kills} times");
    let (_, events, _) = copy(from, to, asking(), journaling());
    assert_eq!(events.problems(), []);
    assert_same(from, to);
}
