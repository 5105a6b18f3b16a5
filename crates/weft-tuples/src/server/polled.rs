//! Connections by the fabric that are looked at, and for how long before the server sleeps.
//!
//! A connection is either *polled* or *armed*. A polled one is looked at again and again, which
//! costs no system call. When looking does not pay off any more ([`Spin`]) all are armed, and the
//! server sleeps: an armed one wakes it by its descriptor, and is polled then. So idle connections
//! cost nothing, however many there are.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use weft_sys::{Spin, nanoseconds};

use super::served::Served;
use crate::limits::{FABRIC_LOOKS_MAX, FABRIC_TURNS_MAX};

#[derive(Debug)]
pub(super) struct Polled {
    keys: BTreeSet<usize>,
    spin: Spin,
    /// Turns since the kernel was asked for events.
    turns: u32,
}

fn kernel(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    match poll.poll(events, timeout) {
        Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

impl Polled {
    pub(super) fn new() -> Self {
        Self { keys: BTreeSet::new(), spin: Spin::new(), turns: 0 }
    }

    /// Has a connection be looked at.
    pub(super) fn insert(&mut self, key: usize) {
        self.keys.insert(key);
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, key: usize) {
        self.keys.remove(&key);
    }

    /// Looks at the polled connections. Returns whether any has something to do.
    fn look(&self, served: &mut HashMap<usize, Served>, ready: &mut BTreeSet<usize>) -> bool {
        let mut any = false;
        for key in &self.keys {
            if served.get_mut(key).is_some_and(Served::look) {
                ready.insert(*key);
                any = true;
            }
        }
        any
    }

    /// Arms the polled connections, but for those that have news already. Returns whether there are
    /// such.
    fn arm(&mut self, served: &mut HashMap<usize, Served>, ready: &mut BTreeSet<usize>) -> bool {
        self.keys.retain(|key| {
            let Some(served) = served.get_mut(key) else { return false };
            // What came before is seen by this look; what comes from now on makes an event.
            let may_have_news = served.arm();
            let has_work = served.look();
            if has_work {
                ready.insert(*key);
            }
            may_have_news || has_work
        });
        !self.keys.is_empty()
    }

    /// Waits for events of the kernel, or until a polled connection has something to do, which is
    /// `ready` then.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wait.
    pub(super) fn wait(
        &mut self,
        (poll, events): (&mut Poll, &mut Events),
        timeout: Option<Duration>,
        served: &mut HashMap<usize, Served>,
        ready: &mut BTreeSet<usize>,
    ) -> io::Result<()> {
        if self.keys.is_empty() {
            return kernel(poll, events, timeout);
        }
        if self.look(served, ready) || timeout == Some(Duration::ZERO) {
            self.turns += 1;
            if self.turns < FABRIC_TURNS_MAX {
                events.clear();
                return Ok(());
            }
            self.turns = 0;
            return kernel(poll, events, Some(Duration::ZERO));
        }
        let start = Instant::now();
        let limit = timeout.map_or(u64::MAX, nanoseconds).min(self.spin.ns(false));
        let mut looks = 0;
        while nanoseconds(start.elapsed()) < limit {
            looks += 1;
            let has_news = if looks % FABRIC_LOOKS_MAX == 0 {
                kernel(poll, events, Some(Duration::ZERO))?;
                !events.is_empty()
            } else {
                events.clear();
                self.look(served, ready)
            };
            if has_news {
                self.spin.learn(nanoseconds(start.elapsed()));
                return Ok(());
            }
        }
        if self.arm(served, ready) {
            return kernel(poll, events, Some(Duration::ZERO));
        }
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        kernel(poll, events, left)?;
        self.spin.learn(nanoseconds(start.elapsed()));
        Ok(())
    }
}
