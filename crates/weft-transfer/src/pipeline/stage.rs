//! The worker's view of a stage: its tasks, its output queue and its meter.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use weft_sys::Popped;

use super::meter::{Doing, Meter, Role, Watch};
use super::queue::Queue;
use super::stop::{Stop, Stopped};

/// The settings of a stage.
#[derive(Clone, Debug)]
pub struct StageSettings {
    /// The name of the stage in reports, and of its threads.
    pub name: &'static str,
    /// The stage's role.
    pub role: Role,
    /// The smallest and the largest number of workers. It begins with the smallest.
    pub workers: RangeInclusive<usize>,
    /// Whether the stage keeps the order of its tasks. Only a parallel stage needs it.
    pub keeps_order: bool,
}

impl StageSettings {
    /// Creates settings for one worker, without order.
    #[must_use]
    pub fn new(name: &'static str, role: Role) -> Self {
        Self { name, role, workers: 1..=1, keeps_order: false }
    }

    /// Sets the bounds of the number of workers.
    #[must_use]
    pub fn workers(self, workers: RangeInclusive<usize>) -> Self {
        Self { workers, ..self }
    }

    /// Makes the stage keep the order of its tasks.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { keeps_order: true, ..self }
    }
}

/// Why a thread of a stage ended early.
#[derive(Debug)]
pub enum Halt<E> {
    /// The pipeline was stopped.
    Stopped,
    /// The stage failed, which stops the pipeline.
    Failed(E),
}

impl<E> From<Stopped> for Halt<E> {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

/// The result of a wait for a task.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<I> {
    /// A task.
    Task(I),
    /// No task came in time.
    TimedOut,
    /// No more tasks will come.
    Ended,
}

/// A thread's access to its pipeline. `I` is the type of its input tasks, `O` that of its output.
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

    /// The number of this thread in its stage, from 0 on.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the next task, and sleeps until there is one. Returns `None` if the input has ended
    /// or the pipeline was stopped. The time until the worker's next wait counts as work.
    pub fn next_task(&mut self) -> Option<I> {
        self.next_numbered().map(|(_, task)| task)
    }

    pub(crate) fn next_numbered(&mut self) -> Option<(u64, I)> {
        match self.popped(Queue::pop) {
            Popped::Item(number, task) => Some((number, task)),
            Popped::Empty | Popped::Ended => None,
        }
    }

    /// Returns the next task, and sleeps for at most `time` until there is one.
    pub fn next_within(&mut self, time: Duration) -> Next<I> {
        match self.popped(|input| input.pop_within(time)) {
            Popped::Item(_, task) => Next::Task(task),
            Popped::Empty => Next::TimedOut,
            Popped::Ended => Next::Ended,
        }
    }

    /// Returns the next task if there is one.
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

    /// Passes a task to the next stage, and sleeps while its queue is full. The task counts as
    /// done.
    ///
    /// # Errors
    /// If the pipeline was stopped. The task is dropped then.
    pub fn push(&mut self, task: O) -> Result<(), Stopped> {
        let Some(output) = &self.output else { return Ok(()) };
        self.watch.done(1);
        let Err(task) = output.try_push(task) else { return Ok(()) };
        self.watch.switch(Doing::Blocked);
        let pushed = output.push(task);
        self.watch.switch(Doing::Busy);
        pushed.map_err(|_| Stopped)
    }

    /// Counts completed tasks that are not passed on.
    pub fn count_done(&mut self, tasks: u64) {
        self.watch.done(tasks);
    }

    /// Runs a function that waits for something other than a queue: a credit, a free block or a
    /// peer. Its time counts as `doing`.
    pub fn wait<R>(&mut self, doing: Doing, act: impl FnOnce() -> R) -> R {
        let before = self.watch.doing();
        self.watch.switch(doing);
        let result = act();
        self.watch.switch(before);
        result
    }

    /// Whether the pipeline was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// The switch that stops the pipeline.
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
