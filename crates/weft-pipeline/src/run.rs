//! Runs a pipeline: starts the workers, connects them, and waits for their end.

use std::io::{self, BufReader, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::control::{Consumer, FromWorker, Place, Setup, ToWorker, receive, send};
use crate::counters::Counts;
use crate::description::{LOCAL, Pipeline};
use crate::failure::Failure;
use crate::limits::{
    CANCEL_TIME, CAUSE_TIME, EVENTS_MAX, REPORT_INTERVAL, SETUP_TIME, SILENCE_TIME,
};
use crate::wire::Token;

/// How workers are started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// This program, and its arguments that start a worker whose standard input is a socket.
    pub local: (PathBuf, Vec<String>),
    /// The words of the remote shell. Without it, all hosts have to be this one.
    pub rsh: Option<Vec<String>>,
    /// The command on other hosts that starts a worker on its standard streams.
    pub remote: Vec<String>,
}

/// The report of one copy.
#[derive(Clone, Debug)]
pub struct CopyReport {
    /// The filter's name.
    pub filter: String,
    /// The number of the copy.
    pub copy: usize,
    /// The name of its host.
    pub host: String,
    /// Its counters.
    pub counts: Counts,
    /// The filter's lines in the summary.
    pub note: Option<String>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All copies, in the order of the filters.
    pub copies: Vec<CopyReport>,
    /// The time from the first connection to the end.
    pub elapsed: Duration,
}

/// Why a run has failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A copy of a filter has failed, or its process has ended.
    #[error("filter {copy}: {why}")]
    Filter {
        /// The copy and its host.
        copy: String,
        /// The failure.
        why: String,
    },
    /// The pipeline has other hosts, and there is no remote shell.
    #[error("host {0} is not this one: a remote shell is needed, such as --rsh ssh")]
    NoShell(String),
    /// The kernel has no random bytes.
    #[error("no random bytes: {0}")]
    Random(io::Error),
}

/// Runs a pipeline. `observe` is called several times a second.
///
/// # Errors
/// The first failure, after all workers have ended.
pub fn run(
    pipeline: &Pipeline,
    launch: &Launch,
    observe: &mut dyn FnMut(&[CopyReport]),
) -> Result<Report, RunError> {
    let mut token = Token::default();
    let filled = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| RunError::Random(error.into()))?;
    let mut run = Run::new(pipeline);
    let events = run.start(launch, token)?;
    let start = run.follow(&events, observe)?;
    Ok(Report { copies: std::mem::take(&mut run.reports), elapsed: start.elapsed() })
}

/// A result of the thread that reads a worker's messages.
enum Event {
    Message(FromWorker),
    /// The stream of messages has ended, with an error if it was none of messages.
    Closed(io::Result<()>),
}

struct Worker {
    filter: usize,
    copy: usize,
    child: Child,
    control: UnixStream,
    port: Option<u16>,
    has_ended: bool,
    seen: Instant,
}

/// A running pipeline. Dropping it ends all workers.
struct Run<'run> {
    pipeline: &'run Pipeline,
    workers: Vec<Worker>,
    reports: Vec<CopyReport>,
    /// A connection that was lost, and when this counts as the cause of the failure.
    lost: Option<(RunError, Instant)>,
}

impl<'run> Run<'run> {
    fn new(pipeline: &'run Pipeline) -> Self {
        Self { pipeline, workers: Vec::new(), reports: Vec::new(), lost: None }
    }

    fn error(&self, filter: usize, copy: usize, why: impl ToString) -> RunError {
        RunError::Filter { copy: self.pipeline.copy_name(filter, copy), why: why.to_string() }
    }

    /// Starts all workers.
    fn start(
        &mut self,
        launch: &Launch,
        token: Token,
    ) -> Result<Receiver<(usize, Event)>, RunError> {
        let (events, receiver) = sync_channel(EVENTS_MAX);
        for (filter, plan) in self.pipeline.filters.iter().enumerate() {
            for (copy, host) in plan.hosts.iter().enumerate() {
                let mut command = self.command(launch, host)?;
                let is_local = self.pipeline.hosts[host].login.is_none();
                let started = start_worker(&mut command, is_local, self.workers.len(), &events);
                let (child, control) = started.map_err(|error| {
                    let program = command.get_program().display();
                    self.error(filter, copy, format!("cannot start {program}: {error}"))
                })?;
                let seen = Instant::now();
                let (port, has_ended) = (None, false);
                self.workers.push(Worker { filter, copy, child, control, port, has_ended, seen });
                self.reports.push(CopyReport {
                    filter: plan.name.clone(),
                    copy,
                    host: host.clone(),
                    counts: Counts::default(),
                    note: None,
                });
                self.say(self.workers.len() - 1, &ToWorker::Setup(self.setup(filter, copy, token)));
            }
        }
        Ok(receiver)
    }

    fn command(&self, launch: &Launch, host: &str) -> Result<Command, RunError> {
        let Some(login) = &self.pipeline.hosts[host].login else {
            let (program, arguments) = &launch.local;
            let mut command = Command::new(program);
            // An interrupt of the terminal ends this process, and then the workers end with their
            // children.
            command.args(arguments).process_group(0);
            return Ok(command);
        };
        let shell = launch.rsh.as_ref().and_then(|words| words.split_first());
        let (program, options) = shell.ok_or_else(|| RunError::NoShell(host.to_owned()))?;
        let mut command = Command::new(program);
        command.args(options).arg(login).args(&launch.remote);
        Ok(command)
    }

    fn setup(&self, filter: usize, copy: usize, token: Token) -> Box<Setup> {
        let Pipeline { filters, buffer_len, window, policy, units, .. } = self.pipeline;
        let plan = &filters[filter];
        let names = |&from: &usize| {
            (0..filters[from].hosts.len()).map(|copy| self.pipeline.copy_name(from, copy)).collect()
        };
        Box::new(Setup {
            filter: plan.name.clone(),
            copy,
            copies: plan.hosts.len(),
            action: plan.action.clone(),
            split: plan.split,
            parameters: plan.parameters.clone(),
            units: units.clone(),
            inputs: plan.from.iter().map(names).collect(),
            buffer_len: *buffer_len,
            window: *window,
            policy: *policy,
            token,
            listens_to_hosts: self.pipeline.has_remote_producers(filter, copy),
            prints: self.pipeline.consumers(filter).next().is_none() && plan.hosts[copy] == LOCAL,
        })
    }

    /// Sends a message to a worker. If it has ended, the end of its own messages says why.
    fn say(&mut self, worker: usize, message: &ToWorker) {
        let _ = send(&mut self.workers[worker].control, message);
    }

    /// Follows the workers until all are done. Returns when they began.
    fn follow(
        &mut self,
        events: &Receiver<(usize, Event)>,
        observe: &mut dyn FnMut(&[CopyReport]),
    ) -> Result<Instant, RunError> {
        let setup_end = Instant::now() + SETUP_TIME;
        let mut start = None;
        while self.workers.iter().any(|worker| !worker.has_ended) || self.lost.is_some() {
            match events.recv_timeout(REPORT_INTERVAL) {
                Ok((worker, event)) => {
                    self.workers[worker].seen = Instant::now();
                    self.handle(worker, event)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Each worker has reported its end.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(REPORT_INTERVAL),
            }
            let now = Instant::now();
            if let Some((error, _)) = self.lost.take_if(|(_, when)| *when <= now) {
                return Err(error);
            }
            if start.is_none() {
                if self.workers.iter().all(|worker| worker.port.is_some()) {
                    start = Some(now);
                    self.connect();
                } else if now > setup_end {
                    return Err(self.late());
                }
            }
            let silent = |worker: &&Worker| !worker.has_ended && now > worker.seen + SILENCE_TIME;
            if let Some(worker) = self.workers.iter().find(silent) {
                let why = format!("nothing came from its host for {SILENCE_TIME:?}");
                return Err(self.error(worker.filter, worker.copy, why));
            }
            observe(&self.reports);
        }
        Ok(start.unwrap_or(setup_end))
    }

    fn late(&self) -> RunError {
        let late = self.workers.iter().find(|worker| worker.port.is_none());
        let (filter, copy) = late.map_or((0, 0), |worker| (worker.filter, worker.copy));
        self.error(filter, copy, format!("has not started within {SETUP_TIME:?}"))
    }

    /// Tells all workers their consumers.
    fn connect(&mut self) {
        for index in 0..self.workers.len() {
            let Worker { filter, copy, .. } = self.workers[index];
            let from = &self.pipeline.filters[filter].hosts[copy];
            let consumers = self.pipeline.consumers(filter).map(|(consumer, input)| {
                let copies = self.workers.iter().filter(|worker| worker.filter == consumer);
                let place = |worker: &Worker| {
                    let host = &self.pipeline.filters[consumer].hosts[worker.copy];
                    let address = self.pipeline.hosts[host].address.clone();
                    Place {
                        name: self.pipeline.copy_name(consumer, worker.copy),
                        // The socket of a copy without remote producers is one of its host only.
                        host: match address {
                            Some(address) if host != from => address,
                            _ => "127.0.0.1".to_owned(),
                        },
                        port: worker.port.unwrap_or_default(),
                    }
                };
                Consumer { input: input as u16, copies: copies.map(place).collect() }
            });
            let consumers = consumers.collect();
            self.say(index, &ToWorker::Connect(consumers));
        }
    }

    fn handle(&mut self, index: usize, event: Event) -> Result<(), RunError> {
        let worker = &mut self.workers[index];
        let report = &mut self.reports[index];
        let (filter, copy) = (worker.filter, worker.copy);
        match event {
            Event::Message(FromWorker::Listening { port }) => worker.port = Some(port),
            Event::Message(FromWorker::Counts(counts)) => report.counts = counts,
            Event::Message(FromWorker::Done { counts, note }) => {
                (report.counts, report.note) = (counts, note);
                worker.has_ended = true;
            }
            Event::Message(FromWorker::Failed(failure)) => {
                worker.has_ended = true;
                let error = self.error(filter, copy, &failure);
                match failure {
                    Failure::Filter(_) => return Err(error),
                    Failure::Lost(_) => {
                        self.lost.get_or_insert_with(|| (error, Instant::now() + CAUSE_TIME));
                    }
                }
            }
            Event::Closed(_) if worker.has_ended => {}
            Event::Closed(result) => {
                let why = why_ended(&mut worker.child, &result);
                return Err(self.error(filter, copy, why));
            }
        }
        Ok(())
    }
}

impl Drop for Run<'_> {
    /// Ends all workers: those that still run learn it from the end of their messages.
    fn drop(&mut self) {
        for worker in &self.workers {
            let _ = worker.control.shutdown(Shutdown::Both);
        }
        let end = Instant::now() + CANCEL_TIME;
        for worker in &mut self.workers {
            end_of(&mut worker.child, end);
        }
    }
}

/// Starts a worker, and a thread that reads its messages.
fn start_worker(
    command: &mut Command,
    is_local: bool,
    index: usize,
    events: &SyncSender<(usize, Event)>,
) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    if !is_local {
        command.stdout(Stdio::from(OwnedFd::from(theirs.try_clone()?)));
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let child = command.spawn();
    // The command keeps its end of the socket otherwise.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = child?;
    let mut messages = BufReader::new(ours.try_clone()?);
    let events = events.clone();
    thread::Builder::new().name("messages".into()).spawn(move || {
        loop {
            let (event, is_last) = match receive(&mut messages) {
                Ok(Some(message)) => (Event::Message(message), false),
                Ok(None) => (Event::Closed(Ok(())), true),
                Err(error) => (Event::Closed(Err(error)), true),
            };
            if events.send((index, event)).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok((child, ours))
}

/// Says why a worker has ended that has not reported its own end.
fn why_ended(child: &mut Child, messages: &io::Result<()>) -> String {
    if messages.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
        return "the remote shell does not start weft, or its startup files print something".into();
    }
    match end_of(child, Instant::now() + CAUSE_TIME) {
        Some(status) if status.code() == Some(127) => "weft was not found there".into(),
        Some(status) => format!("its process ended with {status}"),
        None => "its process has closed its connection".into(),
    }
}

/// Waits for a child until `end`. Then kills it, and on this host all processes that its command
/// has left. Returns its exit status if it has ended by itself.
fn end_of(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let has_ended = loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(None) | Err(Errno::INTR) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(2));
            }
            result => break matches!(result, Ok(Some(_))),
        }
    };
    // The number belongs to the child, and to its group, until the child is waited for. A remote
    // shell is in the group of this process, so there is no such group.
    let _ = kill_process_group(pid, Signal::KILL);
    let _ = child.kill();
    let status = child.wait().ok();
    status.filter(|_| has_ended)
}
