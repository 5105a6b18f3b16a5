//! Ends and failures of pipelines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use crate::pipeline::{Cause, Clock, Halt, Pipeline, Pool, Report, Role, StageSettings, Worker};

/// A task with a block.
struct Load {
    number: u32,
    block: crate::pipeline::Block,
}

/// The place of a pipeline's failure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Error { stage: usize, at: u32 },
    Panic { stage: usize, at: u32 },
    Cancel { at: u32 },
}

const STAGES: [&str; 4] = ["read", "change", "check", "write"];

/// Runs a pipeline of four stages over `tasks`. Returns its output and its end.
fn run(
    tasks: u32,
    workers: usize,
    in_order: bool,
    fault: Fault,
) -> (Vec<u32>, Result<Report, Cause<String>>, Pool) {
    let pool = Pool::private(5, 4_096).expect("memory");
    let mut pipeline = Pipeline::<String>::new(Clock::system());
    pipeline.watch_pool(&pool);
    let loaded = pipeline.queue("loaded", 2);
    let changed = pipeline.queue("changed", 3);
    let checked = pipeline.queue("checked", 1);
    let stop = pipeline.stop().clone();
    let trip = move |stage: usize, number: u32| match fault {
        Fault::Error { stage: there, at } if (there, at) == (stage, number) => {
            Err(format!("{} {number}", STAGES[stage]))
        }
        Fault::Panic { stage: there, at } if (there, at) == (stage, number) => {
            panic!("a panic that a test wants")
        }
        Fault::Cancel { at } if stage == 1 && at == number => {
            stop.cancel();
            Ok(())
        }
        _ => Ok(()),
    };
    let trip = Arc::new(trip);

    let (from, check) = (pool.clone(), Arc::clone(&trip));
    let read = move |worker: &mut Worker<(), Load, String>| {
        for number in 0..tasks {
            check(0, number).map_err(Halt::Failed)?;
            let mut block = from.take().ok_or(Halt::Stopped)?;
            block.copy_in(0, &number.to_be_bytes());
            worker.push(Load { number, block })?;
        }
        Ok(())
    };
    let settings = StageSettings::new(STAGES[0], Role::SourceDisk);
    pipeline.threads(settings, None, Some(&loaded), vec![read]);

    let mut settings = StageSettings::new(STAGES[1], Role::Cpu).workers(workers..=workers);
    settings.keeps_order = in_order;
    let check = Arc::clone(&trip);
    pipeline.parallel(settings, &loaded, &changed, move || {
        let check = Arc::clone(&check);
        move |mut load: Load| {
            check(1, load.number)?;
            let mut bytes = [0; 4];
            load.block.copy_out(0, &mut bytes);
            load.block.copy_in(4, &bytes);
            Ok(Some(load))
        }
    });
    let check = Arc::clone(&trip);
    let settings = StageSettings::new(STAGES[2], Role::Cpu).in_order();
    pipeline.parallel(settings, &changed, &checked, move || {
        let check = Arc::clone(&check);
        move |load: Load| check(2, load.number).map(|()| Some(load))
    });
    let out = Arc::new(std::sync::Mutex::new(Vec::new()));
    let write = {
        let out = Arc::clone(&out);
        move |worker: &mut Worker<Load, (), String>| {
            while let Some(load) = worker.next_task() {
                trip(3, load.number).map_err(Halt::Failed)?;
                let mut bytes = [0; 8];
                load.block.copy_out(0, &mut bytes);
                assert_eq!(bytes[..4], bytes[4..], "a block has its own bytes");
                assert_eq!(bytes[..4], load.number.to_be_bytes());
                out.lock().expect("no panic").push(load.number);
                worker.count_done(1);
            }
            Ok(())
        }
    };
    let settings = StageSettings::new(STAGES[3], Role::SinkDisk);
    pipeline.threads(settings, Some(&checked), None, vec![write]);
    let ended = pipeline.start().wait();
    let out = std::mem::take(&mut *out.lock().expect("no panic"));
    (out, ended, pool)
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::None),
        (0..4_usize, 0..60_u32).prop_map(|(stage, at)| Fault::Error { stage, at }),
        (0..60_u32).prop_map(|at| Fault::Cancel { at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_task_is_lost_or_repeated_and_the_first_error_is_kept(
        tasks in 0..80_u32,
        workers in 1..4_usize,
        in_order in any::<bool>(),
        fault in fault(),
    ) {
        let (mut out, ended, pool) = run(tasks, workers, in_order, fault);
        if in_order {
            prop_assert!(out.is_sorted(), "{:?}", out);
        }
        out.sort_unstable();
        let distinct = out.windows(2).all(|pair| pair[0] != pair[1]);
        prop_assert!(distinct, "{:?}", out);
        // All threads have ended, and all blocks have returned.
        prop_assert_eq!(pool.free(), pool.count());
        match (fault, ended) {
            (Fault::Error { stage, at }, Err(Cause::Failed { stage: name, error })) => {
                prop_assert!(at < tasks);
                prop_assert_eq!(name, STAGES[stage]);
                prop_assert_eq!(error, format!("{} {at}", STAGES[stage]));
            }
            (Fault::Cancel { at }, Err(Cause::Cancelled)) => prop_assert!(at < tasks),
            (fault, Ok(report)) => {
                let happened = match fault {
                    Fault::Error { at, .. } | Fault::Cancel { at } => at < tasks,
                    Fault::None | Fault::Panic { .. } => false,
                };
                prop_assert!(!happened, "{:?} was not reported", fault);
                prop_assert_eq!(out, (0..tasks).collect::<Vec<_>>());
                prop_assert!(report.stages.iter().all(|it| it.times.done == u64::from(tasks)));
            }
            (fault, ended) => prop_assert!(false, "{:?} led to {:?}", fault, ended),
        }
    }
}

#[test]
fn panic_of_a_stage_stops_the_pipeline() {
    for (stage, name) in STAGES.into_iter().enumerate() {
        let (_, ended, pool) = run(50, 2, true, Fault::Panic { stage, at: 20 });
        assert_eq!(ended.map(drop), Err(Cause::Panicked { stage: name }));
        assert_eq!(pool.free(), pool.count());
    }
}

#[test]
fn dropped_pipeline_ends_its_threads() {
    let mut pipeline = Pipeline::<String>::default();
    let queue = pipeline.queue("numbers", 1);
    let ended = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ended);
    let endless = move |worker: &mut Worker<(), u32, String>| {
        while worker.push(1).is_ok() {}
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let count = Arc::clone(&ended);
    let asleep = move |worker: &mut Worker<u32, (), String>| {
        while !worker.is_stopped() {
            std::thread::yield_now();
        }
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let settings = StageSettings::new("endless", Role::SourceDisk);
    pipeline.threads(settings, None, Some(&queue), vec![endless]);
    let settings = StageSettings::new("asleep", Role::SinkDisk);
    pipeline.threads(settings, Some(&queue), None, vec![asleep]);
    drop(pipeline.start());
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}
