//! A copy whose process is killed at any time can be resumed.
//!
//! This test has its own program, because a forked child shares the locks of sessions.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use common::{Folders, assert_same, copy, noise, random_tree, session_files};
use fastrand::Rng;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use weft_transfer::tree::apply::ApplyOptions;
use weft_transfer::tree::source::SourceOptions;

/// Processes that copy a tree one after the other, and may be killed.
const ROUNDS: u32 = 12;
/// The least number of processes that are killed, over all trees.
const KILLS_MIN: usize = 4;
const TREES_MAX: u64 = 20;
/// How long a process copies before its journal is looked at again.
const SLICE: Duration = Duration::from_millis(1);
/// What takes longer is a hang.
const HANG: Duration = Duration::from_secs(240);

fn asking() -> SourceOptions {
    SourceOptions { asks: true, verifies: true, takes_xattrs: true, ..SourceOptions::new(64 << 10) }
}

fn journaling() -> ApplyOptions {
    ApplyOptions { keeps_journal: true, resumes: true, ..ApplyOptions::default() }
}

fn journal_len(to: &Path) -> u64 {
    let files = session_files(to);
    files.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Stops the child. Returns whether it has ended before; then it stays a zombie.
fn stop(child: &Child) -> bool {
    signal(child, Signal::STOP);
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(Pid::from_child(child)), options).unwrap().unwrap();
    !status.stopped()
}

/// Copies a tree, in processes that are killed. Returns how many of them were.
fn copy_killed(seed: u64) -> usize {
    let folders = Folders::new();
    let Folders { from, to, folder } = &folders;
    let mut rng = Rng::with_seed(seed);
    random_tree(from, &mut rng);
    for file in 0..3 {
        fs::write(from.join(format!("large-{file}")), noise(6 << 20, file)).unwrap();
    }
    for _ in 0..200 {
        fs::write(from.join(format!("small-{}", rng.u64(..))), noise(3000, 1)).unwrap();
    }
    let mut kills = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_copy_that_is_killed_goes_on"])
            .env("WEFT_TEST_COPY", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The child is killed when its journal has grown further, or it has ended. It stands still
        // while the journal is looked at.
        let goal = 1 << (round + 6);
        let start = Instant::now();
        while !stop(&child) && journal_len(to) <= goal {
            assert!(start.elapsed() < HANG, "the copy does not end");
            signal(&child, Signal::CONT);
            thread::sleep(SLICE);
        }
        signal(&child, Signal::KILL);
        kills += usize::from(child.wait().unwrap().signal().is_some());
    }
    let (_, events, _) = copy(from, to, asking(), journaling());
    assert_eq!(events.problems(), []);
    assert_same(from, to);
    kills
}

#[test]
fn a_copy_that_is_killed_goes_on() {
    // The test starts its own program and kills that.
    if let Some(paths) = env::var_os("WEFT_TEST_COPY") {
        let (from, to) = (Path::new(&paths).join("from"), Path::new(&paths).join("to"));
        copy(&from, &to, asking(), journaling());
        return;
    }
    // On a machine that stalls, a child may end before it is stopped.
    let mut kills = 0;
    for seed in 1..=TREES_MAX {
        kills += copy_killed(seed);
        if kills >= KILLS_MIN {
            return;
        }
    }
    panic!("killed {kills} times only");
}
