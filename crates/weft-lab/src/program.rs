//! Starts, watches and ends programs.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::defect::{MARK, defect};
use crate::endpoint::{Port, is_listening};
use crate::hang;
use crate::namespace::Namespace;
use crate::packages::locate;
use crate::paths::{scratch, weft};

/// Interval of polling loops.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for a server's start.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Factor by which time limits are extended, because a busy machine may be many times slower.
pub(crate) const TIMEOUT_FACTOR: u32 = 4;
/// Signals that end a program that has crashed. On Weft that is a defect.
const CRASHES: [Signal; 6] =
    [Signal::SEGV, Signal::BUS, Signal::ABORT, Signal::ILL, Signal::FPE, Signal::SYS];
/// Lines of each output of a failed program that an error quotes.
const LINES_QUOTED: usize = 12;

/// A program to start: what, where and how.
#[derive(Debug, Clone)]
pub struct Program {
    name: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    namespace: Option<String>,
    core: Option<usize>,
    weft_options: Option<Vec<OsString>>,
    transport: Option<OsString>,
    user: Option<String>,
}

impl Program {
    /// A program that is started without Weft.
    pub fn plain(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            namespace: None,
            core: None,
            weft_options: None,
            transport: None,
            user: None,
        }
    }

    /// A program that `weft run` starts. Its connections on this host use the transport that
    /// `WEFT_LAB_TRANSPORT` forces, if that is set.
    pub fn weft(name: impl AsRef<OsStr>) -> Self {
        let (weft_options, transport) = (Some(Vec::new()), forced_transport());
        // A failed test shows what Weft had to say.
        Self { weft_options, transport, ..Self::plain(name) }.env("WEFT_LOG", "warn")
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    /// Adds a line of arguments, separated by spaces.
    #[must_use]
    pub fn line(self, arguments: &str) -> Self {
        self.args(arguments.split_whitespace())
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Adds an option of `weft run` itself. Has no effect on a plain program.
    #[must_use]
    pub fn weft_option(mut self, option: impl AsRef<OsStr>) -> Self {
        if let Some(options) = &mut self.weft_options {
            options.push(option.as_ref().to_owned());
        }
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Puts the program into a network namespace; `None` is the lab's own. No transport is forced
    /// between namespaces, because only TCP is possible there.
    #[must_use]
    pub fn within(mut self, namespace: Option<&Namespace>) -> Self {
        if namespace.is_some() {
            self.transport = None;
        }
        self.namespace = namespace.map(|namespace| namespace.name.clone());
        self
    }

    /// Binds the program to one core.
    #[must_use]
    pub fn on_core(mut self, core: Option<usize>) -> Self {
        self.core = core;
        self
    }

    /// Runs the program as another user, given by number. Needs root, and no namespace.
    #[must_use]
    pub fn as_user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Starts the program. It dies with the lab, and when the result is dropped.
    ///
    /// # Errors
    ///
    /// If the program or a helper is not installed (the error names the package), or `make build`
    /// has not been run for a program that needs Weft.
    pub fn start(&self) -> Result<Running> {
        let mut words = self.command_line()?.into_iter();
        let first = words.next().context("empty command line")?;
        let output = OutputFiles::new(&self.label())?;
        let mut command = Command::new(first);
        command
            .args(words)
            .envs(self.transport.iter().map(|transport| ("WEFT_TRANSPORT", transport)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(create(&output.stdout)?)
            .stderr(create(&output.stderr)?)
            // The program has its own process group, so that it can be killed with all that it
            // forks.
            .process_group(0);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let child = command.spawn().with_context(|| format!("cannot start {self}"))?;
        let shared = self.environment.iter().find(|(name, _)| name == "WEFT_SHM_DIR");
        Ok(Running {
            child,
            description: self.to_string(),
            output,
            ended: None,
            is_on_weft: self.weft_options.is_some(),
            shared: shared.map(|(_, directory)| directory.into()),
        })
    }

    /// Starts the program and waits for its end.
    ///
    /// # Errors
    ///
    /// If it cannot start or runs longer than `timeout`.
    pub fn run(&self, timeout: Duration) -> Result<Finished> {
        self.start()?.wait(timeout)
    }

    /// Returns the chain of commands. Each executes the next, so the pid stays the same.
    fn command_line(&self) -> Result<Vec<OsString>> {
        let program = locate(&self.name)?;
        let mut words: Vec<OsString> = vec![locate("setpriv")?.into()];
        words.extend(["--pdeathsig".into(), "KILL".into()]);
        if let Some(user) = &self.user {
            words.extend(["--reuid".into(), user.into(), "--regid".into(), user.into()]);
            words.push("--clear-groups".into());
        }
        words.push("--".into());
        if let Some(namespace) = &self.namespace {
            words.push(locate("ip")?.into());
            words.extend(["netns".into(), "exec".into(), namespace.into()]);
        }
        if let Some(core) = self.core {
            words.push(locate("taskset")?.into());
            words.extend(["--cpu-list".into(), core.to_string().into()]);
        }
        if let Some(options) = &self.weft_options {
            words.extend([weft()?.into(), "run".into()]);
            words.extend(options.iter().cloned());
            words.push("--".into());
        }
        words.push(program.into());
        words.extend(self.arguments.iter().cloned());
        Ok(words)
    }

    fn label(&self) -> String {
        let name = PathBuf::from(&self.name);
        name.file_name().unwrap_or(&self.name).to_string_lossy().into_owned()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "[{namespace}] ")?;
        }
        if let Some(transport) = &self.transport {
            write!(f, "WEFT_TRANSPORT={} ", transport.display())?;
        }
        for (name, value) in &self.environment {
            write!(f, "{}={} ", name.display(), value.display())?;
        }
        if self.weft_options.is_some() {
            f.write_str("weft run -- ")?;
        }
        write!(f, "{}", self.name.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

/// Returns the transport that `WEFT_LAB_TRANSPORT` forces for connections on this host: `tcp` or
/// `shm`. With `shm` a connection that falls back to TCP fails, and the test with it.
pub fn forced_transport() -> Option<OsString> {
    env::var_os("WEFT_LAB_TRANSPORT").filter(|transport| !transport.is_empty())
}

/// The files for one program's output. A program never blocks on them, as it would on a full pipe.
#[derive(Debug, Clone)]
struct OutputFiles {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl OutputFiles {
    fn new(label: &str) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{}-{serial:03}-{label}", std::process::id());
        let directory = scratch("output")?;
        Ok(Self {
            stdout: directory.join(format!("{stem}.out")),
            stderr: directory.join(format!("{stem}.err")),
        })
    }

    fn read(&self) -> (String, String) {
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        (text(&self.stdout), text(&self.stderr))
    }
}

/// A started program. Dropping it kills the program and everything it started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    description: String,
    output: OutputFiles,
    ended: Option<ExitStatus>,
    is_on_weft: bool,
    /// The directory of its shared memory, if not the default.
    shared: Option<PathBuf>,
}

impl Running {
    /// Process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what it has written so far to standard output and to standard error.
    pub fn output(&self) -> (String, String) {
        self.output.read()
    }

    /// Describes the program: whether it runs or how it ended, and the end of its output.
    pub fn account(&mut self) -> String {
        let state = match self.poll() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "still running".to_owned(),
            Err(error) => error.to_string(),
        };
        format!("{}: {state}{}", self.description, self.quote())
    }

    /// Whether the program is still there.
    ///
    /// # Errors
    ///
    /// If `waitpid` fails.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.poll()?.is_none())
    }

    /// Waits until the program listens on `port`.
    ///
    /// # Errors
    ///
    /// If it ends first or takes too long.
    pub fn listening(mut self, port: Port) -> Result<Self> {
        let pid = self.pid();
        self.until(&format!("listens on {port:?}"), STARTUP_TIMEOUT, |_| is_listening(pid, port))?;
        Ok(self)
    }

    /// Waits until the program has printed a line that contains `text`.
    ///
    /// # Errors
    ///
    /// If it ends first or takes longer than `timeout`.
    pub fn printed(&mut self, text: &str, timeout: Duration) -> Result<()> {
        self.until(&format!("prints {text:?}"), timeout, |running| {
            let (stdout, stderr) = running.output();
            stdout.contains(text) || stderr.contains(text)
        })
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    ///
    /// If it runs longer than several times `timeout`; it is killed then.
    pub fn wait(mut self, timeout: Duration) -> Result<Finished> {
        let timeout = TIMEOUT_FACTOR * timeout;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.poll()? {
                return Ok(self.finished(status));
            }
            if Instant::now() >= deadline {
                return Err(self.hang(&format!("did not end within {timeout:?}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends a signal to the program. Returns after SIGSTOP once none of its threads runs.
    ///
    /// # Errors
    ///
    /// If it has already ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.poll()?.is_some() {
            bail!("{} had already ended{}", self.description, self.quote());
        }
        kill_process(self.process(), signal)?;
        if signal == Signal::STOP {
            let pid = self.pid();
            self.until("stopped", STARTUP_TIMEOUT, |_| is_stopped(pid))?;
        }
        Ok(())
    }

    /// Kills the program with SIGKILL, so that it cannot close its connections in an orderly way.
    ///
    /// # Errors
    ///
    /// If it had already ended by itself.
    pub fn kill(mut self) -> Result<Finished> {
        self.signal(Signal::KILL)?;
        self.wait(STARTUP_TIMEOUT)
    }

    fn until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let timeout = TIMEOUT_FACTOR * timeout;
        let deadline = Instant::now() + timeout;
        while !condition(self) {
            // The program may have met the condition just before it ended.
            if self.poll()?.is_some() && !condition(self) {
                bail!("{} ended before it {what}{}", self.description, self.quote());
            }
            if Instant::now() >= deadline {
                return Err(self.hang(&format!("{timeout:?} passed before it {what}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// An error about a program that does not go on, and why, as far as that can be seen. On Weft
    /// that is a defect.
    fn hang(&self, what: &str) -> anyhow::Error {
        let state = match hang::describe(self.pid(), self.shared.as_deref()) {
            Ok(path) => format!("its state is in {}", path.display()),
            Err(error) => format!("its state cannot be written: {error}"),
        };
        let text = format!("{}: {what}; {state}{}", self.description, self.quote());
        if self.is_on_weft { defect(format!("hang: {text}")) } else { anyhow::anyhow!(text) }
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    fn finished(&self, status: ExitStatus) -> Finished {
        let (stdout, stderr) = self.output();
        let (description, is_on_weft) = (self.description.clone(), self.is_on_weft);
        Finished { status, stdout, stderr, description, is_on_weft }
    }

    fn quote(&self) -> String {
        let (stdout, stderr) = self.output();
        quote(&stdout, &stderr)
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Processes that the program has forked may outlive it. The group's ID is not reused while
        // the group has members; without members the call fails harmlessly.
        let _ = kill_process_group(self.process(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A program that has ended, with its output.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    description: String,
    is_on_weft: bool,
}

impl Finished {
    /// Checks that it exited with status 0.
    ///
    /// # Errors
    ///
    /// If it did not; the error quotes the end of its output.
    pub fn success(self) -> Result<Self> {
        if !self.status.success() {
            let error = self.error(self.status);
            let has_crashed = self.status.signal().is_some_and(is_crash);
            return Err(if self.is_on_weft && has_crashed { defect(error) } else { error });
        }
        Ok(self)
    }

    /// Checks that standard output or standard error contains `text`.
    ///
    /// # Errors
    ///
    /// If neither does; the error quotes the end of both.
    pub fn expect_output(self, text: &str) -> Result<Self> {
        if !self.stdout.contains(text) && !self.stderr.contains(text) {
            bail!("{}: no {text:?}{}", self.description, quote(&self.stdout, &self.stderr));
        }
        Ok(self)
    }

    /// Checks that standard output is `lines`.
    ///
    /// # Errors
    ///
    /// If it is not; the error tells the first line that differs, counted from 0.
    pub fn expect_lines(self, lines: &str) -> Result<Self> {
        if self.stdout != lines {
            let [found, expected] = [&self.stdout, lines].map(|text| text.split('\n'));
            let pairs = found.clone().zip(expected.clone());
            let same = pairs.take_while(|(one, other)| one == other).count();
            let [found, expected] = [found, expected].map(|mut text| text.nth(same));
            bail!(self.error(format!("line {same} is {found:?}, should be {expected:?}")));
        }
        Ok(self)
    }

    /// An error about this program, with the end of its output.
    pub fn error(&self, what: impl fmt::Display) -> anyhow::Error {
        anyhow::anyhow!("{}: {what}{}", self.description, quote(&self.stdout, &self.stderr))
    }
}

/// Creates a file for the output of a program. It fails in a tree that belongs to another user.
fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot create {}", path.display()))
}

fn quote(stdout: &str, stderr: &str) -> String {
    let mut text = String::new();
    for (name, content) in [("standard output", stdout), ("standard error", stderr)] {
        let mut last = VecDeque::new();
        for line in content.lines() {
            last.push_back(line);
            if last.len() > LINES_QUOTED {
                // A defect that the program has found itself stays in sight.
                let plain = last.iter().position(|line: &&str| !line.starts_with(MARK));
                last.remove(plain.unwrap_or(0));
            }
        }
        if !last.is_empty() {
            text.push_str(&format!("\n--- {name}"));
            last.iter().for_each(|line| text.push_str(&format!("\n{line}")));
        }
    }
    text
}

/// Returns whether a signal of this number says that the program has crashed.
fn is_crash(number: i32) -> bool {
    CRASHES.iter().any(|signal| signal.as_raw() == number)
}

/// Returns whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|it| it.starts_with('T'));
    let mut states = threads.map(|thread| fs::read_to_string(thread.path().join("stat")));
    states.all(|stat| stat.is_ok_and(is_stopped))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn captures_output_and_status() {
        let finished =
            Program::plain("sh").args(["-c", "echo out; echo err >&2; exit 3"]).run(LONG).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        let error = finished.success().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("err"), "{error}");
    }

    #[test]
    fn wait_past_the_deadline_kills_the_program_and_its_children() {
        let mut running =
            Program::plain("sh").args(["-c", "sleep 1000 & echo $!; wait"]).start().unwrap();
        running.printed("\n", LONG).unwrap();
        let grandchild: u32 = running.output().0.trim().parse().unwrap();
        assert!(running.wait(Duration::from_millis(50)).is_err());
        let path = PathBuf::from(format!("/proc/{grandchild}/cmdline"));
        let deadline = Instant::now() + LONG;
        // A zombie, until init reaps it, has no command line.
        while fs::read(&path).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < deadline, "process {grandchild} lives on");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn the_first_line_that_differs_is_reported() {
        let printed = || Program::plain("echo").arg("a\nb\nc").run(LONG).unwrap();
        assert!(printed().expect_lines("a\nb\nc\n").is_ok());
        for (lines, reported) in [
            ("a\nx\nc\n", "line 1 is Some(\"b\"), should be Some(\"x\")"),
            ("a\nb\n", "line 2 is Some(\"c\"), should be Some(\"\")"),
            ("a\nb\nc", "line 3 is Some(\"\"), should be None"),
        ] {
            let error = printed().expect_lines(lines).unwrap_err().to_string();
            assert!(error.contains(reported), "{error}");
        }
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = Program::plain("no-such-program").start().unwrap_err().to_string();
        assert!(error.contains("not installed"), "{error}");
    }

    #[test]
    fn end_before_the_awaited_line_is_an_error() {
        let mut running = Program::plain("sh").args(["-c", "echo no"]).start().unwrap();
        assert!(running.printed("yes", LONG).is_err());
    }
}
