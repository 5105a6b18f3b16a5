//! The builder of pipelines.

use std::fmt;
use std::sync::Arc;

use super::clock::Clock;
use super::crew::Crew;
use super::engine::Engine;
use super::meter::Meter;
use super::ordered::Ordered;
use super::pool::Pool;
use super::queue::Queue;
use super::running::{Body, Crewed, Exit, Running, Stage};
use super::stage::{Halt, Next, StageSettings, Worker};
use super::stop::Stop;
use crate::limits::{ENGINE_WAIT_MAX, ORDER_WINDOW_MAX};

/// A pipeline under construction. `E` is the error of its stages.
pub struct Pipeline<E: Send + 'static> {
    stop: Stop<E>,
    clock: Clock,
    stages: Vec<Crewed<E>>,
}

impl<E: Send + 'static> fmt::Debug for Pipeline<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("stages", &self.stages.len()).finish_non_exhaustive()
    }
}

impl<E: Send + 'static> Default for Pipeline<E> {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl<E: Send + 'static> Pipeline<E> {
    /// Creates a pipeline without stages.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { stop: Stop::default(), clock, stages: Vec::new() }
    }

    /// The switch that stops the pipeline.
    #[must_use]
    pub fn stop(&self) -> &Stop<E> {
        &self.stop
    }

    /// The clock that stamps its tasks.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates a queue of at most `capacity` tasks. If tasks hold blocks, the number of blocks
    /// bounds the queue, too.
    #[must_use]
    pub fn queue<T: Send + 'static>(&self, name: &'static str, capacity: usize) -> Queue<T> {
        let queue = Queue::new(name, capacity, self.clock.clone());
        let stopped = queue.clone();
        self.stop.on_stop(move || stopped.abort());
        queue
    }

    /// Closes a pool when the pipeline stops, so that no thread waits for a block.
    pub fn watch_pool(&self, pool: &Pool) {
        let pool = pool.clone();
        self.stop.on_stop(move || pool.close());
    }

    /// Adds a stage of identical workers on one queue. `make` creates a function for each worker,
    /// which turns a task into a result for the next stage or into `None`. The monitor changes the
    /// number of workers within the bounds of the settings.
    pub fn parallel<I, O, W>(
        &mut self,
        settings: StageSettings,
        input: &Queue<I>,
        output: &Queue<O>,
        make: impl Fn() -> W + Send + Sync + 'static,
    ) where
        I: Send + 'static,
        O: Send + 'static,
        W: FnMut(I) -> Result<Option<O>, E> + Send + 'static,
    {
        let least = (*settings.workers.start()).max(1);
        let (stage, meter, crew) = self.prepare(&settings, least);
        output.add_producer();
        let ordered = settings.keeps_order.then(|| Arc::new(Ordered::new(ORDER_WINDOW_MAX)));
        if let Some(ordered) = ordered.clone() {
            self.stop.on_stop(move || ordered.wake());
        }
        let stop = self.stop.clone();
        let (worker_input, worker_output) = (input.clone(), output.clone());
        let more = move |number: usize| -> Body<E> {
            let (input, output) = (worker_input.clone(), worker_output.clone());
            let (stop, meter, crew) = (stop.clone(), Arc::clone(&meter), Arc::clone(&crew));
            let (act, ordered) = (make(), ordered.clone());
            Box::new(move || {
                let worker = Worker::new(Some(input), Some(output), stop, meter, number);
                work(worker, act, &crew, ordered.as_deref())
            })
        };
        let bodies = (0..least).map(&more).collect();
        let (probed, output) = (input.clone(), output.clone());
        let stage = Stage {
            input: Some(Box::new(move || probed.passage())),
            ended: Box::new(move || output.producer_ended()),
            more: Some(Box::new(more)),
            ..stage
        };
        self.stages.push((Arc::new(stage), bodies));
    }

    /// Adds a stage of one thread that keeps many operations in flight.
    pub fn asynchronous<I, O>(
        &mut self,
        settings: StageSettings,
        input: &Queue<I>,
        output: &Queue<O>,
        engine: impl Engine<I, O, E> + 'static,
    ) where
        I: Send + 'static,
        O: Send + 'static,
    {
        let waker = engine.waker();
        let wake = Arc::clone(&waker);
        input.on_push(move || wake());
        self.stop.on_stop(move || waker());
        self.threads(
            settings,
            Some(input),
            Some(output),
            vec![move |worker: &mut _| run_engine(worker, engine)],
        );
    }

    /// Adds a stage with one thread for each of `roles`. Until it returns, a thread takes tasks
    /// from its [`Worker`] and passes it results.
    pub fn threads<I, O, R>(
        &mut self,
        settings: StageSettings,
        input: Option<&Queue<I>>,
        output: Option<&Queue<O>>,
        roles: Vec<R>,
    ) where
        I: Send + 'static,
        O: Send + 'static,
        R: FnOnce(&mut Worker<I, O, E>) -> Result<(), Halt<E>> + Send + 'static,
    {
        if roles.is_empty() {
            return;
        }
        let (stage, meter, _) = self.prepare(&settings, roles.len());
        if let Some(output) = output {
            output.add_producer();
        }
        let bodies = roles.into_iter().enumerate().map(|(number, role)| -> Body<E> {
            let (input, output) = (input.cloned(), output.cloned());
            let (stop, meter) = (self.stop.clone(), Arc::clone(&meter));
            Box::new(move || {
                role(&mut Worker::new(input, output, stop, meter, number))?;
                Ok(Exit::Finished)
            })
        });
        let bodies = bodies.collect();
        let (input, output) = (input.cloned(), output.cloned());
        let stage = Stage {
            input: input.map(|input| -> Box<dyn Fn() -> _ + Send + Sync> {
                Box::new(move || input.passage())
            }),
            ended: Box::new(move || {
                if let Some(output) = &output {
                    output.producer_ended();
                }
            }),
            ..stage
        };
        self.stages.push((Arc::new(stage), bodies));
    }

    fn prepare(
        &self,
        settings: &StageSettings,
        workers: usize,
    ) -> (Stage<E>, Arc<Meter>, Arc<Crew>) {
        let meter = Arc::new(Meter::new(self.clock.clone()));
        let crew = Arc::new(Crew::new(workers));
        let stage = Stage {
            settings: settings.clone(),
            meter: Arc::clone(&meter),
            crew: Arc::clone(&crew),
            input: None,
            ended: Box::new(|| {}),
            more: None,
        };
        (stage, meter, crew)
    }

    /// Starts the threads.
    #[must_use]
    pub fn start(self) -> Running<E> {
        Running::start(self.stop, self.clock, self.stages)
    }
}

/// The thread function of a worker of a parallel stage.
fn work<I, O, E>(
    mut worker: Worker<I, O, E>,
    mut act: impl FnMut(I) -> Result<Option<O>, E>,
    crew: &Crew,
    ordered: Option<&Ordered<O>>,
) -> Result<Exit, Halt<E>> {
    loop {
        if crew.leave_if_superfluous() {
            return Ok(Exit::Retired);
        }
        let Some((number, task)) = worker.next_numbered() else { return Ok(Exit::Finished) };
        let result = act(task).map_err(Halt::Failed)?;
        match (ordered, result) {
            (Some(ordered), result) => {
                let is_none = result.is_none();
                let stop = worker.stop().clone();
                ordered.give(number, result, &stop, |result| worker.push(result))?;
                if is_none {
                    worker.count_done(1);
                }
            }
            (None, Some(result)) => worker.push(result)?,
            (None, None) => worker.count_done(1),
        }
    }
}

/// The thread function of an asynchronous stage.
fn run_engine<I, O, E>(
    worker: &mut Worker<I, O, E>,
    mut engine: impl Engine<I, O, E>,
) -> Result<(), Halt<E>> {
    let (mut in_flight, mut has_ended) = (0, false);
    let mut done = Vec::new();
    loop {
        while !has_ended && in_flight < engine.depth() {
            // The thread waits for the queue only if no operation is in flight.
            let next = match in_flight {
                0 => worker.next_task().map_or(Next::Ended, Next::Task),
                _ => worker.try_next(),
            };
            match next {
                Next::Task(task) => {
                    engine.submit(task).map_err(Halt::Failed)?;
                    in_flight += 1;
                }
                Next::TimedOut => break,
                Next::Ended => has_ended = true,
            }
        }
        if in_flight == 0 {
            return Ok(());
        }
        // The stage counts as busy while operations are in flight.
        let wait = Some(ENGINE_WAIT_MAX);
        in_flight -= engine.complete(wait, &mut done).map_err(Halt::Failed)?.min(in_flight);
        for result in done.drain(..) {
            worker.push(result)?;
        }
    }
}
