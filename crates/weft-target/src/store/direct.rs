//! A file or block device that is read and written without the kernel's page cache.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Extent, File, Store, within};
use crate::aligned::Aligned;
use crate::cache::Origin;
use crate::limits::{PAGE_LEN, STEP_LEN};

thread_local! {
    /// What a step of this thread goes through.
    static SECTORS: RefCell<Aligned> = RefCell::new(Aligned::filled(STEP_LEN, 0));
}

/// A file or a block device by direct I/O.
///
/// The kernel moves whole sectors to and from aligned memory. What is not whole or not aligned goes
/// through a buffer; of a sector that is written in part, the rest is read first.
#[derive(Debug)]
pub struct Direct {
    file: File,
    /// Bytes of a sector, and of the alignment of memory.
    sector_len: usize,
    /// A write of a part of a sector holds it alone: it would undo another one's write of the rest.
    /// Writes of whole sectors share it.
    sectors: RwLock<()>,
}

/// The guard of a write: one of both.
type Turn<'a> = (Option<RwLockReadGuard<'a, ()>>, Option<RwLockWriteGuard<'a, ()>>);

impl Direct {
    /// Opens the file or block device at `path`, and keeps its length as it is.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, is in memory, or does not end with a whole sector, or if the file
    /// system has no direct I/O.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        let file = File::open_direct(path, is_read_only)?;
        let sector_len = file.direct_alignment()?.filter(|_| !file.is_instant());
        Self::with_sectors(file, sector_len.unwrap_or_default())
    }

    fn with_sectors(file: File, sector_len: usize) -> io::Result<Self> {
        let is_valid = sector_len.is_power_of_two() && sector_len <= PAGE_LEN;
        if !is_valid {
            let what = "the file system has no direct I/O, or is in memory";
            return Err(io::Error::new(ErrorKind::Unsupported, what));
        }
        let direct = Self { file, sector_len, sectors: RwLock::new(()) };
        direct.check_len(direct.file.len())?;
        Ok(direct)
    }

    fn check_len(&self, len: u64) -> io::Result<()> {
        if self.is_whole(0, len) {
            return Ok(());
        }
        let what = format!("{len} bytes are not a multiple of {}", self.sector_len);
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    }

    /// Whether a range has whole sectors only.
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.sector_len as u64)
    }

    fn is_aligned(&self, bytes: &[u8]) -> bool {
        (bytes.as_ptr() as usize).is_multiple_of(self.sector_len)
    }

    /// The sectors that have a byte of a range.
    fn around(&self, range: &Range<u64>) -> Range<u64> {
        let sector_len = self.sector_len as u64;
        range.start / sector_len * sector_len..range.end.next_multiple_of(sector_len)
    }

    /// The parts of a range that go through one buffer each.
    fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        super::steps(range, STEP_LEN as u64)
    }

    /// Waits for the turn of a write.
    fn turn(&self, offset: u64, len: u64) -> Turn<'_> {
        let is_whole = self.is_whole(offset, len);
        let shared = || self.sectors.read().unwrap_or_else(PoisonError::into_inner);
        let alone = || self.sectors.write().unwrap_or_else(PoisonError::into_inner);
        (is_whole.then(shared), (!is_whole).then(alone))
    }

    /// Writes a part of at most a step, in the turn of its write.
    fn write_step(&self, range: &Range<u64>, bytes: &[u8]) -> io::Result<()> {
        let around = self.around(range);
        let at = (range.start - around.start) as usize;
        with_sectors(&around, |sectors| {
            if around != *range {
                self.file.read(around.start, sectors)?;
            }
            sectors[at..at + bytes.len()].copy_from_slice(bytes);
            self.file.write(around.start, sectors)
        })
    }
}

/// Calls `use_them` with memory for sectors, of one step at most.
fn with_sectors<T>(around: &Range<u64>, use_them: impl FnOnce(&mut [u8]) -> T) -> T {
    let len = (around.end - around.start) as usize;
    SECTORS.with_borrow_mut(|sectors| use_them(&mut sectors[..len]))
}

impl Store for Direct {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn medium_len(&self) -> io::Result<u64> {
        self.file.medium_len()
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.check_len(len)?;
        self.file.resize(len)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = within(self, offset, buffer.len() as u64)?;
        if self.is_whole(offset, buffer.len() as u64) && self.is_aligned(buffer) {
            return self.file.read(offset, buffer);
        }
        for step in Self::steps(range) {
            let around = self.around(&step);
            let (to, from) = ((step.start - offset) as usize, (step.start - around.start) as usize);
            let len = (step.end - step.start) as usize;
            with_sectors(&around, |sectors| {
                self.file.read(around.start, sectors)?;
                buffer[to..to + len].copy_from_slice(&sectors[from..from + len]);
                io::Result::Ok(())
            })?;
        }
        Ok(())
    }

    /// Direct I/O waits for the medium.
    fn try_read(&self, _offset: u64, _buffer: &mut [u8]) -> Option<io::Result<()>> {
        None
    }

    fn try_write(&self, _offset: u64, _bytes: &[u8]) -> Option<io::Result<()>> {
        None
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = within(self, offset, bytes.len() as u64)?;
        let _turn = self.turn(offset, bytes.len() as u64);
        if self.is_whole(offset, bytes.len() as u64) && self.is_aligned(bytes) {
            return self.file.write(offset, bytes);
        }
        for step in Self::steps(range) {
            let part = &bytes[(step.start - offset) as usize..(step.end - offset) as usize];
            self.write_step(&step, part)?;
        }
        Ok(())
    }

    /// What the medium has in a cache of its own, and the lengths of files, have to be made safe.
    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        let range = within(self, range.start, len)?;
        let _turn = self.turn(range.start, len);
        if range.is_empty() || self.file.punch(&range)? {
            return Ok(());
        }
        let zeros = vec![0; STEP_LEN.min(len as usize)];
        for step in Self::steps(range) {
            self.write_step(&step, &zeros[..(step.end - step.start) as usize])?;
        }
        Ok(())
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        self.file.extent(offset)
    }

    fn origin(&self) -> Option<Origin> {
        self.file.origin()
    }

    fn is_thin(&self) -> bool {
        self.file.is_thin()
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const SECTORS: usize = 80;

    /// A file by direct I/O, with sectors of this length. `None` if that cannot be.
    fn direct(name: &str, sector_len: usize) -> Option<Direct> {
        let path = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![0; SECTORS * sector_len]).unwrap();
        let opened = File::open_direct(&path, false);
        let opened = opened.and_then(|file| {
            let possible = file.direct_alignment()?.unwrap_or_default();
            Direct::with_sectors(file, if possible > 0 { sector_len.max(possible) } else { 0 })
        });
        std::fs::remove_file(&path).unwrap();
        // Without direct I/O on the disk of temporary files there is nothing to test.
        opened.ok()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Read(Range<usize>),
        Write(Range<usize>),
        Discard(Range<usize>),
    }

    fn step(len: usize) -> impl Strategy<Value = Step> {
        let range = move || {
            prop_oneof![
                (0..len, 0..300_000_usize),
                (0..len / 512, 0..20_usize).prop_map(|(at, count)| (at * 512, count * 512)),
            ]
            .prop_map(move |(at, count)| at..len.min(at + count))
        };
        prop_oneof![
            range().prop_map(Step::Read),
            range().prop_map(Step::Write),
            range().prop_map(Step::Discard),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn direct_io_is_like_memory(
            steps in prop::collection::vec(step(SECTORS * 4_096), 1..40),
            seed in any::<u32>(),
        ) {
            let Some(direct) = direct(&format!("direct-{seed}"), 4_096) else { return Ok(()) };
            let mut model = vec![0; SECTORS * 4_096];
            for (number, step) in (1_u8..).zip(steps) {
                match step {
                    Step::Read(range) => {
                        let mut buffer = vec![1; range.len()];
                        direct.read(range.start as u64, &mut buffer).unwrap();
                        prop_assert!(buffer == model[range]);
                    }
                    Step::Write(range) => {
                        model[range.clone()].fill(number);
                        direct.write(range.start as u64, &model[range]).unwrap();
                    }
                    Step::Discard(range) => {
                        model[range.clone()].fill(0);
                        direct.discard(range.start as u64..range.end as u64).unwrap();
                    }
                }
            }
            let mut all = Aligned::filled(model.len(), 1);
            direct.read(0, &mut all).unwrap();
            prop_assert!(*all == *model);
        }
    }

    /// Writes of parts of a sector leave its other bytes as others write them meanwhile.
    #[test]
    fn writes_of_one_sector_do_not_undo_one_another() {
        let Some(direct) = direct("direct-parts", 4_096) else { return };
        let direct = Arc::new(direct);
        for round in 1..=40_u8 {
            thread::scope(|scope| {
                for part in 0..4_u64 {
                    let direct = &direct;
                    scope.spawn(move || direct.write(part * 1_024, &[round; 1_024]).unwrap());
                }
                scope.spawn(|| direct.write(4_096, &[round; 4_096]).unwrap());
            });
            let mut stored = vec![0; 8_192];
            direct.read(0, &mut stored).unwrap();
            assert_eq!(stored, vec![round; 8_192]);
        }
    }

    #[test]
    fn what_direct_io_cannot_do_is_refused() {
        let Some(direct) = direct("direct-limits", 4_096) else { return };
        let len = direct.len();
        assert!(direct.read(len - 1, &mut [0; 2]).is_err());
        assert!(direct.write(u64::MAX, &[0; 2]).is_err());
        assert!(direct.discard(len..len + 1).is_err());
        assert!(direct.resize(len + 512).is_err());
        direct.resize(len + 4_096).unwrap();
        direct.write(len, &[1; 4_096]).unwrap();
        assert!(direct.try_read(0, &mut [0; 512]).is_none());
        assert!(Direct::open(Path::new("/dev/null"), false).is_err());
    }
}
