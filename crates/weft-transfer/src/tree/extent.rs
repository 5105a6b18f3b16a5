//! Parts of files that a transport reads itself: the kernel sends them from the page cache.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use crate::tree::reading::Reading;

/// A part of a file that is the last part of a block's payload.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    reading: Arc<Reading>,
    offset: u64,
    len: usize,
}

impl Extent {
    pub(super) fn new(reading: Arc<Reading>, offset: u64, len: usize) -> Self {
        let extent = Self { reading, offset, len };
        extent.prefetch();
        extent
    }

    /// Has the kernel read the part if it is not in the page cache. Otherwise the thread of a
    /// channel would wait for the disk.
    fn prefetch(&self) {
        let last = self.offset + self.len as u64 - 1;
        let mut byte = [0];
        let parts = &mut [std::io::IoSliceMut::new(&mut byte)];
        if preadv2(&*self.reading.fd, parts, last, ReadWriteFlags::NOWAIT) == Err(Errno::AGAIN) {
            let len = std::num::NonZeroU64::new(self.len as u64);
            // Without it the copy is only slower.
            let _ = fadvise(&*self.reading.fd, self.offset, len, Advice::WillNeed);
        }
    }

    pub(crate) fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.reading.fd)
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the part into memory, for a transport that cannot take it from the file.
    pub(crate) fn read(&self, data: &mut [u8]) {
        self.reading.read_part(self.offset, data);
    }

    /// Records that the transport has found only so many bytes of the part, and why.
    pub(crate) fn is_short(&self, had: usize) {
        let end = self.offset + had as u64;
        match pread(&*self.reading.fd, &mut [0], end) {
            Err(error) if error != Errno::INTR => self.reading.failed(error),
            // If the file has grown again, its bytes were sent as zeros nevertheless.
            _ => self.reading.ends_at(end),
        }
    }

    /// Records that the part has arrived. Returns whether it was the last one of its file.
    pub(crate) fn has_arrived(&self) -> bool {
        self.reading.is_read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::EXTENT_FILE_LEN_MIN;
    use crate::tree::job::Filled;
    use crate::tree::source::{Next, Source, SourceOptions, Start};
    use crate::wire::record::{Record, Status};
    use crate::wire::record_table;
    use std::fs::{self, File};
    use std::path::Path;

    const PAYLOAD: usize = 1 << 20;

    fn source(folder: &Path) -> Source {
        let directory = File::open(folder).expect("a folder").into();
        let starts = vec![Start::contents(directory)];
        Source::new(starts, SourceOptions { sends_extents: true, ..SourceOptions::new(PAYLOAD) })
    }

    /// Fills all blocks that can be planned. Returns their records and their extents.
    fn plan(source: &mut Source) -> (Vec<Record>, Vec<Extent>) {
        let (mut records, mut extents) = (Vec::new(), Vec::new());
        while let Next::Job(job) = source.next_job() {
            let mut payload = vec![0xaa; PAYLOAD];
            let (Filled { table_len, len }, extent) = job.fill_before_extent(&mut payload);
            let placed = record_table::parse(&payload[..len], table_len).expect("a payload");
            records.extend(placed.into_iter().map(|it| it.record));
            extents.extend(extent);
        }
        (records, extents)
    }

    fn ends(records: &[Record]) -> Vec<&'static str> {
        let name = |record: &Record| match record {
            Record::End { .. } => Some("file"),
            Record::DirectoryEnd { .. } => Some("directory"),
            Record::Finish { .. } => Some("all"),
            _ => None,
        };
        records.iter().filter_map(name).collect()
    }

    #[test]
    fn end_of_a_file_waits_until_all_extents_have_arrived() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("room");
        let len = EXTENT_FILE_LEN_MIN as usize + 5;
        fs::write(folder.path().join("sub/file"), vec![7; len]).expect("room");
        let mut source = source(folder.path());
        let (records, extents) = plan(&mut source);
        assert_eq!(ends(&records), [""; 0]);
        let sent: usize = extents.iter().map(Extent::len).sum();
        // The last part is too short for an extent, and is read.
        assert!(extents.len() >= 4 && sent >= len - 2 * (64 << 10), "{sent}");
        let (last, others) = extents.split_last().expect("extents");
        assert!(others.iter().all(|extent| !extent.has_arrived()));
        assert!(matches!(source.next_job(), Next::Wait));
        assert!(last.has_arrived());
        let (records, _) = plan(&mut source);
        assert_eq!(ends(&records), ["file", "directory", "all"]);
        assert!(matches!(source.next_job(), Next::Done));
    }

    /// Changes the only file after its blocks were filled, and returns the status that its end has.
    fn status_after(change: impl FnOnce(&Path, &[Extent])) -> Status {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, vec![7; 5 << 20]).expect("room");
        let mut source = source(folder.path());
        let (_, extents) = plan(&mut source);
        change(&file, &extents);
        let all_but_one = extents.iter().filter(|extent| !extent.has_arrived()).count();
        assert_eq!(all_but_one, extents.len() - 1);
        let end = plan(&mut source).0.into_iter().find_map(|record| match record {
            Record::End { tail, .. } => Some(tail.status),
            _ => None,
        });
        end.expect("an end")
    }

    #[test]
    fn a_change_of_the_file_before_its_parts_have_arrived_is_reported() {
        assert_eq!(status_after(|_, _| ()), Status::Good);
        let shorten = |file: &Path, len| {
            File::options().write(true).open(file).and_then(|it| it.set_len(len)).expect("a file");
        };
        assert_eq!(status_after(|file, _| shorten(file, 1 << 20)), Status::Changed);
        // The transport has found the end, and then the file has got its length and time again.
        let restored = status_after(|file, extents| {
            let before = fs::metadata(file).and_then(|it| it.modified()).expect("a time");
            shorten(file, 1 << 20);
            extents.last().expect("an extent").is_short(0);
            shorten(file, 5 << 20);
            let times = fs::FileTimes::new().set_modified(before);
            let file = File::options().write(true).open(file).expect("a file");
            file.set_times(times).expect("its owner");
        });
        assert_eq!(restored, Status::Changed);
    }

    #[test]
    fn a_transport_that_takes_no_extents_reads_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 251) as u8).collect();
        fs::write(folder.path().join("file"), &bytes).expect("room");
        let (_, extents) = plan(&mut source(folder.path()));
        for extent in extents {
            let mut data = vec![0; extent.len()];
            extent.read(&mut data);
            assert!(data == bytes[extent.offset() as usize..][..data.len()]);
        }
    }
}
