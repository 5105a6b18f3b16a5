//! Runs commands of `weft`, creates trees to copy, and compares trees.

#![allow(dead_code)] // Each test program uses some of these.

pub(crate) mod hosts;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fastrand::Rng;

pub(crate) const WEFT: &str = env!("CARGO_BIN_EXE_weft");

/// Returns a `weft` command of one of the two hosts, which have separate keys.
pub(crate) fn weft(home: &Path) -> Command {
    let mut command = Command::new(WEFT);
    command.env("XDG_CONFIG_HOME", home).stdin(Stdio::null());
    command
}

pub(crate) fn output(command: &mut Command) -> Output {
    command.output().expect("weft starts")
}

#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = output(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a command that must fail with this exit status; returns its error output.
#[track_caller]
pub(crate) fn fail(command: &mut Command, status: i32) -> String {
    let output = output(command);
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn noise(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut data = vec![0; len];
    rng.fill(&mut data);
    data
}

/// Returns the bytes on disk below a folder.
pub(crate) fn written(folder: &Path) -> u64 {
    let (mut all, mut queue) = (0, vec![folder.to_owned()]);
    while let Some(path) = queue.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        all += meta.blocks() * 512;
        if meta.is_dir() {
            queue.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|it| it.path()));
        }
    }
    all
}

/// Creates a tree of unusual names: small and large files, with holes, both kinds of links, and
/// directories.
pub(crate) fn make_tree(folder: &Path, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    fs::create_dir(folder).expect("room");
    let mut folders = vec![folder.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..60 {
        let mut name: Vec<u8> = (0..rng.usize(1..12))
            .map(|_| *rng.choice(b"ab \n\xff-\"*:\\".iter()).expect("bytes"))
            .collect();
        name.extend_from_slice(number.to_string().as_bytes());
        let parent = folders[rng.usize(..folders.len())].clone();
        let path = parent.join(OsStr::from_bytes(&name));
        match rng.u8(..8) {
            0 | 1 => {
                fs::create_dir(&path).expect("room");
                folders.push(path.clone());
            }
            2 => symlink(OsStr::from_bytes(b"no\xffwhere"), &path).expect("room"),
            3 if !files.is_empty() => {
                fs::hard_link(&files[rng.usize(..files.len())], &path).expect("room");
                continue;
            }
            4 => {
                let mut file = File::create(&path).expect("room");
                for _ in 0..rng.usize(..4) {
                    file.seek(SeekFrom::Start(rng.u64(..6_000_000))).expect("a file");
                    let len = rng.usize(..200_000);
                    file.write_all(&noise(len, &mut rng)).expect("room");
                }
                file.set_len(7_000_000).expect("room");
                files.push(path.clone());
            }
            5 => {
                let len = rng.usize(..3_000_000);
                fs::write(&path, noise(len, &mut rng)).expect("room");
                files.push(path.clone());
            }
            _ => {
                let len = rng.usize(..5_000);
                fs::write(&path, noise(len, &mut rng)).expect("room");
                files.push(path.clone());
            }
        }
        if !path.is_symlink() {
            let mode = rng.u32(..0o1000) | if path.is_dir() { 0o700 } else { 0o400 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our own");
        }
        set_mtime(&path, rng.i64(-1_000_000_000..3_000_000_000), rng.i64(0..1_000_000_000));
    }
    for folder in &folders {
        set_mtime(folder, rng.i64(0..2_000_000_000), rng.i64(0..1_000_000_000));
    }
}

pub(crate) fn set_mtime(path: &Path, tv_sec: i64, tv_nsec: i64) {
    let time = rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("our own");
}

/// Each path with its type, mode, time, content or target, and the first path of the same file.
pub(crate) type Tree = BTreeMap<PathBuf, Seen>;
pub(crate) type Seen = (u32, (i64, i64), Vec<u8>, PathBuf);

pub(crate) fn tree(folder: &Path) -> Tree {
    let (mut all, mut queue) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = queue.pop() {
        // A server may still be cleaning up after a killed client.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let content = if meta.is_symlink() {
            fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec()
        } else if meta.is_dir() {
            let names = fs::read_dir(&path).into_iter().flatten();
            queue.extend(names.map(|name| name.expect("a name").path()));
            Vec::new()
        } else {
            let Ok(content) = fs::read(&path) else { continue };
            content
        };
        let inode = PathBuf::from(format!("{}", meta.ino()));
        let name = path.strip_prefix(folder).expect("beneath").to_owned();
        all.insert(name, (meta.mode(), (meta.mtime(), meta.mtime_nsec()), content, inode));
    }
    let mut first = BTreeMap::new();
    for (path, seen) in &mut all {
        seen.3 = first.entry(seen.3.clone()).or_insert_with(|| path.clone()).clone();
    }
    all
}

#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let (expected, found) = (tree(one), tree(other));
    for (path, seen) in &expected {
        let is_same = found.get(path) == Some(seen);
        let brief = |seen: Option<&Seen>| {
            seen.map(|it| (format!("{:o}", it.0), it.1, it.2.len(), it.3.clone()))
        };
        assert!(is_same, "{path:?}: {:?}, {:?}", brief(Some(seen)), brief(found.get(path)));
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} should not be there");
}
