//! `mpi4py`: runs Python programs and `mpi4py`'s own tests on an MPI library.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::packages::require;
use crate::paths::{kept, scratch, source};
use crate::program::{Finished, Program};
use crate::skip::note_skip;
use crate::venv::{self, INSTALL_TIMEOUT};

/// Packages from the package index.
const PACKAGES: [&str; 2] = ["mpich==5.0.2", "mpi4py==4.1.2"];
const TESTS_RELEASE: &str = "mpi4py-4.1.2";
/// Debian's MPICH, under Debian's name for it.
const DEBIANS_MPICH: &str = "/usr/lib/x86_64-linux-gnu/libmpich.so.12";

/// A Python environment with `mpi4py`, the sources of its tests, and the `mpich` wheel.
#[derive(Debug)]
pub struct Mpi4py {
    bin: PathBuf,
    tests: PathBuf,
}

/// The MPI library that `mpi4py` is to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Debian's Open MPI.
    OpenMpi,
    /// The wheel in the environment.
    MpichWheel,
    /// Debian's MPICH.
    Mpich,
}

impl Mpi4py {
    /// The environment for the test `name`. The first test that needs it makes it, and it is kept
    /// for later runs. `None`, with a note, where the package index is out of reach.
    ///
    /// # Errors
    ///
    /// If it cannot be made for another reason.
    pub fn for_test(name: &str) -> Result<Option<Self>> {
        static OUTCOME: OnceLock<std::result::Result<Option<String>, String>> = OnceLock::new();
        let directory = kept("python")?;
        let (bin, sources) = (directory.join("bin"), directory.join("src"));
        let outcome =
            OUTCOME.get_or_init(|| install(&directory, &sources).map_err(|e| format!("{e:#}")));
        match outcome {
            Ok(None) => {
                Ok(Some(Self { bin, tests: sources.join(TESTS_RELEASE).join("test/main.py") }))
            }
            Ok(Some(out_of_reach)) => {
                note_skip(name, out_of_reach);
                Ok(None)
            }
            Err(error) => bail!("{error}"),
        }
    }

    /// The path of a program in the environment.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Sends a message around all ranks; `launcher` is complete except for the program.
    ///
    /// # Errors
    ///
    /// If the program fails, or takes longer than `timeout`.
    pub fn ring(&self, launcher: Program, ranks: u32, timeout: Duration) -> Result<Finished> {
        let program = launcher.arg(self.program("python")).arg(source("programs/ring.py"));
        program.run(timeout)?.success()?.expect_output(&format!("ring: {ranks} ranks"))
    }

    /// Exchanges large messages between all ranks in buffers that are allocated and freed;
    /// `launcher` is complete except for the program.
    ///
    /// # Errors
    ///
    /// If a message is damaged, or all take longer than `timeout`.
    pub fn buffers(&self, launcher: Program, ranks: u32, timeout: Duration) -> Result<Finished> {
        let program = launcher.arg(self.program("python")).arg(source("programs/buffers.py"));
        program.run(timeout)?.success()?.expect_output(&format!("buffers: {ranks} ranks"))
    }

    /// Runs `mpi4py`'s own tests; `launcher` is complete except for the program. `modules` is a
    /// regular expression for module names, `left_out` are patterns for names of tests to skip.
    ///
    /// # Errors
    ///
    /// If a test fails, if there is none, or if all take longer than `timeout`.
    pub fn own_tests(
        &self,
        launcher: Program,
        modules: &str,
        left_out: &[&str],
        timeout: Duration,
    ) -> Result<Finished> {
        let program = launcher.arg(self.program("python")).arg(&self.tests);
        let program = program.args(["-q", "-i", modules]);
        let program = left_out.iter().fold(program, |program, name| program.args(["-x", name]));
        let ended = program.run(timeout)?.success().with_context(|| modules.to_owned())?;
        let text = format!("{}{}", ended.stdout, ended.stderr);
        let ran = text.lines().any(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "));
        ensure!(ran && text.contains("\nOK"), ended.error(modules));
        Ok(ended)
    }
}

impl Library {
    /// Makes `mpi4py` in `program` load this library.
    ///
    /// # Errors
    ///
    /// If it is not installed; the error names the package.
    pub fn choose(self, program: Program) -> Result<Program> {
        let abi = |program: Program, abi, library: &str| {
            program.env("MPI4PY_MPIABI", abi).env("MPI4PY_LIBMPI", library)
        };
        Ok(match self {
            Self::OpenMpi => abi(program, "openmpi", "libmpi.so.40"),
            // `mpi4py` searches the environment first.
            Self::MpichWheel => program,
            Self::Mpich => {
                let directory = debians_mpich()?;
                let path = directory.to_string_lossy();
                abi(program, "mpich", "libmpi.so.12").env("LD_LIBRARY_PATH", path.as_ref())
            }
        })
    }
}

/// Returns a directory in which Debian's MPICH has the name that `mpi4py` expects.
fn debians_mpich() -> Result<PathBuf> {
    require(DEBIANS_MPICH)?;
    let directory = scratch("mpich")?;
    match symlink(DEBIANS_MPICH, directory.join("libmpi.so.12")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(directory),
    }
}

/// Installs the packages. Returns the reason if the package index is out of reach.
fn install(directory: &Path, sources: &Path) -> Result<Option<String>> {
    let complete = directory.join(format!("complete {}", PACKAGES.join(" ")));
    if complete.exists() {
        return Ok(None);
    }
    let pip = venv::create(directory)?;
    let [_, mpi4py] = PACKAGES;
    let no_binary = pip.clone().line("download --quiet --no-deps --no-binary mpi4py -d");
    for step in [pip.line("install --quiet").args(PACKAGES), no_binary.arg(sources).arg(mpi4py)] {
        if let Some(refused) = venv::ask_index(&step)? {
            return Ok(Some(refused));
        }
    }
    let archive = sources.join(format!("{TESTS_RELEASE}.tar.gz"));
    let unpack = Program::plain("tar").arg("xzf").arg(archive).arg("-C").arg(sources);
    unpack.run(INSTALL_TIMEOUT)?.success()?;
    fs::write(complete, "")?;
    Ok(None)
}
