//! One end of a connection.

use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::limits::VALUE_MAX;
use crate::memory::Buffer;
use crate::message::Receive;
use crate::operation::Operation;
use crate::returned::Returned;
use crate::share::{Part, RemoteKey, Target};
use crate::state::State;
use crate::waiting::{self, Awaited, Since};
use crate::watcher::Watched as _;
use crate::work::Work;

/// Bytes that an atomic changes.
const WORD: usize = 8;

/// One end of a connection: it sends and receives messages, and accesses memory that the peer has
/// [shared](Buffer::share).
///
/// Every call begins an operation at once and returns it; several may be under way, and they take
/// place at the peer in the order in which they began. A Read, and an atomic, is only ordered after
/// what began before it: to use its result, wait for it.
///
/// Clones are handles of the same end. Dropping the last handle, and all operations and messages,
/// closes the connection; what is still under way then may be lost. To know that everything has
/// arrived, wait for the operations, or [close](Self::close) the endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    core: Arc<Core>,
}

impl Endpoint {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.core.peer
    }

    /// Bytes of the longest message that the peer receives: what its
    /// [`Options::message_max`](crate::Options::message_max) says.
    #[must_use]
    pub fn message_max(&self) -> usize {
        self.core.peer_message_max()
    }

    /// What carries the connection now: `shm` for shared memory, `tcp`, or another word of `weft
    /// dump`; `system` for an RDMA device, `simulated` in a simulation.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.core.parts.link.transport()
    }

    /// Sends a copy of these bytes as a message. For up to
    /// [`VALUE_MAX`](crate::limits::VALUE_MAX) bytes; longer ones go by [`Endpoint::send_buffer`].
    ///
    /// It waits, in its turn, while the peer has messages enough to take.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Busy`]; the error that has ended the connection.
    pub fn send(&self, bytes: &[u8]) -> Result<Operation<()>> {
        let max = VALUE_MAX.min(self.message_max());
        if bytes.len() > max {
            return Err(Error::TooLong { len: bytes.len(), max });
        }
        let parts = &self.core.parts;
        let key = self.core.with(|state, later| {
            state.check()?;
            let sent = state.send_now(parts, bytes, later);
            Ok::<_, Error>(
                sent.unwrap_or_else(|| state.add(parts, Work::Value(bytes.into()), None, later)),
            )
        })?;
        Ok(Operation::new(&self.core, key))
    }

    /// Sends a range of a buffer as a message, without a copy. For up to
    /// [`Endpoint::message_max`] bytes; what is longer goes by [`Endpoint::write`].
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::TooLong`], [`Error::Busy`], or the error that has ended the
    /// connection; all return the buffer.
    pub fn send_buffer(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
    ) -> std::result::Result<Operation<Buffer>, Returned> {
        let range = buffer.range(&range);
        self.on_buffer(buffer, range, &Task::Send)
    }

    /// Returns the next message of the peer, when it is awaited or waited for.
    pub fn receive(&self) -> Receive {
        Receive::new(&self.core)
    }

    /// Writes a range of a buffer into the peer's memory, at `offset` of what `key` gives access
    /// to.
    /// The peer is not notified: send a message afterwards, or use
    /// [`Endpoint::write_with_immediate`].
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::RemoteRange`], [`Error::Busy`], or the error that has ended the
    /// connection; all return the buffer. The operation fails with [`Error::Denied`] if the peer
    /// refuses it.
    pub fn write(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> std::result::Result<Operation<Buffer>, Returned> {
        let range = buffer.range(&range);
        self.on_buffer(buffer, range, &Task::Write(key, offset, None))
    }

    /// Writes like [`Endpoint::write`], and tells the peer by a message with `immediate`, which
    /// arrives after the bytes.
    ///
    /// # Errors
    /// Those of [`Endpoint::write`].
    pub fn write_with_immediate(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        key: &RemoteKey,
        offset: u64,
        immediate: u32,
    ) -> std::result::Result<Operation<Buffer>, Returned> {
        let range = buffer.range(&range);
        self.on_buffer(buffer, range, &Task::Write(key, offset, Some(immediate)))
    }

    /// Reads the peer's memory, at `offset` of what `key` gives access to, into a range of a
    /// buffer.
    ///
    /// # Errors
    /// Those of [`Endpoint::write`].
    pub fn read(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> std::result::Result<Operation<Buffer>, Returned> {
        let range = buffer.range(&range);
        self.on_buffer(buffer, range, &Task::Read(key, offset))
    }

    /// Adds to eight bytes of the peer's memory in one step, and returns what was there before. The
    /// bytes are a number in the byte order of the peer's host.
    ///
    /// # Errors
    /// [`Error::RemoteRange`], also if the address is not a multiple of eight;
    /// [`Error::NoAtomics`]; [`Error::Busy`]; the error that has ended the connection. The
    /// operation fails with [`Error::Denied`] if the peer refuses it.
    pub fn fetch_add(&self, key: &RemoteKey, offset: u64, add: u64) -> Result<Operation<u64>> {
        self.on_word(key, offset, |target| Work::Add(target, add))
    }

    /// Stores `swap` in eight bytes of the peer's memory if they are `compare`, in one step, and
    /// returns what was there before. The bytes are a number in the byte order of the peer's host.
    ///
    /// # Errors
    /// Those of [`Endpoint::fetch_add`].
    pub fn compare_swap(
        &self,
        key: &RemoteKey,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Operation<u64>> {
        self.on_word(key, offset, |target| Work::Swap(target, compare, swap))
    }

    /// Holds operations back until the returned value is dropped, and starts them together then.
    /// That costs less than to start them one by one. Operations of other handles are held back,
    /// too.
    pub fn batch(&self) -> Batch<'_> {
        self.core.with(|state, _| state.batches += 1);
        Batch { core: &self.core }
    }

    /// Closes the connection when all operations that were begun have ended. Afterwards operations
    /// fail with [`Error::Closed`] at both ends.
    pub fn close(self) -> Close {
        Close { core: self.core, since: Since::default() }
    }

    /// Ends the connection at once, from any thread: what is under way fails with
    /// [`Error::Closed`], or ends as it would have, and those who wait wake. What has been sent may
    /// be lost. Nothing happens if the connection has ended.
    pub fn abort(&self) {
        self.core.finish(Error::Closed { peer: self.core.peer });
    }

    /// Has the descriptor of [`AsFd`] become readable when there is something new, for a loop of
    /// one's own. Returns `true` if something has happened meanwhile: then look at the operations
    /// and messages (`try_wait`), and arm again, before waiting.
    ///
    /// A loop: arm until it returns `false`; `poll(2)`; [`Endpoint::turn`]; `try_wait`. Use it for
    /// an endpoint of which nothing is awaited or waited for.
    pub fn arm(&self) -> bool {
        self.core.arm();
        self.core.progress()
    }

    /// Takes the events that have made the descriptor readable, and lets the endpoint do its work.
    /// It does not wait.
    pub fn turn(&self) {
        self.core.take_events();
        self.core.progress();
    }

    // Not generic, so that it is compiled with this crate, however a program is optimised.
    fn on_buffer(
        &self,
        mut buffer: Buffer,
        range: Option<Part>,
        task: &Task<'_>,
    ) -> std::result::Result<Operation<Buffer>, Returned> {
        let work = range.ok_or(Error::Range { len: buffer.len() });
        let work = work
            .and_then(|range| task.work(range, self.message_max()))
            .and_then(|work| buffer.prepare(matches!(work, Work::Read(..))).map(|()| work));
        let work = match work {
            Ok(work) => work,
            Err(error) => return Err(Returned { error, buffer }),
        };
        let parts = &self.core.parts;
        let key = self.core.with(|state, later| match state.check() {
            Ok(()) => Ok(state.add(parts, work, Some(buffer), later)),
            Err(error) => Err(Returned { error, buffer: buffer.unused() }),
        })?;
        Ok(Operation::new(&self.core, key))
    }

    fn on_word(
        &self,
        key: &RemoteKey,
        offset: u64,
        work: impl FnOnce(Target) -> Work,
    ) -> Result<Operation<u64>> {
        let target = key.target(offset, WORD).filter(|target| target.address % WORD as u64 == 0);
        let of = key.len();
        let target = target.ok_or(Error::RemoteRange { offset, len: WORD, of })?;
        if !self.core.has_atomics() {
            return Err(Error::NoAtomics);
        }
        let parts = &self.core.parts;
        let key = self.core.with(|state, later| {
            state.check()?;
            Ok::<_, Error>(state.add(parts, work(target), None, later))
        })?;
        Ok(Operation::new(&self.core, key))
    }
}

/// What an operation does with a range of its buffer.
enum Task<'a> {
    Send,
    /// With the immediate data, if the peer is to be notified.
    Write(&'a RemoteKey, u64, Option<u32>),
    Read(&'a RemoteKey, u64),
}

impl Task<'_> {
    fn work(&self, range: Part, message_max: usize) -> Result<Work> {
        let len = range.len();
        let target = |key: &RemoteKey, offset| {
            let of = key.len();
            key.target(offset, len).ok_or(Error::RemoteRange { offset, len, of })
        };
        Ok(match *self {
            Self::Send if len > message_max => {
                return Err(Error::TooLong { len, max: message_max });
            }
            Self::Send => Work::Message(range),
            Self::Write(key, offset, immediate) => {
                Work::Write(range, target(key, offset)?, immediate)
            }
            Self::Read(key, offset) => Work::Read(range, target(key, offset)?),
        })
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.fd()
    }
}

/// Operations that are started together: see [`Endpoint::batch`].
#[derive(Debug)]
#[must_use = "dropping it starts the operations"]
pub struct Batch<'a> {
    core: &'a Arc<Core>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.core.with(|state, later| {
            state.batches -= 1;
            state.post_waiting(&self.core.parts, later);
        });
    }
}

/// The end of a connection, in order: [`Endpoint::close`].
#[derive(Debug)]
#[must_use = "the endpoint is closed when this is awaited or waited for"]
pub struct Close {
    core: Arc<Core>,
    since: Since,
}

/// The state in which nothing is under way.
struct Idle;

impl Awaited for Idle {
    type Output = Result<()>;

    fn take(&mut self, _: &Core, state: &mut State) -> Option<Self::Output> {
        match &state.end {
            Some(Error::Closed { .. }) => Some(Ok(())),
            Some(end) => Some(Err(end.clone())),
            None => state.is_idle().then_some(Ok(())),
        }
    }

    fn call(&mut self, state: &mut State, waker: &Waker) {
        state.idlers.add(waker);
    }

    fn forget(&mut self, state: &mut State, waker: &Waker) {
        state.idlers.remove(waker);
    }
}

impl Close {
    /// Blocks the thread until the connection is closed.
    ///
    /// # Errors
    /// The error that has ended the connection before, if it was not closed.
    pub fn wait(self) -> Result<()> {
        let ended = waiting::wait(&self.core, &mut Idle, None).unwrap_or(Ok(()));
        self.finish();
        ended
    }

    fn finish(&self) {
        self.core.finish(Error::Closed { peer: self.core.peer });
    }
}

impl Drop for Close {
    fn drop(&mut self) {
        waiting::dropped(&self.core, &mut Idle, &mut self.since);
    }
}

impl Future for Close {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let ended = waiting::poll(&this.core, &mut Idle, &mut this.since, cx);
        if ended.is_ready() {
            this.finish();
        }
        ended
    }
}
