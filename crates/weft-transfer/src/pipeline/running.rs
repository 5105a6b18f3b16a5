//! Running pipelines: threads, monitor and end.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use super::clock::Clock;
use super::crew::Crew;
use super::meter::{Meter, Times};
use super::monitor::{Change, Load, Monitor};
use super::queue::Passage;
use super::report::{Report, StageReport, mean};
use super::stage::{Halt, StageSettings};
use super::stop::{Cause, Stop};
use crate::limits::MONITOR_INTERVAL;

/// How a worker ended without an error.
pub(crate) enum Exit {
    /// There is no more work.
    Finished,
    /// The monitor has removed the worker, which its crew no longer counts.
    Retired,
}

/// The function of a worker's thread.
pub(crate) type Body<E> = Box<dyn FnOnce() -> Result<Exit, Halt<E>> + Send>;

/// A stage with the functions of its first workers.
pub(crate) type Crewed<E> = (Arc<Stage<E>>, Vec<Body<E>>);

/// A stage, independent of the type of its tasks.
pub(crate) struct Stage<E> {
    pub(crate) settings: StageSettings,
    pub(crate) meter: Arc<Meter>,
    pub(crate) crew: Arc<Crew>,
    pub(crate) input: Option<Box<dyn Fn() -> Passage + Send + Sync>>,
    /// Called when the last worker has ended.
    pub(crate) ended: Box<dyn Fn() + Send + Sync>,
    /// Creates the function of another worker, if the stage may grow.
    pub(crate) more: Option<Box<dyn Fn(usize) -> Body<E> + Send + Sync>>,
}

struct Progress {
    handles: Vec<JoinHandle<()>>,
    /// The number of stages whose last worker has not ended.
    live: usize,
}

pub(crate) struct RunState<E> {
    pub(crate) stop: Stop<E>,
    pub(crate) clock: Clock,
    stages: Vec<Arc<Stage<E>>>,
    start: u64,
    progress: Mutex<Progress>,
    all_ended: Condvar,
}

/// A running pipeline. Dropping it cancels the pipeline and joins its threads.
pub struct Running<E: Send + 'static> {
    shared: Arc<RunState<E>>,
    monitor: Option<JoinHandle<()>>,
}

impl<E: Send + 'static> fmt::Debug for Running<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("stop", &self.shared.stop).finish_non_exhaustive()
    }
}

impl<E: Send + 'static> Running<E> {
    pub(crate) fn start(stop: Stop<E>, clock: Clock, stages: Vec<Crewed<E>>) -> Self {
        let start = clock.now();
        let (stages, bodies): (Vec<_>, Vec<_>) = stages.into_iter().unzip();
        let progress = Progress { handles: Vec::new(), live: stages.len() };
        let shared = Arc::new(RunState {
            stop,
            clock,
            stages,
            start,
            progress: Mutex::new(progress),
            all_ended: Condvar::new(),
        });
        for (stage, bodies) in shared.stages.iter().zip(bodies) {
            for body in bodies {
                shared.spawn(stage, body, true);
            }
        }
        let changes = shared.stages.iter().any(|stage| stage.more.is_some());
        let monitor = changes.then(|| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("monitor".into()).spawn(move || shared.watch_over())
        });
        // If the monitor's thread cannot be created, the numbers of workers stay constant.
        Self { shared, monitor: monitor.and_then(Result::ok) }
    }

    /// The switch that stops the pipeline.
    #[must_use]
    pub fn stop(&self) -> &Stop<E> {
        &self.shared.stop
    }

    /// Returns a report up to now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Whether all stages have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.lock().live == 0
    }

    /// Waits until all threads have ended, and returns the report.
    ///
    /// # Errors
    /// The first cause, if the pipeline was stopped.
    pub fn wait(mut self) -> Result<Report, Cause<E>> {
        self.join();
        match self.shared.stop.take_cause() {
            Some(cause) => Err(cause),
            None => Ok(self.shared.report()),
        }
    }

    /// Like [`Running::wait`], but returns the report even after a failure.
    pub fn finish(mut self) -> (Report, Option<Cause<E>>) {
        self.join();
        (self.shared.report(), self.shared.stop.take_cause())
    }

    fn join(&mut self) {
        let mut progress = self.shared.lock();
        while progress.live > 0 {
            let waited = self.shared.all_ended.wait(progress);
            progress = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        drop(progress);
        // After the monitor has ended, no new thread starts.
        if let Some(monitor) = self.monitor.take() {
            let _ = monitor.join();
        }
        let handles = std::mem::take(&mut self.shared.lock().handles);
        for handle in handles {
            // The thread has recorded its own panic.
            let _ = handle.join();
        }
    }
}

impl<E: Send + 'static> Drop for Running<E> {
    fn drop(&mut self) {
        // After `wait` the pipeline has ended.
        if !self.has_ended() {
            self.shared.stop.cancel();
        }
        self.join();
    }
}

impl<E: Send + 'static> RunState<E> {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts a thread for a worker that its crew has counted. If the thread cannot be created, the
    /// worker leaves its crew, and the pipeline stops if it `needs` the worker.
    fn spawn(self: &Arc<Self>, stage: &Arc<Stage<E>>, body: Body<E>, needs: bool) {
        let without = needs.then_some(Cause::NoThread { stage: stage.settings.name });
        let (shared, stage) = (Arc::clone(self), Arc::clone(stage));
        let builder = thread::Builder::new().name(stage.settings.name.into());
        let leaving = Leaving { shared, stage, without, is_retired: false };
        if let Ok(handle) = builder.spawn(move || leaving.run(body)) {
            self.lock().handles.push(handle);
        }
    }

    fn report(&self) -> Report {
        let stages = self.stages.iter().map(|stage| StageReport {
            name: stage.settings.name,
            role: stage.settings.role,
            workers: stage.crew.live(),
            workers_peak: stage.crew.peak(),
            times: stage.meter.times(),
            input: stage.input.as_ref().map(|input| input()),
        });
        Report { stages: stages.collect(), elapsed: self.clock.now().saturating_sub(self.start) }
    }

    /// The function of the monitor's thread.
    fn watch_over(self: &Arc<Self>) {
        let mut monitor = Monitor::default();
        let mut before = self.samples();
        loop {
            let progress = self.lock();
            let waited =
                self.all_ended.wait_timeout_while(progress, MONITOR_INTERVAL, |progress| {
                    progress.live > 0 && !self.stop.is_stopped()
                });
            let live = waited.map_or(0, |(progress, _)| progress.live);
            if live == 0 || self.stop.is_stopped() {
                return;
            }
            let now = self.samples();
            let loads: Vec<_> = self
                .stages
                .iter()
                .zip(before.iter().zip(&now))
                .map(|(stage, (before, now))| stage.load(before, now))
                .collect();
            before = now;
            for change in monitor.decide(&loads) {
                self.apply(change);
            }
        }
    }

    fn samples(&self) -> Vec<Sample> {
        self.stages.iter().map(|stage| stage.sample()).collect()
    }

    fn apply(self: &Arc<Self>, change: Change) {
        let stage = &self.stages[change.stage];
        let Some(more) = &stage.more else { return };
        let first = stage.crew.live();
        for number in 0..stage.crew.aim_at(change.workers) {
            // If the thread cannot be created, the existing workers do the work.
            self.spawn(stage, more(first + number), false);
        }
    }
}

/// The totals of a stage at some time.
struct Sample {
    times: Times,
    input: Passage,
}

impl<E> Stage<E> {
    fn sample(&self) -> Sample {
        let input = self.input.as_ref().map(|input| input()).unwrap_or_default();
        Sample { times: self.meter.times(), input }
    }

    fn load(&self, before: &Sample, now: &Sample) -> Load {
        let times = now.times.since(&before.times);
        let waited = now.input.waited.saturating_sub(before.input.waited);
        let passed = now.input.passed.saturating_sub(before.input.passed);
        let workers = self.crew.live();
        let (least, most) = match self.more {
            Some(_) => (*self.settings.workers.start(), *self.settings.workers.end()),
            None => (workers, workers),
        };
        Load {
            workers,
            least,
            most,
            busy: times.busy_share(),
            done: times.done,
            queueing: mean(waited, passed),
            service: mean(times.busy, times.done),
            queued: now.input.len,
        }
    }
}

/// Handles the end of a worker, also by a panic.
struct Leaving<E: Send + 'static> {
    shared: Arc<RunState<E>>,
    stage: Arc<Stage<E>>,
    /// The cause to record if the worker's function does not run.
    without: Option<Cause<E>>,
    is_retired: bool,
}

impl<E: Send + 'static> Leaving<E> {
    fn run(mut self, body: Body<E>) {
        self.without = None;
        match body() {
            Ok(Exit::Finished) | Err(Halt::Stopped) => {}
            Ok(Exit::Retired) => self.is_retired = true,
            Err(Halt::Failed(error)) => self.shared.stop.fail(self.stage.settings.name, error),
        }
    }
}

impl<E: Send + 'static> Drop for Leaving<E> {
    fn drop(&mut self) {
        // The cause must be recorded before the stage ends. Otherwise the next stage would see an
        // ordinary end of its tasks.
        if let Some(cause) = self.without.take() {
            self.shared.stop.stop(cause);
        }
        if thread::panicking() {
            self.shared.stop.stop(Cause::Panicked { stage: self.stage.settings.name });
        }
        if self.is_retired || !self.stage.crew.leave() {
            return;
        }
        (self.stage.ended)();
        self.shared.lock().live -= 1;
        self.shared.all_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::pipeline::Role;

    #[test]
    fn failed_thread_creation_stops_the_pipeline_before_its_output_ends() {
        let (stop, clock) = (Stop::<String>::default(), Clock::system());
        let was_stopped = Arc::new(AtomicBool::new(false));
        let (noted, switch) = (Arc::clone(&was_stopped), stop.clone());
        let stage = Arc::new(Stage {
            settings: StageSettings::new("read", Role::SourceDisk),
            meter: Arc::new(Meter::new(clock.clone())),
            crew: Arc::new(Crew::new(1)),
            input: None,
            ended: Box::new(move || noted.store(switch.is_stopped(), Ordering::SeqCst)),
            more: None,
        });
        let progress = Mutex::new(Progress { handles: Vec::new(), live: 1 });
        let stages = vec![Arc::clone(&stage)];
        let all_ended = Condvar::new();
        let shared = Arc::new(RunState { stop, clock, stages, start: 0, progress, all_ended });
        // The state that is left if the thread could not be created.
        let without = Some(Cause::NoThread { stage: "read" });
        drop(Leaving { shared: Arc::clone(&shared), stage, without, is_retired: false });
        assert!(was_stopped.load(Ordering::SeqCst), "the next stage takes it for the end");
        let ended = Running { shared, monitor: None }.wait();
        assert_eq!(ended.map(drop), Err(Cause::NoThread { stage: "read" }));
    }
}
