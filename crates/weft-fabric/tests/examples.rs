//! The examples do what they say, as a user would start them.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail, ensure};

/// A running example, which does not outlive the test.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Builds the examples.
fn build() -> bool {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--examples"]);
    cargo.status().is_ok_and(|status| status.success())
}

impl Example {
    fn start(name: &str, arguments: &[&str]) -> Result<Self> {
        static IS_BUILT: OnceLock<bool> = OnceLock::new();
        // Beside the folder of the test programs.
        let mut path: PathBuf = std::env::current_exe()?;
        path.pop();
        path.pop();
        path.extend(["examples", name]);
        // `cargo test` builds them, but not `cargo test --test`.
        ensure!(path.is_file() || *IS_BUILT.get_or_init(build), "they do not compile");
        let mut command = Command::new(path);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("it has ended")??)
    }

    /// The address at which it says that it listens.
    fn address(&mut self) -> Result<String> {
        let line = self.line()?;
        let port = line.strip_prefix("listening at port ").context(line.clone())?;
        Ok(SocketAddr::from(([127, 0, 0, 1], port.parse()?)).to_string())
    }

    fn succeeds(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ping_pong() -> Result<()> {
    let mut server = Example::start("ping_pong", &[])?;
    let mut client = Example::start("ping_pong", &[&server.address()?])?;
    ensure!(client.line()?.ends_with(" for a round trip"));
    client.succeeds()?;
    server.succeeds()
}

#[test]
fn remote_read() -> Result<()> {
    let mut owner = Example::start("remote_read", &["plain", "text"])?;
    let mut reader = Example::start("remote_read", &["--from", &owner.address()?])?;
    ensure!(reader.line()? == "plain text");
    reader.succeeds()?;
    owner.succeeds()
}

#[test]
fn counter() -> Result<()> {
    let mut owner = Example::start("counter", &[])?;
    let address = owner.address()?;
    for total in ["1000", "2000", "3000"] {
        Example::start("counter", &[&address])?.succeeds()?;
        ensure!(owner.line()? == total);
    }
    Ok(())
}

/// The owner has one thread of its own, so that its memory can be mapped, although the counter is
/// shorter than a page.
#[test]
fn a_counter_is_where_peers_can_map_it() -> Result<()> {
    let is_mapped = || -> Result<bool> {
        let mut owner = Example::start("counter", &[])?;
        owner.address()?;
        let maps = fs::read_to_string(format!("/proc/{}/maps", owner.child.id()))?;
        Ok(maps.contains("memfd:weft-region"))
    };
    // A thread of the engine that starts at that moment counts as one of the program's.
    for _ in 0..10 {
        if is_mapped()? {
            return Ok(());
        }
    }
    bail!("no counter is")
}

#[test]
fn examples_are_short() -> Result<()> {
    for name in ["ping_pong", "remote_read", "counter"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
        let text = fs::read_to_string(path)?;
        let code = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//!"));
        ensure!(code.count() <= 30, "{name} has more than 30 lines");
    }
    Ok(())
}
