//! The session's file in the root, and those of earlier sessions.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, StatxFlags, flock, fstat, statx, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::tree::journal::{Contents, Journal, Origin, Unfinished};
use crate::tree::temporary::{self, Maker};
use crate::tree::{beneath, listing, metadata};

use super::dead::{self, Others};
use super::options::ApplyOptions;

/// Seconds by which file timestamps may lag behind the clock.
const CLOCK_SLACK: i64 = 1;

/// The session: its number, and the leftovers of earlier ones.
#[derive(Debug)]
pub(super) struct Session {
    /// Makes the temporary names of the session.
    pub(super) maker: Maker,
    pub(super) journal: Option<Journal>,
    pub(super) others: Others,
    /// Files to resume, by their paths.
    pub(super) unfinished: HashMap<Box<[u8]>, Unfinished>,
    /// Files that changed since this time may have lost their data in a crash.
    pub(super) suspect_since: Option<i64>,
    /// The group of the session's file; a dry run has no such file.
    pub(super) gid: Option<u32>,
    /// The lock that shows that this session is alive.
    _lock: Option<OwnedFd>,
}

impl Session {
    pub(super) fn begin(root: BorrowedFd<'_>, options: &ApplyOptions) -> Result<Self> {
        let ApplyOptions { keeps_journal, resumes, cleans, dry_run, syncs, .. } = *options;
        let here = origin(root)?;
        let mut names = Vec::new();
        if dry_run.is_none_or(|dry_run| dry_run.has_root) {
            listing::list(root, &mut names)?;
        }
        let mut others = Others::default();
        let mut unfinished = HashMap::new();
        let mut suspect_since: Option<i64> = None;
        for (name, _) in names {
            let Some(id) = temporary::session_itself(&name) else { continue };
            let contents = others.look(root, name, id, here, cleans);
            let Some(contents) = contents.filter(|_| resumes) else { continue };
            let Contents { unfinished: files, suspect_since: since, .. } = contents;
            let earliest = since.map(|since| since - CLOCK_SLACK);
            suspect_since = suspect_since.into_iter().chain(earliest).min();
            for file in files {
                let covered = |file: &Unfinished| file.ranges.iter().map(|(_, len)| len).sum();
                let here: u64 = covered(&file);
                let known = unfinished.get(&file.path);
                if known.is_none_or(|known| covered(known) < here) {
                    unfinished.insert(file.path.clone(), file);
                }
            }
        }
        unfinished.retain(|_, file| is_there(root, file));
        if dry_run.is_some() {
            let maker = Maker { session: 0, key: random() };
            let (journal, gid, _lock) = (None, None, None);
            return Ok(Self { maker, journal, others, unfinished, suspect_since, gid, _lock });
        }
        let (id, lock) = create(root)?;
        let maker = Maker { session: id, key: random() };
        let gid = Some(fstat(&lock)?.st_gid);
        let journal = Journal::begin(rustix::io::dup(&lock)?, here, metadata::now(), syncs);
        journal.mark(dead::mark_of(&lock, maker.key)?);
        let journal = keeps_journal.then_some(journal);
        if let Some(journal) = &journal {
            for file in unfinished.values() {
                carry_over(journal, file);
            }
        }
        let _lock = Some(lock);
        Ok(Self { maker, journal, others, unfinished, suspect_since, gid, _lock })
    }

    /// Removes the session's file from the root, and what earlier ones have left there.
    pub(super) fn end(&self, root: BorrowedFd<'_>) -> Result<()> {
        self.others.end(root)?;
        let own = temporary::name_of_session(self.maker.session);
        unlinkat(root, own.as_path(), AtFlags::empty())
    }
}

/// Returns the kernel's boot identifier and the mount of a directory.
fn origin(root: BorrowedFd<'_>) -> Result<Origin> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut boot = [0; 16];
    for (byte, pair) in boot.iter_mut().zip(digits.chunks(2)) {
        *byte = str::from_utf8(pair).ok().and_then(|d| u8::from_str_radix(d, 16).ok()).unwrap_or(0);
    }
    if digits.len() != 32 {
        // The boot identifier is unknown, so a random one makes every boot differ.
        boot = random();
    }
    // `STATX_MNT_ID_UNIQUE` (Linux 6.8): mount identifiers that are never reused. Older kernels
    // return the ordinary ones.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::EMPTY_PATH;
    let stat = statx(root, "", flags, unique | StatxFlags::MNT_ID)?;
    Ok(Origin { boot, mount: stat.stx_mnt_id })
}

/// Returns random bytes.
fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    // The kernel delivers so few bytes whole.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    bytes
}

/// Creates and locks this session's file.
fn create(root: BorrowedFd<'_>) -> Result<(u32, OwnedFd)> {
    loop {
        let id = u32::from_be_bytes(random());
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR.union(Mode::WUSR).as_raw_mode() as u16;
        let name = temporary::name_of_session(id);
        let file = match beneath::open(root, name.as_path(), flags, mode) {
            Err(Errno::EXIST) => continue,
            created => created?,
        };
        // Nobody else locks a file without a mark.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        return Ok((id, file));
    }
}

/// Whether the data of an unfinished file exists.
fn is_there(root: BorrowedFd<'_>, file: &Unfinished) -> bool {
    if temporary::session_of(&file.temporary).is_none() {
        return false;
    }
    let open = || {
        let dir = beneath::open_parent(root, &file.path)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let fd = beneath::open(&dir, file.temporary.as_path(), flags, 0)?;
        fstat(fd.as_fd())
    };
    let Ok(stat) = open() else { return false };
    // A file with another name or another user may have any contents.
    metadata::kind(&stat) == rustix::fs::FileType::RegularFile
        && metadata::size(&stat) == file.size
        && stat.st_nlink == 1
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

fn carry_over(journal: &Journal, file: &Unfinished) {
    let Unfinished { path, temporary, size, mtime, ranges } = file;
    if let Some(id) = journal.file(path, temporary, *size, *mtime) {
        journal.parts(id, ranges);
    }
}
