//! The threads that serve connections: one that accepts, event loops for connections over TCP, and
//! a thread for each connection over RDMA.
//!
//! A connection stays with its thread. Threads share the targets, and sessions that have several
//! connections. What waits for a store is done by threads of its unit, which give the result back.

mod admission;
mod clock;
mod event;
mod event_loop;
mod links;
mod random;
mod rdma;
mod staging;
#[cfg(test)]
mod tests;
mod waiting;
mod wakeup;

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use admission::Admission;
pub use admission::LoginLimits;
pub use clock::CLOCK;
pub use event::{Event, Observer};
use event_loop::{Accepted, EventLoop};
use links::Links;
pub use random::RANDOM;
pub use rdma::RdmaListener;
use rdma::Requested;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
pub use wakeup::Wakeup;

use crate::limits::ACCEPT_PAUSE;
use crate::session::Portal;

/// How a server works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Event loops.
    pub loops: usize,
    /// Limits for connections that have not logged in.
    pub logins: LoginLimits,
    /// The time that initiators have to log out at the end.
    pub drain_time: Duration,
}

/// A server that is not yet running.
pub struct Server {
    portal: Arc<Portal>,
    options: Options,
    observer: Observer,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Server {
    /// Returns a server for a portal.
    #[must_use]
    pub fn new(portal: Arc<Portal>, options: Options, observer: Observer) -> Self {
        Self { portal, options, observer }
    }

    /// Serves connections of the listeners until `stop` is notified. Then it accepts no more, asks
    /// all initiators to log out, and returns when they have, when their time is over, or when
    /// `stop` is notified again.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an event loop, or waiting; if an RDMA device has failed.
    pub fn run(
        &self,
        listeners: Vec<TcpListener>,
        mut rdma: Vec<RdmaListener>,
        stop: &Wakeup,
    ) -> io::Result<()> {
        let admission = Arc::new(Admission::new(self.options.logins));
        let loops = (0..self.options.loops.max(1))
            .map(|_| {
                let (portal, observer) = (Arc::clone(&self.portal), Arc::clone(&self.observer));
                EventLoop::new(portal, observer, admission.time())
            })
            .collect::<io::Result<Vec<_>>>()?;
        let handles: Vec<_> = loops.iter().map(EventLoop::handle).collect();
        let (running, ended) = (AtomicUsize::new(loops.len()), Wakeup::new()?);
        let links = Links::new(&ended);
        thread::scope(|scope| {
            for each in loops {
                let (running, ended) = (&running, &ended);
                scope.spawn(move || {
                    each.run();
                    running.fetch_sub(1, Ordering::Release);
                    ended.notify();
                });
            }
            let places = (&handles[..], scope, &links);
            let accepted = self.accept(&listeners, &mut rdma, stop, places, &admission);
            drop((listeners, rdma));
            let busy = || running.load(Ordering::Acquire) > 0 || !links.is_empty();
            let drained = accepted.and_then(|()| {
                self.drain(&handles, &links);
                self.wait_for_end(busy, [stop, &ended])
            });
            handles.iter().for_each(|handle| handle.stop());
            links.close();
            drained
        })?;
        self.wait_for_jobs();
        Ok(())
    }

    /// Waits for what was handed out by connections that have ended, so that it can be made safe.
    fn wait_for_jobs(&self) {
        self.portal.wait_for_jobs();
        for target in self.portal.targets() {
            target.device().units().iter().for_each(|(_, unit)| unit.wait_for_workers());
        }
    }

    /// Asks all initiators to log out.
    fn drain(&self, loops: &[Arc<event_loop::Handle>], links: &Links<'_>) {
        let seconds = u16::try_from(self.options.drain_time.as_secs()).unwrap_or(u16::MAX);
        loops.iter().for_each(|handle| handle.drain(seconds));
        links.drain(seconds);
    }

    /// Waits until all connections have ended, for as long as initiators have to log out.
    fn wait_for_end(&self, busy: impl Fn() -> bool, [stop, ended]: [&Wakeup; 2]) -> io::Result<()> {
        let end = Instant::now() + self.options.drain_time;
        while busy() {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(timeout) = left.try_into() else { return Ok(()) };
            let mut ready = [stop, ended].map(|wakeup| PollFd::new(wakeup, PollFlags::IN));
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [is_stopped, _] = ready.map(|each| !each.revents().is_empty());
            if is_stopped {
                return Ok(());
            }
            ended.clear();
        }
        Ok(())
    }

    fn accept<'scope>(
        &'scope self,
        listeners: &[TcpListener],
        rdma: &mut [RdmaListener],
        stop: &Wakeup,
        (loops, scope, links): (
            &[Arc<event_loop::Handle>],
            &'scope Scope<'scope, '_>,
            &'scope Links<'scope>,
        ),
        admission: &Arc<Admission>,
    ) -> io::Result<()> {
        for listener in listeners {
            listener.set_nonblocking(true)?;
        }
        loop {
            let mut ready: Vec<PollFd<'_>> = [PollFd::new(stop, PollFlags::IN)]
                .into_iter()
                .chain(listeners.iter().map(|each| PollFd::new(each, PollFlags::IN)))
                .chain(rdma.iter().map(|each| PollFd::new(each, PollFlags::IN)))
                .collect();
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_stopped = !ready[0].revents().is_empty();
            drop(ready);
            if is_stopped {
                stop.clear();
                return Ok(());
            }
            listeners.iter().for_each(|listener| self.accept_one(listener, loops, admission));
            for listener in &mut *rdma {
                while let Some(request) = listener.request()? {
                    self.accept_rdma(request, (scope, links), admission);
                }
            }
        }
    }

    fn accept_one(
        &self,
        listener: &TcpListener,
        loops: &[Arc<event_loop::Handle>],
        admission: &Arc<Admission>,
    ) {
        match listener.accept() {
            Ok((socket, from)) => {
                let least = loops.iter().min_by_key(|each| each.connections());
                let place = admission.admit(from.ip());
                let (Some(least), Some(permit)) = (least, place) else {
                    return (self.observer)(Event::Refused(from));
                };
                (self.observer)(Event::Connected(from));
                least.add(Accepted { socket, from, permit });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                (self.observer)(Event::NotAccepted(error));
                // No descriptor is free, perhaps: the listener stays ready.
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Serves a connection over RDMA in a thread. Refuses it if there are too many.
    fn accept_rdma<'scope>(
        &'scope self,
        request: Requested,
        (scope, links): (&'scope Scope<'scope, '_>, &'scope Links<'scope>),
        admission: &Arc<Admission>,
    ) {
        let from = request.from();
        let (Some(place), Some(permit)) = (links.add(), admission.admit(from.ip())) else {
            return (self.observer)(Event::Refused(from));
        };
        let time = admission.time();
        (self.observer)(Event::Connected(from));
        scope.spawn(move || match request.accept(Arc::clone(&self.portal)) {
            Ok(served) => {
                place.set(served.waker());
                let closed = served.run(permit, time, || links.seconds_to_log_out());
                (self.observer)(Event::Ended(from, closed));
            }
            Err(error) => (self.observer)(Event::NotAccepted(error)),
        });
    }
}
