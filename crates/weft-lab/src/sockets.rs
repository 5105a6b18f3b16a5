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
use serde::Deserialize;
use weft_stream::Registry;
use weft_stream::datagram::Datagrams;

use crate::folder::Folder;
use crate::paths::{scratch, weft};
use crate::program::Program;
use crate::skip::note_skip;

/// Debian's user `nobody`.
const NOBODY: u32 = 65_534;

/// How long the counters may lag behind the programs.
const COUNTED_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const STAT_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// else that none did.
    ///
    /// # Errors
    ///
    /// If it was otherwise.
    pub fn check(&self, bytes_min: u64) -> Result<()> {
        let deadline = Instant::now() + COUNTED_WITHIN;
        loop {
            let totals = self.totals()?;
            if self.ends != Ends::Both {
                ensure!(totals.joined == 0 && totals.bytes == 0, "{:?}: {totals:?}", self.ends);
                return Ok(());
            }
            if totals.bytes >= bytes_min {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {bytes_min} bytes: {totals:?}");
            thread::sleep(POLL_INTERVAL);
        }
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

    /// Checks that no byte went through shared memory, because Weft cannot preload one of the
    /// programs that `weft run` has started.
    ///
    /// # Errors
    ///
    /// If one did.
    pub fn check_none(&self) -> Result<()> {
        let totals = self.totals()?;
        ensure!(totals.joined == 0 && totals.bytes == 0, "not over TCP: {totals:?}");
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

/// Whether every user may search all directories that lead to a file.
pub fn is_reachable(file: &Path) -> bool {
    const SEARCH_BY_OTHERS: u32 = 0o001;
    let open = |directory: &Path| {
        fs::metadata(directory).is_ok_and(|meta| meta.permissions().mode() & SEARCH_BY_OTHERS != 0)
    };
    file.ancestors().skip(1).all(open)
}

/// Checks that two byte strings are equal.
///
/// # Errors
///
/// If they are not: their lengths, and where they begin to differ.
pub fn same(found: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(
        found == expected,
        "{} bytes instead of {}, which differ first at {}",
        found.len(),
        expected.len(),
        found.iter().zip(expected).take_while(|(left, right)| left == right).count()
    );
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
