//! The session's file in the root, and those of earlier sessions.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, StatxFlags, flock, fstat, statx, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::tree::journal::{self, Contents, Journal, Origin, Unfinished};
use crate::tree::{beneath, listing, metadata, temporary};
use crate::wire::record_name::Name;

use super::options::ApplyOptions;

/// Seconds by which file timestamps may lag behind the clock.
const CLOCK_SLACK: i64 = 1;

/// The session: its number, and the leftovers of earlier ones.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u32,
    pub(super) journal: Option<Journal>,
    /// Sessions that are alive.
    pub(super) live: HashSet<u32>,
    /// Dead sessions that left their files.
    pub(super) dead: HashMap<u32, Name>,
    /// Files to resume, by their paths.
    pub(super) unfinished: HashMap<Box<[u8]>, Unfinished>,
    /// Files that changed since this time may have lost their data in a crash.
    pub(super) suspect_since: Option<i64>,
    /// The group of the session's file; a dry run has no such file.
    pub(super) gid: Option<u32>,
    /// The locks of this session and of dead ones. The files of dead sessions stay until this one
    /// ends, because they identify abandoned temporary files.
    _locks: Vec<OwnedFd>,
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl Session {
    pub(super) fn begin(root: BorrowedFd<'_>, options: &ApplyOptions) -> Result<Self> {
        let ApplyOptions { keeps_journal, resumes, dry_run, .. } = *options;
        let here = origin(root)?;
        let mut names = Vec::new();
        if dry_run.is_none_or(|dry_run| dry_run.has_root) {
            listing::list(root, &mut names)?;
        }
        let (mut live, mut dead) = (HashSet::new(), HashMap::new());
        let (mut unfinished, mut stale) = (HashMap::new(), Vec::new());
        let mut suspect_since: Option<i64> = None;
        let mut locks = Vec::new();
        for (name, _) in names {
            let Some(id) = temporary::session_itself(&name) else { continue };
            let Some((lock, contents)) = take(root, &name, here) else {
                live.insert(id);
                continue;
            };
            locks.push(lock);
            dead.insert(id, name);
            let Contents { unfinished: files, named, suspect_since: since } = contents;
            if !resumes {
                stale.extend(named);
                continue;
            }
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
            let (id, journal, gid) = (0, None, None);
            return Ok(Self {
                id,
                journal,
                live,
                dead,
                unfinished,
                suspect_since,
                gid,
                _locks: locks,
            });
        }
        for (path, temporary) in stale {
            remove_beside(root, &path, &temporary);
        }
        let (id, lock) = create(root)?;
        let gid = Some(fstat(&lock)?.st_gid);
        let journal = if keeps_journal {
            let journal = Journal::begin(rustix::io::dup(&lock)?, here, now());
            for file in unfinished.values() {
                carry_over(&journal, file);
            }
            Some(journal)
        } else {
            None
        };
        locks.push(lock);
        Ok(Self { id, journal, live, dead, unfinished, suspect_since, gid, _locks: locks })
    }

    /// Removes the session's files from the root.
    pub(super) fn end(&self, root: BorrowedFd<'_>) -> Result<()> {
        for name in self.dead.values() {
            match unlinkat(root, name.as_path(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let own = temporary::name_of_session(self.id);
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
        boot = blake3::hash(&fastrand_bytes()).as_bytes()[..16].try_into().unwrap_or(boot);
    }
    // `STATX_MNT_ID_UNIQUE` (Linux 6.8): mount identifiers that are never reused. Older kernels
    // return the ordinary ones.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::EMPTY_PATH;
    let stat = statx(root, "", flags, unique | StatxFlags::MNT_ID)?;
    Ok(Origin { boot, mount: stat.stx_mnt_id })
}

fn fastrand_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    // Without random bytes, only the time makes identifiers differ.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    bytes
}

/// Locks and reads the file of a dead session. Returns `None` if the session is alive.
fn take(root: BorrowedFd<'_>, name: &Name, here: Origin) -> Option<(OwnedFd, Contents)> {
    let file = beneath::open(root, name.as_path(), OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let stat = fstat(&file).ok()?;
    if metadata::kind(&stat) != rustix::fs::FileType::RegularFile {
        return None;
    }
    // Another user's journal is not trusted: it could name any file.
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    let file = File::from(file);
    let contents = if is_ours { journal::read(&file, here) } else { Contents::default() };
    Some((file.into(), contents))
}

/// Creates and locks this session's file.
fn create(root: BorrowedFd<'_>) -> Result<(u32, OwnedFd)> {
    loop {
        let [a, b, c, d, ..] = fastrand_bytes();
        let id = u32::from_be_bytes([a, b, c, d]);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR.union(Mode::WUSR).as_raw_mode() as u16;
        let name = temporary::name_of_session(id);
        let file = match beneath::open(root, name.as_path(), flags, mode) {
            Err(Errno::EXIST) => continue,
            created => created?,
        };
        if own(&file)? {
            return Ok((id, file));
        }
        // The session that has it may have removed it already.
        let _ = unlinkat(root, name.as_path(), AtFlags::empty());
    }
}

/// Locks the new file of a session. Returns false if another session that began meanwhile has found
/// the file unlocked, and so takes it for that of a dead session: it has the lock, or has already
/// removed the file.
fn own(file: &OwnedFd) -> Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => locked.and_then(|()| Ok(fstat(file)?.st_nlink > 0)),
    }
}

/// Opens the parent directory of a path.
fn parent_of(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut fd = beneath::open_dir(root, std::path::Path::new("."))?;
    let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else { return Ok(fd) };
    for part in path[..slash].split(|&byte| byte == b'/') {
        let name = Name::new(part).map_err(|_| Errno::INVAL)?;
        fd = beneath::open_dir(&fd, name.as_path())?;
    }
    Ok(fd)
}

/// Removes a temporary file in the same directory as a path.
pub(super) fn remove_beside(root: BorrowedFd<'_>, path: &[u8], name: &Name) {
    if temporary::session_of(name).is_none() {
        return;
    }
    if let Ok(dir) = parent_of(root, path) {
        // If this fails, the file is gone, or a later session removes it.
        let _ = unlinkat(&dir, name.as_path(), AtFlags::empty());
    }
}

/// Whether the data of an unfinished file exists. If so, it has been synced.
fn is_there(root: BorrowedFd<'_>, file: &Unfinished) -> bool {
    if temporary::session_of(&file.temporary).is_none() {
        return false;
    }
    let open = || {
        let dir = parent_of(root, &file.path)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let fd = beneath::open(&dir, file.temporary.as_path(), flags, 0)?;
        let stat = fstat(fd.as_fd())?;
        rustix::fs::fdatasync(&fd)?;
        Ok::<_, Errno>(stat)
    };
    let Ok(stat) = open() else { return false };
    // A file with another name or another user may have any contents.
    metadata::kind(&stat) == rustix::fs::FileType::RegularFile
        && metadata::size(&stat) == file.size
        && stat.st_nlink == 1
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

fn carry_over(journal: &Journal, file: &Unfinished) {
    let Unfinished { path, temporary, size, mtime, ranges, subtrees } = file;
    if let Some(id) = journal.file(path, temporary, *size, *mtime) {
        journal.parts(id, ranges, subtrees);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_another_session_has_taken_is_not_this_ones() {
        let folder = tempfile::tempdir().expect("room");
        let root = File::open(folder.path()).expect("a directory");
        let here = origin(root.as_fd()).expect("a mount");
        let make = |name: &Name| {
            let path = folder.path().join(name.as_path());
            let file = File::options().read(true).write(true).create_new(true).open(path);
            OwnedFd::from(file.expect("room"))
        };
        let (one, other) = (temporary::name_of_session(1), temporary::name_of_session(2));
        let file = make(&one);
        let taken = take(root.as_fd(), &one, here).expect("it is not locked yet");
        assert_eq!(own(&file), Ok(false), "locked");
        unlinkat(&root, one.as_path(), AtFlags::empty()).expect("it is there");
        drop(taken);
        assert_eq!(own(&file), Ok(false), "removed");
        let file = make(&other);
        assert_eq!(own(&file), Ok(true));
        assert!(take(root.as_fd(), &other, here).is_none(), "it is alive");
    }
}
