//! Blocks: pieces of a pool's memory, with their states.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use weft_sys::SharedMemory;

use super::memory::{Home, Memory, SharedRange};
use crate::limits::HEAD_LEN_MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockState {
    /// It is in its pool.
    Free,
    /// A stage of the source fills it.
    Loading,
    /// It is full and waits for the next stage.
    Loaded,
    /// A stage processes its bytes.
    Working,
    /// It is ready and waits for a credit.
    Ready,
    /// It is being sent, or is sent and not acknowledged.
    InFlight,
    /// The sink has granted it to the source.
    Granted,
    /// It has arrived at the sink and waits for earlier blocks or the next stage.
    Arrived,
    /// The sink writes it to files.
    Storing,
}

/// An event of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockEvent {
    /// A stage of the source has taken it from the pool.
    Load,
    /// It has been filled.
    Loaded,
    /// A stage begins to process it.
    Work,
    /// A stage of the source has processed it.
    Worked,
    /// It needs no processing before it is sent.
    Prepared,
    /// The source begins to write it to a granted buffer.
    Sent,
    /// Its data channel was lost, so it must be sent again.
    Lost,
    /// The sink has granted it.
    Grant,
    /// The source has written it completely.
    Arrived,
    /// A stage of the sink has processed it.
    Opened,
    /// The sink begins to write it to files.
    Store,
    /// It is not needed any more and returns to its pool.
    Release,
}

use BlockEvent as Event;
use BlockState as State;

/// All allowed transitions of a block. Any other is a bug of a stage.
pub const TRANSITIONS: &[(State, Event, State)] = &[
    (State::Free, Event::Load, State::Loading),
    (State::Free, Event::Grant, State::Granted),
    (State::Loading, Event::Loaded, State::Loaded),
    (State::Loading, Event::Release, State::Free),
    (State::Loaded, Event::Work, State::Working),
    (State::Loaded, Event::Prepared, State::Ready),
    (State::Loaded, Event::Release, State::Free),
    (State::Working, Event::Worked, State::Loaded),
    (State::Working, Event::Opened, State::Arrived),
    (State::Working, Event::Release, State::Free),
    (State::Ready, Event::Sent, State::InFlight),
    (State::Ready, Event::Release, State::Free),
    (State::InFlight, Event::Lost, State::Ready),
    (State::InFlight, Event::Release, State::Free),
    (State::Granted, Event::Arrived, State::Arrived),
    (State::Granted, Event::Release, State::Free),
    (State::Arrived, Event::Work, State::Working),
    (State::Arrived, Event::Store, State::Storing),
    (State::Arrived, Event::Release, State::Free),
    (State::Storing, Event::Release, State::Free),
];

impl BlockState {
    /// Returns the state after an event; `None` if the event is not allowed in this state.
    #[must_use]
    pub fn after(self, event: BlockEvent) -> Option<Self> {
        TRANSITIONS.iter().find(|(from, on, _)| (*from, *on) == (self, event)).map(|(.., to)| *to)
    }
}

/// Returns the transitions as a Graphviz graph.
#[must_use]
pub fn diagram() -> String {
    let mut text = String::from("digraph block {\n");
    for (from, event, to) in TRANSITIONS {
        text.push_str(&format!("    {from:?} -> {to:?} [label=\"{event:?}\"];\n"));
    }
    text.push_str("}\n");
    text
}

/// A block of memory with one owner. It returns to its pool when it is dropped.
///
/// A peer may change the bytes of a block of shared memory at any time, so no Rust reference to
/// them exists: they are copied, or passed to the kernel.
pub struct Block {
    memory: Memory,
    home: Option<Arc<Home>>,
    index: u32,
    state: BlockState,
}

impl Block {
    pub(crate) fn new(memory: Memory, home: Option<Arc<Home>>, index: u32) -> Self {
        Self { memory, home, index, state: State::Free }
    }

    /// The number of the block in its pool.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A block is never empty.
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Private(bytes) => bytes.len(),
            Memory::Shared(range) => range.len,
            Memory::Gone => 0,
        }
    }

    /// The state of the block.
    #[must_use]
    pub fn state(&self) -> BlockState {
        self.state
    }

    /// Changes the state by an event.
    ///
    /// # Panics
    /// In debug builds, if the event is not allowed in the block's state: a bug of the stage.
    pub fn advance(&mut self, event: BlockEvent) {
        match self.state.after(event) {
            Some(next) => self.state = next,
            None => debug_assert!(false, "{event:?} of a block that is {:?}", self.state),
        }
    }

    /// Returns the bytes; `None` if a peer can access them.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Memory::Private(bytes) = &self.memory { Some(bytes) } else { None }
    }

    /// Returns the bytes mutably; `None` if a peer can access them.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if let Memory::Private(bytes) = &mut self.memory { Some(bytes) } else { None }
    }

    /// Returns the offset in the segment of the header before a block of a shared pool; `None` for
    /// a block of private memory.
    #[must_use]
    pub fn head_offset(&self, head_len: usize) -> Option<u64> {
        match &self.memory {
            Memory::Shared(range) => Some(range.head(head_len) as u64),
            Memory::Private(_) | Memory::Gone => None,
        }
    }

    /// Writes the header before a block of a shared pool.
    ///
    /// # Panics
    /// If the header is longer than `HEAD_LEN_MAX`.
    pub fn put_head(&mut self, head: &[u8]) {
        if let Memory::Shared(range) = &self.memory {
            range.memory.copy_in(range.head(head.len()), head);
        }
    }

    /// Reads the header before a block of a shared pool into `head`.
    ///
    /// # Panics
    /// If the header is longer than `HEAD_LEN_MAX`.
    pub fn take_head(&self, head: &mut [u8]) {
        if let Memory::Shared(range) = &self.memory {
            range.memory.copy_out(range.head(head.len()), head);
        }
    }

    /// Creates a block of a pool that a peer has passed: `len` bytes after a header. It belongs to
    /// no pool here. Returns `None` if it does not lie within the segment.
    pub(crate) fn of_peer(
        memory: &Arc<SharedMemory>,
        head_offset: u64,
        head_len: usize,
        len: usize,
    ) -> Option<Self> {
        let start = usize::try_from(head_offset).ok()?.checked_add(head_len)?;
        if head_len > HEAD_LEN_MAX || start.checked_add(len)? > memory.len() {
            return None;
        }
        let range = SharedRange { memory: Arc::clone(memory), start, len };
        Some(Self::new(Memory::Shared(range), None, 0))
    }

    /// Copies the first `len` bytes to another block.
    ///
    /// # Panics
    /// If either is shorter.
    pub fn copy_to(&self, other: &mut Self, len: usize) {
        match (&self.memory, &mut other.memory) {
            (Memory::Private(own), _) => other.copy_in(0, &own[..len]),
            (Memory::Shared(_), Memory::Private(theirs)) => self.copy_out(0, &mut theirs[..len]),
            (Memory::Shared(own), Memory::Shared(theirs)) => {
                let (from, to) = (own.at(0, len), theirs.at(0, len));
                own.memory.copy_between(from, &theirs.memory, to, len);
            }
            (Memory::Gone, _) | (_, Memory::Gone) => {}
        }
    }

    /// Swaps the memory of two blocks without copying. Returns false and changes nothing if a peer
    /// can access one of them, or if their lengths differ.
    pub(crate) fn exchange(&mut self, other: &mut Self) -> bool {
        match (&mut self.memory, &mut other.memory) {
            (Memory::Private(own), Memory::Private(theirs)) if own.len() == theirs.len() => {
                std::mem::swap(own, theirs);
                true
            }
            _ => false,
        }
    }

    /// Whether both blocks are the same memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.memory, &other.memory) {
            (Memory::Shared(one), Memory::Shared(other)) => {
                Arc::ptr_eq(&one.memory, &other.memory) && one.start == other.start
            }
            _ => false,
        }
    }

    /// Copies `bytes` into the block at `offset`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        match &mut self.memory {
            Memory::Private(own) => own[offset..offset + bytes.len()].copy_from_slice(bytes),
            Memory::Shared(range) => {
                range.memory.copy_in(range.at(offset, bytes.len()), bytes);
            }
            Memory::Gone => {}
        }
    }

    /// Fills `bytes` from the block at `offset`.
    ///
    /// # Panics
    /// If the block ends before that.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        match &self.memory {
            Memory::Private(own) => bytes.copy_from_slice(&own[offset..offset + bytes.len()]),
            Memory::Shared(range) => {
                range.memory.copy_out(range.at(offset, bytes.len()), bytes);
            }
            Memory::Gone => {}
        }
    }

    /// Reads a file from `from` on into the block at `offset`, until it has read `len` bytes or the
    /// file ends. Returns the number of bytes read.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn read_file(
        &mut self,
        offset: usize,
        len: usize,
        file: BorrowedFd<'_>,
        from: u64,
    ) -> io::Result<usize> {
        whole(len, |done| {
            let (at, left, from) = (offset + done, len - done, from + done as u64);
            match &mut self.memory {
                Memory::Private(own) => rustix::io::pread(file, &mut own[at..at + left], from),
                Memory::Shared(range) => {
                    range.memory.read_file(range.at(at, left), left, file, from)
                }
                Memory::Gone => Ok(0),
            }
        })
    }

    /// Writes `len` bytes of the block at `offset` to a file at `to`.
    ///
    /// # Errors
    /// An error of the kernel; `WriteZero` if it writes nothing.
    ///
    /// # Panics
    /// If the block ends before that.
    pub fn write_file(
        &self,
        offset: usize,
        len: usize,
        file: BorrowedFd<'_>,
        to: u64,
    ) -> io::Result<()> {
        let written = whole(len, |done| {
            let (at, left, to) = (offset + done, len - done, to + done as u64);
            match &self.memory {
                Memory::Private(own) => rustix::io::pwrite(file, &own[at..at + left], to),
                Memory::Shared(range) => {
                    range.memory.write_file(range.at(at, left), left, file, to)
                }
                Memory::Gone => Ok(0),
            }
        })?;
        if written == len { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives up to `len` bytes of a stream at `offset`, in one call. Returns the number of
    /// bytes, 0 at the end of the stream.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If the block ends before that.
    pub fn recv(
        &mut self,
        offset: usize,
        len: usize,
        socket: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let flags = rustix::net::RecvFlags::WAITALL;
        match &mut self.memory {
            Memory::Private(own) => {
                rustix::net::recv(socket, &mut own[offset..offset + len], flags).map(|(n, _)| n)
            }
            Memory::Shared(range) => {
                let flags = flags.bits().cast_signed();
                range.memory.recv_stream(range.at(offset, len), len, socket, flags)
            }
            Memory::Gone => Ok(0),
        }
    }

    /// Sends `head` and then `len` bytes at `offset`, in one call. Returns the total number of
    /// bytes sent.
    ///
    /// # Errors
    /// An error of the kernel.
    ///
    /// # Panics
    /// If the block ends before that.
    pub fn send(
        &self,
        head: &[u8],
        offset: usize,
        len: usize,
        socket: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
        match &self.memory {
            Memory::Private(own) => {
                let parts = [head, &own[offset..offset + len]].map(io::IoSlice::new);
                sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            }
            Memory::Shared(range) => {
                let flags = SendFlags::NOSIGNAL.bits().cast_signed();
                range.memory.send_stream(head, range.at(offset, len), len, socket, flags)
            }
            Memory::Gone => Ok(0),
        }
    }
}

/// Repeats `step`, which gets the number of bytes done, until that is `len` or a step makes no
/// progress.
fn whole(len: usize, mut step: impl FnMut(usize) -> Result<usize, Errno>) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("index", &self.index).field("state", &self.state).finish()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Gone);
        if let Some(home) = self.home.take() {
            home.put(memory, self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pool;
    use std::os::fd::AsFd;

    #[test]
    fn transitions_match_the_snapshot() {
        assert_eq!(diagram(), include_str!("block.dot"));
    }

    #[test]
    fn each_event_has_one_result_and_each_state_leads_to_free() {
        for (index, (from, event, _)) in TRANSITIONS.iter().enumerate() {
            let same = |other: &&(State, Event, State)| (other.0, other.1) == (*from, *event);
            assert_eq!(TRANSITIONS.iter().filter(same).count(), 1, "row {index}");
            if *from != State::Free {
                assert_eq!(from.after(Event::Release), Some(State::Free), "{from:?}");
            }
        }
        assert_eq!(State::Free.after(Event::Sent), None);
        assert_eq!(State::Storing.after(Event::Sent), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Sent of a block that is Free")]
    fn impossible_event_is_a_defect() {
        let pool = Pool::private(1, 4_096).expect("memory");
        let mut block = pool.try_take().expect("a free block");
        block.advance(Event::Sent);
    }

    #[test]
    fn bytes_are_copied_in_and_out_of_both_kinds_of_memory() {
        let file = tempfile::tempfile().expect("a file");
        for pool in [Pool::private(1, 4_096), Pool::shared(1, 4_096)] {
            let pool = pool.expect("memory");
            let mut block = pool.try_take().expect("a free block");
            block.copy_in(10, b"payload");
            block.write_file(10, 7, file.as_fd(), 5).expect("room");
            assert_eq!(block.read_file(100, 50, file.as_fd(), 6).expect("a file"), 6);
            let mut bytes = [0; 7];
            block.copy_out(100, &mut bytes);
            assert_eq!(&bytes, b"ayload\0");
        }
    }

    #[test]
    fn header_directly_precedes_a_shared_block() {
        let pool = Pool::shared(2, 4_096).expect("memory");
        let (mut one, mut two) = (pool.take().expect("free"), pool.take().expect("free"));
        one.copy_in(4_095, &[7]);
        two.put_head(b"header");
        two.copy_in(0, b"payload");
        let mut head = [0; 6];
        two.take_head(&mut head);
        assert_eq!(&head, b"header");
        let mut last = [0];
        one.copy_out(4_095, &mut last);
        assert_eq!(last, [7], "the block before has its own bytes");
        let segment = SharedMemory::open(pool.segment().expect("shared"), 4 * 4_096, true);
        let segment = Arc::new(segment.expect("the same memory"));
        let offset = two.head_offset(6).expect("shared");
        let theirs = Block::of_peer(&segment, offset, 6, 4_096).expect("inside");
        let mut bytes = [0; 7];
        theirs.copy_out(0, &mut bytes);
        assert_eq!(&bytes, b"payload");
        assert!(Block::of_peer(&segment, offset, 6, 4_097).is_none());
        assert!(Block::of_peer(&segment, u64::MAX, 6, 1).is_none());
    }

    #[test]
    fn blocks_are_copied_between_both_kinds_of_memory() {
        let pools = [Pool::private(2, 4_096), Pool::shared(2, 4_096)].map(|it| it.expect("memory"));
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (mut one, mut two) = (pools[from].take().expect("free"), pools[to].take());
            let two = two.as_mut().expect("free");
            one.copy_in(0, b"payload");
            two.copy_in(0, b"another");
            one.copy_to(two, 4);
            let mut bytes = [0; 7];
            two.copy_out(0, &mut bytes);
            assert_eq!(&bytes, b"paylher");
        }
    }

    #[test]
    fn shared_block_gives_no_slice() {
        let pool = Pool::shared(2, 4_096).expect("memory");
        let mut block = pool.try_take().expect("a free block");
        assert!(block.bytes().is_none() && block.bytes_mut().is_none());
    }

    #[test]
    #[should_panic(expected = "past the end of a block")]
    fn shared_block_ends_before_the_next_header() {
        let pool = Pool::shared(2, 4_096).expect("memory");
        let mut block = pool.try_take().expect("a free block");
        block.copy_in(4_090, &[0; 7]);
    }
}
