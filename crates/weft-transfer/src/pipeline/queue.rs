//! Bounded queues between stages, which measure how long tasks wait.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weft_sys::{BoundedQueue, Popped};

use super::clock::Clock;

/// A task with the time at which it entered the queue.
struct Stamped<T> {
    task: T,
    entered: u64,
}

type OnPush = Box<dyn Fn() + Send + Sync>;

struct QueueState<T> {
    name: &'static str,
    items: BoundedQueue<Stamped<T>>,
    clock: Clock,
    waited: AtomicU64,
    passed: AtomicU64,
    producers: AtomicUsize,
    on_push: OnceLock<OnPush>,
}

/// A bounded queue of tasks. Clones share the queue. It ends when all stages that push tasks have
/// ended and it is empty.
pub struct Queue<T>(Arc<QueueState<T>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// The fill level of a queue and the waiting times of its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// The tasks in the queue.
    pub len: usize,
    /// The most tasks that it holds.
    pub capacity: usize,
    /// The tasks that have been taken.
    pub passed: u64,
    /// The total waiting time of these, in nanoseconds.
    pub waited: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new(name: &'static str, capacity: usize, clock: Clock) -> Self {
        Self(Arc::new(QueueState {
            name,
            items: BoundedQueue::new(capacity),
            clock,
            waited: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            producers: AtomicUsize::new(0),
            on_push: OnceLock::new(),
        }))
    }

    /// The queue's name in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the fill level and the waiting times.
    #[must_use]
    pub fn passage(&self) -> Passage {
        Passage {
            len: self.0.items.len(),
            capacity: self.0.items.capacity(),
            passed: self.0.passed.load(Ordering::Relaxed),
            waited: self.0.waited.load(Ordering::Relaxed),
        }
    }

    /// Pushes a task from outside of any stage, and sleeps while the queue is full. The queue may
    /// end although more such tasks could come.
    ///
    /// # Errors
    /// Returns the task if the queue has ended.
    pub fn push(&self, task: T) -> Result<(), T> {
        let stamped = Stamped { task, entered: self.0.clock.now() };
        self.0.items.push(stamped).map_err(|stamped| stamped.task)?;
        self.pushed();
        Ok(())
    }

    /// Pushes a task if there is room.
    ///
    /// # Errors
    /// Returns the task if there is no room or the queue has ended.
    pub fn try_push(&self, task: T) -> Result<(), T> {
        let stamped = Stamped { task, entered: self.0.clock.now() };
        self.0.items.try_push(stamped).map_err(|stamped| stamped.task)?;
        self.pushed();
        Ok(())
    }

    fn pushed(&self) {
        if let Some(on_push) = self.0.on_push.get() {
            on_push();
        }
    }

    pub(crate) fn pop(&self) -> Popped<T> {
        self.note(self.0.items.pop())
    }

    pub(crate) fn try_pop(&self) -> Popped<T> {
        self.note(self.0.items.try_pop())
    }

    pub(crate) fn pop_within(&self, time: Duration) -> Popped<T> {
        self.note(self.0.items.pop_within(time))
    }

    fn note(&self, popped: Popped<Stamped<T>>) -> Popped<T> {
        match popped {
            Popped::Item(number, Stamped { task, entered }) => {
                let waited = self.0.clock.now().saturating_sub(entered);
                self.0.waited.fetch_add(waited, Ordering::Relaxed);
                self.0.passed.fetch_add(1, Ordering::Relaxed);
                Popped::Item(number, task)
            }
            Popped::Empty => Popped::Empty,
            Popped::Ended => Popped::Ended,
        }
    }

    /// Registers a function that is called after each push and at the end. Only the first
    /// registration counts.
    pub(crate) fn on_push(&self, on_push: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_push.set(Box::new(on_push));
    }

    pub(crate) fn add_producer(&self) {
        self.0.producers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn producer_ended(&self) {
        if self.0.producers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.items.close();
            self.pushed();
        }
    }

    /// Drops all tasks and ends the queue.
    pub(crate) fn abort(&self) {
        drop(self.0.items.abort());
        self.pushed();
    }
}
