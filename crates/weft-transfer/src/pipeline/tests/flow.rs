//! Flow control, engines and the monitor in whole pipelines.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::pipeline::{Engine, Halt, Pipeline, Pool, Role, StageSettings, Worker};

type Nothing = std::convert::Infallible;

/// A gate that a test opens.
#[derive(Default)]
struct Gate(Mutex<usize>, Condvar);

impl Gate {
    fn let_pass(&self, count: usize) {
        *self.0.lock().expect("no panic") += count;
        self.1.notify_all();
    }

    fn pass(&self) {
        let free = self.1.wait_while(self.0.lock().expect("no panic"), |free| *free == 0);
        *free.expect("no panic") -= 1;
    }
}

#[test]
fn stalled_sink_stops_the_source_when_all_blocks_are_in_front_of_it() {
    const BLOCKS: usize = 6;
    const TASKS: usize = 200;
    let pool = Pool::private(BLOCKS, 4_096).expect("memory");
    let mut pipeline = Pipeline::<Nothing>::default();
    // The queues are longer than the pool, so only the blocks limit the tasks.
    let [first, second] = ["first", "second"].map(|name| pipeline.queue(name, 100));
    let taken = Arc::new(AtomicUsize::new(0));
    let (from, count) = (pool.clone(), Arc::clone(&taken));
    let read = move |worker: &mut Worker<(), _, Nothing>| {
        for _ in 0..TASKS {
            let block = from.take().ok_or(Halt::Stopped)?;
            count.fetch_add(1, Ordering::SeqCst);
            worker.push(block)?;
        }
        Ok(())
    };
    let settings = StageSettings::new("read", Role::SourceDisk);
    pipeline.threads(settings, None, Some(&first), vec![read]);
    let settings = StageSettings::new("pass", Role::Cpu).workers(1..=3).in_order();
    pipeline.parallel(settings, &first, &second, || |block| Ok(Some(block)));
    let gate = Arc::new(Gate::default());
    let written = Arc::new(AtomicUsize::new(0));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&written));
    let write = move |worker: &mut Worker<_, (), Nothing>| {
        while let Some(block) = worker.next_task() {
            held.pass();
            drop(block);
            count.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    };
    let settings = StageSettings::new("write", Role::SinkDisk);
    pipeline.threads(settings, Some(&second), None, vec![write]);
    let running = pipeline.start();
    for written_now in [0, 1, 10] {
        while written.load(Ordering::SeqCst) < written_now {
            std::thread::yield_now();
        }
        while pool.free() > 0 || taken.load(Ordering::SeqCst) < written_now + BLOCKS {
            std::thread::yield_now();
        }
        assert_eq!(taken.load(Ordering::SeqCst), written_now + BLOCKS, "no block, no task");
        gate.let_pass(if written_now == 0 { 1 } else { 9 });
    }
    gate.let_pass(TASKS);
    let report = running.wait().expect("no error");
    assert_eq!((taken.load(Ordering::SeqCst), pool.free()), (TASKS, BLOCKS));
    assert_eq!(report.stages[1].times.done, TASKS as u64);
    assert_eq!(pool.fewest_free(), 0);
}

/// A device that completes operations in reverse order, and only in batches.
struct Backwards {
    in_flight: VecDeque<u32>,
    most: Arc<AtomicUsize>,
    wakeups: Arc<(Mutex<usize>, Condvar)>,
}

impl Engine<u32, u32, &'static str> for Backwards {
    fn depth(&self) -> usize {
        4
    }

    fn submit(&mut self, task: u32) -> Result<(), &'static str> {
        if task == 77 {
            return Err("a bad sector");
        }
        self.in_flight.push_back(task);
        self.most.fetch_max(self.in_flight.len(), Ordering::SeqCst);
        Ok(())
    }

    fn complete(
        &mut self,
        wait: Option<Duration>,
        done: &mut Vec<u32>,
    ) -> Result<usize, &'static str> {
        if self.in_flight.len() < self.depth() {
            // Completions are delayed while more operations may come, as on a slow device.
            let (count, wakeup) = &*self.wakeups;
            let guard = count.lock().expect("no panic");
            let waited = wakeup.wait_timeout_while(guard, wait.unwrap_or_default(), |it| *it == 0);
            let (mut count, timeout) = waited.expect("no panic");
            if !timeout.timed_out() {
                *count = 0;
                return Ok(0);
            }
        }
        done.extend(self.in_flight.pop_back());
        Ok(1)
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wakeups = Arc::clone(&self.wakeups);
        Arc::new(move || {
            *wakeups.0.lock().expect("no panic") += 1;
            wakeups.1.notify_all();
        })
    }
}

fn through_an_engine(tasks: u32) -> (Result<Vec<u32>, String>, usize) {
    let mut pipeline = Pipeline::<&'static str>::default();
    let (input, output) = (pipeline.queue("input", 8), pipeline.queue("output", 2));
    let read = move |worker: &mut Worker<(), u32, _>| {
        for number in 0..tasks {
            worker.push(number)?;
        }
        Ok(())
    };
    let settings = StageSettings::new("numbers", Role::SourceDisk);
    pipeline.threads(settings, None, Some(&input), vec![read]);
    let most = Arc::new(AtomicUsize::new(0));
    let engine =
        Backwards { in_flight: VecDeque::new(), most: Arc::clone(&most), wakeups: Arc::default() };
    let settings = StageSettings::new("disk", Role::SinkDisk);
    pipeline.asynchronous(settings, &input, &output, engine);
    let out = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&out);
    let collect = move |worker: &mut Worker<u32, (), _>| {
        while let Some(number) = worker.next_task() {
            all.lock().expect("no panic").push(number);
        }
        Ok(())
    };
    let settings = StageSettings::new("collect", Role::Cpu);
    pipeline.threads(settings, Some(&output), None, vec![collect]);
    let ended = pipeline.start().wait().map_err(|cause| cause.to_string());
    let out = std::mem::take(&mut *out.lock().expect("no panic"));
    (ended.map(|_| out), most.load(Ordering::SeqCst))
}

#[test]
fn engine_keeps_many_operations_in_flight_and_completes_each_once() {
    let (out, most) = through_an_engine(50);
    let mut out = out.expect("no error");
    assert!(!out.is_sorted(), "they complete in another order");
    out.sort_unstable();
    assert_eq!(out, (0..50).collect::<Vec<_>>());
    assert_eq!(most, 4);
}

#[test]
fn error_of_an_engine_stops_the_pipeline() {
    assert_eq!(through_an_engine(100).0, Err("disk: a bad sector".into()));
}

#[test]
fn monitor_adds_workers_to_a_slow_stage_and_removes_them() {
    let mut pipeline = Pipeline::<Nothing>::default();
    let (input, output) = (pipeline.queue("input", 16), pipeline.queue("output", 16));
    let (is_slow, is_over) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    let slow = Arc::clone(&is_slow);
    let endless = move |worker: &mut Worker<(), (), Nothing>| {
        while !over.load(Ordering::SeqCst) {
            if !slow.load(Ordering::SeqCst) {
                worker.wait(crate::pipeline::Doing::Idle, || {
                    std::thread::sleep(Duration::from_millis(5));
                });
            }
            worker.push(())?;
        }
        Ok(())
    };
    let settings = StageSettings::new("tasks", Role::SourceDisk);
    pipeline.threads(settings, None, Some(&input), vec![endless]);
    let slow = Arc::clone(&is_slow);
    let settings = StageSettings::new("slow", Role::Cpu).workers(1..=3);
    pipeline.parallel(settings, &input, &output, move || {
        let slow = Arc::clone(&slow);
        move |()| {
            if slow.load(Ordering::SeqCst) {
                // A sleep makes workers help even on a machine with one processor.
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(None::<()>)
        }
    });
    let running = pipeline.start();
    let until = |what: &str, is_so: &dyn Fn(usize) -> bool| {
        for _ in 0..48_000 {
            if is_so(running.report().stages[1].workers) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{what} in four minutes");
    };
    until("no third worker", &|workers| workers == 3);
    is_slow.store(false, Ordering::SeqCst);
    until("workers stay", &|workers| workers == 1);
    is_over.store(true, Ordering::SeqCst);
    let report = running.wait().expect("no error");
    assert_eq!(report.stages[1].workers_peak, 3);
}

/// Lets three stages go on when each of them is in its step of a round.
#[derive(Default)]
struct Meeting {
    arrived: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn meet(&self, round: usize) {
        const HANG: Duration = Duration::from_secs(240);
        let mut arrived = self.arrived.lock().expect("no panic");
        *arrived += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(arrived, HANG, |it| *it < 3 * round);
        assert!(!waited.expect("no panic").1.timed_out(), "the other stages wait for this one");
    }
}

#[test]
fn stages_work_at_the_same_time() {
    const TASKS: usize = 40;
    let mut pipeline = Pipeline::<Nothing>::default();
    let queues = ["a", "b", "c", "d"].map(|name| pipeline.queue(name, 4));
    let read = move |worker: &mut Worker<(), usize, Nothing>| {
        for number in 0..TASKS {
            worker.push(number)?;
        }
        Ok(())
    };
    let settings = StageSettings::new("numbers", Role::SourceDisk);
    pipeline.threads(settings, None, Some(&queues[0]), vec![read]);
    let meeting = Arc::new(Meeting::default());
    let stages = ["one", "two", "three"].into_iter().zip(queues.windows(2)).enumerate();
    for (stage, (name, pair)) in stages {
        let meeting = Arc::clone(&meeting);
        let settings = StageSettings::new(name, Role::Cpu).workers(1..=1);
        pipeline.parallel(settings, &pair[0], &pair[1], move || {
            let meeting = Arc::clone(&meeting);
            move |number: usize| {
                // The first stage is two tasks ahead of the third.
                let round = (number + stage).saturating_sub(1);
                if (1..=TASKS - 2).contains(&round) {
                    meeting.meet(round);
                }
                Ok(Some(number))
            }
        });
    }
    let settings = StageSettings::new("end", Role::SinkDisk);
    let end = |worker: &mut Worker<usize, (), Nothing>| {
        let numbers = std::iter::from_fn(|| worker.next_task());
        assert!(numbers.eq(0..TASKS), "each task once and in order");
        Ok(())
    };
    pipeline.threads(settings, Some(&queues[3]), None, vec![end]);
    pipeline.start().wait().expect("no error");
    assert_eq!(*meeting.arrived.lock().expect("no panic"), 3 * (TASKS - 2));
}
