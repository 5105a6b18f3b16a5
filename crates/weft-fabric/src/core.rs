//! An endpoint: a queue pair with its queues, its memory and its state.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use smallvec::SmallVec;
use weft_engine::channel::CompChannel;
use weft_engine::cm::{Id, Via};
use weft_engine::cq::Cq;
use weft_engine::qp::{Qp, QpCap, QpInit, QpState, QpType};
use weft_engine::wc::Status;
use weft_sys::{Lock, Spin, wait_readable};

use crate::common::Common;
use crate::error::{Error, Result};
use crate::hello::Hello;
use crate::inbox::{Follower, Inbox};
use crate::limits::{CREDIT_RECEIVES_MAX, HEADER_LEN, VALUE_MAX};
use crate::memory::Places;
use crate::state::{Later, Parts, SMALL_PLACE, State};
use crate::watcher::Watched;

/// What all handles of an endpoint share.
#[derive(Debug)]
pub(crate) struct Core {
    common: Arc<Common>,
    pub(crate) id: Arc<Id>,
    /// The events of the identifier.
    inbox: Arc<Inbox>,
    pub(crate) parts: Parts,
    pub(crate) spin: Spin,
    pub(crate) peer: SocketAddr,
    channel: Arc<CompChannel>,
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
    /// Makes an endpoint that is not connected, with its receives posted. `inbox` has the events of
    /// the identifier. `hello` is the peer's, if it has come.
    pub(crate) fn new(
        common: &Arc<Common>,
        id: &Arc<Id>,
        inbox: &Arc<Inbox>,
        peer: SocketAddr,
        hello: Option<Hello>,
    ) -> Result<Arc<Self>> {
        let options = &common.options;
        let channel = CompChannel::new(&common.context)
            .map_err(|errno| Error::system("make a completion channel", errno))?;
        let receives = options.window + CREDIT_RECEIVES_MAX;
        // A Write with immediate data consists of two requests.
        let depth = options.depth.max(2);
        let sends = depth + CREDIT_RECEIVES_MAX;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let cq = Cq::new(&common.context, number(sends + receives), Some(Arc::clone(&channel)))
            .map_err(|errno| Error::system("make a completion queue", errno))?;
        let cap = QpCap {
            max_send_wr: number(sends),
            max_recv_wr: number(receives),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: number(VALUE_MAX + HEADER_LEN),
        };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let (qp_type, srq, xrcd) = (QpType::Rc, None, None);
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all: false };
        let stride = (HEADER_LEN + options.message_max).next_multiple_of(64);
        let (receives, places) = Places::new(&common.pd, receives, stride)?;
        let (smalls, small_places) = Places::new(&common.pd, depth, SMALL_PLACE)?;
        let qp =
            Qp::new(&common.pd, init).map_err(|errno| Error::system("make a queue pair", errno))?;
        let hello = hello.unwrap_or(Hello { window: 0, message_max: 0 });
        let message_max = options.message_max;
        let core = Self {
            common: Arc::clone(common),
            id: Arc::clone(id),
            inbox: Arc::clone(inbox),
            parts: Parts { qp, cq, receives, smalls, message_max, depth },
            spin: Spin::new(),
            peer,
            channel,
            state: Lock::new(State::new(options.window, hello.window, small_places)),
            led: Lock::new(Led {
                leader: Leader::Nobody,
                threads: SmallVec::new(),
                wants_watcher: false,
            }),
            peer_message_max: AtomicU32::new(hello.message_max),
        };
        id.qp_attributes(QpState::Init)
            .and_then(|(attr, mask)| core.parts.qp.modify(&attr, mask))
            .map_err(|errno| Error::system("prepare a queue pair", errno))?;
        for place in places {
            core.state.lock().post_receive(&core.parts, place);
        }
        Ok(Arc::new(core))
    }

    /// How the connection manager names this endpoint's queue pair.
    pub(crate) fn via(&self) -> Via {
        Via::Own(Arc::clone(&self.parts.qp))
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
        self.state.lock().connected(self.common.options.window, hello.window);
    }

    /// Bytes of the longest message that the peer receives.
    pub(crate) fn peer_message_max(&self) -> usize {
        self.peer_message_max.load(Ordering::Relaxed) as usize
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
            // So that what is under way ends, too. It fails if the connection is gone.
            let _ = self.id.disconnect();
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
        self.parts.cq.arm(false);
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
        let may_take = match limit {
            Some(limit) => wait_readable([self.fd()], Some(limit)) == Ok([true]),
            None => true,
        };
        if may_take {
            // A signal is as good as an event: the thread looks again.
            let _ = self.channel.next_event();
        }
    }

    /// Takes the events that are there, without waiting.
    pub(crate) fn take_events(&self) {
        while wait_readable([self.fd()], Some(Duration::ZERO)) == Ok([true]) {
            if self.channel.next_event().is_err() {
                break;
            }
        }
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
        let is_watched = fcntl_getfl(self.fd())
            .and_then(|flags| fcntl_setfl(self.fd(), flags | OFlags::NONBLOCK))
            .and_then(|()| self.common.watcher.watch(self));
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
        self.channel.as_fd()
    }

    fn readable(&self) {
        while self.channel.next_event().is_ok() {}
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
        // An orderly end, so that the peer gets what has been sent. It fails if the connection is
        // gone, or was never made.
        let _ = self.id.disconnect();
        self.parts.qp.destroy();
        self.id.destroy();
        let mut later = Later::default();
        let closed = Error::Closed { peer: self.peer };
        self.state.get_mut().finish(closed, &mut later);
        // The engine uses no memory any more.
        self.state.get_mut().flush(&self.parts, &mut later);
        later.run();
    }
}
