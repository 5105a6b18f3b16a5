//! Python environments with packages from the package index, which later runs use again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::paths::kept;
use crate::program::Program;
use crate::skip::note_skip;

/// Time limit for an installation from the package index.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Libraries with their own event loops.
const PACKAGES: [&str; 3] = ["uvloop==0.23.0", "grpcio==1.85.1", "pyzmq==27.3.0"];

/// A Python environment with uvloop, gRPC and ZeroMQ.
#[derive(Debug)]
pub struct Venv {
    bin: PathBuf,
}

impl Venv {
    /// The environment for the test `name`. The first test that needs it makes it, and it is kept
    /// for later runs. `None`, with a note, where the package index is out of reach.
    ///
    /// # Errors
    ///
    /// If it cannot be made for another reason.
    pub fn for_test(name: &str) -> Result<Option<Self>> {
        match Self::make()? {
            Ok(venv) => Ok(Some(venv)),
            Err(out_of_reach) => {
                note_skip(name, &out_of_reach);
                Ok(None)
            }
        }
    }

    /// Returns the environment for a use other than a test.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn new() -> Result<Self> {
        Self::make()?.map_err(anyhow::Error::msg)
    }

    /// Makes the environment. The inner error says why the package index is out of reach.
    fn make() -> Result<std::result::Result<Self, String>> {
        static OUTCOME: OnceLock<std::result::Result<Option<String>, String>> = OnceLock::new();
        let directory = kept("python-sockets")?;
        let outcome = OUTCOME.get_or_init(|| install(&directory).map_err(|e| format!("{e:#}")));
        match outcome {
            Ok(None) => Ok(Ok(Self { bin: directory.join("bin") })),
            Ok(Some(out_of_reach)) => Ok(Err(out_of_reach.clone())),
            Err(error) => bail!("{error}"),
        }
    }

    /// The path of a program in the environment.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// Installs the packages. Returns the reason if the package index is out of reach.
fn install(directory: &Path) -> Result<Option<String>> {
    let complete = directory.join(format!("complete {}", PACKAGES.join(" ")));
    if complete.exists() {
        return Ok(None);
    }
    let pip = create(directory)?;
    let refused = ask_index(&pip.line("install --quiet").args(PACKAGES))?;
    if refused.is_none() {
        fs::write(complete, "")?;
    }
    Ok(refused)
}

/// Makes an empty environment, and returns its pip without a command.
pub(crate) fn create(directory: &Path) -> Result<Program> {
    // Debian's Python, regardless of PATH, because python3-venv belongs to it.
    let venv = Program::plain("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(directory);
    let made = venv.run(INSTALL_TIMEOUT)?.success();
    made.context("sudo apt-get install -y python3-venv")?;
    let python = Program::plain(directory.join("bin/python"));
    Ok(python.line("-m pip --disable-pip-version-check"))
}

/// Runs a pip command. Returns its last error if it fails.
pub(crate) fn ask_index(command: &Program) -> Result<Option<String>> {
    let ended = command.run(INSTALL_TIMEOUT)?;
    if ended.status.success() {
        return Ok(None);
    }
    let last = ended.stderr.lines().rfind(|line| line.starts_with("ERROR"));
    Ok(Some(format!("pip: {}", last.unwrap_or("no reason given"))))
}
