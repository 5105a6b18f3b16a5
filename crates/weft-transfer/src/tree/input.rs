//! Bytes of unknown length, such as those of standard input, which become the data of one file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::tree::hash::{self, Subtrees};
use crate::tree::metadata;
use crate::wire::record::{Entry, Kind, ROOT, Status, Tail, Time};
use crate::wire::record_name::Name;
use weft_sys::lock;

/// A descriptor that is read from its current position to its end. One block at a time is read, so
/// that the bytes are in the blocks in their order.
#[derive(Debug)]
pub struct Input {
    fd: OwnedFd,
    /// Becomes readable when the session is over, because reading may wait for any time; `None` for
    /// a file, which never waits.
    stop: Option<OwnedFd>,
    is_hashed: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    turn: Turn,
    /// The number of bytes that have been read.
    at: u64,
    subtrees: Subtrees,
}

/// The next step of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A block can be planned.
    Next,
    /// A planned block has not been filled.
    Reading,
    /// The last block has been filled.
    Ended,
}

/// The bytes of one block.
#[derive(Debug)]
pub(crate) struct Portion {
    /// The number of bytes before them.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) digest: Option<[u8; 32]>,
    /// The end of the file, if no bytes follow.
    pub(crate) end: Option<Tail>,
}

impl Input {
    /// Creates an input. With `is_hashed`, its bytes have digests.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn new(fd: OwnedFd, is_hashed: bool) -> std::io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { stop: Some(stop), ..Self::of_file(fd, is_hashed) })
    }

    /// Creates an input from a file that does not tell its size. It is open without blocking.
    pub(crate) fn of_file(fd: OwnedFd, is_hashed: bool) -> Self {
        let state = State { turn: Turn::Next, at: 0, subtrees: Subtrees::default() };
        Self { fd, stop: None, is_hashed, state: Mutex::new(state) }
    }

    /// Ends a read that waits for bytes, and all later reads.
    pub fn stop(&self) {
        if let Some(stop) = &self.stop {
            // It fails only if the counter is full, and then the descriptor is readable, too.
            let _ = write(stop, &1_u64.to_ne_bytes());
        }
    }

    /// Returns the entry of the file, with the attributes that a shell's redirection gives a file.
    pub(crate) fn entry(&self, number: u64, name: Name) -> Entry {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
        Entry {
            number,
            parent: ROOT,
            name: Some(name),
            kind: Kind::File,
            mode: 0o666 & !metadata::umask(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: now,
            atime: now,
            size: 0,
            is_linked: false,
            is_unsized: true,
            xattrs: None,
            hash: None,
        }
    }

    /// Returns the next step. After [`Turn::Next`] the caller plans a block, and nothing else may
    /// be read until it is filled.
    pub(crate) fn turn(&self) -> Turn {
        let mut state = lock(&self.state);
        let turn = state.turn;
        if turn == Turn::Next {
            state.turn = Turn::Reading;
        }
        turn
    }

    /// Fills `data`, except at the end of the input.
    pub(crate) fn read(&self, data: &mut [u8]) -> Portion {
        let (mut len, mut status) = (0, None);
        while len < data.len() && status.is_none() {
            match self.read_once(&mut data[len..]) {
                Ok(0) => status = Some(Status::Good),
                Ok(more) => len += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.stop.is_some() => {}
                Err(error) => status = Some(Status::Failed { errno: error.raw_os_error() as u32 }),
            }
        }
        let mut state = lock(&self.state);
        let offset = state.at;
        state.at += len as u64;
        let digest = self.is_hashed.then(|| {
            let (digest, subtrees) = hash::of_part(offset, &data[..len]);
            state.subtrees.add_all(&subtrees);
            digest
        });
        let end = status.map(|status| {
            let hash = if self.is_hashed { state.subtrees.root(state.at) } else { None };
            Tail { status, size: state.at, hash }
        });
        state.turn = if end.is_some() { Turn::Ended } else { Turn::Next };
        Portion { offset, len, digest, end }
    }

    fn read_once(&self, data: &mut [u8]) -> Result<usize, Errno> {
        let Some(stop) = &self.stop else { return read(&self.fd, data) };
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, None)?;
        if !fds[1].revents().is_empty() {
            return Err(Errno::CANCELED);
        }
        read(&self.fd, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn input_is_read_in_portions_up_to_its_end() {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        let input = Input::new(from, true).expect("an input");
        let writer = thread::spawn(move || {
            // The parts have other lengths than the portions.
            for part in [700, 1, 2_000, 347] {
                assert_eq!(write(&to, &vec![7; part]), Ok(part));
            }
        });
        let mut data = [0; 1024];
        assert_eq!(input.turn(), Turn::Next);
        assert_eq!(input.turn(), Turn::Reading);
        for offset in [0, 1024] {
            let portion = input.read(&mut data);
            assert_eq!((portion.offset, portion.len, portion.end), (offset, 1024, None));
            assert_eq!(portion.digest, Some(hash::of_part(offset, &data).0));
            assert_eq!(input.turn(), Turn::Next);
        }
        let portion = input.read(&mut data);
        writer.join().expect("no panic");
        let hash = Some(blake3::hash(&[7; 3_048]).into());
        let tail = Tail { status: Status::Good, size: 3_048, hash };
        assert_eq!((portion.offset, portion.len, portion.end), (2_048, 1_000, Some(tail)));
        assert_eq!(input.turn(), Turn::Ended);
    }

    #[test]
    fn failed_and_stopped_reads_end_an_input_with_their_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = std::fs::File::open(folder.path()).expect("a folder");
        let input = Input::new(directory.into(), false).expect("an input");
        let status = |errno: Errno| Status::Failed { errno: errno.raw_os_error() as u32 };
        let end = input.read(&mut [0; 8]).end.expect("an end");
        assert_eq!((end.status, end.size), (status(Errno::ISDIR), 0));

        let (from, _to) = rustix::pipe::pipe().expect("a pipe");
        let input = Arc::new(Input::new(from, false).expect("an input"));
        let reader = {
            let input = Arc::clone(&input);
            thread::spawn(move || input.read(&mut [0; 8]).end.map(|end| end.status))
        };
        input.stop();
        assert_eq!(reader.join().expect("no panic"), Some(status(Errno::CANCELED)));
    }
}
