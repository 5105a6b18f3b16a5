//! The events of the connection manager, for those who wait for them.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use weft_sys::Lock;

use crate::carrier::{EndpointLink, Event, Listening};
use crate::common::Common;
use crate::error::{Error, Result};
use crate::wakers::Wakers;
use crate::watcher::Watched;

/// Who has to know when a connection has ended. The queue pair alone does not say so: it stays as
/// it is as long as nothing is sent.
pub(crate) trait Follower: Send + Sync + std::fmt::Debug {
    /// The peer has closed the connection, or was lost.
    fn ended(&self);
}

/// Where events come from.
#[derive(Debug)]
pub(crate) enum Source {
    Link(Arc<EndpointLink>),
    Listening(Listening),
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Link(link) => link.events_fd(),
            Self::Listening(listening) => listening.events_fd(),
        }
    }

    fn next(&self) -> Option<Event> {
        match self {
            Self::Link(link) => link.event(),
            Self::Listening(listening) => listening.event(),
        }
    }
}

/// The events of a connection or of a listener.
#[derive(Debug)]
pub(crate) struct Inbox {
    source: Source,
    common: Arc<Common>,
    state: Lock<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    wakers: Wakers,
    is_watched: bool,
    follower: Option<Weak<dyn Follower>>,
}

impl Inbox {
    pub(crate) fn new(common: &Arc<Common>, source: Source) -> Arc<Self> {
        let (common, state) = (Arc::clone(common), Lock::new(Waiting::default()));
        Arc::new(Self { source, common, state })
    }

    /// Takes the next event that is there.
    fn take(&self) -> Option<Event> {
        let mut state = self.state.lock();
        self.collect(&mut state);
        state.events.pop_front()
    }

    /// Moves the events of the source to the others.
    fn collect(&self, state: &mut Waiting) {
        while let Some(event) = self.source.next() {
            state.events.push_back(event);
        }
    }

    /// Takes the next event, or has the waker called when there is one.
    ///
    /// # Errors
    /// If nobody can watch for it.
    pub(crate) fn poll(self: &Arc<Self>, cx: &Context<'_>) -> Poll<Result<Event>> {
        if let Some(event) = self.take() {
            return Poll::Ready(Ok(event));
        }
        {
            let mut state = self.state.lock();
            state.wakers.add(cx.waker());
            if let Err(error) = self.be_watched(&mut state) {
                return Poll::Ready(Err(error));
            }
        }
        // One may have come before the waker was there.
        self.take().map_or(Poll::Pending, |event| Poll::Ready(Ok(event)))
    }

    /// Takes the waker of a future back that waits no longer.
    pub(crate) fn forget(&self, waker: &Waker) {
        self.state.lock().wakers.remove(waker);
    }

    /// Notifies the follower when the connection of this inbox ends; nobody takes events of it any
    /// more.
    ///
    /// # Errors
    /// If nobody can watch for it.
    pub(crate) fn follow(self: &Arc<Self>, follower: Weak<dyn Follower>) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.follower = Some(follower);
            self.be_watched(&mut state)?;
        }
        // It may have ended already.
        self.readable();
        Ok(())
    }

    fn be_watched(self: &Arc<Self>, state: &mut Waiting) -> Result<()> {
        if !state.is_watched {
            let watched = self.common.watch(self);
            watched.map_err(|errno| Error::system("watch for events", errno))?;
            state.is_watched = true;
        }
        Ok(())
    }
}

impl Watched for Inbox {
    fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }

    fn readable(&self) {
        let (mut wakers, follower) = {
            let mut state = self.state.lock();
            self.collect(&mut state);
            let mut follower = state.follower.clone();
            if follower.is_some() {
                let is_end = |event: Event| matches!(event, Event::Disconnected);
                if !state.events.drain(..).any(is_end) {
                    follower = None;
                }
            }
            (std::mem::take(&mut state.wakers), follower)
        };
        wakers.drain().for_each(Waker::wake);
        if let Some(follower) = follower.and_then(|follower| follower.upgrade()) {
            follower.ended();
        }
    }
}
