//! What the protocol of a connection works on, and who carries out what follows from it.
//!
//! The protocol knows no queue pair: the owner of a connection hands a [`Host`] to each call. The
//! calls are dispatched statically, so that the seam costs nothing. What may wait until the
//! connection is not locked any more is not done through the host, but left in
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

/// Posted work, registered memory and effects: everything outside of a connection that it needs.
pub(crate) trait Host: Work + Memory + Effects {}

impl<T: Work + Memory + Effects> Host for T {}

/// The work requests that the program has posted.
pub(crate) trait Work {
    /// A shared receive queue that messages of an extended connection name.
    type Queue: fmt::Debug;

    /// The send queue, which stays locked until the value is dropped.
    fn sends(&self) -> impl DerefMut<Target = SendQueue>;

    /// Whether there may be send requests that have not been handed over; takes no lock.
    fn may_have_unsent(&self) -> bool;

    /// Notes whether there are any, as the holder of the send queue sees.
    fn note_unsent(&self, sends: &SendQueue);

    /// The receive queue of this connection alone, locked like the send queue. It is empty if
    /// receives come from elsewhere.
    fn receives(&self) -> impl DerefMut<Target = RecvQueue>;

    /// Whether a receive is posted where this connection takes them from.
    fn has_receive(&self) -> bool;

    /// Moves the oldest receive, of `queue` or of where this connection takes them from, to `work`.
    /// False when there is none.
    fn take_receive(&self, queue: Option<&Self::Queue>, work: &mut RecvWork) -> bool;

    /// The shared receive queue with this number, on an extended connection.
    fn find_queue(&self, number: u32) -> Option<Self::Queue>;
}

/// The memory that a connection may use.
pub(crate) trait Memory: Work {
    /// Finds memory by its keys.
    type Keys: Keys;

    /// The context of the connection itself, for its own lists and for what the peer asks for.
    fn context(&self) -> <Self::Keys as Keys>::Context<'_>;

    /// The context of a receive: that of the side that has posted it.
    fn receive_context<'a>(
        &'a self,
        queue: Option<&'a Self::Queue>,
    ) -> <Self::Keys as Keys>::Context<'a>;

    /// Makes a key unusable because the program asks for it. False for one that is not its.
    fn invalidate(&self, key: u32) -> bool;

    /// Makes a key unusable because the peer asks for it. False for one that the peer could not
    /// have used.
    fn invalidate_for_peer(&self, key: u32) -> bool;

    /// Binds a memory window.
    ///
    /// # Errors
    /// Those of [`Mw::bind`].
    fn bind(&self, window: &Mw, rkey: u32, bind: &WindowBind) -> crate::Result<()>;
}

/// Finds the memory that keys name, and checks each access to it. A connection has one for each
/// direction, so that it may remember what it has found.
pub(crate) trait Keys: fmt::Debug + Default {
    /// On whose behalf memory is accessed.
    type Context<'a>: Copy;
    /// See [`Pinned`].
    type Pin<'a>: Pinned
    where
        Self: 'a;
    /// See [`Held`].
    type Held<'a>: Held
    where
        Self: 'a;

    /// Finds `len` bytes at `addr` of the memory that `key` names and checks that `needs` is
    /// granted to the context.
    fn access(
        &mut self,
        context: Self::Context<'_>,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Self::Pin<'_>, AccessError>;

    /// Holds a whole region of this side's still, for several copies. The caller checks nothing
    /// further than what [`Held::part`] does.
    fn hold(
        &mut self,
        context: Self::Context<'_>,
        key: u32,
        needs: Access,
    ) -> Result<Self::Held<'_>, AccessError>;
}

/// Memory that stays registered while this value lives. Held for one copy, never across a wait.
pub(crate) trait Pinned {
    /// Where its bytes are, in order; without bytes nowhere.
    fn places(&self) -> impl Iterator<Item = Region>;

    /// Appends its bytes to `out`.
    fn read(&self, out: &mut Vec<u8>);

    /// Fills it with the payload's bytes behind `offset`. Returns how many it took.
    ///
    /// # Errors
    /// What the kernel reports of a payload in the peer's memory.
    fn write(&self, payload: &Payload<'_>, offset: usize) -> crate::Result<usize>;

    /// Changes its eight bytes atomically and returns the old value. `None` if they are not
    /// aligned.
    fn update(&self, change: impl FnMut(u64) -> u64) -> Option<u64>;

    /// A peer has written to all of it.
    fn notify_observer(&self);
}

/// A region that stays registered while this value lives. Held for a few copies, never across a
/// wait.
pub(crate) trait Held {
    /// Whether it is the region of a key.
    fn is_of(&self, key: u32) -> bool;

    /// `len` bytes at `addr`; `None` when they do not lie inside, or are not together.
    fn part(&self, addr: u64, len: u64) -> Option<Region>;
}

/// What becomes of work, as the program sees it.
pub(crate) trait Effects: Work {
    /// Starts to complete send requests.
    fn send_completions(&self) -> impl Completions;

    /// Starts to complete receives of this connection alone.
    fn receive_completions(&self) -> impl Completions;

    /// Completes a receive that came from `queue`, or from where this connection takes them from.
    fn complete_receive(
        &self,
        queue: Option<&Self::Queue>,
        completion: Completion,
        solicited: bool,
    );

    /// The queue pair is in another state now.
    fn enter_state(&self, state: QpState);

    /// Raises an asynchronous event of the queue pair.
    fn raise(&self, event: EventKind);

    /// The send queue, which was to be drained, is.
    fn send_queue_drained(&self);

    /// No receive of the shared queue will be taken any more.
    fn last_receive_taken(&self);
}

/// Completions that are being added to a queue. The program is notified when this is dropped.
pub(crate) trait Completions {
    /// Whether the queue is not full.
    fn has_room(&self) -> bool;

    /// Adds a completion; `solicited` if the peer asked to wake this side.
    fn push(&mut self, completion: Completion, solicited: bool);
}
