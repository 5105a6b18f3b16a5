//! What the protocol of a connection needs from the queue pair: work, memory and effects.
//!
//! The protocol does not know the queue pair: the owner of a connection passes a [`Host`] to each
//! call. The calls are dispatched statically, so the abstraction costs nothing. Effects that can
//! wait until the connection is unlocked do not go through the host; they are left in
//! [`Notices`](super::Notices).

use std::fmt;
use std::ops::DerefMut;

use weft_sys::Region;

use super::payload::Payload;
use crate::access::Access;
use crate::attr::QpState;
use crate::event::EventKind;
use crate::mr::AccessError;
use crate::mw::Mw;
use crate::queue::recv::{RecvQueue, RecvWork};
use crate::queue::send::SendQueue;
use crate::wc::Completion;
use crate::wr::WindowBind;

/// Everything that a connection needs from outside: posted work, registered memory, and effects.
pub(crate) trait Host: Work + Memory + Effects {}

impl<T: Work + Memory + Effects> Host for T {}

/// The work requests that the program has posted.
pub(crate) trait Work {
    /// A shared receive queue, which messages of an extended connection name.
    type Queue: fmt::Debug;

    /// The send queue, locked until the value is dropped.
    fn sends(&self) -> impl DerefMut<Target = SendQueue>;

    /// Whether there may be send requests that have not been sent; takes no lock.
    fn may_have_unsent(&self) -> bool;

    /// Updates [`Work::may_have_unsent`]; called by the holder of the send queue's lock.
    fn note_unsent(&self, sends: &SendQueue);

    /// The connection's own receive queue, locked until the value is dropped. It is empty if
    /// receives come from a shared queue.
    fn receives(&self) -> impl DerefMut<Target = RecvQueue>;

    /// Whether a receive is posted for this connection.
    fn has_receive(&self) -> bool;

    /// Moves the oldest receive to `work`: from `queue`, or from the connection's usual queue.
    /// Returns false if there is none.
    fn take_receive(&self, queue: Option<&Self::Queue>, work: &mut RecvWork) -> bool;

    /// Gives a receive of a shared queue back, as the oldest one: to `queue`, or to the
    /// connection's usual queue.
    fn give_back_receive(&self, queue: Option<&Self::Queue>, work: &RecvWork);

    /// The shared receive queue with this number, for an extended connection.
    fn find_queue(&self, number: u32) -> Option<Self::Queue>;
}

/// The memory that a connection may access.
pub(crate) trait Memory: Work {
    /// The type that finds memory by its key.
    type Keys: Keys;

    /// The access context of the connection's own requests, and of the peer's.
    fn context(&self) -> <Self::Keys as Keys>::Context<'_>;

    /// The access context of a receive, which depends on the queue that it was posted to.
    fn receive_context<'a>(
        &'a self,
        queue: Option<&'a Self::Queue>,
    ) -> <Self::Keys as Keys>::Context<'a>;

    /// Invalidates a key for the program. Returns false if the key is not the program's.
    fn invalidate(&self, key: u32) -> bool;

    /// Invalidates a key for the peer. Returns false if the peer could not have used the key.
    fn invalidate_for_peer(&self, key: u32) -> bool;

    /// Binds a memory window.
    ///
    /// # Errors
    /// Those of [`Mw::bind`].
    fn bind(&self, window: &Mw, rkey: u32, bind: &WindowBind) -> crate::Result<()>;
}

/// Finds the memory of a key, and checks each access to it. A connection has one for each
/// direction, so that it can cache what it has found.
pub(crate) trait Keys: fmt::Debug + Default {
    /// The protection domain and queue pair that access memory.
    type Context<'a>: Copy;
    /// See [`Pinned`].
    type Pin<'a>: Pinned
    where
        Self: 'a;
    /// See [`PinnedRegion`].
    type PinnedRegion<'a>: PinnedRegion
    where
        Self: 'a;

    /// Finds `len` bytes at `addr` of the memory of `key` and checks that the context has the
    /// rights `needs`.
    fn access(
        &mut self,
        context: Self::Context<'_>,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Self::Pin<'_>, AccessError>;

    /// Pins a whole region of this process for several copies. Each copy's bounds are checked by
    /// [`PinnedRegion::part`].
    fn pin_region(
        &mut self,
        context: Self::Context<'_>,
        key: u32,
        needs: Access,
    ) -> Result<Self::PinnedRegion<'_>, AccessError>;
}

/// A pinned range: deregistration waits until it is dropped. Held for one copy, never across a
/// wait.
pub(crate) trait Pinned {
    /// The memory of the range, extent by extent; empty if the range is.
    fn extents(&self) -> impl Iterator<Item = Region>;

    /// Appends the bytes of the range to `out`.
    fn read(&self, out: &mut Vec<u8>);

    /// Fills the range with payload bytes from `offset` on. Returns the number of bytes.
    ///
    /// # Errors
    /// The kernel's error if the payload is in the peer's memory and cannot be read.
    fn write(&self, payload: &Payload<'_>, offset: usize) -> crate::Result<usize>;

    /// Changes the range's eight bytes atomically and returns the old value; `None` if they are not
    /// aligned.
    fn update(&self, change: impl FnMut(u64) -> u64) -> Option<u64>;

    /// Notifies the observer that a peer has written to the whole range.
    fn notify_observer(&self);
}

/// A pinned region: deregistration waits until it is dropped. Held for a few copies, never across a
/// wait.
pub(crate) trait PinnedRegion {
    /// Whether this is the region of `key`.
    fn is_of(&self, key: u32) -> bool;

    /// The memory of `len` bytes at `addr`; `None` if they are outside the region or in several
    /// extents.
    fn part(&self, addr: u64, len: u64) -> Option<Region>;
}

/// Effects that the program sees.
pub(crate) trait Effects: Work {
    /// Starts a batch of completions of send requests.
    fn send_completions(&self) -> impl Completions;

    /// Starts a batch of completions of the connection's own receives.
    fn receive_completions(&self) -> impl Completions;

    /// Completes a receive that came from `queue`, or from the connection's usual queue.
    fn complete_receive(
        &self,
        queue: Option<&Self::Queue>,
        completion: Completion,
        solicited: bool,
    );

    /// Sets the queue pair's state.
    fn enter_state(&self, state: QpState);

    /// Raises an asynchronous event of the queue pair.
    fn raise(&self, event: EventKind);

    /// Reports that the send queue has been drained.
    fn send_queue_drained(&self);

    /// Reports that no further receive of the shared queue will be taken.
    fn last_receive_taken(&self);
}

/// A batch of completions. Dropping it notifies the program.
pub(crate) trait Completions {
    /// Whether the queue is not full.
    fn has_room(&self) -> bool;

    /// Adds a completion; `solicited` if the peer requested a solicited event.
    fn push(&mut self, completion: Completion, solicited: bool);
}
