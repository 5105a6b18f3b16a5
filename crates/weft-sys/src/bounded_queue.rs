//! A queue of bounded length between threads. Its items are handles, so that nothing large is
//! copied under its lock.

use std::collections::VecDeque;
use std::fmt;
#[cfg(not(loom))]
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// Result of taking an item from a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Popped<T> {
    /// An item, and the number of items taken before it.
    Item(u64, T),
    /// The queue is empty.
    Empty,
    /// The queue is empty and closed.
    Ended,
}

/// A queue of at most `capacity` items.
pub struct BoundedQueue<T> {
    state: Mutex<State<T>>,
    not_empty: Condvar,
    not_full: Condvar,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<T>,
    popped: u64,
    closed: bool,
    /// Numbers of threads that sleep until there is an item, and until there is room.
    poppers: usize,
    pushers: usize,
}

impl<T> BoundedQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a queue that holds nothing moves nothing");
        let state = State {
            items: VecDeque::with_capacity(capacity),
            popped: 0,
            closed: false,
            poppers: 0,
            pushers: 0,
        };
        Self {
            state: Mutex::new(state),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
            capacity,
        }
    }

    /// Appends an item. Sleeps while the queue is full.
    ///
    /// # Errors
    /// The item, if the queue is closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        while !state.closed && state.items.len() == self.capacity {
            state.pushers += 1;
            state = wait(&self.not_full, state);
            state.pushers -= 1;
        }
        self.append(state, item)
    }

    /// Appends an item if there is room.
    ///
    /// # Errors
    /// The item, if the queue is full or closed.
    pub fn try_push(&self, item: T) -> Result<(), T> {
        let state = self.lock();
        if state.items.len() == self.capacity { Err(item) } else { self.append(state, item) }
    }

    fn append(&self, mut state: MutexGuard<'_, State<T>>, item: T) -> Result<(), T> {
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        let has_sleeper = state.poppers > 0;
        drop(state);
        if has_sleeper {
            self.not_empty.notify_one();
        }
        Ok(())
    }

    /// Takes the first item. Sleeps until there is one; never returns [`Popped::Empty`].
    pub fn pop(&self) -> Popped<T> {
        let mut state = self.lock();
        while !state.closed && state.items.is_empty() {
            state.poppers += 1;
            state = wait(&self.not_empty, state);
            state.poppers -= 1;
        }
        self.take(state)
    }

    /// Takes the first item if there is one.
    pub fn try_pop(&self) -> Popped<T> {
        self.take(self.lock())
    }

    /// Takes the first item. Sleeps for at most `time` until there is one.
    #[cfg(not(loom))]
    pub fn pop_within(&self, time: Duration) -> Popped<T> {
        let end = Instant::now().checked_add(time);
        let Some(end) = end else { return self.pop() };
        let mut state = self.lock();
        while !state.closed && state.items.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.poppers += 1;
            // A panic of another thread leaves the queue intact, because each change of it is one
            // step.
            state = match self.not_empty.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
            state.poppers -= 1;
        }
        self.take(state)
    }

    fn take(&self, mut state: MutexGuard<'_, State<T>>) -> Popped<T> {
        let Some(item) = state.items.pop_front() else {
            return if state.closed { Popped::Ended } else { Popped::Empty };
        };
        let number = state.popped;
        state.popped += 1;
        let has_sleeper = state.pushers > 0;
        drop(state);
        if has_sleeper {
            self.not_full.notify_one();
        }
        Popped::Item(number, item)
    }

    /// Closes the queue: it accepts no more items, and those in it can still be taken.
    pub fn close(&self) {
        self.lock().closed = true;
        self.not_empty.notify_all();
        self.not_full.notify_all();
    }

    /// Closes the queue, and returns its items.
    #[must_use]
    pub fn abort(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.not_empty.notify_all();
        self.not_full.notify_all();
        items
    }

    /// The maximum number of items.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of items in the queue.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // As in `pop_within`, a panic of another thread leaves the queue intact.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn wait<'a, T>(on: &Condvar, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
    on.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<T> fmt::Debug for BoundedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedQueue").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn items_come_out_in_order_with_their_numbers() {
        let queue = BoundedQueue::new(3);
        assert_eq!(queue.try_pop(), Popped::<char>::Empty);
        for item in ['a', 'b', 'c'] {
            queue.push(item).expect("open");
        }
        assert_eq!(queue.try_push('d'), Err('d'), "full");
        assert_eq!(queue.pop(), Popped::Item(0, 'a'));
        queue.try_push('d').expect("room");
        queue.close();
        assert_eq!(queue.push('e'), Err('e'), "closed");
        let rest: Vec<_> = std::iter::from_fn(|| match queue.pop() {
            Popped::Item(number, item) => Some((number, item)),
            Popped::Empty | Popped::Ended => None,
        })
        .collect();
        assert_eq!(rest, [(1, 'b'), (2, 'c'), (3, 'd')]);
        assert_eq!(queue.pop_within(Duration::ZERO), Popped::Ended);
    }

    #[test]
    fn abort_returns_the_items_and_wakes_all_threads() {
        let queue = Arc::new(BoundedQueue::new(1));
        queue.push(1).expect("open");
        let pusher = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push(2)
        });
        let left = queue.abort();
        let refused = pusher.join().expect("no panic");
        // The pusher came before or after the abort; its item is in one place.
        assert_eq!(left.len() + usize::from(refused == Err(2)), 2);
        assert_eq!(queue.pop(), Popped::Ended);
    }

    #[test]
    fn pop_within_gives_up() {
        let queue = BoundedQueue::<u8>::new(1);
        assert_eq!(queue.pop_within(Duration::from_millis(1)), Popped::Empty);
    }
}

/// Model checks of all interleavings: `make test` runs them with `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Bound on preemptions of a thread. Checking all interleavings would take minutes.
    const INTERRUPTIONS: usize = 2;

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(INTERRUPTIONS);
        builder.check(model);
    }

    fn all_of(queue: &BoundedQueue<u32>) -> Vec<u32> {
        let mut taken = Vec::new();
        while let Popped::Item(_, item) = queue.pop() {
            taken.push(item);
        }
        taken
    }

    #[test]
    fn no_item_is_lost_or_repeated_and_no_thread_sleeps_for_ever() {
        check(|| {
            let queue = Arc::new(BoundedQueue::new(1));
            let popper = thread::spawn({
                let queue = Arc::clone(&queue);
                move || all_of(&queue)
            });
            let pusher = thread::spawn({
                let queue = Arc::clone(&queue);
                move || queue.push(1)
            });
            queue.push(2).expect("open");
            pusher.join().expect("no panic").expect("open");
            queue.close();
            let mut taken = popper.join().expect("no panic");
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn each_item_goes_to_one_of_two_poppers() {
        check(|| {
            let queue = Arc::new(BoundedQueue::new(2));
            let poppers = [(); 2].map(|()| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || all_of(&queue))
            });
            queue.push(1).expect("open");
            queue.push(2).expect("open");
            queue.close();
            let mut taken: Vec<_> =
                poppers.into_iter().flat_map(|it| it.join().expect("no panic")).collect();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn abort_leaves_each_item_in_one_place() {
        check(|| {
            let queue = Arc::new(BoundedQueue::new(1));
            let pusher = thread::spawn({
                let queue = Arc::clone(&queue);
                move || (1..=2).filter(|item| queue.push(*item).is_err()).collect::<Vec<_>>()
            });
            let popper = thread::spawn({
                let queue = Arc::clone(&queue);
                move || all_of(&queue)
            });
            let mut all: Vec<_> = queue.abort().into();
            all.extend(pusher.join().expect("no panic"));
            all.extend(popper.join().expect("no panic"));
            all.sort_unstable();
            assert_eq!(all, [1, 2]);
        });
    }
}
