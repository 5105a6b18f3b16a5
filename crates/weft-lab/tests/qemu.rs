//! QEMU migrates a paused machine to another QEMU over RDMA.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use weft_lab::endpoint::Port;
use weft_lab::{
    Folder, Program, Running, Stage, defect, ensure_data, ports, scratch, skip_without_namespaces,
};

/// Time limit for what the lab itself does not limit. It detects a hang.
const TIMEOUT: Duration = Duration::from_secs(240);
const MEMORY_MIB: u64 = 64;
/// Address of the pattern in the guest's memory, above all that firmware would use.
const PATTERN_ADDRESS: u64 = 16 << 20;
const PATTERN_BYTES: usize = 32 << 20;

/// The control connection of a machine.
struct Monitor {
    reader: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects as soon as the machine listens.
    fn connect(socket: &Path) -> Result<Self> {
        let deadline = Instant::now() + TIMEOUT;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => bail!("no monitor: {error}"),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut monitor = Self { reader: BufReader::new(stream) };
        monitor.line().context("no greeting")?;
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.reader.get_mut(), "{request}")?;
        loop {
            let answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            // QEMU may send events before the answer.
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until this side reports that the migration has ended.
    fn migrated(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let state = self.execute("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => bail!("migration: {state}"),
                _ if Instant::now() >= deadline => {
                    return Err(defect(format!("migration hangs: {state}")));
                }
                _ => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the guest's memory at the address of the pattern.
    fn pattern(&mut self, file: PathBuf) -> Result<Vec<u8>> {
        let what = json!({"val": PATTERN_ADDRESS, "size": PATTERN_BYTES, "filename": &file});
        self.execute("pmemsave", what)?;
        fs::read(&file).context("no guest memory")
    }
}

/// A machine that starts paused and never runs.
fn machine(name: &str, folder: &Folder, options: &[String]) -> (Program, PathBuf) {
    let socket = folder.path().join(name);
    let program = Program::weft("qemu-system-x86_64")
        .line("-S -display none -nodefaults -machine pc,accel=tcg -m")
        .arg(MEMORY_MIB.to_string())
        .args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())])
        .args(options);
    (program, socket)
}

fn migrate(stage: &Stage, pin_all: bool) -> Result<()> {
    let port = ports::next();
    let directory = scratch(&format!("qemu-{port}"))?;
    let pattern: Vec<u8> = (0..PATTERN_BYTES).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let image = directory.join("pattern");
    fs::write(&image, &pattern)?;
    let address = format!("rdma:{}:{port}", stage.server_address());

    let incoming = ["-incoming".to_owned(), "defer".to_owned()];
    let folder = Folder::new(0o700)?;
    let (destination, destination_socket) = machine("to", &folder, &incoming);
    let load = format!("loader,file={},addr={PATTERN_ADDRESS},force-raw=on", image.display());
    let (source, source_socket) = machine("from", &folder, &["-device".to_owned(), load]);
    let destination: Running = stage.server(destination).start()?;
    let source: Running = stage.client(source).start()?;
    let mut to = Monitor::connect(&destination_socket)?;
    let mut from = Monitor::connect(&source_socket)?;

    let capability = json!([{"capability": "rdma-pin-all", "state": pin_all}]);
    for monitor in [&mut to, &mut from] {
        monitor.execute("migrate-set-capabilities", json!({"capabilities": capability}))?;
    }
    ensure!(to.pattern(directory.join("before"))? != pattern, "the pattern is there already");
    to.execute("migrate-incoming", json!({"uri": address}))?;
    let mut destination = destination.listening(Port::Tcp(port))?;
    from.execute("migrate", json!({"uri": address}))?;
    let migrated = from.migrated();
    migrated.with_context(|| format!("{}\n{:?}", destination.account(), source.output()))?;
    to.migrated()?;
    ensure_data!(to.pattern(directory.join("after"))? == pattern, "the memory differs");
    Ok(())
}

#[test]
fn pages_on_demand() -> Result<()> {
    migrate(&Stage::loopback(), false)
}

#[test]
fn pinned_memory() -> Result<()> {
    migrate(&Stage::loopback(), true)
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    migrate(&Stage::namespaces()?, false)
}
