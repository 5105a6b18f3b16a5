//! A virtual machine with the kernel's soft iWARP (siw) and iSCSI initiator: peers that share no
//! code with Weft.
//!
//! `siw/build.py` builds it from Debian's packages, and QEMU runs it without KVM. Its network
//! device is a TAP interface in a namespace. It takes commands through a virtual serial port.

use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::compile::compile;
use crate::defect::defect;
use crate::folder::Folder;
use crate::namespace::{Namespace, namespaces_denied};
use crate::packages::locate;
use crate::paths::{kept, scratch, source};
use crate::program::{Program, Running, TIMEOUT_FACTOR};

/// How long the machine may take to start. This limit and the next one are extended by
/// [`TIMEOUT_FACTOR`], as all limits of the lab are.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for a command that waits for nothing.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of polling loops. Each poll takes the guest some milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The status with which `build.py` says that Debian's packages cannot be fetched.
const CANNOT_FETCH: i32 = 3;
const TUN: &str = "/dev/net/tun";

/// A running virtual machine. Dropping it ends the machine.
#[derive(Debug)]
pub struct Guest {
    // Fields are dropped in order: the machine is killed before its namespace is deleted.
    _machine: Running,
    serial: Mutex<BufReader<UnixStream>>,
    console: PathBuf,
    /// The namespace on the host's side of the link, where programs on Weft run.
    pub host: Namespace,
    /// The guest's address.
    pub address: Ipv4Addr,
}

/// Whether a guest's network device offloads segmentation and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Packets of up to 64 KiB pass unsegmented and without checksums.
    On,
    /// Packets are segmented to the link's MTU.
    Off,
}

/// Returns why no guest can run here, or `None` if one can. A guest needs rights, QEMU and Debian's
/// packages. Builds the guest's image if necessary.
///
/// # Errors
///
/// If it does not build.
pub fn unavailable(programs: &[&str]) -> Result<Option<String>> {
    if let Some(why) = namespaces_denied() {
        return Ok(Some(why.to_owned()));
    }
    if let Err(why) = locate("qemu-system-x86_64") {
        return Ok(Some(why.to_string()));
    }
    if let Err(why) = fs::File::options().read(true).write(true).open(TUN) {
        return Ok(Some(format!("{TUN}: {why}")));
    }
    let programs = programs.iter().map(|name| compile(name)).collect::<Result<Vec<_>>>()?;
    let build = Command::new(source("siw/build.py")).arg(folder()?).args(programs).output()?;
    let stderr = String::from_utf8_lossy(&build.stderr);
    match build.status.code() {
        Some(0) => Ok(None),
        Some(CANNOT_FETCH) => Ok(Some(stderr.trim().to_owned())),
        _ => bail!("siw/build.py: {}: {stderr}", build.status),
    }
}

fn folder() -> Result<PathBuf> {
    kept("siw")
}

impl Guest {
    /// Starts a machine and waits until it takes commands.
    ///
    /// # Errors
    ///
    /// If it does not start; see [`unavailable`] for what it needs.
    pub fn boot(offload: Offload) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let host = Namespace::with_tap()?;
        let address = Ipv4Addr::new(10, 77, 0, 2);
        let folder = Folder::new(0o700)?;
        let socket = folder.path().join("agent");
        let console = scratch("siw")?.join(format!("{name}.console"));
        let running = machine(&host, address, &socket, &console, offload)?.start()?;
        let serial = connect(&socket)?;
        let serial = Mutex::new(BufReader::new(serial));
        let guest = Self { _machine: running, serial, console, host, address };
        guest.command("rdma link show siw0/1 && dmesg -c >/dev/null", BOOT_TIMEOUT)?;
        Ok(guest)
    }

    /// Runs a command that waits for nothing, and returns its output.
    ///
    /// # Errors
    ///
    /// If its status is not 0.
    pub fn run(&self, command: &str) -> Result<String> {
        self.command(command, COMMAND_TIMEOUT)
    }

    fn command(&self, command: &str, timeout: Duration) -> Result<String> {
        let (status, output) = self
            .exchange(command, timeout)
            .with_context(|| format!("guest: {command}\n{}", self.console()))?;
        ensure!(status == 0, "guest: {command}: status {status}: {output}");
        Ok(output)
    }

    fn exchange(&self, command: &str, timeout: Duration) -> Result<(i32, String)> {
        ensure!(!command.contains('\n'), "a command is one line");
        let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        serial.get_ref().set_read_timeout(Some(TIMEOUT_FACTOR * timeout))?;
        writeln!(serial.get_mut(), "{command}")?;
        let mut head = String::new();
        serial.read_line(&mut head)?;
        let (status, length) = head.trim().split_once(' ').context("no status")?;
        let mut output = vec![0; length.parse()?];
        serial.read_exact(&mut output)?;
        Ok((status.parse()?, String::from_utf8_lossy(&output).into_owned()))
    }

    /// Sets one of siw's parameters for later connections.
    ///
    /// # Errors
    ///
    /// If there is no such parameter.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        self.run(&format!("echo {value} >/sys/module/siw/parameters/{parameter}")).map(drop)
    }

    /// The messages on the guest's console since it started.
    pub fn console(&self) -> String {
        fs::read_to_string(&self.console).unwrap_or_default()
    }

    /// Returns the messages that siw has logged since the last call, or since the machine started.
    ///
    /// # Errors
    ///
    /// If the guest does not answer.
    pub fn siw_messages(&self) -> Result<Vec<String>> {
        let log = self.run("dmesg -c")?;
        Ok(log.lines().filter(|line| line.contains("siw:")).map(str::to_owned).collect())
    }

    /// Starts a program in the background.
    ///
    /// # Errors
    ///
    /// If the guest does not answer.
    pub fn start(&self, command: &str) -> Result<Job<'_>> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let number = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stem = format!("/tmp/{number}");
        let line = format!(
            "({command}; echo $? >{stem}.new; mv {stem}.new {stem}.status) \
             >{stem}.output 2>&1 </dev/null &"
        );
        self.run(&line)?;
        Ok(Job { guest: self, stem, command: command.to_owned() })
    }

    /// Starts a program in the background, and waits until the guest listens on an RDMA port.
    ///
    /// # Errors
    ///
    /// If that takes too long.
    pub fn serve(&self, command: &str, port: u16) -> Result<Job<'_>> {
        let job = self.start(command)?;
        // rdma_cm reports success a little before siw's socket listens.
        let listening = format!("netstat -ltn | grep -q ':{port} '");
        let deadline = Instant::now() + TIMEOUT_FACTOR * COMMAND_TIMEOUT;
        while self.exchange(&listening, COMMAND_TIMEOUT)?.0 != 0 {
            if Instant::now() >= deadline || job.status()?.is_some() {
                bail!("{job} does not listen: {}", job.output()?);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(job)
    }
}

/// A background program in a guest.
#[derive(Debug)]
pub struct Job<'a> {
    guest: &'a Guest,
    stem: String,
    command: String,
}

impl Job<'_> {
    fn status(&self) -> Result<Option<i32>> {
        let (found, text) =
            self.guest.exchange(&format!("cat {}.status", self.stem), COMMAND_TIMEOUT)?;
        if found == 0 { Ok(Some(text.trim().parse()?)) } else { Ok(None) }
    }

    /// What it has printed so far.
    ///
    /// # Errors
    ///
    /// If the guest does not answer.
    pub fn output(&self) -> Result<String> {
        self.guest.run(&format!("cat {}.output", self.stem))
    }

    /// Waits for the program's end; returns its status and what it printed.
    ///
    /// # Errors
    ///
    /// If it runs longer than several times `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<(i32, String)> {
        let timeout = TIMEOUT_FACTOR * timeout;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.status()? {
                return Ok((status, self.output()?));
            }
            if Instant::now() >= deadline {
                return Err(defect(format!(
                    "{self} did not end within {timeout:?}: {}",
                    self.output()?
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the program ends with status 0, and returns what it printed.
    ///
    /// # Errors
    ///
    /// If its status is not 0, or it runs longer than several times `timeout`.
    pub fn success(&self, timeout: Duration) -> Result<String> {
        let (status, output) = self.wait(timeout)?;
        ensure!(status == 0, "{self}: status {status}: {output}");
        Ok(output)
    }
}

impl fmt::Display for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest: {}", self.command)
    }
}

fn machine(
    host: &Namespace,
    address: Ipv4Addr,
    socket: &Path,
    console: &Path,
    offload: Offload,
) -> Result<Program> {
    let folder = folder()?;
    let device = match offload {
        Offload::On => "virtio-net-pci,netdev=net,romfile=".to_owned(),
        Offload::Off => "virtio-net-pci,netdev=net,romfile=,csum=off,gso=off,guest_csum=off,\
                         guest_tso4=off,guest_tso6=off,host_tso4=off,host_tso6=off,mrg_rxbuf=off"
            .to_owned(),
    };
    let append = format!(
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr net.ifnames=0 rdinit=/init \
         address={address}/24"
    );
    Ok(Program::plain("qemu-system-x86_64")
        .line("-M pc,usb=off -accel tcg,thread=multi -cpu max -m 256 -nodefaults -no-reboot")
        .args(["-display", "none"])
        .arg("-kernel")
        .arg(folder.join("vmlinux"))
        .arg("-initrd")
        .arg(folder.join("initramfs"))
        .args(["-append", &append])
        .args(["-serial", &format!("file:{}", console.display())])
        .arg("-netdev")
        .arg(format!("tap,id=net,script=no,downscript=no,ifname={}", host.interface()))
        .args(["-device", &device, "-device", "virtio-serial-pci"])
        .args([
            "-chardev",
            &format!("socket,id=agent,server=on,wait=off,path={}", socket.display()),
        ])
        .args(["-device", "virtserialport,chardev=agent"])
        .within(Some(host)))
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let deadline = Instant::now() + TIMEOUT_FACTOR * COMMAND_TIMEOUT;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => bail!("{}: {error}", socket.display()),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}
