//! A pair of byte streams, as a remote shell provides: frames of the control channel and of one
//! data channel share them.
//!
//! Each end begins with the preface of an unencrypted control channel. A frame is a header of 8
//! bytes (kind, 2; zero, 2; length, 4) and its content. A frame of kind 1 is a control message. A
//! frame of kind 2 is a piece of the data channel's bytes; the pieces are short, so that no message
//! waits for a whole block.
//!
//! A thread reads the frames and queues control messages. It leaves bytes of the data channel to
//! the thread that receives blocks, which reads them directly into the block.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write, writev};

use super::channel::{
    Arrival, Claim, Control, ControlEvent, DataSink, DataSource, Grants, Head, Payload, Received,
    TransportError, Write, Written,
};
use crate::limits::{
    CONTROL_LEN_MAX, DROP_READ_LEN, HEAD_LEN_MAX, MEMORY_CONTROL_MAX, PIPE_FRAME_LEN_MAX,
    STALL_TIME, VERSION,
};
use crate::wire::{Kind, Mode, Preface};
use weft_sys::lock;

/// Frame kind: a control message.
const MESSAGE: u16 = 1;
/// Frame kind: bytes of the data channel.
const DATA: u16 = 2;
const FRAME_HEADER_LEN: usize = 8;

/// How the input stream ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// The stream ended between two frames.
    Whole,
    /// The stream ended within a frame.
    Cut,
    /// The peer sent an invalid frame.
    Wrong(&'static str),
    System(Errno),
}

impl Ended {
    fn error(self) -> TransportError {
        match self {
            Self::Whole | Self::Cut => TransportError::Truncated,
            Self::Wrong(what) => TransportError::Protocol(what),
            Self::System(errno) => io::Error::from(errno).into(),
        }
    }
}

/// Received data that has not been taken.
#[derive(Debug, Default)]
struct Incoming {
    messages: VecDeque<Vec<u8>>,
    /// Bytes of the data channel that come next in the stream.
    data_left: usize,
    /// The data channel's thread is reading the stream, so no other thread may.
    is_reading: bool,
    ended: Option<Ended>,
}

/// The right to write to the output stream.
#[derive(Debug, Default)]
struct Turn {
    is_taken: bool,
    /// The number of threads that wait to send a control message. Blocks wait for them.
    messages: usize,
}

struct PipeState {
    input: OwnedFd,
    output: OwnedFd,
    turn: Mutex<Turn>,
    turn_ended: Condvar,
    incoming: Mutex<Incoming>,
    changed: Condvar,
    is_closed: AtomicBool,
    is_data_closed: AtomicBool,
    /// An eventfd that is readable once the pipe, or its data channel, is closed.
    closed: OwnedFd,
    data_closed: OwnedFd,
}

impl fmt::Debug for PipeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeState").field("input", &self.input).finish_non_exhaustive()
    }
}

impl PipeState {
    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.incoming)
    }

    /// Waits until a descriptor is ready, or until one of the closing eventfds is readable.
    fn wait(
        fd: BorrowedFd<'_>,
        events: PollFlags,
        closed: &[&OwnedFd],
        time: Option<Duration>,
    ) -> Result<(), TransportError> {
        let end = time.and_then(|time| Instant::now().checked_add(time));
        let mut fds = vec![PollFd::from_borrowed_fd(fd, events)];
        fds.extend(closed.iter().map(|closed| PollFd::new(*closed, PollFlags::IN)));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(0) => return Err(TransportError::Stalled(time.unwrap_or_default())),
                Ok(_) if fds[1..].iter().any(|fd| !fd.revents().is_empty()) => {
                    return Err(TransportError::Closed);
                }
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Reads some bytes. Returns zero at the end of the stream.
    fn read_some(
        &self,
        bytes: &mut [u8],
        closed: &[&OwnedFd],
        time: Option<Duration>,
    ) -> Result<usize, TransportError> {
        loop {
            match read(&self.input, &mut *bytes) {
                Ok(len) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    Self::wait(self.input.as_fd(), PollFlags::IN, closed, time)?;
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Fills `bytes`. Returns false if the stream ends before the first byte.
    fn read_all(&self, bytes: &mut [u8], time: Option<Duration>) -> Result<bool, TransportError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.read_some(&mut bytes[done..], &[&self.closed], time)? {
                0 if done == 0 => return Ok(false),
                0 => return Err(TransportError::Truncated),
                len => done += len,
            }
        }
        Ok(true)
    }

    /// Writes all of the parts.
    fn write_all(&self, parts: &[&[u8]]) -> Result<(), TransportError> {
        let mut parts: Vec<io::IoSlice<'_>> =
            parts.iter().map(|part| io::IoSlice::new(part)).collect();
        let mut rest = &mut parts[..];
        io::IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match writev(&self.output, rest) {
                Ok(0) => return Err(TransportError::Truncated),
                Ok(len) => io::IoSlice::advance_slices(&mut rest, len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let (fd, closed) = (self.output.as_fd(), [&self.closed]);
                    Self::wait(fd, PollFlags::OUT, &closed, Some(STALL_TIME))?;
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Writes one frame when no other thread is writing.
    fn write_frame(&self, kind: u16, parts: &[&[u8]]) -> Result<(), TransportError> {
        let mut turn = lock(&self.turn);
        turn.messages += usize::from(kind == MESSAGE);
        while turn.is_taken || (kind == DATA && turn.messages > 0) {
            turn = self.turn_ended.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        turn.messages -= usize::from(kind == MESSAGE);
        turn.is_taken = true;
        drop(turn);
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; FRAME_HEADER_LEN];
        header[..2].copy_from_slice(&kind.to_be_bytes());
        header[4..].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        let [one, other] = [parts.first(), parts.get(1)].map(|part| part.copied().unwrap_or(b""));
        let written = match self.is_closed.load(SeqCst) {
            true => Err(TransportError::Closed),
            false => self.write_all(&[&header, one, other]),
        };
        lock(&self.turn).is_taken = false;
        self.turn_ended.notify_all();
        if written.is_err() {
            // A part of the frame may have been written, so nothing can follow.
            self.close();
        }
        written
    }

    /// Reads frames until the stream ends.
    fn read_frames(&self) {
        let ended = self.try_read_frames();
        self.incoming().ended = Some(ended);
        self.changed.notify_all();
    }

    fn try_read_frames(&self) -> Ended {
        let of_error = |error| match error {
            TransportError::Truncated => Ended::Cut,
            TransportError::System(error) => {
                Ended::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            _ => Ended::Whole,
        };
        loop {
            let mut header = [0; FRAME_HEADER_LEN];
            match self.read_all(&mut header, None) {
                Ok(true) => {}
                Ok(false) => return Ended::Whole,
                Err(error) => return of_error(error),
            }
            let [k0, k1, z0, z1, len @ ..] = header;
            let (kind, len) = (u16::from_be_bytes([k0, k1]), u32::from_be_bytes(len) as usize);
            let done = match kind {
                _ if [z0, z1] != [0, 0] => return Ended::Wrong("a frame of a pipe"),
                MESSAGE if len <= CONTROL_LEN_MAX => self.read_message(len),
                DATA if (1..=PIPE_FRAME_LEN_MAX).contains(&len) => self.leave_data(len),
                _ => return Ended::Wrong("a frame of a pipe"),
            };
            if let Err(error) = done {
                return of_error(error);
            }
        }
    }

    fn read_message(&self, len: usize) -> Result<(), TransportError> {
        let mut message = vec![0; len];
        if !self.read_all(&mut message, Some(STALL_TIME))? && len > 0 {
            return Err(TransportError::Truncated);
        }
        let mut incoming = self.incoming();
        while incoming.messages.len() >= MEMORY_CONTROL_MAX && !self.is_closed.load(SeqCst) {
            incoming = self.changed.wait(incoming).unwrap_or_else(PoisonError::into_inner);
        }
        incoming.messages.push_back(message);
        drop(incoming);
        self.changed.notify_all();
        Ok(())
    }

    /// Leaves the next bytes to the data channel's thread, or discards them if there is none.
    fn leave_data(&self, len: usize) -> Result<(), TransportError> {
        let mut incoming = self.incoming();
        incoming.data_left = len;
        self.changed.notify_all();
        loop {
            if incoming.data_left == 0 {
                return Ok(());
            }
            if self.is_closed.load(SeqCst) {
                return Err(TransportError::Closed);
            }
            if let Some(Ended::Cut) = incoming.ended {
                return Err(TransportError::Truncated);
            }
            if self.is_data_closed.load(SeqCst) && !incoming.is_reading {
                break;
            }
            incoming = self.changed.wait(incoming).unwrap_or_else(PoisonError::into_inner);
        }
        let mut left = std::mem::take(&mut incoming.data_left);
        drop(incoming);
        let mut room = [0; DROP_READ_LEN];
        while left > 0 {
            let part = left.min(room.len());
            match self.read_some(&mut room[..part], &[&self.closed], Some(STALL_TIME))? {
                0 => return Err(TransportError::Truncated),
                len => left -= len,
            }
        }
        Ok(())
    }

    /// Reads bytes of the data channel. Returns zero at its end.
    fn read_data(&self, bytes: &mut [u8]) -> Result<usize, TransportError> {
        let mut incoming = self.incoming();
        loop {
            if self.is_data_closed.load(SeqCst) || self.is_closed.load(SeqCst) {
                return Err(TransportError::Closed);
            }
            if incoming.data_left > 0 {
                break;
            }
            match incoming.ended {
                None => {}
                Some(Ended::Whole) => return Ok(0),
                Some(ended) => return Err(ended.error()),
            }
            incoming = self.changed.wait(incoming).unwrap_or_else(PoisonError::into_inner);
        }
        let most = incoming.data_left.min(bytes.len());
        incoming.is_reading = true;
        drop(incoming);
        let closed = [&self.closed, &self.data_closed];
        let result = self.read_some(&mut bytes[..most], &closed, Some(STALL_TIME));
        let mut incoming = self.incoming();
        incoming.is_reading = false;
        match result {
            Ok(0) => incoming.ended = Some(Ended::Cut),
            Ok(len) => incoming.data_left -= len,
            Err(_) => {}
        }
        drop(incoming);
        self.changed.notify_all();
        match result? {
            0 => Err(TransportError::Truncated),
            len => Ok(len),
        }
    }

    fn close_data(&self) {
        self.is_data_closed.store(true, SeqCst);
        self.wake(&self.data_closed);
    }

    fn close(&self) {
        self.is_closed.store(true, SeqCst);
        self.wake(&self.closed);
    }

    /// Wakes the threads that poll a descriptor, and those that wait for a condition.
    fn wake(&self, closed: &OwnedFd) {
        // The write fails only if the eventfd is readable already.
        let _ = write(closed, &1_u64.to_ne_bytes());
        // Taking the lock ensures that no thread is between its check and its wait.
        drop(self.incoming());
        self.changed.notify_all();
    }
}

/// The control channel of a pipe.
#[derive(Debug)]
pub struct PipeControl {
    shared: Arc<PipeState>,
}

impl PipeControl {
    /// Exchanges prefaces with the peer over two descriptors, which become non-blocking. It waits
    /// without a limit, because a user may have to type a password.
    ///
    /// # Errors
    /// If the peer does not speak the protocol or ends the stream, or if a system call fails.
    pub fn meet(input: OwnedFd, output: OwnedFd) -> Result<Self, TransportError> {
        let flag = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        for fd in [&input, &output] {
            let flags = fcntl_getfl(fd).map_err(io::Error::from)?;
            fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        }
        let shared = Arc::new(PipeState {
            input,
            output,
            turn: Mutex::default(),
            turn_ended: Condvar::new(),
            incoming: Mutex::default(),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
            is_data_closed: AtomicBool::new(false),
            closed: flag().map_err(io::Error::from)?,
            data_closed: flag().map_err(io::Error::from)?,
        });
        let preface = Preface {
            version_min: VERSION,
            version_max: VERSION,
            kind: Kind::Control,
            mode: Mode::Clear,
        };
        let sent = shared.write_all(&[&preface.emit()]);
        // A shell that prints something and ends may be gone before the preface is written. What it
        // has printed explains more than the failed write.
        let time = sent.is_err().then_some(STALL_TIME);
        let mut theirs = [0; Preface::LEN];
        if !shared.read_all(&mut theirs, time)? {
            return Err(sent.err().unwrap_or(TransportError::Truncated));
        }
        let Preface { kind: Kind::Control, mode: Mode::Clear, .. } = Preface::parse(&theirs)?
        else {
            return Err(TransportError::Protocol("the preface does not fit a pipe"));
        };
        sent?;
        let reader = Arc::clone(&shared);
        thread::Builder::new().name("pipe".into()).spawn(move || reader.read_frames())?;
        Ok(Self { shared })
    }

    /// Returns the source's end of the data channel.
    #[must_use]
    pub fn source(&self) -> PipeSource {
        PipeSource { shared: Arc::clone(&self.shared) }
    }

    /// Returns the sink's end of the data channel.
    #[must_use]
    pub fn sink(&self) -> PipeSink {
        PipeSink { shared: Arc::clone(&self.shared) }
    }
}

impl Control for PipeControl {
    fn send(&self, message: &[u8]) -> Result<(), TransportError> {
        if message.len() > CONTROL_LEN_MAX {
            return Err(TransportError::MessageTooLong(message.len()));
        }
        self.shared.write_frame(MESSAGE, &[message])
    }

    fn receive(
        &self,
        message: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<ControlEvent, TransportError> {
        let end = wait.and_then(|time| Instant::now().checked_add(time));
        let mut incoming = self.shared.incoming();
        loop {
            if let Some(next) = incoming.messages.pop_front() {
                drop(incoming);
                self.shared.changed.notify_all();
                *message = next;
                return Ok(ControlEvent::Message);
            }
            if self.shared.is_closed.load(SeqCst) {
                return Err(TransportError::Closed);
            }
            match incoming.ended {
                None => {}
                Some(Ended::Whole) => return Ok(ControlEvent::Ended),
                Some(ended) => return Err(ended.error()),
            }
            let changed = &self.shared.changed;
            incoming = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return Ok(ControlEvent::TimedOut),
                Some(left) => {
                    let waited = changed.wait_timeout(incoming, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => changed.wait(incoming).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn close(&self) {
        self.shared.close();
    }
}

impl Drop for PipeControl {
    fn drop(&mut self) {
        self.close();
    }
}

/// The source's end of the data channel of a pipe.
#[derive(Debug)]
pub struct PipeSource {
    shared: Arc<PipeState>,
}

impl PipeSource {
    fn send(&self, write: &Write) -> Result<(), TransportError> {
        let Payload::Block { block, len } = &write.payload else {
            return Err(TransportError::Protocol("a pipe cannot send extents"));
        };
        let mut head = write.head.bytes();
        let mut rest = &block.bytes()[..*len];
        while !(head.is_empty() && rest.is_empty()) {
            if self.shared.is_data_closed.load(SeqCst) {
                return Err(TransportError::Closed);
            }
            let (part, behind) = rest.split_at(rest.len().min(PIPE_FRAME_LEN_MAX - head.len()));
            self.shared.write_frame(DATA, &[head, part])?;
            (head, rest) = (&[], behind);
        }
        Ok(())
    }
}

impl DataSource for PipeSource {
    fn write(&mut self, write: Write) -> Written {
        let sent = self.send(&write);
        if sent.is_err() {
            self.shared.close_data();
        }
        write.ended(sent.map(|()| None))
    }

    fn close(&mut self) {
        self.shared.close_data();
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.close_data())
    }
}

/// The sink's end of the data channel of a pipe.
#[derive(Debug)]
pub struct PipeSink {
    shared: Arc<PipeState>,
}

impl PipeSink {
    /// Fills `bytes`. Returns false if the channel ends before the first byte.
    fn fill(&self, bytes: &mut [u8]) -> Result<bool, TransportError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.shared.read_data(&mut bytes[done..])? {
                0 if done == 0 => return Ok(false),
                0 => return Err(TransportError::Truncated),
                len => done += len,
            }
        }
        Ok(true)
    }

    fn drop_payload(&self, mut left: usize) -> Result<(), TransportError> {
        let mut room = [0; DROP_READ_LEN];
        while left > 0 {
            let part = left.min(room.len());
            self.fill(&mut room[..part])?;
            left -= part;
        }
        Ok(())
    }
}

impl DataSink for PipeSink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        _wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let mut head = [0; HEAD_LEN_MAX];
        let head = &mut head[..grants.head_len()];
        if !self.fill(head)? {
            return Ok(Received::Ended);
        }
        match grants.claim(head) {
            Ok(Claim::Into { mut block, len }) => {
                let received = self.fill(&mut block.bytes_mut()[..len]);
                let is_whole = received.and_then(|is_there| match is_there || len == 0 {
                    true => Ok(()),
                    false => Err(TransportError::Truncated),
                });
                if let Err(error) = is_whole {
                    self.shared.close_data();
                    grants.give_back(head, block);
                    return Err(error);
                }
                Ok(Received::Block(Arrival { head: Head::new(head), block, len }))
            }
            Ok(Claim::Drop(len)) => self.drop_payload(len).map(|()| Received::Dropped),
            Err(refused) => {
                self.shared.close_data();
                Err(TransportError::Refused(refused))
            }
        }
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.close_data())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::super::table::{HEAD_LEN, OVER, Table, head, parts, write};
    use super::*;
    use crate::blocks::Pool;
    use crate::wire::WireError;

    const LEN: usize = 4 << 20;

    fn meet(stream: &UnixStream) -> Result<PipeControl, TransportError> {
        let fd = || stream.try_clone().expect("a descriptor").into();
        PipeControl::meet(fd(), fd())
    }

    /// Returns both ends of a pipe.
    fn pair() -> (PipeControl, PipeControl) {
        let (near, remote) = UnixStream::pair().expect("a pair");
        let other = thread::spawn(move || meet(&remote).expect("a peer"));
        (meet(&near).expect("a peer"), other.join().expect("no panic"))
    }

    fn next_message(control: &PipeControl) -> Vec<u8> {
        let mut bytes = Vec::new();
        let event = control.receive(&mut bytes, Some(Duration::from_secs(240)));
        assert!(matches!(event, Ok(ControlEvent::Message)), "{event:?}");
        bytes
    }

    #[test]
    fn text_of_a_shell_that_ended_explains_the_failure() {
        let (near, mut remote) = UnixStream::pair().expect("a pair");
        remote.write_all(b"Welcome! This host has been up for a year.\n").expect("room");
        drop(remote);
        let failed = meet(&near).expect_err("no peer");
        assert!(matches!(failed, TransportError::Wire(_)), "{failed:?}");
        let (near, remote) = UnixStream::pair().expect("a pair");
        drop(remote);
        let failed = meet(&near).expect_err("no peer");
        assert!(matches!(failed, TransportError::System(_)), "{failed:?}");
    }

    #[test]
    fn messages_and_blocks_share_one_stream() {
        let (near, remote) = pair();
        let [ours, theirs] = [(); 2].map(|()| Pool::new(3, LEN).expect("memory"));
        let table = Table::of(&theirs);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut source = near.source();
                for (number, len) in [0, 1, LEN].into_iter().enumerate() {
                    near.send(format!("before {number}").as_bytes()).expect("a peer");
                    let mut block = ours.try_take().expect("a free block");
                    block.bytes_mut()[..len].fill(number as u8 + 1);
                    let to = u32::try_from(number).expect("few");
                    source.write(write(block, len, to, number as u64)).result.expect("a sink");
                }
                near.close();
            });
            let mut sink = remote.sink();
            for (number, len) in [0, 1, LEN].into_iter().enumerate() {
                let received = sink.receive(&table, None).expect("a source");
                let Received::Block(arrival) = received else { panic!("{received:?}") };
                assert_eq!((arrival.len, parts(arrival.head.bytes()).2), (len, number as u64));
                let bytes = &arrival.block.bytes()[..len];
                assert!(bytes.iter().all(|byte| usize::from(*byte) == number + 1));
                assert_eq!(next_message(&remote), format!("before {number}").as_bytes());
            }
        });
        drop(near);
        let ended = remote.sink().receive(&table, None);
        assert!(matches!(ended, Ok(Received::Ended)), "{ended:?}");
        let ended = remote.receive(&mut Vec::new(), None);
        assert!(matches!(ended, Ok(ControlEvent::Ended)), "{ended:?}");
    }

    #[test]
    fn message_does_not_wait_for_a_block() {
        let (near, remote) = pair();
        let [ours, theirs] = [(); 2].map(|()| Pool::new(1, LEN).expect("memory"));
        let table = Table::of(&theirs);
        thread::scope(|scope| {
            // Nobody reads the block yet, so its writer fills the stream and sleeps.
            scope.spawn(|| {
                let block = ours.try_take().expect("a free block");
                near.source().write(write(block, LEN, 0, 7)).result.expect("a sink");
            });
            scope.spawn(|| {
                while remote.shared.incoming().data_left == 0 {
                    thread::yield_now();
                }
                near.send(b"message").expect("a peer");
            });
            while lock(&near.shared.turn).messages == 0 {
                thread::yield_now();
            }
            let received = remote.sink().receive(&table, None).expect("a source");
            assert!(matches!(received, Received::Block(_)), "{received:?}");
            let mut bytes = Vec::new();
            let event = remote.receive(&mut bytes, Some(Duration::ZERO)).expect("a peer");
            assert_eq!((event, &bytes[..]), (ControlEvent::Message, &b"message"[..]));
        });
    }

    #[test]
    fn output_of_the_shell_is_no_preface() {
        let (near, mut remote) = UnixStream::pair().expect("a pair");
        remote.write_all(b"Welcome to this host, and have a nice day\n").expect("room");
        let failed = meet(&near).expect_err("no peer");
        assert!(matches!(failed, TransportError::Wire(WireError::Magic)), "{failed}");
        drop(remote);
        let (near, _) = UnixStream::pair().expect("a pair");
        assert!(meet(&near).is_err());
    }

    /// Returns the end of a pipe whose peer sends these bytes after its preface and ends.
    fn after(bytes: &[u8]) -> (PipeControl, UnixStream) {
        let (near, mut remote) = UnixStream::pair().expect("a pair");
        let (version_min, version_max) = (VERSION, VERSION);
        let (kind, mode) = (Kind::Control, Mode::Clear);
        let preface = Preface { version_min, version_max, kind, mode };
        remote.write_all(&preface.emit()).expect("room");
        remote.write_all(bytes).expect("room");
        remote.shutdown(std::net::Shutdown::Write).expect("a stream");
        (meet(&near).expect("a preface"), remote)
    }

    #[test]
    fn truncated_and_invalid_frames_end_the_pipe() {
        let frame = |kind: u8, len: u8, content: usize| {
            [&[0, kind, 0, 0, 0, 0, 0, len][..], &vec![1; content]].concat()
        };
        for (bytes, is_wrong) in [
            (frame(1, 5, 4), false),
            (frame(1, 5, 5)[..3].to_vec(), false),
            (frame(3, 1, 1), true),
            (frame(2, 0, 0), true),
            (vec![0, 1, 0, 1, 0, 0, 0, 1, 0], true),
            (vec![0, 1, 0, 0, 0xff, 0, 0, 0], true),
            (vec![0, 2, 0, 0, 0xff, 0, 0, 0], true),
        ] {
            let (control, _remote) = after(&bytes);
            let failed = control.receive(&mut Vec::new(), None);
            match is_wrong {
                true => assert!(matches!(failed, Err(TransportError::Protocol(_))), "{failed:?}"),
                false => assert!(matches!(failed, Err(TransportError::Truncated)), "{failed:?}"),
            }
        }
        // An incomplete block leaves its buffer granted.
        let pool = Pool::new(1, LEN).expect("memory");
        let table = Table::of(&pool);
        let head = head(0, 100, 0);
        let len = u8::try_from(HEAD_LEN + 100).expect("short");
        let whole = [&frame(2, len, 0), head.bytes(), &[7; 100]].concat();
        let (control, _remote) = after(&whole[..whole.len() - 1]);
        let failed = control.sink().receive(&table, None);
        assert!(matches!(failed, Err(TransportError::Truncated)), "{failed:?}");
        assert_eq!(table.granted(), 1);
    }

    #[test]
    fn data_without_a_receiver_does_not_stop_messages() {
        let (near, remote) = pair();
        let ours = Pool::new(1, LEN).expect("memory");
        remote.sink().closer()();
        thread::scope(|scope| {
            scope.spawn(|| {
                let block = ours.try_take().expect("a free block");
                near.source().write(write(block, LEN, OVER, 7)).result.expect("a peer");
                near.send(b"message").expect("a peer");
            });
            assert_eq!(next_message(&remote), b"message");
        });
    }

    #[test]
    fn closing_wakes_all_threads() {
        let (near, _remote) = pair();
        let [ours, theirs] = [(); 2].map(|()| Pool::new(1, LEN).expect("memory"));
        let table = Table::of(&theirs);
        thread::scope(|scope| {
            let message = scope.spawn(|| near.receive(&mut Vec::new(), None));
            let block = scope.spawn(|| near.sink().receive(&table, None));
            let post = scope.spawn(|| {
                let block = ours.try_take().expect("a free block");
                near.source().write(write(block, LEN, 0, 7)).result
            });
            while !lock(&near.shared.turn).is_taken {
                thread::yield_now();
            }
            near.close();
            let closed = message.join().expect("no panic");
            assert!(matches!(closed, Err(TransportError::Closed)), "{closed:?}");
            let closed = block.join().expect("no panic");
            assert!(matches!(closed, Err(TransportError::Closed)), "{closed:?}");
            let closed = post.join().expect("no panic");
            assert!(matches!(closed, Err(TransportError::Closed)), "{closed:?}");
        });
    }
}
