//! Operations that are under way, as futures and for blocked threads.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::state::State;
use crate::table::Key;
use crate::waiting::{self, Awaited, Since};
use crate::work::OperationPhase;

/// What an operation gives back: nothing, its buffer, or the old value of an atomic.
pub trait Outcome: sealed::Outcome {}

mod sealed {
    use crate::memory::Buffer;

    /// What is there when an operation has succeeded.
    #[derive(Debug)]
    pub struct Ended {
        pub(crate) value: u64,
        pub(crate) buffer: Option<Buffer>,
    }

    pub trait Outcome: Sized {
        fn of(ended: Ended) -> Option<Self>;
    }
}

use sealed::Ended;

impl Outcome for () {}
impl sealed::Outcome for () {
    fn of(_: Ended) -> Option<Self> {
        Some(())
    }
}

impl Outcome for Buffer {}
impl sealed::Outcome for Buffer {
    fn of(ended: Ended) -> Option<Self> {
        ended.buffer
    }
}

impl Outcome for u64 {}
impl sealed::Outcome for u64 {
    fn of(ended: Ended) -> Option<Self> {
        Some(ended.value)
    }
}

/// An operation that has begun. Await it on any executor, or [wait](Self::wait) for it.
///
/// It goes on whether or not anybody asks for it. Dropping this value forgets the result: the
/// operation still takes place, and its buffer is freed when it has ended. After a failure the
/// connection has ended, and the buffer is freed.
///
/// That a message or a Write has succeeded means that its bytes are in the peer's memory.
#[must_use = "the operation goes on, but whether it succeeds is not known"]
pub struct Operation<T: Outcome> {
    awaited: Asked,
    core: Arc<Core>,
    since: Since,
    outcome: PhantomData<fn() -> T>,
}

/// An operation in the table of its endpoint.
#[derive(Debug)]
struct Asked(Option<Key>);

impl Awaited for Asked {
    type Output = Result<Ended>;

    fn take(&mut self, core: &Core, state: &mut State) -> Option<Self::Output> {
        let closed = || Err(Error::Closed { peer: core.peer });
        let Some(key) = self.0 else { return Some(closed()) };
        match state.operations.get_mut(key) {
            Some(operation) if matches!(operation.phase, OperationPhase::Ended(..)) => {}
            Some(_) => return None,
            None => return Some(closed()),
        }
        self.0 = None;
        let operation = state.operations.remove(key)?;
        state.awaited -= usize::from(operation.waker.is_some());
        match operation.phase {
            OperationPhase::Ended(Ok(value), buffer) => Some(Ok(Ended { value, buffer })),
            OperationPhase::Ended(Err(error), _) => Some(Err(error)),
            OperationPhase::Waiting(..) | OperationPhase::Posted(_) => Some(closed()),
        }
    }

    fn call(&mut self, state: &mut State, waker: &Waker) {
        if let Some(operation) = self.0.and_then(|key| state.operations.get_mut(key)) {
            let old = operation.waker.replace(waker.clone());
            state.awaited += usize::from(old.is_none());
        }
    }

    fn forget(&mut self, state: &mut State, _: &Waker) {
        if let Some(operation) = self.0.and_then(|key| state.operations.get_mut(key)) {
            state.awaited -= usize::from(operation.waker.take().is_some());
        }
    }
}

impl<T: Outcome> Operation<T> {
    pub(crate) fn new(core: &Arc<Core>, key: Key) -> Self {
        let (awaited, core) = (Asked(Some(key)), Arc::clone(core));
        Self { awaited, core, since: Since::default(), outcome: PhantomData }
    }

    /// Blocks the thread until the operation has ended.
    ///
    /// # Errors
    /// Why the operation failed.
    pub fn wait(mut self) -> Result<T> {
        let ended = waiting::wait(&self.core, &mut self.awaited, None);
        self.outcome(ended)
    }

    /// Blocks the thread until the operation has ended, but no longer than `limit`. Returns `None`
    /// if it is still under way.
    ///
    /// # Errors
    /// Why the operation failed.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<T>> {
        let deadline = Instant::now() + limit;
        let ended = waiting::wait(&self.core, &mut self.awaited, Some(deadline))?;
        Some(self.outcome(Some(ended)))
    }

    /// Returns the result if the operation has ended, without waiting.
    ///
    /// # Errors
    /// Why the operation failed.
    pub fn try_wait(&mut self) -> Option<Result<T>> {
        let core = Arc::clone(&self.core);
        let ended = core.look(|state| self.awaited.take(&core, state))?;
        Some(self.outcome(Some(ended)))
    }

    fn outcome(&self, ended: Option<Result<Ended>>) -> Result<T> {
        let closed = || Error::Closed { peer: self.core.peer };
        let ended = ended.unwrap_or_else(|| Err(closed()))?;
        sealed::Outcome::of(ended).ok_or_else(closed)
    }
}

impl<T: Outcome> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let ended = waiting::poll(&this.core, &mut this.awaited, &mut this.since, cx);
        ended.map(|ended| this.outcome(Some(ended)))
    }
}

impl<T: Outcome> Drop for Operation<T> {
    fn drop(&mut self) {
        if let Some(key) = self.awaited.0 {
            self.core.with(|state, later| state.abandon(key, later));
        }
    }
}

impl<T: Outcome> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("peer", &self.core.peer).finish_non_exhaustive()
    }
}
