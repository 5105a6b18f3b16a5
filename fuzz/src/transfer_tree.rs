//! Bodies of the targets for the trees of `weft-transfer`. Each takes any bytes. A panic is a
//! finding, and so is a change outside of the destination directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_transfer::tree::apply::{Applier, ApplyOptions, Event, Report, Subject};
use weft_transfer::tree::journal::{self, Origin};
use weft_transfer::wire::record::Record;
use weft_transfer::wire::record_bytes::Reader;
use weft_transfer::wire::record_table;
use weft_transfer::wire::record_wants::Wants;

/// Records and answers that parse must emit bytes that parse to the same value.
pub fn records(data: &[u8]) {
    let Some((table_len, payload)) = data.split_first_chunk() else { return };
    let table_len = usize::from(u16::from_be_bytes(*table_len));
    if let Ok(placed) = record_table::parse(payload, table_len) {
        let (mut table, mut end) = (Vec::new(), table_len);
        for record in &placed {
            assert_eq!((record.data.start, record.data.len()), (end, record.record.data_len()));
            end = record.data.end;
            let mut bytes = Vec::new();
            record.record.emit(&mut bytes);
            assert_eq!(Record::parse(&mut Reader::new(&bytes)).as_ref(), Ok(&record.record));
            table.extend_from_slice(&bytes);
        }
        assert_eq!(end, payload.len());
        let len = table.len();
        table.extend_from_slice(&payload[table_len..]);
        // The emitted table may be shorter than the parsed one, so the offsets of the data may
        // change.
        let again = record_table::parse(&table, len).expect("the same records");
        assert!(again.iter().map(|it| &it.record).eq(placed.iter().map(|it| &it.record)));
    }
    if let Ok(wants) = Wants::parse(payload) {
        assert_eq!(Wants::parse(&wants.emit()), Ok(wants));
    }
}

/// The ranges of a journal must lie inside their files. On another host a journal says the same.
pub fn journal(data: &[u8]) {
    let here = Origin { boot: [7; 16], mount: 7 };
    let there = Origin { boot: [8; 16], mount: 7 };
    let contents = journal::read(Cursor::new(data), here);
    for file in &contents.unfinished {
        assert!(file.ranges.iter().all(|(offset, len)| offset + len <= file.size));
        assert!(contents.named.iter().any(|(path, _)| *path == file.path));
    }
    let elsewhere = journal::read(Cursor::new(data), there);
    assert!(elsewhere.unfinished == contents.unfinished);
}

struct Nothing;

impl Report for Nothing {
    fn event(&self, subject: Subject<'_>, _: Event) {
        let path = subject.path();
        let is_inside = path.split(|&byte| byte == b'/').all(|part| part != b"..");
        assert!(is_inside && path.first() != Some(&b'/'));
    }
}

/// A destination directory with symbolic links that lead out of it, and the directory outside,
/// which must not change.
#[derive(Debug)]
pub struct Surroundings {
    folder: PathBuf,
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl Surroundings {
    /// Creates both in an empty directory.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn new(folder: &Path) -> Self {
        let (outside, root) = (folder.join("outside"), folder.join("root"));
        fs::create_dir_all(outside.join("dir")).expect("a folder");
        fs::write(outside.join("file"), b"outside").expect("a file");
        fs::write(outside.join("dir/.file.weft-00000001"), b"outside").expect("a file");
        fs::create_dir_all(root.join("dir/dir")).expect("a folder");
        fs::write(root.join("file"), b"inside").expect("a file");
        fs::write(root.join("dir/file"), b"inside").expect("a file");
        symlink(&outside, root.join("abs")).expect("a link");
        symlink("../outside", root.join("link")).expect("a link");
        symlink("../../outside/file", root.join("dir/link")).expect("a link");
        symlink("..", root.join("dir/up")).expect("a link");
        let mut surroundings = Self { folder: folder.to_owned(), before: BTreeMap::new() };
        surroundings.before = surroundings.outside();
        surroundings
    }

    /// Returns the destination directory.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Returns the directory that must not change.
    pub fn outside_folder(&self) -> PathBuf {
        self.folder.join("outside")
    }

    /// # Panics
    /// If anything outside of the root has changed.
    pub fn check(&self) {
        assert_eq!(self.outside(), self.before);
        assert!(fs::symlink_metadata(self.root()).expect("the root").is_dir());
        assert_eq!(fs::read_dir(&self.folder).expect("the folder").count(), 2);
    }

    fn outside(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut queue = vec![self.outside_folder()];
        while let Some(path) = queue.pop() {
            let meta = fs::symlink_metadata(&path).expect("what was there");
            let mut about = format!(
                "{:o} {} {} {} {} {}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.ino(),
                meta.mtime(),
                meta.mtime_nsec()
            )
            .into_bytes();
            if meta.is_dir() {
                let entries = fs::read_dir(&path).expect("a folder");
                queue.extend(entries.map(|entry| entry.expect("an entry").path()));
            } else {
                about.extend(fs::read(&path).expect("a file"));
            }
            all.insert(path, about);
        }
        all
    }
}

/// Applies blocks to a destination in an empty directory, and checks that nothing outside of the
/// destination changes.
///
/// The input is a byte of options, a journal after its length in two bytes, and blocks. Each block
/// follows the lengths of its table and of its payload.
pub fn apply(data: &[u8], folder: &Path) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let bit = |n: u8| flags & (1 << n) != 0;
    let surroundings = Surroundings::new(folder);
    let root = surroundings.root();
    let mut from = Reader::new(rest);
    let Ok(journal) = from.counted_u16() else { return };
    if !journal.is_empty() {
        fs::write(root.join(".weft-00000001"), journal).expect("a journal");
    }
    let options = ApplyOptions {
        deletes: bit(0),
        keeps_journal: bit(1),
        resumes: bit(2),
        keeps_owners: bit(3),
        keeps_modes: bit(4),
        folds_case: Some(bit(5)),
        ..ApplyOptions::default()
    };
    let dir = File::open(&root).expect("the root").into();
    let mut applier = Applier::begin(dir, options, Arc::new(Nothing)).expect("a session");
    while let Ok(table_len) = from.u16() {
        let Ok(payload) = from.counted_u16() else { break };
        let Ok(mut tasks) = applier.apply(payload, table_len.into()) else { break };
        if bit(6) {
            tasks.reverse();
        }
        for task in tasks {
            if let Some(wants) = task.run(payload) {
                assert_eq!(Wants::parse(&wants.emit()), Ok(wants));
            }
        }
    }
    if applier.is_finished() {
        applier.finish().expect("an end");
    } else {
        drop(applier);
    }
    surroundings.check();
}
