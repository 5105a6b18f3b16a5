//! An endpoint: a queue pair with its queues, its memory and its state.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use weft_engine::wc::Status;
use weft_sys::{Lock, Spin};

use crate::carrier::{EndpointLink, Room};
use crate::common::Common;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::inbox::{Follower, Inbox, Source};
use crate::limits::{CREDIT_RECEIVES_MAX, HEADER_LEN, VALUE_MAX};
use crate::memory::Places;
use crate::state::{Later, Parts, SMALL_PLACE, State};
use crate::watcher::Watched;

/// What all handles of an endpoint share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) common: Arc<Common>,
    /// The events of the connection.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) parts: Parts,
    /// Of blocked threads.
    pub(crate) spin: Spin,
    /// Of futures, which the watcher wakes.
    pub(crate) future_spin: Spin,
    pub(crate) peer: SocketAddr,
    state: Lock<State>,
    led: Lock<Led>,
    /// Bytes of the longest message that the peer receives.
    peer_message_max: AtomicU32,
}

/// Who waits for the endpoint's events on behalf of all who sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Nobody,
    /// A blocked thread.
    Thread,
    /// The fabric's watcher, from now on.
    Watcher,
}

#[derive(Debug)]
struct Led {
    leader: Leader,
    /// Blocked threads that would lead.
    threads: SmallVec<[Waker; 1]>,
    /// Whether futures sleep, so that the watcher leads when the thread that leads now is done.
    wants_watcher: bool,
}

impl Core {
    /// Makes an endpoint that is not connected, with its receives posted. `link` makes its queues.
    /// `hello` is the peer's, if it has come.
    pub(crate) fn new(
        common: &Arc<Common>,
        link: impl FnOnce(&Room) -> Result<EndpointLink>,
        peer: SocketAddr,
        hello: Option<Hello>,
    ) -> Result<Arc<Self>> {
        let options = &common.options;
        let receives = options.window + CREDIT_RECEIVES_MAX;
        // A Write with immediate data consists of two requests.
        let depth = options.depth.max(2);
        let sends = depth + CREDIT_RECEIVES_MAX;
        let room = Room { sends, receives, value: VALUE_MAX + HEADER_LEN };
        let stride = (HEADER_LEN + options.message_max).next_multiple_of(64);
        let (receives, places) = Places::new(&common.domain, receives, stride)?;
        let (smalls, small_places) = Places::new(&common.domain, depth, SMALL_PLACE)?;
        let link = Arc::new(link(&room)?);
        let inbox = Inbox::new(common, Source::Link(Arc::clone(&link)));
        let hello = hello.unwrap_or(Hello { window: 0, message_max: 0 });
        let message_max = options.message_max;
        let core = Self {
            common: Arc::clone(common),
            inbox,
            parts: Parts { link, receives, smalls, message_max, depth },
            spin: Spin::new(),
            future_spin: Spin::behind_a_thread(),
            peer,
            state: Lock::new(State::new(options.window_in_hello(), hello.window, small_places)),
            led: Lock::new(Led {
                leader: Leader::Nobody,
                threads: SmallVec::new(),
                wants_watcher: false,
            }),
            peer_message_max: AtomicU32::new(hello.message_max),
        };
        for place in places {
            core.state.lock().post_receive(&core.parts, place);
        }
        Ok(Arc::new(core))
    }

    /// Has the end of the connection noticed, now that there is one.
    ///
    /// # Errors
    /// If nobody can watch for it.
    pub(crate) fn follow(self: &Arc<Self>) -> Result<()> {
        let follower: Weak<dyn Follower> = Weak::<Self>::clone(&Arc::downgrade(self));
        self.inbox.follow(follower)
    }

    /// Notes what the peer has said of itself.
    pub(crate) fn connected(&self, hello: Hello) {
        self.peer_message_max.store(hello.message_max, Ordering::Relaxed);
        self.state.lock().connected(self.common.options.window_in_hello(), hello.window);
    }

    /// Bytes of the longest message that the peer receives.
    pub(crate) fn peer_message_max(&self) -> usize {
        self.peer_message_max.load(Ordering::Relaxed) as usize
    }

    /// For how long it pays off to look before a future sleeps; in a simulation, not at all.
    pub(crate) fn future_spin_ns(&self) -> u64 {
        if self.parts.link.simulation().is_some() { 0 } else { self.future_spin.ns(false) }
    }

    /// Whether atomics can be asked for.
    pub(crate) fn has_atomics(&self) -> bool {
        self.common.domain.has_atomics()
    }

    /// The error that the status of a completion means.
    fn lost(&self, status: Status) -> Error {
        let peer = self.peer;
        match status {
            Status::WrFlushErr => Error::Closed { peer },
            Status::RemAccessErr => Error::Denied { peer },
            Status::BadRespErr => Error::Protocol { peer },
            _ => Error::Lost { peer, status: status as u32 },
        }
    }

    /// Uses the state.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State, &mut Later) -> T) -> T {
        let mut later = Later::default();
        let mut state = self.state.lock();
        let result = work(&mut state, &mut later);
        let must_disconnect = std::mem::take(&mut state.must_disconnect);
        drop(state);
        later.run();
        if must_disconnect {
            // So that what is under way ends, too.
            self.parts.link.disconnect();
        }
        result
    }

    /// Calls `take`; if it finds nothing, makes progress and calls it again.
    pub(crate) fn look<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        self.with(|state, later| {
            let found = take(state);
            if found.is_some() || !state.progress(&self.parts, &|status| self.lost(status), later) {
                return found;
            }
            take(state)
        })
    }

    /// Makes progress. Returns whether anything has completed or arrived.
    pub(crate) fn progress(&self) -> bool {
        self.with(|state, later| state.progress(&self.parts, &|status| self.lost(status), later))
    }

    /// Ends the connection for the program.
    pub(crate) fn finish(&self, why: Error) {
        self.with(|state, later| state.finish(why, later));
    }

    /// Has the next completion make an event.
    pub(crate) fn arm(&self) {
        self.parts.link.arm();
    }

    /// Has the calling thread wait for the events, unless somebody else does. Then `waker` is
    /// called when a thread stops to do so.
    pub(crate) fn lead(&self, waker: &Waker) -> bool {
        let mut led = self.led.lock();
        match led.leader {
            Leader::Nobody => {
                led.leader = Leader::Thread;
                true
            }
            Leader::Thread => {
                led.threads.push(waker.clone());
                false
            }
            Leader::Watcher => false,
        }
    }

    /// Waits for an event, as the leader.
    pub(crate) fn await_event(&self, limit: Option<Duration>) {
        self.parts.link.await_event(limit);
    }

    /// Takes the events that are there, without waiting.
    pub(crate) fn take_events(&self) {
        self.parts.link.take_events();
    }

    /// Ends the leadership of the calling thread.
    pub(crate) fn stop_leading(self: &Arc<Self>) {
        let (threads, wants_watcher) = {
            let mut led = self.led.lock();
            led.leader = Leader::Nobody;
            (std::mem::take(&mut led.threads), std::mem::take(&mut led.wants_watcher))
        };
        if wants_watcher {
            self.be_watched();
        }
        threads.into_iter().for_each(Waker::wake);
    }

    /// Has the watcher wait for the events, unless a thread does, or the watcher already.
    pub(crate) fn be_watched(self: &Arc<Self>) {
        let mut led = self.led.lock();
        match led.leader {
            Leader::Nobody => {}
            Leader::Thread => {
                led.wants_watcher = true;
                return;
            }
            Leader::Watcher => return,
        }
        let link = &self.parts.link;
        let is_watched = link.be_watched().and_then(|()| self.common.watch(self));
        if is_watched.is_ok() {
            led.leader = Leader::Watcher;
        } else {
            drop(led);
            // All that sleep have to look by themselves: slow, but right.
            self.with(|state, later| state.wake_all(later));
        }
    }
}

impl Follower for Core {
    fn ended(&self) {
        // What has arrived before is there still, and is taken first.
        self.progress();
        self.finish(Error::Closed { peer: self.peer });
    }
}

impl Watched for Core {
    /// It is readable when the endpoint is armed and has an event.
    fn fd(&self) -> BorrowedFd<'_> {
        self.parts.link.fd()
    }

    fn readable(&self) {
        self.parts.link.take_events();
        self.progress();
        // Others may sleep still. What completes before the arming is seen by the next look.
        while self.with(|state, _| state.has_sleepers()) {
            self.arm();
            if !self.progress() {
                break;
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // An orderly end, so that the peer gets what has been sent.
        self.parts.link.disconnect();
        self.parts.link.destroy();
        let mut later = Later::default();
        let closed = Error::Closed { peer: self.peer };
        self.state.get_mut().finish(closed, &mut later);
        // The carrier uses no memory any more.
        self.state.get_mut().flush(&self.parts, &mut later);
        later.run();
    }
}
