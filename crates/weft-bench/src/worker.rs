//! One end of a measurement: a process that does one job, which it gets over its control connection
//! on standard input, and ends with that connection.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};

use crate::control::{self, Answer, Order, Report};
use crate::lane::{self, Lane, Opening};
use crate::pattern::{self, Listener, Sizes, Tally};
use crate::plan::{Address, Job, LaneSpec, Role};
use crate::process;

/// Serves the control connection on standard input.
///
/// # Errors
/// If standard input is not a connection, or it breaks. Errors of the measurement are reported over
/// it.
pub(crate) fn run() -> Result<()> {
    // The parent ends this process in an orderly way; it must not outlive the parent.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    let control = Control(File::from(control));
    match serve(&control) {
        Ok(()) => Ok(()),
        Err(error) => control.answer(&Answer::Failed(format!("{error:#}"))),
    }
}

struct Control(File);

impl Control {
    fn order(&self) -> Result<Option<Order>> {
        control::receive(&self.0)
    }

    fn answer(&self, answer: &Answer) -> Result<()> {
        control::send(&self.0, answer)
    }

    /// Exchanges addresses with the peers, one for each connection.
    fn exchange(&self, own: Vec<Address>) -> Result<Vec<Address>> {
        let count = own.len();
        self.answer(&Answer::Prepared(own))?;
        let Some(Order::Connect(peers)) = self.order()? else {
            bail!("expected an order to connect")
        };
        ensure!(peers.len() == count, "{} peers for {count} connections", peers.len());
        Ok(peers)
    }

    fn await_start(&self) -> Result<()> {
        self.answer(&Answer::Connected)?;
        match self.order()? {
            Some(Order::Start) => Ok(()),
            _ => bail!("expected an order to start"),
        }
    }

    /// Does all steps before the role, for roles that connect nothing in advance.
    fn exchange_and_start(&self, own: impl FnOnce() -> Vec<Address>) -> Result<Vec<Address>> {
        let peers = self.exchange(own())?;
        self.await_start()?;
        Ok(peers)
    }

    fn expect_stop(&self) -> Result<()> {
        match self.order()? {
            Some(Order::Stop) | None => Ok(()),
            Some(_) => bail!("expected an order to stop"),
        }
    }
}

fn serve(control: &Control) -> Result<()> {
    let Some(Order::Prepare(job)) = control.order()? else { bail!("expected an order to prepare") };
    job.check()?;
    raise_descriptor_limit()?;
    pattern::sleep_precisely();
    if let Some(core) = job.core {
        process::pin(core)?;
    }
    let memory_before = process::private_memory()?;
    // The lanes stay open until the peers have received everything in flight.
    let (mut report, _lanes) = play(control, &job)?;
    report.memory_before = memory_before;
    control.answer(&Answer::Done(Box::new(report)))?;
    control.expect_stop()
}

/// Runs the role to its end. Returns the report, and the lanes that were used.
fn play(control: &Control, job: &Job) -> Result<(Report, Vec<Box<dyn Lane>>)> {
    let report = match &job.role {
        Role::Burn => {
            control.exchange_and_start(Vec::new)?;
            let stop = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&stop);
            let burner = std::thread::spawn(move || pattern::burn(&seen));
            control.expect_stop()?;
            stop.store(true, Ordering::Relaxed);
            burner.join().map_err(|_| anyhow!("the computation failed"))?;
            Report::default()
        }
        Role::Register { size } => {
            let address = job.spec()?.address;
            control.exchange_and_start(Vec::new)?;
            measured(|| pattern::register(address, *size, job.duration()))?
        }
        Role::Dial => {
            let peers = control.exchange_and_start(|| vec![Address::Dials])?;
            measured(|| pattern::dial(job.spec()?, &peers[0], job.duration()))?
        }
        Role::Accept => {
            let listener = Listener::open(job.spec()?)?;
            let address = listener.address()?;
            control.exchange_and_start(|| vec![address])?;
            // The thread ends with the process.
            std::thread::spawn(move || listener.serve());
            measured(|| control.expect_stop().map(|()| Tally::new()))?
        }
        _ => return with_lanes(control, job, job.spec()?),
    };
    Ok((report, Vec::new()))
}

fn with_lanes(
    control: &Control,
    job: &Job,
    spec: &LaneSpec,
) -> Result<(Report, Vec<Box<dyn Lane>>)> {
    let openings = (0..job.lanes).map(|_| lane::open(spec)).collect::<Result<Vec<_>>>()?;
    let addresses = openings.iter().flat_map(|opening| opening.addresses()).collect();
    let peers = control.exchange(addresses)?;
    let ends = openings.into_iter().zip(peers.chunks(spec.connections));
    let connect = |(opening, peers): (Box<dyn Opening>, &[Address])| opening.connect(peers);
    let mut lanes = ends.map(connect).collect::<Result<Vec<_>>>()?;
    control.await_start()?;
    let mut report = measured(|| match job.role {
        Role::Target => control.expect_stop().map(|()| Tally::new()),
        _ => run_all(&mut lanes, job, spec),
    })?;
    (report.transport, report.congestion) = lanes[0].transport();
    report.buffers = lanes[0].buffers();
    Ok((report, lanes))
}

/// Runs the role on each lane, the first one on this thread, and adds up the counters.
fn run_all(lanes: &mut [Box<dyn Lane>], job: &Job, spec: &LaneSpec) -> Result<Tally> {
    let Some((first, others)) = lanes.split_first_mut() else { bail!("no lane") };
    std::thread::scope(|scope| {
        let run = |lane: &mut dyn Lane| run_one(lane, job, spec);
        let others: Vec<_> =
            others.iter_mut().map(|lane| scope.spawn(move || run(lane.as_mut()))).collect();
        let mut all = run(first.as_mut())?;
        for other in others {
            all.add(&other.join().map_err(|_| anyhow!("a thread failed"))??);
        }
        Ok(all)
    })
}

fn run_one(lane: &mut dyn Lane, job: &Job, spec: &LaneSpec) -> Result<Tally> {
    let duration = job.duration();
    match &job.role {
        Role::Ask { operation, gap_us } => {
            let gap = Duration::from_micros(*gap_us);
            pattern::ask(lane, spec.connections, *operation, gap, duration)
        }
        Role::Answer => pattern::answer(lane, spec.connections),
        Role::Stream { operation, ways } => {
            let sizes = Sizes { send: spec.send_size, receive: spec.receive_size };
            pattern::stream(lane, ways, *operation, sizes, duration)
        }
        Role::Produce { work_ns, touch_every } => {
            let work = Duration::from_nanos(*work_ns);
            pattern::produce(lane, work, *touch_every, duration)
        }
        Role::Compute { work_ns } => {
            pattern::compute(lane, Duration::from_nanos(*work_ns), duration)
        }
        Role::Overlap { receives } => pattern::overlap(lane, *receives, duration),
        Role::Fill => pattern::fill(lane, duration),
        Role::Target | Role::Burn | Role::Register { .. } | Role::Dial | Role::Accept => {
            bail!("a role that has no lanes")
        }
    }
}

/// Runs the role, and reports its counters and its cost.
fn measured(run: impl FnOnce() -> Result<Tally>) -> Result<Report> {
    let (cpu, started) = (process::cpu_time(), Instant::now());
    let tally = run()?;
    let elapsed = started.elapsed();
    let cpu = process::cpu_time().saturating_sub(cpu);
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Report {
        elapsed_ns: ns(elapsed),
        cpu_ns: ns(cpu),
        memory_after: process::private_memory()?,
        started: tally.started,
        lost: tally.lost,
        ended: tally.ended,
        measured: tally.measured,
        measured_bytes: tally.measured_bytes,
        measured_ns: ns(tally.measured_time),
        latencies: tally.latencies.to_counts(),
        after: tally.after.to_counts(),
        overlap_us: tally.overlap_us,
        ..Report::default()
    })
}

/// Raises the descriptor limit: many connections need more than the usual 1,024.
fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")
}
