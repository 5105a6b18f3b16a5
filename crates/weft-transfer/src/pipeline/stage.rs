//! What a worker of a stage has: its tasks, the next queue, its meter.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use weft_sys::Popped;

use super::meter::{Doing, Meter, Role, Watch};
use super::queue::Queue;
use super::stop::{Stop, Stopped};

/// A stage's name and kind.
#[derive(Clone, Debug)]
pub struct StageSettings {
    /// Its name in reports, and its threads'.
    pub name: &'static str,
    /// What it is to the pipeline.
    pub role: Role,
    /// How many workers it has at least and at most. It begins with the least.
    pub workers: RangeInclusive<usize>,
    /// Whether tasks leave it in the order in which they came. Only a parallel stage needs that.
    pub keeps_order: bool,
}

impl StageSettings {
    /// One worker, in no order.
    #[must_use]
    pub fn new(name: &'static str, role: Role) -> Self {
        Self { name, role, workers: 1..=1, keeps_order: false }
    }

    /// With so many workers.
    #[must_use]
    pub fn workers(self, workers: RangeInclusive<usize>) -> Self {
        Self { workers, ..self }
    }

    /// With the tasks in order.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { keeps_order: true, ..self }
    }
}

/// Why a thread of a stage ended early.
#[derive(Debug)]
pub enum Halt<E> {
    /// The pipeline has stopped.
    Stopped,
    /// This stage failed, which stops the pipeline.
    Failed(E),
}

impl<E> From<Stopped> for Halt<E> {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

/// What waiting for a task for some time gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<I> {
    /// A task.
    Task(I),
    /// None came in the time.
    TimedOut,
    /// None will come.
    Ended,
}

/// A thread's access to its pipeline. `I` are the tasks that it takes, `O` those that it gives on.
pub struct Worker<I, O, E> {
    input: Option<Queue<I>>,
    output: Option<Queue<O>>,
    stop: Stop<E>,
    watch: Watch,
    number: usize,
}

impl<I, O, E> Worker<I, O, E> {
    pub(crate) fn new(
        input: Option<Queue<I>>,
        output: Option<Queue<O>>,
        stop: Stop<E>,
        meter: Arc<Meter>,
        number: usize,
    ) -> Self {
        Self { input, output, stop, watch: Watch::start(meter), number }
    }

    /// Which thread of its stage this is, from 0 on.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The next task; sleeps until there is one. None if the input has ended or the pipeline has
    /// stopped. What the worker does from here to the next wait counts as work.
    pub fn next_task(&mut self) -> Option<I> {
        self.next_numbered().map(|(_, task)| task)
    }

    pub(crate) fn next_numbered(&mut self) -> Option<(u64, I)> {
        match self.popped(Queue::pop) {
            Popped::Item(number, task) => Some((number, task)),
            Popped::Empty | Popped::Ended => None,
        }
    }

    /// The next task; sleeps for at most `time` until there is one.
    pub fn next_within(&mut self, time: Duration) -> Next<I> {
        match self.popped(|input| input.pop_within(time)) {
            Popped::Item(_, task) => Next::Task(task),
            Popped::Empty => Next::TimedOut,
            Popped::Ended => Next::Ended,
        }
    }

    /// The next task if there is one.
    pub fn try_next(&mut self) -> Next<I> {
        self.next_within(Duration::ZERO)
    }

    fn popped(&mut self, pop: impl FnOnce(&Queue<I>) -> Popped<I>) -> Popped<I> {
        if self.stop.is_stopped() {
            return Popped::Ended;
        }
        let Some(input) = &self.input else { return Popped::Ended };
        let first = input.try_pop();
        if !matches!(first, Popped::Empty) {
            return first;
        }
        self.watch.switch(Doing::Idle);
        let popped = pop(input);
        self.watch.switch(Doing::Busy);
        popped
    }

    /// Gives a task on; sleeps while the next queue is full. Counts it as done.
    ///
    /// # Errors
    /// If the pipeline has stopped. The task is dropped then.
    pub fn push(&mut self, task: O) -> Result<(), Stopped> {
        let Some(output) = &self.output else { return Ok(()) };
        self.watch.done(1);
        let Err(task) = output.try_push(task) else { return Ok(()) };
        self.watch.switch(Doing::Blocked);
        let pushed = output.push(task);
        self.watch.switch(Doing::Busy);
        pushed.map_err(|_| Stopped)
    }

    /// Counts tasks as done that this stage does not give on.
    pub fn count_done(&mut self, tasks: u64) {
        self.watch.done(tasks);
    }

    /// Does something that waits, not for a queue: for a credit, a free block, a peer. It counts as
    /// `doing`, and not as work.
    pub fn wait<R>(&mut self, doing: Doing, act: impl FnOnce() -> R) -> R {
        let before = self.watch.doing();
        self.watch.switch(doing);
        let result = act();
        self.watch.switch(before);
        result
    }

    /// Whether the pipeline has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// The pipeline's switch.
    #[must_use]
    pub fn stop(&self) -> &Stop<E> {
        &self.stop
    }
}

impl<I, O, E> fmt::Debug for Worker<I, O, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("number", &self.number).finish_non_exhaustive()
    }
}
