//! `mpi4py`: runs Python programs and `mpi4py`'s own tests on an MPI library.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::packages::require;
use crate::paths::{scratch, source};
use crate::program::{Finished, Program};
use crate::skip::note_skip;
use crate::venv;

/// Where mpi4py's tests are in its sources, of the version in `programs/python-mpi.txt`.
const TESTS: &str = "mpi4py-4.1.2/test/main.py";
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
    /// for later runs. `None`, with a note, if its packages were not fetched.
    ///
    /// # Errors
    ///
    /// If it cannot be made for another reason.
    pub fn for_test(name: &str) -> Result<Option<Self>> {
        static OUTCOME: OnceLock<std::result::Result<venv::Outcome, String>> = OnceLock::new();
        match venv::once(&OUTCOME, "python-mpi")? {
            Ok(directory) => {
                let tests = directory.join("src").join(TESTS);
                Ok(Some(Self { bin: directory.join("bin"), tests }))
            }
            Err(not_fetched) => {
                note_skip(name, &not_fetched);
                Ok(None)
            }
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
