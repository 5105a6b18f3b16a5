//! Copies trees through blocks in memory, and checks that the sink's tree is equal.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::{
    Folders, PAYLOAD, Session, assert_same, copy, copy_all, is_root, noise, open, seen, set_mtime,
};
use weft_transfer::tree::apply::{Applier, ApplyError, ApplyOptions, Change, DryRun, Event, Step};
use weft_transfer::tree::source::{Next, Source, SourceOptions, Start};
use weft_transfer::wire::record_name::Name;

fn options() -> SourceOptions {
    SourceOptions { verifies: true, takes_xattrs: true, ..SourceOptions::new(PAYLOAD) }
}

fn asking() -> SourceOptions {
    SourceOptions { asks: true, ..options() }
}

fn each_way(from: &Path, to: &Path) {
    for options in [options(), asking()] {
        copy_all(from, to, options);
        fs::remove_dir_all(to).unwrap();
        fs::create_dir(to).unwrap();
    }
}

#[test]
fn odd_names_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let long = [b'x'; 255];
    let mut long_and_other = long;
    long_and_other[254] = b'y';
    let names: [&[u8]; 14] = [
        b"a\nb",
        b"\n",
        b"\xff\xfe\x80",
        b"-rf",
        b" ",
        b"  lead",
        b"trail ",
        b"...",
        b"..a",
        b"*?[]{}\\",
        b"'\"`$",
        b"\x01\x7f",
        &long,
        &long_and_other,
    ];
    for (index, name) in names.iter().enumerate() {
        let path = from.join(OsStr::from_bytes(name));
        fs::write(&path, noise(index * 100, index as u64)).unwrap();
        let dir = from.join("dirs").join(OsStr::from_bytes(name));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
    }
    each_way(from, to);
}

#[test]
fn files_of_all_sizes_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let block = PAYLOAD;
    for len in [
        0,
        1,
        1023,
        1024,
        4096,
        65_536,
        262_143,
        262_144,
        262_145,
        block - 1,
        block,
        block + 1,
        3 * block,
        5 * block + 777,
        8 * block,
    ] {
        fs::write(from.join(format!("{len}")), noise(len, len as u64)).unwrap();
    }
    each_way(from, to);
}

#[test]
fn the_hash_of_a_file_is_that_of_blake3() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for len in [0, 1000, 300_000, 3 << 20] {
        fs::write(from.join(format!("{len}")), noise(len, 3)).unwrap();
    }
    let (_, events, _) = copy(from, to, options(), ApplyOptions::default());
    let events = events.0.lock().unwrap();
    assert_eq!(events.len(), 4);
    for (path, event) in events.iter() {
        let data = fs::read(from.join(OsStr::from_bytes(path))).unwrap();
        let hash = Some(blake3::hash(&data).into());
        assert_eq!(*event, Event::Copied { size: data.len() as u64, hash });
    }
}

#[test]
fn modes_times_owners_and_attributes_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for mode in [0, 0o1, 0o200, 0o400, 0o600, 0o640, 0o644, 0o755, 0o777, 0o1777, 0o4755, 0o6711] {
        let (file, dir) = (from.join(format!("f{mode:o}")), from.join(format!("d{mode:o}")));
        fs::write(&file, b"x").unwrap();
        fs::create_dir(&dir).unwrap();
        for path in [&file, &dir] {
            if is_root() && mode & 1 == 0 {
                std::os::unix::fs::chown(path, Some(1234), Some(4321)).unwrap();
            }
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
    }
    let times = [(0, 0), (-1, 999_999_999), (-2_000_000_000, 1), (1_700_000_000, 123_456_789)];
    for (index, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        let (file, dir) = (from.join(format!("t{index}")), from.join(format!("td{index}")));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("inside"), b"").unwrap();
        fs::write(&file, noise(index << 18, 1)).unwrap();
        let link = from.join(format!("tl{index}"));
        symlink("nowhere", &link).unwrap();
        for path in [&file, &dir, &link] {
            set_mtime(path, seconds, nanoseconds);
        }
    }
    let file = from.join("xattrs");
    fs::write(&file, b"with").unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let has_xattrs = set(&file, "user.one", b"1") && set(&file, "user.empty", b"");
    if !has_xattrs {
        eprintln!("no extended attributes here: not tested");
    }
    set(from, "user.dir", &[0, 255, 10]);
    set_mtime(from, 1_000_000, 5);
    if is_root() {
        each_way(from, to);
    } else {
        eprintln!("without root, files that cannot be read are not tested");
    }
}

#[test]
fn attributes_that_give_rights_are_left_out_as_setuid_is() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("file"), b"x").unwrap();
    let set = |name: &str| {
        let file = File::open(from.join("file")).unwrap();
        rustix::fs::fsetxattr(&file, name, b"x", rustix::fs::XattrFlags::empty())
    };
    set("user.kept").unwrap();
    if set("trusted.weft").is_err() {
        eprintln!("skipped: this process sets no attribute that gives rights");
        return;
    }
    for keeps_special_bits in [true, false] {
        let apply = ApplyOptions { keeps_special_bits, ..ApplyOptions::default() };
        let (summary, events, _) = copy(from, to, options(), apply);
        let file = File::open(to.join("file")).unwrap();
        let get = |name: &str| rustix::fs::fgetxattr(&file, name, &mut [0; 8][..]).is_ok();
        assert_eq!((get("user.kept"), get("trusted.weft")), (true, keeps_special_bits));
        let problems = events.problems();
        let expected = [("file".to_owned(), Step::Attributes)];
        assert_eq!(problems, expected[usize::from(keeps_special_bits)..]);
        assert_eq!((summary.copied, summary.failed), (1, 0));
    }
}

#[test]
fn links_are_kept_and_never_followed() {
    let Folders { from, to, folder } = &Folders::new();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), b"secret").unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    symlink(&outside, from.join("absolute")).unwrap();
    symlink("loop", from.join("loop")).unwrap();
    symlink("..", from.join("up")).unwrap();
    symlink("x".repeat(4000), from.join("long")).unwrap();
    each_way(from, to);
    // A link with the name of a written file is replaced, not followed.
    symlink(outside.join("secret"), to.join("file")).unwrap();
    fs::write(from.join("file"), b"new").unwrap();
    copy_all(from, to, options());
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    // A link with the name of a directory is not entered.
    fs::create_dir(from.join("dir")).unwrap();
    fs::write(from.join("dir/secret"), b"overwritten").unwrap();
    symlink(&outside, to.join("dir")).unwrap();
    let (_, events, _) = copy(from, to, options(), ApplyOptions::default());
    let problems = events.problems();
    assert_eq!(problems[0], ("dir".into(), Step::Clash));
    assert_eq!(problems[1], ("dir/secret".into(), Step::Create));
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
}

#[test]
fn hard_links_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for (name, len) in [("small", 10), ("large", 3 << 20)] {
        fs::write(from.join(name), noise(len, 1)).unwrap();
        fs::create_dir(from.join(format!("{name}-dir"))).unwrap();
        fs::hard_link(from.join(name), from.join(format!("{name}-dir/other"))).unwrap();
        fs::hard_link(from.join(name), from.join(format!("a-{name}"))).unwrap();
    }
    each_way(from, to);
    copy_all(from, to, options());
    // A second copy onto the existing tree, in which another file has replaced a link.
    fs::remove_file(to.join("a-small")).unwrap();
    fs::write(to.join("a-small"), b"other").unwrap();
    copy_all(from, to, asking());
    copy_all(from, to, options());
}

#[test]
fn pipes_are_kept_and_devices_only_if_asked_for() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let make = |name: &str, kind, device| {
        mknodat(CWD, from.join(name), kind, Mode::from_raw_mode(0o666), device).unwrap();
        fs::set_permissions(from.join(name), Permissions::from_mode(0o666)).unwrap();
    };
    make("pipe", FileType::Fifo, 0);
    each_way(from, to);
    if !is_root() {
        return eprintln!("without root, devices are not tested");
    }
    make("null", FileType::CharacterDevice, makedev(1, 3));
    let (_, events, _) = copy(from, to, options(), ApplyOptions::default());
    assert_eq!(events.problems(), [("null".into(), Step::Create)]);
    let apply = ApplyOptions { makes_devices: true, ..ApplyOptions::default() };
    let (_, events, _) = copy(from, to, options(), apply);
    assert_eq!(events.problems(), []);
    assert_same(from, to);
}

#[test]
fn only_data_of_a_sparse_file_of_twenty_gibibytes_is_sent() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let mut file = File::create(from.join("sparse")).unwrap();
    let len = 20 << 30;
    for at in [0, 1 << 30, (7 << 30) + 12_345, len - 5_000_000] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&noise(100_000, at)).unwrap();
    }
    file.set_len(len).unwrap();
    drop(file);
    for options in [options(), asking()] {
        let (summary, events, bytes) = copy(from, to, options, ApplyOptions::default());
        assert_eq!((events.problems(), summary.bytes), (vec![], len));
        assert!(bytes < 4 << 20, "{bytes} bytes went");
        let copied = fs::metadata(to.join("sparse")).unwrap();
        assert_eq!(copied.len(), len);
        assert!(copied.blocks() < 8 << 11, "{} blocks", copied.blocks());
        for at in [0, (1 << 30) - 4096, 1 << 30, (7 << 30) + 12_345, len - 5_000_000, len - 1000] {
            let read = |path: &Path| {
                let mut data = vec![0; 200_000.min((len - at) as usize)];
                let file = File::open(path.join("sparse")).unwrap();
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut data, at).unwrap();
                data
            };
            assert!(read(from) == read(to), "at {at}");
        }
        fs::remove_file(to.join("sparse")).unwrap();
    }
}

#[test]
fn deep_trees_and_empty_directories_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    // The tree is deeper than the limits of descriptors and paths.
    let mut dir: std::os::fd::OwnedFd = open(from);
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    for depth in 0..700 {
        mkdirat(&dir, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        dir = openat(&dir, "deeper", flags, Mode::empty()).unwrap();
        if depth % 100 == 99 {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = openat(&dir, "file", flags, Mode::from_raw_mode(0o600)).unwrap();
            rustix::io::write(&file, format!("{depth}").as_bytes()).unwrap();
        }
    }
    fs::create_dir_all(from.join("empty/empty")).unwrap();
    let (summary, events, _) = copy(from, to, options(), ApplyOptions::default());
    assert_eq!((events.problems(), summary.copied), (vec![], 7));
    let mut dir: std::os::fd::OwnedFd = open(to);
    for depth in 0..700 {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        dir = openat(&dir, "deeper", flags, Mode::empty()).unwrap();
        if depth % 100 == 99 {
            let file = openat(&dir, "file", flags, Mode::empty()).unwrap();
            let mut text = [0; 3];
            let len = rustix::io::read(&file, &mut text[..]).unwrap();
            assert_eq!(text[..len], *format!("{depth}").as_bytes());
        }
    }
    assert!(to.join("empty/empty").is_dir());
}

#[test]
fn ten_thousand_small_files_are_kept() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for dir in 0..20 {
        let dir = from.join(format!("{dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..500 {
            fs::write(dir.join(format!("{file}")), noise(file, file as u64)).unwrap();
        }
    }
    copy_all(from, to, options());
    // A second copy wants no files.
    let (summary, _, bytes) = copy(from, to, asking(), ApplyOptions::default());
    assert_eq!((summary.copied, summary.unchanged, bytes), (0, 10_000, 0));
    // A changed file is wanted.
    fs::write(from.join("3/7"), b"changed").unwrap();
    let (summary, _, bytes) = copy(from, to, asking(), ApplyOptions::default());
    assert_eq!((summary.copied, summary.unchanged, bytes), (1, 9_999, 7));
    assert_same(from, to);
}

#[test]
fn content_is_compared_if_asked_for() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for name in ["same", "touched", "sly"] {
        fs::write(from.join(name), noise(5000, 1)).unwrap();
    }
    copy_all(from, to, options());
    let meta = fs::metadata(to.join("sly")).unwrap();
    fs::write(to.join("sly"), noise(5000, 2)).unwrap();
    set_mtime(&to.join("sly"), meta.mtime(), meta.mtime_nsec());
    set_mtime(&from.join("touched"), 5, 5);
    let (summary, _, bytes) = copy(from, to, asking(), ApplyOptions::default());
    assert_eq!((summary.copied, bytes), (1, 5000), "only the touched one looks different");
    let compares = SourceOptions { compares_content: true, ..asking() };
    set_mtime(&from.join("touched"), 6, 6);
    let (summary, _, bytes) = copy(from, to, compares, ApplyOptions::default());
    assert_eq!((summary.copied, summary.unchanged, bytes), (1, 2, 5000));
    assert_same(from, to);
}

#[test]
fn changes_of_extended_attributes_alone_are_copied() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    let names = ["same", "more", "other", "less", "none", "dir"];
    for name in names {
        let path = from.join(name);
        if name == "dir" {
            fs::create_dir(&path).unwrap()
        } else {
            fs::write(&path, b"x").unwrap()
        }
        if set(&path, "user.a", b"1").and_then(|()| set(&path, "user.b", b"2")).is_err() {
            eprintln!("skipped: no extended attributes here");
            return;
        }
    }
    copy_all(from, to, options());
    set(&from.join("more"), "user.c", b"3").unwrap();
    set(&from.join("other"), "user.a", b"").unwrap();
    for (name, attribute) in
        [("less", "user.a"), ("none", "user.a"), ("none", "user.b"), ("dir", "user.b")]
    {
        rustix::fs::removexattr(from.join(name), attribute).unwrap();
    }
    let plain = SourceOptions { takes_xattrs: false, ..asking() };
    let before = seen(to);
    let (summary, _, _) = copy(from, to, plain, ApplyOptions::default());
    assert_eq!((summary.copied, summary.unchanged), (0, 5));
    assert_eq!(seen(to), before, "a copy without extended attributes leaves them alone");
    let dry_run = Some(DryRun { has_root: true, skips: true });
    let dry = ApplyOptions { dry_run, ..ApplyOptions::default() };
    let (_, events, _) = copy(from, to, asking(), dry);
    let mut planned: Vec<_> = events
        .0
        .lock()
        .unwrap()
        .iter()
        .filter_map(|(path, event)| {
            let is_planned = matches!(event, Event::Planned { change: Change::Attributes, .. });
            is_planned.then(|| String::from_utf8(path.clone()).unwrap())
        })
        .collect();
    planned.sort();
    assert_eq!(planned, ["dir", "less", "more", "none", "other"]);
    assert_eq!(seen(to), before, "a dry run changes nothing");
    let ino = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    let inodes = names.map(ino);
    let (summary, events, bytes) = copy(from, to, asking(), ApplyOptions::default());
    assert_eq!((summary.copied, summary.unchanged, bytes), (0, 5, 0));
    assert_eq!(events.problems(), vec![]);
    assert_eq!(names.map(ino), inodes);
    assert_same(from, to);
}

#[test]
fn entries_that_the_source_lacks_are_deleted_if_asked_for() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::create_dir_all(from.join("dir")).unwrap();
    fs::write(from.join("dir/file"), b"x").unwrap();
    fs::write(from.join("left-out.o"), b"x").unwrap();
    for path in ["more/deep/er", "dir/more", "dir/sub"] {
        fs::create_dir_all(to.join(path)).unwrap();
        fs::write(to.join(path).join("file"), b"x").unwrap();
    }
    symlink("/etc", to.join("dir/more/etc")).unwrap();
    fs::write(to.join("left-out.o"), b"mine").unwrap();
    let excluding = |mut options: SourceOptions| {
        options.rules.add(false, "*.o").unwrap();
        options
    };
    let deleting = ApplyOptions { deletes: true, ..ApplyOptions::default() };
    let (summary, events, _) = copy(from, to, excluding(asking()), ApplyOptions::default());
    assert_eq!((summary.deleted, events.problems()), (0, vec![]));
    assert!(to.join("dir/more/file").exists());
    let (summary, events, _) = copy(from, to, excluding(asking()), deleting);
    assert_eq!((summary.deleted, events.problems()), (9, vec![]));
    assert_eq!(fs::read(to.join("left-out.o")).unwrap(), b"mine");
    assert!(Path::new("/etc/passwd").exists());
    fs::remove_file(to.join("left-out.o")).unwrap();
    fs::remove_file(from.join("left-out.o")).unwrap();
    copy_all(from, to, asking());
}

#[test]
fn names_beyond_the_limit_delete_nothing_and_are_reported() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for folder in ["a", "b"] {
        for (place, count) in [(from, 6), (to, 9)] {
            fs::create_dir(place.join(folder)).unwrap();
            for file in 0..count {
                fs::write(place.join(folder).join(file.to_string()), b"x").unwrap();
            }
        }
    }
    // All files come in one block, so all names are remembered at once.
    for (names_max, deleted, full) in [(14, 6, &[][..]), (13, 3, &["b"]), (0, 0, &["", "a", "b"])] {
        let apply = ApplyOptions { deletes: true, names_max, ..ApplyOptions::default() };
        let (summary, events, _) = copy(from, to, options(), apply);
        let problems = events.problems();
        let expected: Vec<_> = full.iter().map(|&it| (it.to_owned(), Step::Delete)).collect();
        assert_eq!((problems, summary.deleted), (expected, deleted));
        for folder in ["a", "b"] {
            for file in ["6", "7", "8"] {
                fs::write(to.join(folder).join(file), b"x").unwrap();
            }
        }
    }
}

#[test]
fn other_names_that_wait_are_limited() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("0"), b"x").unwrap();
    for name in 1..9 {
        fs::hard_link(from.join("0"), from.join(name.to_string())).unwrap();
    }
    // The file has been offered, and its hard links come before the answer.
    let apply = ApplyOptions { names_max: 5, ..ApplyOptions::default() };
    let (summary, events, _) = copy(from, to, asking(), apply);
    let problems = events.problems();
    assert_eq!((summary.failed, problems.len()), (3, 3));
    assert!(problems.iter().all(|(_, step)| *step == Step::Link), "{problems:?}");
    assert_eq!(fs::metadata(to.join("0")).unwrap().nlink(), 6);
}

#[test]
fn nothing_is_deleted_where_the_source_could_not_read() {
    if is_root() {
        // Root can read everything, so a name that is too deep for the source takes its place.
        return a_vanished_file_is_reported_and_nothing_deleted();
    }
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::create_dir(from.join("dir")).unwrap();
    fs::write(from.join("unreadable"), b"x").unwrap();
    fs::set_permissions(from.join("unreadable"), Permissions::from_mode(0o0)).unwrap();
    fs::write(to.join("more"), b"x").unwrap();
    let deleting = ApplyOptions { deletes: true, ..ApplyOptions::default() };
    let (summary, events, _) = copy(from, to, options(), deleting);
    assert_eq!(
        (summary.deleted, events.problems()),
        (0, vec![(String::new(), Step::NotDeleted), ("unreadable".into(), Step::Source)])
    );
}

fn a_vanished_file_is_reported_and_nothing_deleted() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("gone"), b"x").unwrap();
    fs::write(from.join("stays"), b"x").unwrap();
    fs::write(to.join("more"), b"x").unwrap();
    let deleting = ApplyOptions { deletes: true, ..ApplyOptions::default() };
    let mut session = Session::new(from, to, asking(), deleting);
    assert!(session.step());
    // The file has been offered and is wanted.
    fs::remove_file(from.join("gone")).unwrap();
    let (summary, events, _) = session.finish();
    let summary = summary.unwrap();
    let expected = [(String::new(), Step::NotDeleted), ("gone".into(), Step::Source)];
    assert_eq!(events.problems(), expected);
    assert_eq!((summary.deleted, summary.copied), (0, 1));
    assert!(to.join("more").exists());
}

#[test]
fn files_that_change_while_they_are_read_are_reported() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    let large = noise(3 << 20, 1);
    let names = ["grows", "shrinks", "rewritten", "large-grows", "large-shrinks", "other"];
    for name in names {
        let data = if name.starts_with("large") { &large[..] } else { &large[..1000] };
        fs::write(from.join(name), data).unwrap();
    }
    let mut source = Source::new(common::contents_of(from), options());
    let events = std::sync::Arc::new(common::Events::default());
    let apply = ApplyOptions::default();
    let mut applier = Applier::begin(open(to), apply, events.clone() as _).unwrap();
    let mut jobs = Vec::new();
    while let Next::Job(job) = source.next_job() {
        jobs.push(job);
    }
    // Everything has been planned, and nothing has been read.
    let resize = |name: &str, len| {
        File::options().write(true).open(from.join(name)).unwrap().set_len(len).unwrap();
    };
    resize("grows", 2000);
    resize("shrinks", 500);
    fs::write(from.join("rewritten"), &large[1000..2000]).unwrap();
    set_mtime(&from.join("rewritten"), 1, 2);
    resize("large-grows", 4 << 20);
    resize("large-shrinks", (1 << 20) + 5);
    for job in jobs {
        let mut payload = vec![1; PAYLOAD];
        let filled = job.fill(&mut payload);
        for task in applier.apply(&payload[..filled.len], filled.table_len).unwrap() {
            assert!(task.run(&payload[..filled.len]).is_none());
        }
    }
    applier.finish().unwrap();
    let problems = events.problems();
    let expected = ["grows", "large-grows", "large-shrinks", "rewritten", "shrinks"];
    assert_eq!(problems, expected.map(|name| (name.to_owned(), Step::Changed)));
    for (name, len) in [("grows", 1000), ("shrinks", 500), ("other", 1000)] {
        assert_eq!(fs::read(to.join(name)).unwrap(), &large[..len], "{name}");
    }
    for (name, len) in [("large-grows", 3 << 20), ("large-shrinks", (1 << 20) + 5)] {
        assert!(fs::read(to.join(name)).unwrap() == large[..len], "{name}");
    }
}

#[test]
fn files_of_the_kernel_are_read_to_their_ends() {
    let Folders { to, folder: _folder, .. } = &Folders::new();
    let name = Name::new(b"version").unwrap();
    let start = Start::entry(open(Path::new("/proc")), name);
    let mut source = Source::new(vec![start], SourceOptions::new(PAYLOAD));
    let events = std::sync::Arc::new(common::Events::default());
    let apply = ApplyOptions::default();
    let mut applier = Applier::begin(open(to), apply, events.clone() as _).unwrap();
    while let Next::Job(job) = source.next_job() {
        let mut payload = vec![1; PAYLOAD];
        let filled = job.fill(&mut payload);
        for task in applier.apply(&payload[..filled.len], filled.table_len).unwrap() {
            assert!(task.run(&payload[..filled.len]).is_none());
        }
    }
    applier.finish().unwrap();
    assert_eq!(events.problems(), []);
    let expected = fs::read("/proc/version").unwrap();
    assert_eq!(fs::read(to.join("version")).unwrap(), expected);
}

#[test]
fn obstacles_are_reported_and_the_rest_is_copied() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("file"), b"x").unwrap();
    fs::write(from.join("large"), noise(2 << 20, 1)).unwrap();
    fs::create_dir(from.join("dir")).unwrap();
    fs::write(from.join("dir/in"), b"x").unwrap();
    symlink("x", from.join("link")).unwrap();
    fs::write(from.join("other"), b"x").unwrap();
    for name in ["file", "large", "link"] {
        fs::create_dir(to.join(name)).unwrap();
        fs::write(to.join(name).join("in"), b"kept").unwrap();
    }
    fs::write(to.join("dir"), b"kept").unwrap();
    let before = seen(to);
    for options in [options(), asking()] {
        let (summary, events, _) = copy(from, to, options, ApplyOptions::default());
        let expected = [
            ("dir", Step::Clash),
            ("dir/in", Step::Create),
            ("file", Step::Clash),
            ("large", Step::Clash),
            ("link", Step::Clash),
        ];
        assert_eq!(events.problems(), expected.map(|(name, step)| (name.to_owned(), step)));
        assert_eq!(summary.failed, 5);
        assert_eq!(fs::read(to.join("other")).unwrap(), b"x");
        for name in ["file", "file/in", "large/in", "link/in", "dir"] {
            assert_eq!(seen(to)[Path::new(name)], before[Path::new(name)]);
        }
    }
    assert_eq!(fs::read_dir(to).unwrap().count(), 5, "no temporary file is left");
}

#[test]
fn names_that_differ_in_case_clash_where_case_is_folded() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for name in ["Name", "name", "other"] {
        fs::write(from.join(name), b"x").unwrap();
    }
    let folding = ApplyOptions { folds_case: Some(true), ..ApplyOptions::default() };
    for options in [options(), asking()] {
        let (_, events, _) = copy(from, to, options, folding);
        assert_eq!(events.problems(), [("name".into(), Step::Clash)]);
        assert!(!to.join("name").exists());
    }
}

#[test]
fn a_single_name_is_copied_under_another_one() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::create_dir(from.join("dir")).unwrap();
    fs::write(from.join("dir/file"), b"x").unwrap();
    fs::write(from.join("left"), b"x").unwrap();
    let name = |text: &str| Some(Name::new(text.as_bytes()).unwrap());
    let start = |old, new_name| Start { name: name(old), new_name, ..Start::contents(open(from)) };
    let starts = vec![start("dir", name("copy")), start("missing", None)];
    let mut session = Session::new(from, to, options(), ApplyOptions::default());
    session.source = Source::new(starts, options());
    let (summary, events, _) = session.finish();
    assert_eq!(summary.unwrap().copied, 1);
    assert_eq!(events.problems(), [("missing".into(), Step::Source)]);
    assert_same(&from.join("dir"), &to.join("copy"));
    assert_eq!(fs::read_dir(to).unwrap().count(), 1);
}

#[test]
fn a_source_sends_nothing_that_it_was_not_asked_for() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    for folder in ["asked", "only/asked"] {
        fs::create_dir_all(from.join(folder)).unwrap();
    }
    for name in ["asked/file", "other"] {
        fs::write(from.join(name), b"x").unwrap();
    }
    let apply = |starts: Vec<Start>, options: SourceOptions| {
        let mut source = Source::new(starts, options);
        let events = std::sync::Arc::new(common::Events::default());
        let asked = [Name::new(b"asked").unwrap()].into();
        let applier = Applier::begin(open(to), ApplyOptions::default(), events as _);
        let mut applier = applier.unwrap().only(asked);
        let Next::Job(job) = source.next_job() else { panic!("no block") };
        let mut payload = vec![1; PAYLOAD];
        let filled = job.fill(&mut payload);
        let tasks = applier.apply(&payload[..filled.len], filled.table_len)?;
        for task in tasks {
            assert!(task.run(&payload[..filled.len]).is_none());
        }
        applier.finish().map(drop)
    };
    let named = |name: &[u8], new_name: &[u8]| {
        let [name, new_name] = [name, new_name].map(|it| Name::new(it).unwrap());
        vec![Start { new_name: Some(new_name), ..Start::entry(open(from), name) }]
    };
    for options in [options(), asking()] {
        // Another name, all names, and the attributes of the root together with the requested name.
        let [all, only] = [from, &from.join("only")].map(|folder| common::contents_of(folder));
        for starts in [named(b"other", b"other"), all, only] {
            let refused = apply(starts, options.clone());
            assert!(matches!(refused, Err(ApplyError::NotAsked(_))), "{refused:?}");
        }
        assert!(!to.join("other").exists());
    }
    apply(named(b"asked", b"asked"), options()).unwrap();
    assert_eq!(fs::read(to.join("asked/file")).unwrap(), b"x");
    fs::remove_dir_all(to.join("asked")).unwrap();
    apply(named(b"other", b"asked"), options()).unwrap();
    assert_eq!(fs::read(to.join("asked")).unwrap(), b"x");
}

#[test]
fn data_that_changes_on_the_way_is_found() {
    let Folders { from, to, folder: _folder } = &Folders::new();
    fs::write(from.join("a-small"), noise(1000, 1)).unwrap();
    fs::write(from.join("b-large"), noise(3 << 20, 1)).unwrap();
    fs::write(to.join("a-small"), b"before").unwrap();
    let mut source = Source::new(common::contents_of(from), options());
    let events = std::sync::Arc::new(common::Events::default());
    let apply = ApplyOptions::default();
    let mut applier = Applier::begin(open(to), apply, events.clone() as _).unwrap();
    while let Next::Job(job) = source.next_job() {
        let mut payload = vec![1; PAYLOAD];
        let filled = job.fill(&mut payload);
        if let Some(byte) = payload[..filled.len].get_mut(filled.table_len) {
            *byte ^= 1;
        }
        for task in applier.apply(&payload[..filled.len], filled.table_len).unwrap() {
            assert!(task.run(&payload[..filled.len]).is_none());
        }
    }
    applier.finish().unwrap();
    let expected = ["a-small", "b-large"].map(|name| (name.to_owned(), Step::Verify));
    assert_eq!(events.problems(), expected);
    assert_eq!(fs::read(to.join("a-small")).unwrap(), b"before");
    assert_eq!(fs::read_dir(to).unwrap().count(), 1, "no temporary file is left");
}
