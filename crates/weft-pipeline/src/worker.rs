//! The process of one copy of a filter.

use std::io::{self, BufReader, Read, Write, stdin, stdout};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process_group, setpgid};
use serde::Serialize;

use crate::builtin;
use crate::child::Outside;
use crate::control::{Consumer, FromWorker, Setup, ToWorker, receive, send};
use crate::counters::{Counters, Counts};
use crate::description::Action;
use crate::failure::Failure;
use crate::filter;
use crate::inputs::{Inputs, Shape};
use crate::limits::{REPORT_INTERVAL, WHY_LEN_MAX};
use crate::links::{accept, await_welcome, connect, listen};
use crate::outputs::Outputs;

/// Where the messages for a worker come from, and where its own go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Standard input is a socket for both ways. Standard output is that of the user.
    Socket,
    /// Standard input and standard output, as a remote shell provides them.
    Streams,
}

/// Runs one copy of a filter, as the messages on the channel say. Ends the process if the filter
/// fails or the messages end.
///
/// # Errors
/// If the channel cannot be used.
pub fn serve(channel: Channel) -> io::Result<()> {
    // The children of this process are in its group. It may have one of its own already.
    let _ = setpgid(None, None);
    let input = stdin().as_fd().try_clone_to_owned()?;
    let (input, output): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match channel {
        Channel::Socket => {
            let socket = UnixStream::from(input);
            (Box::new(socket.try_clone()?), Box::new(socket))
        }
        Channel::Streams => (Box::new(stdin()), Box::new(stdout())),
    };
    let mut input = BufReader::new(input);
    let Some(ToWorker::Setup(setup)) = receive(&mut input)? else { return Ok(()) };
    let worker = Arc::new(Worker {
        output: Mutex::new(output),
        counters: Arc::default(),
        start: OnceLock::new(),
    });
    let reporter = Arc::clone(&worker);
    thread::spawn(move || {
        loop {
            thread::sleep(REPORT_INTERVAL);
            reporter.send(&FromWorker::Counts(reporter.counts()));
        }
    });
    let result = listen(setup.listens_to_hosts).map_err(Failure::filter).and_then(|listener| {
        let port = listener.local_addr().map_err(Failure::filter)?.port();
        worker.send(&FromWorker::Listening { port });
        Ok(listener)
    });
    let listener = worker.checked(result);
    let Some(ToWorker::Connect(consumers)) = receive(&mut input)? else { return Ok(()) };
    thread::spawn(move || {
        // No more messages come. The end of the stream means that the run is over.
        let _ = receive::<ToWorker>(&mut input);
        end();
    });
    let note = worker.checked(worker.run(&setup, &listener, &consumers));
    worker.send(&FromWorker::Done { counts: worker.counts(), note });
    Ok(())
}

struct Worker {
    output: Mutex<Box<dyn Write + Send>>,
    counters: Arc<Counters>,
    /// When all of its streams were connected.
    start: OnceLock<Instant>,
}

impl Worker {
    /// Runs the filter for all units. Returns its note.
    fn run(
        self: &Arc<Self>,
        setup: &Setup,
        listener: &std::net::TcpListener,
        consumers: &[Consumer],
    ) -> Result<Option<String>, Failure> {
        let Setup { inputs, buffer_len, window, units, .. } = setup;
        let streams = connect(consumers, setup.copy as u16, setup.token)?;
        let accepted = accept(listener, inputs, &setup.token)?;
        await_welcome(&streams)?;
        self.start.get_or_init(Instant::now);
        let shape = Shape { units: units.len() as u32, window: *window, buffer_len: *buffer_len };
        let inputs = match accepted.is_empty() {
            true => None,
            false => Some(Inputs::new(accepted, shape, Arc::clone(&self.counters))?),
        };
        let counters = Arc::clone(&self.counters);
        let mut out =
            Outputs::new(streams, setup.policy, *window, *buffer_len, counters, setup.prints)?;
        self.act(setup, inputs.as_ref(), &mut out)?;
        // The producers wait for the end of their connections.
        drop(inputs);
        out.finish()
    }

    fn act(
        self: &Arc<Self>,
        setup: &Setup,
        inputs: Option<&Inputs>,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let worker = Arc::clone(self);
        let fail = move |failure| worker.fail(failure);
        let mut outside = Outside { setup, inputs, out, fail: &fail };
        match &setup.action {
            Action::Command(text) => outside.command(text),
            Action::Program(text) => outside.program(text),
            Action::Builtin(name) => {
                let Setup { parameters, copy, copies, units, .. } = setup;
                let mut filter = builtin::create(name, parameters, *copy, *copies)?;
                filter::run(&mut *filter, parameters, units, inputs, out)
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counters.counts(self.start.get().map_or(Duration::ZERO, Instant::elapsed))
    }

    fn send(&self, message: &impl Serialize) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // If the run is over, the end of the other direction ends this process.
        let _ = send(&mut *output, message);
    }

    fn checked<T>(&self, result: Result<T, Failure>) -> T {
        match result {
            Ok(value) => value,
            Err(failure) => self.fail(failure),
        }
    }

    /// Reports a failure and ends the process.
    fn fail(&self, mut failure: Failure) -> ! {
        let (Failure::Filter(why) | Failure::Lost(why)) = &mut failure;
        why.truncate(why.floor_char_boundary(WHY_LEN_MAX));
        self.send(&FromWorker::Failed(failure));
        end();
    }
}

/// Ends this process and its children.
fn end() -> ! {
    let _ = kill_process_group(getpid(), Signal::KILL);
    exit(1);
}
