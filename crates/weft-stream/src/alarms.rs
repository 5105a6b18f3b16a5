//! Alarms of a registry. Each wakes one epoll instance that sleeps for many connections.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use weft_sys::{Alarm, Tag, is_gone};

use crate::limits::ALARMS_MAX;
use crate::pipes::OwnPipe;
use crate::registry::Registry;

/// An alarm that the calling process owns until the value is dropped or the process ends.
#[derive(Debug)]
pub struct OwnAlarm {
    registry: &'static Registry,
    index: usize,
    pipe: Option<OwnPipe>,
}

impl OwnAlarm {
    /// Takes a free alarm, or one whose owner has died. `None` if live processes own all.
    #[must_use]
    pub fn take(registry: &'static Registry, pid: u32) -> Option<Self> {
        let first = pid as usize; // Processes with neighbouring numbers start at different alarms.
        let all = || (0..ALARMS_MAX).map(|step| (first + step) % ALARMS_MAX);
        let take = |index: usize, from: u32| {
            let owner = &registry.alarm(index).owner;
            owner.compare_exchange(from, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = all().find(|&index| take(index, 0)).or_else(|| {
            all().find(|&index| {
                let owner = registry.alarm(index).owner.load(Ordering::Relaxed);
                is_gone(owner) && take(index, owner)
            })
        })?;
        registry.alarm(index).pipe.store(0, Ordering::Release);
        Some(Self { registry, index, pipe: None })
    }

    /// Has peers use a pipe, if `watch` succeeds in making the pipe wake the sleeper. Without a
    /// pipe they send wakeups over the connection.
    pub fn open_pipe(&mut self, watch: impl FnOnce(BorrowedFd<'_>) -> bool) {
        self.registry.alarm(self.index).made.store(1, Ordering::SeqCst);
        let Some(pipe) = OwnPipe::open(&self.registry.pipe_path(self.index)) else { return };
        if watch(pipe.as_fd()) {
            self.pipe_word().store(pipe.inode(), Ordering::Release);
            self.pipe = Some(pipe);
        }
    }

    /// Has peers send wakeups over their connections again. Returns the pipe, if there was one; it
    /// does not wake the sleeper any more. Some peers may still write to it, until what they send
    /// has no tag.
    pub fn close_pipe(&mut self) -> Option<impl AsFd> {
        self.pipe_word().store(0, Ordering::SeqCst);
        self.pipe.take()
    }

    /// Whether peers use a pipe.
    #[must_use]
    pub fn has_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// Takes the wakeups out of the pipe.
    pub fn drain_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            pipe.drain();
        }
    }

    fn pipe_word(&self) -> &AtomicU64 {
        &self.registry.alarm(self.index).pipe
    }

    /// The tag of the next sleep.
    #[must_use]
    pub fn next(&self) -> Tag {
        // There are fewer alarms than that.
        let index = u16::try_from(self.index).unwrap_or(u16::MAX);
        self.alarm().next(index)
    }

    /// Begins the sleep with this tag.
    pub fn begin(&self, tag: Tag) {
        self.alarm().begin(tag);
    }

    /// Ends the sleep with this tag. The process then checks all connections that have the tag.
    pub fn end(&self, tag: Tag) {
        self.alarm().end(tag);
    }

    fn alarm(&self) -> Alarm<'_> {
        of(self.registry, self.index)
    }
}

/// Frees the alarm. No connection may have a tag with it any more. A child forgets its parent's
/// alarm instead of dropping it.
impl Drop for OwnAlarm {
    fn drop(&mut self) {
        self.pipe_word().store(0, Ordering::Release);
        self.registry.alarm(self.index).owner.store(0, Ordering::Release);
    }
}

/// The alarm of a peer's tag, which may have any value. `None` if there is no such alarm.
pub(crate) fn of_peer(registry: &Registry, tag: Tag) -> Option<Alarm<'_>> {
    (tag.index() < ALARMS_MAX).then(|| of(registry, tag.index()))
}

/// Wakes the sleeper of a peer's tag by the alarm's pipe, if it has one.
pub(crate) fn ring(registry: &Registry, tag: Tag) -> bool {
    let index = tag.index();
    if index >= ALARMS_MAX {
        return false;
    }
    let inode = registry.alarm(index).pipe.load(Ordering::Acquire);
    registry.pipes.ring(index, inode, || registry.pipe_path(index))
}

fn of(registry: &Registry, index: usize) -> Alarm<'_> {
    Alarm::on(&registry.alarm(index).word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_of_a_dead_process_can_be_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry: &Registry = Box::leak(Box::new(Registry::open(dir.path()).expect("one")));
        let own = std::process::id();
        let mut taken: Vec<_> = (0..ALARMS_MAX).map(|_| OwnAlarm::take(registry, own)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(OwnAlarm::take(registry, own).is_none());
        let index = taken.remove(0).expect("taken").index;
        let again = OwnAlarm::take(registry, own).expect("given back");
        assert_eq!(again.index, index);
        std::mem::forget(again);
        assert!(OwnAlarm::take(registry, own).is_none());
        registry.alarm(index).owner.store(i32::MAX as u32, Ordering::Relaxed);
        assert_eq!(OwnAlarm::take(registry, own).expect("its owner is dead").index, index);
    }
}
