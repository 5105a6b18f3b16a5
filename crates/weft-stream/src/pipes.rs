//! Pipes that wake the owners of alarms. A byte in a pipe wakes a sleeper at less than half the
//! cost of a byte over TCP, which passes through the kernel's whole network stack.
//!
//! A pipe has a name beside the registry's file, so that peers can open it (`fifo(7)`). The owner
//! of the alarm first has its epoll instance watch the pipe, and then publishes the pipe's inode in
//! the registry: a peer that has opened another file of that name notices the difference. The name
//! stays while any process uses the registry, and the alarm's next owner reuses the pipe.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_sys::calls::fs::{CWD, FileType, Mode, OFlags, fstat, mknodat, open};
use weft_sys::calls::io::Errno;
use weft_sys::calls::process::geteuid;
use weft_sys::calls::{read, write};
use weft_sys::{ApartFd, SectionOnce};

use crate::limits::ALARMS_MAX;

/// Number of bytes that one call takes out of a pipe.
const AT_ONCE: usize = 64;

/// The pipe of an alarm that this process owns.
#[derive(Debug)]
pub(crate) struct OwnPipe {
    fd: ApartFd,
    inode: u64,
}

impl AsFd for OwnPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OwnPipe {
    /// Opens the pipe of this name, and creates it if there is none. `None` if that fails.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        match mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
        let (file, inode) = open_pipe(path)?;
        Some(Self { fd: ApartFd::new(&file)?, inode })
    }

    /// The inode by which peers recognize the pipe.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Takes the wakeups out of the pipe.
    pub(crate) fn drain(&self) {
        let mut bytes = [0_u8; AT_ONCE];
        while read(&self.fd, &mut bytes) == Ok(AT_ONCE) {}
    }
}

/// Pipes of other processes that this process has opened, by alarm.
#[derive(Debug)]
pub(crate) struct Pipes(Vec<PeerPipe>);

#[derive(Debug, Default)]
struct PeerPipe {
    /// A thread has begun to open the pipe. Other threads do not wait for that: one may be a signal
    /// handler that has interrupted it.
    is_begun: AtomicBool,
    /// The pipe and its inode; `None` if it could not be opened.
    opened: SectionOnce<Option<(ApartFd, u64)>>,
}

impl Pipes {
    pub(crate) fn new() -> Self {
        Self((0..ALARMS_MAX).map(|_| PeerPipe::default()).collect())
    }

    /// Wakes the owner of an alarm by its pipe, which has this inode in the registry, and this
    /// name. `false` if the alarm has no pipe, or none that this process could open.
    pub(crate) fn ring(&self, index: usize, inode: u64, path: impl FnOnce() -> PathBuf) -> bool {
        if inode == 0 {
            return false;
        }
        let Some(known) = self.0.get(index) else { return false };
        let opened = known.get(|| {
            let (file, inode) = open_pipe(&path())?;
            Some((ApartFd::new(&file)?, inode))
        });
        match opened {
            // The sleeper wakes from a full pipe, too.
            Some((fd, of)) if *of == inode => matches!(write(fd, &[0]), Ok(1) | Err(Errno::AGAIN)),
            _ => false,
        }
    }
}

impl PeerPipe {
    fn get(&self, open: impl FnOnce() -> Option<(ApartFd, u64)>) -> Option<&(ApartFd, u64)> {
        if self.opened.get().is_none() && !self.is_begun.swap(true, Ordering::Relaxed) {
            let _ = self.opened.set(open()); // No other thread has begun to open it.
        }
        self.opened.get()?.as_ref()
    }
}

/// Opens a pipe that belongs to this user. Because it is open for both directions, the process gets
/// neither SIGPIPE nor an end of file.
fn open_pipe(path: &Path) -> Option<(OwnedFd, u64)> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path, flags, Mode::empty()).ok()?;
    let status = fstat(&file).ok()?;
    let mode = Mode::from_raw_mode(status.st_mode);
    let is_private = !mode.intersects(Mode::RWXG | Mode::RWXO);
    let is_ours = status.st_uid == geteuid().as_raw()
        && FileType::from_raw_mode(status.st_mode) == FileType::Fifo;
    (is_private && is_ours).then_some((file, status.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn registry(dir: &tempfile::TempDir) -> &'static Registry {
        Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")))
    }

    fn publish(registry: &Registry, index: usize, inode: u64) {
        registry.alarm(index).pipe.store(inode, Ordering::Release);
    }

    fn open(registry: &Registry, index: usize) -> Option<OwnPipe> {
        registry.alarm(index).made.store(1, Ordering::SeqCst);
        OwnPipe::open(&registry.pipe_path(index))
    }

    fn ring(registry: &Registry, index: usize) -> bool {
        let inode = registry.alarm(index).pipe.load(Ordering::Acquire);
        registry.pipes.ring(index, inode, || registry.pipe_path(index))
    }

    fn is_readable(pipe: &OwnPipe) -> bool {
        let mut set = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut set, Some(&now)) == Ok(1)
    }

    #[test]
    fn peer_wakes_the_pipe_that_the_registry_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = (registry(&dir), registry(&dir));
        let pipe = open(ours, 3).expect("a pipe");
        assert!(!ring(theirs, 3), "the registry does not name it yet");
        publish(ours, 3, pipe.inode());
        assert!(ring(theirs, 3) && is_readable(&pipe));
        pipe.drain();
        assert!(!is_readable(&pipe));
        // The call does not wait for a full pipe.
        assert!((0..100_000).all(|_| ring(theirs, 3)) && is_readable(&pipe));
        pipe.drain();
        assert!(!is_readable(&pipe));
        // The next owner has the same pipe, which the peer has open.
        drop(pipe);
        let next = open(ours, 3).expect("the pipe");
        publish(ours, 3, next.inode());
        assert!(ring(theirs, 3) && is_readable(&next));
        publish(ours, 3, next.inode() + 1);
        assert!(!ring(theirs, 3), "another inode");
    }

    #[test]
    fn file_that_is_not_an_own_pipe_is_not_written_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = (registry(&dir), registry(&dir));
        std::fs::write(ours.pipe_path(5), "no pipe").expect("a file");
        assert!(open(ours, 5).is_none());
        publish(ours, 5, 1);
        assert!(!ring(theirs, 5));
        assert!(!ring(theirs, ALARMS_MAX - 1));
        mknodat(CWD, ours.pipe_path(6), FileType::Fifo, Mode::from_raw_mode(0o666), 0)
            .expect("made");
        rustix::fs::chmod(ours.pipe_path(6), Mode::from_raw_mode(0o666)).expect("changed");
        assert!(open(ours, 6).is_none(), "others may have it open");
    }

    #[test]
    fn last_user_removes_the_names_of_pipes() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = registry(&dir);
        let _pipe = open(registry, 7).expect("a pipe");
        assert!(registry.pipe_path(7).exists());
        registry.leave();
        assert!(!registry.pipe_path(7).exists());
    }
}
