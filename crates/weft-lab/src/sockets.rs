//! Unmodified TCP programs on one host. Their connections use shared memory if both ends run on
//! Weft, and TCP otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Deserialize;
use weft_stream::Registry;
use weft_stream::datagram::Datagrams;

use crate::defect::defect;
use crate::folder::Folder;
use crate::paths::{scratch, weft};
use crate::program::{Program, TIMEOUT_FACTOR};
use crate::skip::note_skip;

/// Debian's user `nobody`.
const NOBODY: u32 = 65_534;

/// Time limit for a condition that must become true, before the lab's factor.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const STAT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often [`Sockets::until_shared`] tries.
const SHARING_TRIES: usize = 20;

/// Which ends of the connections run under `weft run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Server and client, so that their bytes go through shared memory.
    Both,
    /// The server alone.
    Server,
    /// The client alone.
    Client,
}

impl Ends {
    /// Every way to place Weft.
    pub const ALL: [Self; 3] = [Self::Both, Self::Server, Self::Client];
}

/// A registry of connections for programs that no other test uses, and a directory for their files.
/// Dropping it removes both.
#[derive(Debug)]
pub struct Sockets {
    ends: Ends,
    /// The number of the user who runs the programs, if it is not the user of this process.
    user: Option<u32>,
    /// The registry, open so that its counters outlive the last program.
    registry: Registry,
    /// The registry of UDP sockets, open for the same reason.
    datagrams: Datagrams,
    shared: Folder,
    files: PathBuf,
}

/// The totals of `weft stat` over all connections of a registry.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Totals {
    /// Connections for which the connector has offered shared memory.
    pub offered: u64,
    /// Connections for which the peer has accepted shared memory.
    pub joined: u64,
    /// Payload bytes that went through shared memory, in both directions.
    pub bytes: u64,
    /// Payload bytes that were copied only once.
    #[serde(default)]
    pub zero_copy_bytes: u64,
    /// Numbers of offers that failed and of connections that fell back to TCP, by the reason.
    #[serde(default)]
    pub fallbacks: BTreeMap<String, u64>,
}

impl Sockets {
    /// Creates a registry and a directory.
    ///
    /// # Errors
    ///
    /// If they cannot be made.
    pub fn new(ends: Ends) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let own = format!("{}-{}", process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let shared = Folder::in_memory(0o700)?;
        let registry = Registry::open(shared.path())?;
        let datagrams = Datagrams::open(shared.path())?;
        let files = scratch(&format!("sockets/{own}"))?;
        Ok(Self { ends, user: None, registry, datagrams, shared, files })
    }

    /// Creates a registry and a directory for programs that refuse to run as root. If this process
    /// is root, the user `nobody` runs both ends, and the counters last as long as the server.
    /// Returns `None`, with a note, if this process is root and other users cannot read the build's
    /// results.
    ///
    /// # Errors
    ///
    /// If registry or directory cannot be made.
    pub fn unprivileged(test: &str) -> Result<Option<Self>> {
        let mut sockets = Self::new(Ends::Both)?;
        if !rustix::process::geteuid().is_root() {
            return Ok(Some(sockets));
        }
        if !sockets.are_reachable() {
            note_skip(test, "another user cannot read what has been built");
            return Ok(None);
        }
        for directory in [sockets.shared.path(), &sockets.files] {
            chown(directory, Some(NOBODY), None)?;
        }
        sockets.user = Some(NOBODY);
        Ok(Some(sockets))
    }

    /// Whether every user can reach the files and Weft.
    pub fn are_reachable(&self) -> bool {
        is_reachable(&self.files) && weft().is_ok_and(|weft| is_reachable(&weft))
    }

    /// A program in the server's place.
    pub fn server(&self, name: impl AsRef<Path>) -> Program {
        self.program(name.as_ref(), self.ends != Ends::Client)
    }

    /// A program in the client's place.
    pub fn client(&self, name: impl AsRef<Path>) -> Program {
        self.program(name.as_ref(), self.ends != Ends::Server)
    }

    /// A program that runs without Weft but with this registry, for example the `weft` command.
    pub fn plain(&self, name: impl AsRef<Path>) -> Program {
        self.program(name.as_ref(), false)
    }

    fn program(&self, name: &Path, under_weft: bool) -> Program {
        let program = if under_weft { Program::weft(name) } else { Program::plain(name) };
        let program = program.env("WEFT_SHM_DIR", self.shared.path()).directory(&self.files);
        match self.user {
            Some(user) => program.as_user(&user.to_string()),
            None => program,
        }
    }

    /// The path of a file in the programs' working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// Makes a file of `length` pseudorandom bytes, which depend on its name and length.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn make_file(&self, name: &str, length: usize) -> Result<Vec<u8>> {
        let seed =
            name.bytes().fold(length as u64, |seed, byte| seed.rotate_left(7) ^ u64::from(byte));
        let content = noise(seed, length);
        fs::write(self.path(name), &content)?;
        Ok(content)
    }

    /// Checks that a file has this content.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or where it differs.
    pub fn expect_file(&self, name: &str, content: &[u8]) -> Result<()> {
        let found = fs::read(self.path(name)).with_context(|| format!("cannot read {name}"))?;
        same(&found, content).with_context(|| name.to_owned())
    }

    /// Returns the totals that `weft stat` reports for this registry.
    ///
    /// # Errors
    ///
    /// If it fails, or its answer is not understood.
    pub fn totals(&self) -> Result<Totals> {
        #[derive(Deserialize)]
        struct Report {
            totals: Totals,
        }
        let stat = self.plain(weft()?).args(["stat", "--json"]).run(STAT_TIMEOUT)?.success()?;
        let report: Report = serde_json::from_str(&stat.stdout)
            .with_context(|| stat.error("not the expected JSON"))?;
        Ok(report.totals)
    }

    /// Checks that at least `bytes_min` bytes went through shared memory if both ends run on Weft,
    /// else that none did. The counters may lag behind the programs.
    ///
    /// # Errors
    ///
    /// If it was otherwise.
    pub fn check(&self, bytes_min: u64) -> Result<()> {
        if self.ends != Ends::Both {
            return self.check_none();
        }
        let mut last = Totals::default();
        let counted = until(&format!("{bytes_min} bytes through shared memory"), || {
            last = self.totals()?;
            Ok((last.bytes >= bytes_min).then_some(()))
        });
        counted.with_context(|| format!("{last:?}"))
    }

    /// Repeats `attempt` until the attempts have moved at least `bytes_min` bytes through shared
    /// memory. If one end has no Weft, does it once and checks that none went there.
    ///
    /// A connection may rightly stay on TCP: if a server forks right after it has accepted, and a
    /// busy machine delays the client's offer of memory until then, or if brief connections came
    /// just before. So a test that needs shared memory has to try more than once.
    ///
    /// # Errors
    ///
    /// If an attempt fails, or if they all did not move that many bytes.
    pub fn until_shared(
        &self,
        bytes_min: u64,
        mut attempt: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let before = self.totals()?.bytes;
        for _ in 1..SHARING_TRIES {
            attempt()?;
            if self.ends != Ends::Both {
                return self.check_none();
            }
            if self.totals()?.bytes - before >= bytes_min {
                return Ok(());
            }
        }
        attempt()?;
        self.check(before + bytes_min).with_context(|| format!("{SHARING_TRIES} attempts"))
    }

    /// Checks that a connection fell back to TCP for this reason, if both ends run on Weft.
    ///
    /// # Errors
    ///
    /// If none is.
    pub fn check_fallback(&self, reason: &str) -> Result<()> {
        let totals = self.totals()?;
        let has_left = self.ends != Ends::Both || totals.fallbacks.contains_key(reason);
        ensure!(has_left, "no connection fell back to TCP for {reason:?}: {totals:?}");
        Ok(())
    }

    /// Checks that no byte went through shared memory, because one end has no Weft, or because Weft
    /// cannot preload one of the programs that `weft run` has started.
    ///
    /// # Errors
    ///
    /// If one did.
    pub fn check_none(&self) -> Result<()> {
        let totals = self.totals()?;
        ensure!(
            totals.joined == 0 && totals.bytes == 0,
            "{:?}: not over TCP: {totals:?}",
            self.ends
        );
        Ok(())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.registry.leave();
        self.datagrams.leave();
        // Files that cannot be removed do no harm.
        let _ = fs::remove_dir_all(&self.files);
    }
}

/// Returns the first core on which this process may run. The kernel keeps the order of what is sent
/// from one core to several sockets of this host, or from one datagram socket.
///
/// # Errors
///
/// If the kernel does not tell.
pub fn first_core() -> Result<Option<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)))
}

/// Whether every user may search all directories that lead to a file.
pub fn is_reachable(file: &Path) -> bool {
    const SEARCH_BY_OTHERS: u32 = 0o001;
    let open = |directory: &Path| {
        fs::metadata(directory).is_ok_and(|meta| meta.permissions().mode() & SEARCH_BY_OTHERS != 0)
    };
    file.ancestors().skip(1).all(open)
}

/// Calls `check` until it returns a value. `what` names that value in the error message.
///
/// # Errors
///
/// If `check` fails, or if it returns none for so long that something must hang.
pub fn until<T>(what: &str, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let timeout = TIMEOUT_FACTOR * CONDITION_TIMEOUT;
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = check()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Checks that two byte strings are equal.
///
/// # Errors
///
/// If they are not, with a [`defect`]: their lengths, and where they begin to differ.
pub fn same(found: &[u8], expected: &[u8]) -> Result<()> {
    if found != expected {
        return Err(defect(format!(
            "{} bytes instead of {}, which differ first at {}",
            found.len(),
            expected.len(),
            found.iter().zip(expected).take_while(|(left, right)| left == right).count()
        )));
    }
    Ok(())
}

/// Returns pseudorandom bytes of Marsaglia's xorshift64. They repeat after a prime number of bytes,
/// of which no buffer's size is a multiple.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    let mut state = seed << 1 | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut block: Vec<u8> = (0..PERIOD.div_ceil(size_of::<u64>())).flat_map(|_| word()).collect();
    block.truncate(PERIOD);
    let mut bytes = block.repeat(length.div_ceil(PERIOD));
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_the_name_and_a_difference_is_located() {
        let sockets = Sockets::new(Ends::Both).unwrap();
        let mut content = sockets.make_file("a", 1001).unwrap();
        assert!(content != sockets.make_file("b", 1001).unwrap());
        sockets.expect_file("a", &content).unwrap();
        content[1000] ^= 1;
        let error = format!("{:?}", sockets.expect_file("a", &content).unwrap_err());
        assert!(error.contains("at 1000"), "{error}");
        let directory = sockets.path("");
        drop(sockets);
        assert!(!directory.exists());
    }
}
