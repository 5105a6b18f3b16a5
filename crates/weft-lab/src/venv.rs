//! Python environments, which later runs use again. Their packages come from `scripts/fetch`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::packages::not_fetched;
use crate::paths::{kept, source};
use crate::program::Program;
use crate::skip::note_skip;

/// Time limit for an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// What an installation came to. The inner error says why its packages were not fetched.
pub(crate) type Outcome = std::result::Result<PathBuf, String>;

/// A Python environment with uvloop, gRPC and ZeroMQ.
#[derive(Debug)]
pub struct Venv {
    directory: PathBuf,
}

impl Venv {
    /// The environment for the test `name`. The first test that needs it makes it, and it is kept
    /// for later runs. `None`, with a note, if its packages were not fetched.
    ///
    /// # Errors
    ///
    /// If it cannot be made for another reason.
    pub fn for_test(name: &str) -> Result<Option<Self>> {
        match Self::make()? {
            Ok(directory) => Ok(Some(Self { directory })),
            Err(not_fetched) => {
                note_skip(name, &not_fetched);
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
        let directory = Self::make()?.map_err(anyhow::Error::msg)?;
        Ok(Self { directory })
    }

    fn make() -> Result<Outcome> {
        static OUTCOME: OnceLock<std::result::Result<Outcome, String>> = OnceLock::new();
        once(&OUTCOME, "python-sockets")
    }

    /// The path of a program in the environment.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }
}

/// Installs an environment ([`install`]) once a process; `outcome` keeps what it came to.
pub(crate) fn once(
    outcome: &OnceLock<std::result::Result<Outcome, String>>,
    name: &str,
) -> Result<Outcome> {
    let outcome = outcome.get_or_init(|| install(name).map_err(|error| format!("{error:#}")));
    outcome.clone().map_err(anyhow::Error::msg)
}

/// Makes an environment with the packages that `programs/<name>.txt` lists, of the files that
/// `scripts/fetch <name>` has left. Unpacks the archives of sources among them to `src/` in it.
fn install(name: &str) -> Result<Outcome> {
    let list = source(&format!("programs/{name}.txt"));
    let packages = fs::read_to_string(&list)?;
    let fetched = kept("fetched")?.join(name);
    // Python's version is before the list.
    match fs::read_to_string(fetched.join("complete")) {
        Ok(state) if state.trim_end().ends_with(packages.trim_end()) => {}
        _ => return Ok(Err(not_fetched(name))),
    }
    // The tests of several processes may need it at the same time.
    let lock = File::create(kept("fetched")?.join(format!("{name}.lock")))?;
    lock.lock()?;
    let directory = kept(name)?;
    let complete = directory.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|installed| installed == packages) {
        return Ok(Ok(directory));
    }
    // Debian's Python, regardless of PATH, because python3-venv belongs to it.
    let venv = Program::plain("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(&directory);
    let made = venv.run(INSTALL_TIMEOUT)?.success();
    made.context("sudo apt-get install -y python3-venv")?;
    let pip = Program::plain(directory.join("bin/python"));
    let pip = pip.line("-m pip install --quiet --no-index --no-deps --find-links").arg(&fetched);
    pip.arg("--requirement").arg(&list).run(INSTALL_TIMEOUT)?.success()?;
    let sources = directory.join("src");
    fs::create_dir_all(&sources)?;
    for archive in fs::read_dir(fetched.join("sources")).into_iter().flatten() {
        let unpack = Program::plain("tar").arg("xzf").arg(archive?.path()).arg("-C").arg(&sources);
        unpack.run(INSTALL_TIMEOUT)?.success()?;
    }
    fs::write(complete, packages)?;
    Ok(Ok(directory))
}
