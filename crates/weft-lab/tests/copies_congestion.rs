//! `weft cp --congestion` and `--fair-share`: the connections that the kernel shows (`ss`).

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Folder, NamespacePair, Program, Running, ports, skip_without_namespaces, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for what the lab itself does not limit. It detects a hang.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
/// The file is copied in half a minute, in which the connections can be looked at.
const FILE_LEN: usize = 32 << 20;
const LIMIT: &str = "1M";
/// One that each kernel has, and that no kernel has by default.
const RENO: &str = "reno";

/// A server in the left one of two network namespaces, and its files.
struct Place {
    pair: NamespacePair,
    folder: Folder,
    port: u16,
    _server: Running,
}

impl Place {
    fn new() -> Result<Self> {
        let (pair, folder, port) =
            (NamespacePair::new()?, Folder::in_memory(0o700)?, ports::next());
        let path = |name: &str| folder.path().join(name);
        let weft = || anyhow::Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", path("config")));
        let key = weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        fs::create_dir(path("share"))?;
        for file in [path("share/file"), path("file")] {
            fs::write(file, vec![7; FILE_LEN])?;
        }
        let server = weft()?.args(["serve", "--port", &port.to_string(), "--allow", key.trim()]);
        let server = server.arg(path("share")).within(Some(&pair.left)).start()?;
        let server = server.listening(Port::Tcp(port))?;
        Ok(Self { pair, folder, port, _server: server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a copy in the right namespace, to the server or from it.
    fn copy(&self, is_up: bool, options: &[&str]) -> Result<Program> {
        let copy = Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config"));
        let copy = copy.args(["cp", "-q", "--accept-new", "--compress=none"]).args(options);
        let at = |name: &str| format!("{}:{}//share/{name}", self.pair.left.ipv4, self.port);
        let copy = match is_up {
            true => copy.arg(self.path("file")).arg(at("up")),
            false => copy.arg(at("file")).arg(self.path("down")),
        };
        Ok(copy.within(Some(&self.pair.right)))
    }

    /// Returns the congestion controls of the sender's connections, without the control channel,
    /// as soon as the sender has sent data on each. The copy does not go on.
    fn controls(&self, is_up: bool, channels: usize, options: &[&str]) -> Result<BTreeSet<String>> {
        let limited = [options, &["--limit", LIMIT]].concat();
        let mut copy = self.copy(is_up, &limited)?.start()?;
        let (sender, side) = match is_up {
            true => (&self.pair.right, "dport"),
            false => (&self.pair.left, "sport"),
        };
        let start = Instant::now();
        loop {
            let ss = Program::plain("ss").args(["-tinHO", "state", "established", side]);
            let ss = ss.args(["=", &format!(":{}", self.port)]).within(Some(sender));
            let shown = ss.run(TIMEOUT)?.success()?.stdout;
            // Each data connection sends more than the control channel does altogether.
            let has_data = |line: &&str| sent(line).is_some_and(|sent| sent > 100_000);
            let data: Vec<&str> = shown.lines().filter(has_data).collect();
            if data.len() == channels {
                ensure!(copy.is_running()?, "it has ended: {}", copy.account());
                copy.kill()?;
                ensure!(shown.lines().count() == channels + 1, "{shown}");
                return data.into_iter().map(control).collect();
            }
            if !copy.is_running()? {
                bail!(copy.wait(TIMEOUT)?.error(format!("{channels} connections: {shown}")));
            }
            ensure!(start.elapsed() < LONG_TIMEOUT, "{shown}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the bytes that a connection has sent, from a line of `ss -i`.
fn sent(line: &str) -> Option<u64> {
    line.split_whitespace().find_map(|word| word.strip_prefix("bytes_sent:"))?.parse().ok()
}

/// Returns the congestion control from a line of `ss -i`. It is the first word that does not
/// belong to an address, a count or an option of TCP.
fn control(line: &str) -> Result<String> {
    let is_option = |word: &&str| {
        !word.contains(':') && word.parse::<u64>().is_err() && !["ts", "sack"].contains(word)
    };
    let name = line.split_whitespace().find(is_option);
    name.map(str::to_owned).with_context(|| line.to_owned())
}

#[test]
fn sender_has_the_congestion_control_that_was_asked_for() -> Result<()> {
    skip_without_namespaces!();
    let place = Place::new()?;
    let set = |name: &str| {
        let write = format!("net.ipv4.tcp_congestion_control={name}");
        let set = Program::plain("sysctl").args(["-qw", &write]);
        [&place.pair.left, &place.pair.right].into_iter().try_for_each(|namespace| {
            set.clone().within(Some(namespace)).run(TIMEOUT)?.success().map(drop)
        })
    };
    let only = |name: &str| BTreeSet::from([name.to_owned()]);
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    let other = available.split_whitespace().find(|name| *name != RENO);
    for is_up in [true, false] {
        if let Some(other) = other {
            // The system's is another one.
            let namespaced =
                set(RENO).and_then(|()| place.controls(is_up, 2, &["--congestion", other]));
            ensure!(namespaced? == only(other));
        }
        ensure!(place.controls(is_up, 2, &["--congestion", RENO])? == only(RENO));
        ensure!(place.controls(is_up, 1, &["--fair-share"])? == only(RENO));
        let fair = &["--fair-share", "--congestion", RENO];
        ensure!(place.controls(is_up, 1, fair)? == only(RENO));
    }
    Ok(())
}

#[test]
fn unknown_congestion_control_fails_with_those_that_there_are() -> Result<()> {
    skip_without_namespaces!();
    let place = Place::new()?;
    for is_up in [true, false] {
        let finished = place.copy(is_up, &["--congestion", "none-such"])?.run(TIMEOUT)?;
        ensure!(finished.status.code() == Some(1), "{}", finished.error("status"));
        let said = &finished.stderr;
        ensure!(said.contains("none-such") && said.contains(RENO), "{}", finished.error("said"));
    }
    let (from, to) = (place.path("file"), place.path("to"));
    let copy = Program::plain(weft()?).args(["cp", "--fair-share"]).arg(from).arg(to);
    let finished = copy.run(TIMEOUT)?;
    ensure!(
        finished.status.code() == Some(2),
        "{}",
        finished.error("a copy on one host has no connections")
    );
    Ok(())
}
