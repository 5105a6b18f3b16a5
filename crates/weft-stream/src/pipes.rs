//! The pipes by which alarms are rung. A byte in a pipe wakes a sleeper for less than half of what
//! a byte over TCP costs, which goes through the kernel's whole stack.
//!
//! A pipe has a name beside the registry's, so that peers can open it (fifo(7)). The owner of the
//! alarm has its epoll instance watch it, and only then says so in the registry, by the inode: a
//! peer that has opened another file of that name does not take it for this one. The name stays
//! while anybody uses the registry, and the alarm's next owner has the same pipe.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mknodat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use weft_sys::calls::{read, write};
use weft_sys::{ApartFd, SectionOnce};

use crate::limits::ALARMS_MAX;

/// Bytes that one call takes out of a pipe.
const AT_ONCE: usize = 64;

/// The pipe of an alarm that is the calling process's.
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
    /// Opens the pipe of this name, and makes it if there is none. `None` if that cannot be.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        match mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
        let (file, inode) = open_pipe(path)?;
        Some(Self { fd: ApartFd::new(&file)?, inode })
    }

    /// How peers know it.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Takes the wakeups out of it.
    pub(crate) fn drain(&self) {
        let mut bytes = [0_u8; AT_ONCE];
        while read(&self.fd, &mut bytes) == Ok(AT_ONCE) {}
    }
}

/// Pipes of others that this process has opened, by alarm.
#[derive(Debug)]
pub(crate) struct Pipes(Vec<Theirs>);

#[derive(Debug, Default)]
struct Theirs {
    /// A thread has begun to open it. No other one waits for that: it may be a handler of a signal
    /// that has interrupted this one.
    is_begun: AtomicBool,
    /// With its inode; `None`: it could not be opened.
    opened: SectionOnce<Option<(ApartFd, u64)>>,
}

impl Pipes {
    pub(crate) fn new() -> Self {
        Self((0..ALARMS_MAX).map(|_| Theirs::default()).collect())
    }

    /// Rings the alarm of an index by its pipe, which the registry knows by `inode`, and which has
    /// this name. `false`: it has none, or none that this process could open.
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
            // A full pipe wakes the sleeper, too.
            Some((fd, of)) if *of == inode => matches!(write(fd, &[0]), Ok(1) | Err(Errno::AGAIN)),
            _ => false,
        }
    }
}

impl Theirs {
    fn get(&self, open: impl FnOnce() -> Option<(ApartFd, u64)>) -> Option<&(ApartFd, u64)> {
        if self.opened.get().is_none() && !self.is_begun.swap(true, Ordering::Relaxed) {
            let _ = self.opened.set(open()); // Nobody else has begun.
        }
        self.opened.get()?.as_ref()
    }
}

/// Opens a pipe of this user's own. A process that has it open for both directions gets no SIGPIPE,
/// and no end of it.
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

    fn say(registry: &Registry, index: usize, inode: u64) {
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
        assert!(!ring(theirs, 3), "nobody watches it yet");
        say(ours, 3, pipe.inode());
        assert!(ring(theirs, 3) && is_readable(&pipe));
        pipe.drain();
        assert!(!is_readable(&pipe));
        // One that is full is not waited for.
        assert!((0..100_000).all(|_| ring(theirs, 3)) && is_readable(&pipe));
        pipe.drain();
        assert!(!is_readable(&pipe));
        // The next owner has the same one, which the peer has open.
        drop(pipe);
        let next = open(ours, 3).expect("the pipe");
        say(ours, 3, next.inode());
        assert!(ring(theirs, 3) && is_readable(&next));
        say(ours, 3, next.inode() + 1);
        assert!(!ring(theirs, 3), "that would be another one");
    }

    #[test]
    fn file_that_is_no_own_pipe_is_not_written_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = (registry(&dir), registry(&dir));
        std::fs::write(ours.pipe_path(5), "no pipe").expect("a file");
        assert!(open(ours, 5).is_none());
        say(ours, 5, 1);
        assert!(!ring(theirs, 5));
        assert!(!ring(theirs, ALARMS_MAX - 1));
        mknodat(CWD, ours.pipe_path(6), FileType::Fifo, Mode::from_raw_mode(0o666), 0)
            .expect("made");
        rustix::fs::chmod(ours.pipe_path(6), Mode::from_raw_mode(0o666)).expect("changed");
        assert!(open(ours, 6).is_none(), "others may have it open");
    }

    #[test]
    fn the_last_to_leave_removes_the_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = registry(&dir);
        let _pipe = open(registry, 7).expect("a pipe");
        assert!(registry.pipe_path(7).exists());
        registry.leave();
        assert!(!registry.pipe_path(7).exists());
    }
}
