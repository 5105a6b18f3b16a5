//! Filters that are other programs: commands through which bytes are piped, and programs that read
//! and write frames.

use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_transfer::blocks::Pool;

use crate::control::Setup;
use crate::description::Split;
use crate::failure::Failure;
use crate::frames::{FrameReader, Step};
use crate::inputs::Inputs;
use crate::limits::CAUSE_TIME;
use crate::merge::Taken;
use crate::outputs::Outputs;
use crate::parameters::Parameters;
use crate::wire::{Header, Incoming, Kind};

/// Ends the worker because of a failure. The threads of a filter cannot wait for one another then.
pub(crate) type Fail = dyn Fn(Failure) + Send + Sync;

/// Everything that a filter in another program needs.
pub(crate) struct Outside<'worker> {
    pub(crate) setup: &'worker Setup,
    pub(crate) inputs: Option<&'worker Inputs>,
    pub(crate) out: &'worker mut Outputs,
    pub(crate) fail: &'worker Fail,
}

impl Outside<'_> {
    /// Runs a command of the shell for each unit, and pipes the bytes of buffers through it.
    pub(crate) fn command(&mut self, text: &str) -> Result<(), Failure> {
        let (inputs, fail) = (self.inputs, self.fail);
        for (number, unit) in self.setup.units.iter().enumerate() {
            let parameters = self.setup.parameters.with(unit);
            let mut command = self.shell(text, &parameters);
            command.env("WEFT_UNIT", number.to_string());
            if inputs.is_none() {
                command.stdin(Stdio::null());
            }
            let mut child = start(&mut command)?;
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let ended = thread::scope(|scope| {
                if let (Some(inputs), Some(stdin)) = (inputs, stdin) {
                    scope.spawn(move || {
                        if let Err(failure) = feed(inputs, stdin) {
                            fail(failure);
                        }
                    });
                }
                let drained = stdout.map_or(Ok(()), |stdout| self.drain(stdout));
                let ended = drained.and_then(|()| {
                    let status = child.wait().map_err(Failure::filter)?;
                    let why = || Failure::filter(format!("its command ended with {status}"));
                    if status.success() { Ok(()) } else { Err(why()) }
                });
                // The thread that feeds the command may wait for ever.
                ended.inspect_err(|failure| fail(failure.clone()))
            });
            ended?;
            self.out.end_unit()?;
        }
        Ok(())
    }

    /// Starts a program that reads and writes frames for all units.
    pub(crate) fn program(&mut self, text: &str) -> Result<(), Failure> {
        let (inputs, setup) = (self.inputs, self.setup);
        let mut child = start(&mut self.shell(text, &setup.parameters))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { return Ok(()) };
        let fail = self.fail;
        let (has_fed, fed) = channel();
        let status = thread::scope(|scope| {
            scope.spawn(move || match feed_frames(setup, inputs, stdin) {
                Ok(true) => drop(has_fed.send(())),
                Ok(false) => {}
                Err(failure) => fail(failure),
            });
            let ended = self.read_frames(stdout).and_then(|is_complete| {
                let status = child.wait().map_err(Failure::filter)?;
                if !is_complete {
                    let why = format!("its program ended with {status} before the last unit");
                    return Err(Failure::filter(why));
                }
                let why = "its program has ended, but has not read all of its input";
                fed.recv_timeout(CAUSE_TIME).map_err(|_| Failure::filter(why))?;
                Ok(status)
            });
            ended.inspect_err(|failure| fail(failure.clone()))
        })?;
        if !status.success() {
            return Err(Failure::filter(format!("its program ended with {status}")));
        }
        Ok(())
    }

    fn shell(&self, text: &str, parameters: &Parameters) -> Command {
        let Setup { filter, copy, copies, .. } = self.setup;
        let mut command = Command::new("sh");
        command.arg("-c").arg(text).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(parameters.iter());
        command.env("WEFT_FILTER", filter);
        command.env("WEFT_COPY", copy.to_string()).env("WEFT_COPIES", copies.to_string());
        command
    }

    /// Writes all output of a command to the consumers.
    fn drain(&mut self, mut stdout: ChildStdout) -> Result<(), Failure> {
        let mut buffer = vec![0; self.out.buffer_len()];
        let mut filled = 0;
        loop {
            let has_ended = fill(&mut stdout, &mut buffer, &mut filled)?;
            let is_whole = has_ended || self.setup.split == Split::Bytes;
            let len = match buffer[..filled].iter().rposition(|&byte| byte == b'\n') {
                _ if is_whole => filled,
                Some(at) => at + 1,
                None if filled < buffer.len() => continue,
                None => {
                    let most = buffer.len();
                    return Err(Failure::filter(format!("a line has more than {most} bytes")));
                }
            };
            if len > 0 {
                self.out.write(&buffer[..len])?;
                buffer.copy_within(len..filled, 0);
                filled -= len;
            }
            if has_ended {
                return Ok(());
            }
        }
    }

    /// Passes the frames of a program on. Returns whether it has ended all units.
    fn read_frames(&mut self, mut stdout: ChildStdout) -> Result<bool, Failure> {
        let Setup { units, buffer_len, .. } = self.setup;
        let mut incoming = Incoming::new(units.len() as u32, *buffer_len as u32, 1);
        let pool = Pool::new(2, *buffer_len).map_err(Failure::filter)?;
        let mut reader = FrameReader::default();
        loop {
            match reader.step(&mut incoming, &pool, &mut stdout) {
                Ok(Step::Buffer(buffer)) => {
                    incoming.acknowledge();
                    self.out.write(&buffer)?;
                }
                Ok(Step::UnitEnded) => self.out.end_unit()?,
                Ok(Step::Blocked) => {}
                Ok(Step::Closed) => return Ok(incoming.is_complete()),
                Err(error) => {
                    return Err(Failure::filter(format!("the output of its program: {error}")));
                }
            }
        }
    }
}

fn start(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| Failure::filter(format!("sh: {error}")))
}

/// Reads what a pipe has, and waits until that is at least one byte. Returns whether it has ended.
fn fill(
    pipe: &mut (impl Read + AsFd),
    buffer: &mut [u8],
    filled: &mut usize,
) -> Result<bool, Failure> {
    loop {
        match pipe.read(&mut buffer[*filled..]) {
            Ok(0) => return Ok(true),
            Ok(count) => *filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::filter(error)),
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_more = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&now));
        if *filled == buffer.len() || has_more != Ok(1) {
            return Ok(false);
        }
    }
}

/// Writes the buffers of the current unit to a command. What a command does not read is dropped,
/// as in a pipe of the shell.
fn feed(inputs: &Inputs, stdin: ChildStdin) -> Result<(), Failure> {
    let mut stdin = Some(stdin);
    while let Taken::Item(_, buffer) = inputs.next()? {
        if let Some(pipe) = &mut stdin {
            match pipe.write_all(&buffer) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => stdin = None,
                result => result.map_err(Failure::filter)?,
            }
        }
    }
    Ok(())
}

/// Writes all units to a program. Returns whether it has taken them.
fn feed_frames(
    setup: &Setup,
    inputs: Option<&Inputs>,
    mut stdin: ChildStdin,
) -> Result<bool, Failure> {
    let mut put = |kind, unit: usize, bytes: &[u8]| {
        let header = Header { kind, unit: unit as u32, len: bytes.len() as u32 };
        let written = stdin.write_all(&header.encode()).and_then(|()| stdin.write_all(bytes));
        match written {
            // Why the program has ended is found where its output ends.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            result => result.map(|()| true).map_err(Failure::filter),
        }
    };
    for (number, unit) in setup.units.iter().enumerate() {
        let parameters = serde_json::to_vec(&setup.parameters.with(unit));
        let mut goes_on = put(Kind::Begin, number, &parameters.map_err(Failure::filter)?)?;
        while let Some(inputs) = inputs.filter(|_| goes_on)
            && let Taken::Item(_, buffer) = inputs.next()?
        {
            goes_on = put(Kind::Buffer, number, &buffer)?;
        }
        if !goes_on || !put(Kind::End, number, &[])? {
            return Ok(false);
        }
    }
    Ok(true)
}
