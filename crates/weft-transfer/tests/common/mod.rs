//! Copies trees between two folders through blocks in memory, and compares them.

#![allow(dead_code, clippy::unwrap_used)] // Each test program uses a part of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use fastrand::Rng;
use weft_transfer::tree::apply::{
    Applier, ApplyError, ApplyOptions, Event, Problem, Report, Step, Subject, Summary, Task,
};
use weft_transfer::tree::job::Job;
use weft_transfer::tree::source::{Next, Source, SourceOptions, Start};
use weft_transfer::wire::record_wants::Wants;

pub(crate) const PAYLOAD: usize = 1 << 20;

/// Two folders on a file system that supports holes, nanosecond times and extended attributes.
pub(crate) struct Folders {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
}

impl Folders {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        Self { folder, from, to }
    }
}

/// Records the events.
#[derive(Default)]
pub(crate) struct Events(pub(crate) Mutex<Vec<(Vec<u8>, Event)>>);

impl Report for Events {
    fn event(&self, subject: Subject<'_>, event: Event) {
        self.0.lock().unwrap().push((subject.path(), event));
    }
}

impl Events {
    pub(crate) fn problems(&self) -> Vec<(String, Step)> {
        let events = self.0.lock().unwrap();
        let problem = |(path, event): &(Vec<u8>, Event)| match event {
            Event::Problem(Problem { step, .. }) => {
                Some((String::from_utf8_lossy(path).into_owned(), *step))
            }
            _ => None,
        };
        let mut problems: Vec<_> = events.iter().filter_map(problem).collect();
        problems.sort_by(|one, other| one.0.cmp(&other.0));
        problems
    }

    pub(crate) fn paths(&self, is: impl Fn(&Event) -> bool) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let found = events.iter().filter(|(_, event)| is(event));
        let mut paths: Vec<String> =
            found.map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect();
        paths.sort();
        paths
    }
}

pub(crate) fn open(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

pub(crate) fn contents_of(path: &Path) -> Vec<Start> {
    vec![Start::contents(open(path))]
}

/// A task and its block.
struct Work {
    task: Task,
    payload: Arc<Vec<u8>>,
}

/// A source and a sink, and the blocks between them.
pub(crate) struct Session {
    pub(crate) source: Source,
    pub(crate) applier: Applier,
    pub(crate) events: Arc<Events>,
    /// The bytes of data that were sent.
    pub(crate) bytes: u64,
    payload_len: usize,
    rng: Rng,
    wants: Vec<Wants>,
}

impl Session {
    pub(crate) fn new(from: &Path, to: &Path, options: SourceOptions, apply: ApplyOptions) -> Self {
        let events = Arc::new(Events::default());
        let applier = Applier::begin(open(to), apply, Arc::clone(&events) as _).unwrap();
        let applier = applier.copying(options.copies.clone());
        let payload_len = options.payload_len;
        let source = Source::new(contents_of(from), options);
        let (rng, wants) = (Rng::with_seed(7), Vec::new());
        Self { source, applier, events, bytes: 0, payload_len, rng, wants }
    }

    /// Plans some blocks, fills them in any order, applies them in order, and runs the tasks in any
    /// order on several threads. Returns false at the end.
    pub(crate) fn step(&mut self) -> bool {
        let (tasks, is_done) = self.tasks();
        self.run(tasks);
        !is_done
    }

    /// Runs some steps, then a part of the next step's tasks, and aborts.
    pub(crate) fn break_off(mut self, steps: usize, rng: &mut Rng) -> Arc<Events> {
        for _ in 0..steps {
            if !self.step() {
                break;
            }
        }
        let (mut tasks, _) = self.tasks();
        rng.shuffle(&mut tasks);
        tasks.truncate(rng.usize(..=tasks.len()));
        self.run(tasks);
        self.events
    }

    fn tasks(&mut self) -> (Vec<Work>, bool) {
        let is_answered = !self.wants.is_empty();
        self.rng.shuffle(&mut self.wants);
        for wants in std::mem::take(&mut self.wants) {
            let wants = Wants::parse(&wants.emit()).unwrap();
            self.source.answer(&wants).unwrap();
        }
        let mut jobs: Vec<Job> = Vec::new();
        let mut is_done = false;
        while jobs.len() < 4 && !is_done {
            match self.source.next_job() {
                Next::Job(job) => jobs.push(*job),
                Next::Wait => break,
                Next::Done => is_done = true,
            }
        }
        assert!(is_answered || is_done || !jobs.is_empty(), "the source waits for no answer");
        self.rng.shuffle(&mut jobs);
        let mut blocks: BTreeMap<u64, (Vec<u8>, usize)> = BTreeMap::new();
        for job in jobs {
            let mut payload = vec![0xaa; self.payload_len];
            let (number, len) = (job.number, job.len());
            let filled = job.fill(&mut payload);
            assert_eq!(filled.len, len);
            payload.truncate(filled.len);
            self.bytes += (filled.len - filled.table_len) as u64;
            blocks.insert(number, (payload, filled.table_len));
        }
        let mut tasks = Vec::new();
        for (payload, table_len) in blocks.into_values() {
            let payload = Arc::new(payload);
            for task in self.applier.apply(&payload, table_len).unwrap() {
                tasks.push(Work { task, payload: Arc::clone(&payload) });
            }
        }
        (tasks, is_done)
    }

    fn run(&mut self, mut tasks: Vec<Work>) {
        self.rng.shuffle(&mut tasks);
        let half = tasks.split_off(tasks.len() / 2);
        let run = |tasks: Vec<Work>| -> Vec<Wants> {
            tasks.into_iter().filter_map(|Work { task, payload }| task.run(&payload)).collect()
        };
        let wants = thread::scope(|scope| {
            let other = scope.spawn(|| run(half));
            let mut wants = run(tasks);
            wants.extend(other.join().unwrap());
            wants
        });
        self.wants.extend(wants);
    }

    pub(crate) fn finish(mut self) -> (Result<Summary, ApplyError>, Arc<Events>, u64) {
        while self.step() {}
        (self.applier.finish(), self.events, self.bytes)
    }
}

/// Copies the contents of one folder to another.
pub(crate) fn copy(
    from: &Path,
    to: &Path,
    options: SourceOptions,
    apply: ApplyOptions,
) -> (Summary, Arc<Events>, u64) {
    let (summary, events, bytes) = Session::new(from, to, options, apply).finish();
    (summary.unwrap(), events, bytes)
}

/// Copies, and compares the result with the source.
pub(crate) fn copy_all(from: &Path, to: &Path, options: SourceOptions) {
    let (summary, events, _) = copy(from, to, options, ApplyOptions::default());
    assert_eq!(events.problems(), []);
    assert_eq!((summary.failed, summary.warnings), (0, 0));
    assert_same(from, to);
}

/// All properties of an entry that a copy must keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    content: Vec<u8>,
    /// The first path of the same file.
    first_name: PathBuf,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Seen {
    /// Whether it is a file with this hash.
    pub(crate) fn is_file_with(&self, hash: &[u8]) -> bool {
        self.kind.starts_with("file") && self.content == hash
    }
}

/// Returns everything below a folder by path, including the folder itself.
pub(crate) fn seen(folder: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut queue = vec![folder.to_owned()];
    while let Some(path) = queue.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let mut content = Vec::new();
        let name = if kind.is_file() {
            // Large files here are mostly holes, so their sizes and hashes suffice.
            let file = File::open(&path).unwrap();
            let mut hasher = blake3::Hasher::new();
            if meta.len() < 1 << 30 {
                hasher.update_reader(file).unwrap();
            }
            content.extend_from_slice(hasher.finalize().as_bytes());
            format!("file of {}", meta.len())
        } else if kind.is_dir() {
            queue.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            "directory".into()
        } else if kind.is_symlink() {
            content = fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec();
            "link".into()
        } else {
            format!("other, device {} {}", kind.is_fifo(), meta.rdev())
        };
        let xattrs = if kind.is_file() || kind.is_dir() { xattrs(&path) } else { Vec::new() };
        let seen = Seen {
            kind: name,
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            content,
            first_name: PathBuf::from(format!("{}:{}", meta.dev(), meta.ino())),
            xattrs,
        };
        let path = path.strip_prefix(folder).unwrap().to_owned();
        all.insert(path, seen);
    }
    let mut first_names: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for (path, seen) in &mut all {
        let first = first_names.entry(seen.first_name.clone()).or_insert_with(|| path.clone());
        seen.first_name = first.clone();
    }
    all
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; 1 << 16];
    let Ok(len) = rustix::fs::llistxattr(path, &mut list[..]) else { return Vec::new() };
    let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        (name.to_vec(), value)
    };
    let mut xattrs: Vec<_> = names.map(value).collect();
    xattrs.sort();
    xattrs
}

pub(crate) fn assert_same(from: &Path, to: &Path) {
    let (expected, found) = (seen(from), seen(to));
    for (path, seen) in &expected {
        assert_eq!(found.get(path), Some(seen), "{}", path.display());
    }
    let more: Vec<&PathBuf> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} should not be there");
}

/// Sets the mtime of a file, or of a link itself.
pub(crate) fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::with_seed(seed).fill(&mut data);
    data
}

/// Creates a tree with all kinds of entries.
pub(crate) fn random_tree(folder: &Path, rng: &mut Rng) {
    let mut dirs = vec![folder.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for _ in 0..rng.usize(1..40) {
        let dir = rng.choice(&dirs).unwrap().clone();
        let len = rng.usize(1..20);
        let name: Vec<u8> =
            (0..len).map(|_| *rng.choice(b"ab \n\xff-.\"*".iter()).unwrap()).collect();
        let path = dir.join(OsStr::from_bytes(&name));
        if name.iter().all(|&byte| byte == b'.') || fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        match rng.u8(..10) {
            0..3 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            3..6 => {
                let len = rng.usize(..5000);
                fs::write(&path, noise(len, rng.u64(..))).unwrap();
                files.push(path.clone());
            }
            6 => {
                let len = rng.usize(..2_000_000);
                fs::write(&path, noise(len, rng.u64(..))).unwrap();
                files.push(path.clone());
            }
            7 => {
                let mut file = File::create(&path).unwrap();
                for _ in 0..rng.usize(..4) {
                    file.seek(SeekFrom::Start(rng.u64(..4_000_000))).unwrap();
                    file.write_all(&noise(rng.usize(..100_000), 1)).unwrap();
                }
                file.set_len(4_200_000).unwrap();
                files.push(path.clone());
            }
            8 => symlink(OsStr::from_bytes(&name[..1]), &path).unwrap(),
            _ => {
                if let Some(file) = rng.choice(&files) {
                    fs::hard_link(file, &path).unwrap();
                }
                continue;
            }
        }
        if !path.is_symlink() && is_root() {
            let mode = rng.u32(..0o10000);
            std::os::unix::fs::chown(&path, Some(rng.u32(..3)), Some(rng.u32(..3))).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        set_mtime(&path, rng.i64(-2_000_000_000..10_000_000_000), rng.i64(0..1_000_000_000));
    }
    for dir in &dirs {
        set_mtime(dir, rng.i64(0..2_000_000_000), rng.i64(0..1_000_000_000));
    }
}

/// The length of a journal up to the end of its mark.
const MARKED_LEN: u64 = 8 + 35 + 8 + 53;

pub(crate) fn session_files(folder: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| path.file_name().unwrap().as_bytes().starts_with(b".weft-");
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(is_own).collect()
}

/// Returns options that keep a journal and go on with an interrupted copy.
pub(crate) fn journaling() -> ApplyOptions {
    ApplyOptions { keeps_journal: true, resumes: true, ..ApplyOptions::default() }
}

/// Returns the only temporary file in a folder.
pub(crate) fn partial(folder: &Path) -> PathBuf {
    let is_partial = |path: &PathBuf| {
        let name = path.file_name().unwrap().as_bytes();
        name.len() > 32 && name[name.len() - 31..].starts_with(b".weft-")
    };
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = entries.filter(is_partial).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

/// Changes a byte of a file, and neither its size nor its mtime.
pub(crate) fn damage(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mtime = file.metadata().unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.set_modified(mtime).unwrap();
}

/// Checks that copies of random trees with these options go on wherever they are interrupted.
pub(crate) fn break_off_anywhere(asking: fn() -> SourceOptions) {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let Folders { from, to, folder: _folder } = &Folders::new();
        random_tree(from, &mut rng);
        for _ in 0..rng.usize(1..4) {
            let session = Session::new(from, to, asking(), journaling());
            let steps = rng.usize(..12);
            session.break_off(steps, &mut rng);
            // The journal may end at any byte after its mark, without which it is nobody's.
            for journal in session_files(to) {
                let len = fs::metadata(&journal).unwrap().len();
                let cut = if rng.bool() { len } else { rng.u64(MARKED_LEN.min(len)..=len) };
                File::options().write(true).open(journal).unwrap().set_len(cut).unwrap();
            }
        }
        let (summary, events, _) = copy(from, to, asking(), journaling());
        assert_eq!((events.problems(), summary.failed), (vec![], 0), "seed {seed}");
        assert_same(from, to);
    }
}
