//! Times copies by `weft cp` and by other programs. All files are in memory.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::statvfs;
use rustix::process::geteuid;
use serde::Serialize;

use crate::endpoint::Port;
use crate::usage::children_cpu;
use crate::{Finished, Folder, Program, Running, ports, ssh, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
const GIB: usize = 1 << 30;
/// The load of many files: the number of folders, the files in each folder, the bytes of a file.
const FOLDERS: usize = 20;
const FILES: usize = 1_000;
const SMALL_LEN: usize = 4 << 10;

/// The files that a measurement copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// One file of this many bytes.
    Large(usize),
    /// 20,000 files of 4 KiB.
    Small,
}

impl Load {
    /// Returns a load of one file: of 1 GiB, or of 256 MiB if `/dev/shm` has no room for 3 GiB.
    ///
    /// # Errors
    ///
    /// If `statvfs` of `/dev/shm` fails.
    pub fn large() -> Result<Self> {
        let memory = statvfs("/dev/shm").context("/dev/shm")?;
        let has_room = memory.f_bavail.saturating_mul(memory.f_frsize) > 3 * GIB as u64;
        Ok(Self::Large(if has_room { GIB } else { GIB / 4 }))
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Large(_) => "large",
            Self::Small => "small",
        }
    }

    /// Formats the rate of a copy that took `seconds`.
    pub fn show(self, seconds: f64) -> String {
        match self {
            Self::Large(len) => format!("{:.2} GB/s", len as f64 / seconds / 1e9),
            Self::Small => format!("{:.1} k files/s", (FOLDERS * FILES) as f64 / seconds / 1e3),
        }
    }

    /// Formats the processor time for each GiB or each file.
    pub fn show_cpu(self, seconds: f64) -> String {
        match self {
            Self::Large(len) => format!("{:.2} s/GiB", seconds * GIB as f64 / len as f64),
            Self::Small => format!("{:.1} us/file", seconds * 1e6 / (FOLDERS * FILES) as f64),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Large(len) if len % GIB == 0 => write!(f, "one file of {} GiB", len / GIB),
            Self::Large(len) => write!(f, "one file of {} MiB", len >> 20),
            Self::Small => f.write_str("20,000 files of 4 KiB"),
        }
    }
}

/// The program that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `weft cp` from folder to folder.
    Weft,
    /// `cp -a`, from folder to folder.
    Cp,
    /// `weft cp` to `weft serve`, over TLS on loopback.
    WeftToServer,
    /// `rsync -a` to its daemon, in clear on loopback.
    RsyncToDaemon,
    /// `scp` to an OpenSSH server on loopback.
    Scp,
    /// `iperf3`: copies no files, but measures the rate of one TCP connection.
    Iperf3,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft => "`weft cp`",
            Self::Cp => "`cp -a`",
            Self::WeftToServer => "`weft cp` to `weft serve`, encrypted",
            Self::RsyncToDaemon => "`rsync -a` to its daemon, in clear",
            Self::Scp => "`scp -r`",
            Self::Iperf3 => "`iperf3`, in clear, no files",
        })
    }
}

/// The result of one copy.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sample {
    /// Time from the start of the copying program to its end.
    pub seconds: f64,
    /// Processor time of both ends, including startup and exit.
    pub cpu_seconds: f64,
}

/// Waits until a process has reaped all its children. The kernel then counts their processor time
/// with that of the process.
fn end_of_children(pid: u32) -> Result<()> {
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?.trim().is_empty() {
        ensure!(start.elapsed() < TIMEOUT, "process {pid} still has children after {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A folder in memory with the files to copy and with a user's keys.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    /// The user's public key.
    key: String,
}

impl Place {
    /// Creates the keys and the files of `loads`.
    ///
    /// # Errors
    ///
    /// If the files do not fit into memory, or `weft` does not run.
    pub fn new(loads: &[Load]) -> Result<Self> {
        let folder = Folder::in_memory(0o700)?;
        let key = String::new();
        let mut place = Self { folder, key };
        let said = place.weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        said.trim().clone_into(&mut place.key);
        for load in loads {
            place.fill(*load)?;
        }
        Ok(place)
    }

    fn fill(&self, load: Load) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut noise = vec![0; 16 << 20];
        random.fill(&mut noise);
        let top = self.path(load.folder());
        fs::create_dir(&top)?;
        match load {
            Load::Large(len) => {
                let mut file = fs::File::create(top.join("file"))?;
                for _ in 0..len / noise.len() {
                    file.write_all(&noise)?;
                }
            }
            Load::Small => {
                for folder in 0..FOLDERS {
                    let path = top.join(folder.to_string());
                    fs::create_dir(&path)?;
                    for file in 0..FILES {
                        let bytes = &noise[file * SMALL_LEN..][..SMALL_LEN];
                        fs::write(path.join(file.to_string()), bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the `weft` command with this user's keys.
    fn weft(&self) -> Result<Program> {
        Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config")))
    }

    /// Copies `load` once, into a new folder.
    ///
    /// # Errors
    ///
    /// If a program does not start, or reports a failure.
    pub fn measure(&self, load: Load, tool: Tool) -> Result<Sample> {
        let to = self.path("to");
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        fs::create_dir(&to)?;
        let (before, port) = (children_cpu()?, ports::next());
        let server = self.server(tool, port)?;
        let start = Instant::now();
        let copy = self.client(load, tool, port)?.run(TIMEOUT);
        let seconds = start.elapsed().as_secs_f64();
        copy.and_then(Finished::success).with_context(|| tool.to_string())?;
        if let Some(server) = server {
            end_of_children(server.pid())?;
            server.kill()?;
        }
        let cpu_seconds = (children_cpu()? - before).as_secs_f64();
        Ok(Sample { seconds, cpu_seconds })
    }

    fn server(&self, tool: Tool, port: u16) -> Result<Option<Running>> {
        let port_text = port.to_string();
        let server = match tool {
            Tool::Weft | Tool::Cp => return Ok(None),
            Tool::WeftToServer => self
                .weft()?
                .args(["serve", "--bind", "127.0.0.1", "--port", &port_text])
                .args(["--allow", &self.key])
                .arg(format!("share={}", self.folder.path().display())),
            Tool::RsyncToDaemon => {
                let config = self.path("rsyncd.conf");
                // Without chroot, so that a user other than root can run the daemon.
                let share = self.folder.path().display();
                // Started by root, the daemon would otherwise change to `nobody`.
                let user = if geteuid().is_root() { "uid = 0\ngid = 0\n" } else { "" };
                let options = "use chroot = no\nread only = no\n";
                fs::write(&config, format!("{options}{user}[share]\npath = {share}\n"))?;
                Program::plain("rsync")
                    .args(["--daemon", "--no-detach", "--address", "127.0.0.1"])
                    .args(["--port", &port_text])
                    .arg(format!("--config={}", config.display()))
            }
            Tool::Scp => {
                let sshd = ssh::prepare(self.folder.path(), port, &[("server", "")])?;
                Program::plain(sshd).args(["-D", "-e", "-f"]).arg(self.path("sshd_config"))
            }
            Tool::Iperf3 => {
                Program::plain("iperf3").args(["-s", "-B", "127.0.0.1", "-p", &port_text])
            }
        };
        Ok(Some(server.start()?.listening(Port::Tcp(port))?))
    }

    fn client(&self, load: Load, tool: Tool, port: u16) -> Result<Program> {
        let (from, to) = (self.path(load.folder()).join(""), self.path("to"));
        Ok(match tool {
            Tool::Weft => self.weft()?.args(["cp", "-q"]).arg(from).arg(to),
            Tool::Cp => Program::plain("cp").arg("-a").arg(from.join(".")).arg(to),
            Tool::WeftToServer => {
                let copy = self.weft()?.args(["cp", "-q", "--accept-new"]).arg(from);
                copy.arg(format!("127.0.0.1:{port}//share/to"))
            }
            Tool::RsyncToDaemon => {
                let copy = Program::plain("rsync").args(["-a", "--whole-file"]).arg(from);
                copy.arg(format!("rsync://127.0.0.1:{port}/share/to/"))
            }
            Tool::Scp => {
                let config = self.path("ssh_config");
                let copy = Program::plain("scp").args(["-q", "-r", "-F"]).arg(config);
                copy.arg(from.join(".")).arg(format!("server:{}", to.display()))
            }
            Tool::Iperf3 => {
                let Load::Large(len) = load else { bail!("iperf3 copies no files") };
                Program::plain("iperf3")
                    .args(["-c", "127.0.0.1", "-p", &port.to_string()])
                    .args(["-n", &len.to_string()])
            }
        })
    }
}
