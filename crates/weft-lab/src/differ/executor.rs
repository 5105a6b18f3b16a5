//! Runs programs on the kernel and on Weft.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::compile_folder;
use crate::folder::Folder;
use crate::paths::weft;
use crate::program::TIMEOUT_FACTOR;

/// Time limit for one program without its late step.
const TIME_LIMIT: Duration = Duration::from_secs(60).saturating_mul(TIMEOUT_FACTOR);
/// The executor gives a step that does much this many times as long as others until it is late.
const LATE_FACTOR: u32 = 10;
/// Bytes of output to read at a time.
const CHUNK: usize = 4096;
/// The last line of the executor's output.
const LAST_LINE: &str = "end";

/// Reads a program from a file, without empty lines and comments.
///
/// # Errors
///
/// If the file cannot be read.
pub fn read_program(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let steps = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(steps.map(str::to_owned).collect())
}

/// What a program observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// One line for each step that ended, was skipped or is late.
    pub lines: Vec<String>,
}

impl Observed {
    /// Whether any line contains `what`.
    pub fn contains(&self, what: &str) -> bool {
        self.lines.iter().any(|line| line.contains(what))
    }
}

/// The compiled executor, and how to start it on Weft.
#[derive(Debug)]
pub struct Executor {
    program: PathBuf,
    weft: Vec<(OsString, OsString)>,
}

impl Executor {
    /// Compiles the executor. Programs on Weft run with the sockets library at `library`, or with
    /// the one that `weft run` of `dist/` preloads.
    ///
    /// # Errors
    ///
    /// If the compiler or Weft is missing.
    pub fn new(library: Option<&Path>) -> Result<Self> {
        let weft = match library {
            Some(library) => {
                let library = library.canonicalize().context("cannot find the library")?;
                vec![("LD_PRELOAD".into(), library.into_os_string())]
            }
            None => environment_of_weft_run()?,
        };
        Ok(Self { program: link_to(&compile_folder("differ")?)?, weft })
    }

    /// Runs a program on the kernel.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run_on_kernel(&self, steps: &[String]) -> Result<Observed> {
        self.run(steps, None, Duration::ZERO)
    }

    /// Runs a program on Weft. A step that ended on the kernel may take as long as `late`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run_on_weft(
        &self,
        steps: &[String],
        kernel: &Observed,
        late: Duration,
    ) -> Result<Observed> {
        self.run(steps, Some(kernel), late)
    }

    fn run(
        &self,
        steps: &[String],
        expected: Option<&Observed>,
        late: Duration,
    ) -> Result<Observed> {
        // Programs that change their user must still reach the folder.
        let folder = Folder::in_memory(0o755)?;
        let program = folder.path().join("program");
        fs::write(&program, steps.join("\n") + "\n")?;
        let mut command = Command::new(&self.program);
        command.arg(&program);
        if let Some(expected) = expected {
            let path = folder.path().join("expected");
            fs::write(&path, expected.lines.join("\n") + "\n")?;
            let shared = folder.path().join("weft");
            fs::create_dir(&shared)?;
            fs::set_permissions(shared, Permissions::from_mode(0o1777))?;
            command
                .arg(path)
                .envs(self.weft.iter().map(|(name, value)| (name, value)))
                .env("WEFT_SHM_DIR", folder.path().join("weft"))
                .env("DIFFER_LATE_MS", late.as_millis().to_string());
        }
        // All descendants are in its process group, so that they can be killed together.
        let child = command
            .env("DIFFER_DIR", folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the executor")?;
        let mut running = Running { child };
        let text = running.read_output(TIME_LIMIT + LATE_FACTOR * late)?;
        drop(running);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.last().is_some_and(|line| line == LAST_LINE) {
            lines.pop();
        } else {
            lines.push("the executor ended or hung: DIED".to_owned());
        }
        Ok(Observed { lines })
    }
}

/// Links the compiled executor to a unique name. The executor executes itself, and another test may
/// replace the original meanwhile.
fn link_to(program: &Path) -> Result<PathBuf> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let link = program.with_extension(format!("{}-{serial}", process::id()));
    // An earlier process with this process's ID may have left such a link.
    let _ = fs::remove_file(&link);
    fs::hard_link(program, &link).with_context(|| link.display().to_string())?;
    Ok(link)
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.program);
    }
}

/// Returns the variables that `weft run` sets, so that `weft run` need not start each program.
fn environment_of_weft_run() -> Result<Vec<(OsString, OsString)>> {
    let output = Command::new(weft()?)
        .args(["run", "--no-verbs", "--", "env", "--null"])
        .output()
        .context("cannot run weft")?;
    ensure!(output.status.success(), "weft run: {}", String::from_utf8_lossy(&output.stderr));
    let mut variables = Vec::new();
    for entry in output.stdout.split(|&byte| byte == 0) {
        let Some(at) = entry.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&entry[..at], &entry[at + 1..]);
        if name.starts_with(b"LD_") || name.starts_with(b"WEFT_") {
            variables.push((OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec())));
        }
    }
    Ok(variables)
}

/// A running program. Dropping it kills the program and all its descendants.
struct Running {
    child: Child,
}

impl Running {
    /// Reads the output until the last line, EOF or the time limit.
    fn read_output(&mut self, limit: Duration) -> Result<String> {
        let mut output = self.child.stdout.take().context("no output")?;
        let deadline = Instant::now() + limit;
        let mut text = Vec::new();
        let last = format!("{LAST_LINE}\n");
        let mut chunk = [0; CHUNK];
        while !text.ends_with(last.as_bytes()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).context("a time limit")?;
            if poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&limit))? == 0 {
                break;
            }
            let count = output.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            text.extend_from_slice(&chunk[..count]);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // Fails if the group has no members any more.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}
