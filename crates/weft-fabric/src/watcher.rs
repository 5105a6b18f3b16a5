//! A thread that sleeps until a descriptor is readable, for futures that sleep. It starts when the
//! first future does, and ends with the fabric.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};
use weft_sys::{Lock, spawn_quiet};

use crate::limits::WATCHED_EVENTS_MAX;

/// Something whose descriptor is watched.
pub(crate) trait Watched: Send + Sync + fmt::Debug {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Called when it is readable, and again as long as it is. It must not wait.
    fn readable(&self);
}

/// The thread, once it has started.
#[derive(Debug)]
pub(crate) struct Watcher(Lock<Option<Arc<Inner>>>);

#[derive(Debug)]
struct Inner {
    epoll: OwnedFd,
    /// Readable when the thread has to end.
    end: OwnedFd,
    watched: Lock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    of: HashMap<u64, Weak<dyn Watched>>,
}

/// The number of the descriptor that ends the thread.
const END: u64 = 0;
/// An event disarms the watch, so that a descriptor that outlives its owner, which the engine may
/// cause, is not reported again and again.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

impl Watcher {
    pub(crate) fn new() -> Self {
        Self(Lock::new(None))
    }

    /// Watches a descriptor until its owner is dropped.
    ///
    /// # Errors
    /// If there are no more descriptors, threads or watches.
    pub(crate) fn watch<T: Watched + 'static>(&self, watched: &Arc<T>) -> Result<(), Errno> {
        let inner = {
            let mut inner = self.0.lock();
            match &*inner {
                Some(inner) => Arc::clone(inner),
                None => Arc::clone(inner.insert(Inner::start()?)),
            }
        };
        let number = {
            let mut table = inner.watched.lock();
            if table.of.len() == table.of.capacity() {
                table.of.retain(|_, watched| watched.strong_count() != 0);
            }
            table.next += 1;
            let number = table.next;
            let weak: Weak<dyn Watched> = Weak::<T>::clone(&Arc::downgrade(watched));
            table.of.insert(number, weak);
            number
        };
        let added = epoll::add(&inner.epoll, watched.fd(), EventData::new_u64(number), ONCE);
        if added.is_err() {
            inner.watched.lock().of.remove(&number);
        }
        added
    }
}

impl Inner {
    fn start() -> Result<Arc<Self>, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let inner = Arc::new(Self { epoll, end, watched: Lock::new(Table::default()) });
        let its = Arc::clone(&inner);
        spawn_quiet("weft-fabric", move || its.run())?;
        Ok(inner)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(WATCHED_EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                let number = event.data.u64();
                if number == END {
                    return;
                }
                let watched = self.watched.lock().of.get(&number).and_then(Weak::upgrade);
                if let Some(watched) = watched {
                    watched.readable();
                    // It was added, so it fails only if the kernel has no memory; then the owner's
                    // descriptor could not be watched any more.
                    let _ = epoll::modify(&self.epoll, watched.fd(), event.data, ONCE);
                }
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(inner) = self.0.get_mut().take() {
            // An eventfd takes a number that fits (eventfd(2)).
            let _ = write(inner.end.as_fd(), &1_u64.to_ne_bytes());
        }
    }
}
