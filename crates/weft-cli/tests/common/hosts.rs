//! Two hosts of `weft cp`: a client, and a server that shares a folder.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{succeed, weft};

/// Two hosts with separate folders, and a server on one of them.
pub(crate) struct Hosts {
    pub(crate) folder: tempfile::TempDir,
    options: Vec<String>,
    pub(crate) server: Child,
    pub(crate) port: u16,
}

/// What the servers of this folder say, for whom a test fails.
fn log(folder: &Path) -> fs::File {
    let path = folder.join("server.log");
    fs::OpenOptions::new().create(true).append(true).open(path).expect("room")
}

/// Starts a server that shares a folder. Returns the server and its port.
pub(crate) fn serve(folder: &Path, options: &[String]) -> (Child, u16) {
    let mut server = weft(&folder.join("server"))
        .args(["serve", "--bind", "127.0.0.1", "--port", "0"])
        .args(options)
        .arg(folder.join("share"))
        .stdout(Stdio::piped())
        .stderr(log(folder))
        .spawn()
        .expect("weft starts");
    let mut line = String::new();
    let out = server.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let port = line.split([':', ',']).nth(1).and_then(|port| port.parse().ok());
    (server, port.unwrap_or_else(|| panic!("{line}")))
}

/// Waits until the condition holds; a hang fails the test.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(240), "waited four minutes until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

impl Hosts {
    pub(crate) fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let share = folder.path().join("share");
        fs::create_dir(&share).expect("room");
        let key = succeed(weft(&folder.path().join("client")).args(["cp", "--show-key"]));
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let options = [options, vec!["--allow".into(), key.trim().into()]].concat();
        let (server, port) = serve(folder.path(), &options);
        Self { folder, options, server, port }
    }

    /// Kills the server, so that it cannot clean up, and starts another one in its place.
    pub(crate) fn restart(&mut self) {
        self.kill_server();
        (self.server, self.port) = serve(self.folder.path(), &self.options);
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.kill().expect("our own");
        self.server.wait().expect("our own");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn client(&self) -> Command {
        let mut command = weft(&self.path("client"));
        command.args(["cp", "--accept-new"]);
        command
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("127.0.0.1:{}//{path}", self.port)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if thread::panicking() {
            let said = fs::read_to_string(self.path("server.log")).unwrap_or_default();
            eprintln!("the server says:\n{said}");
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns two servers with these options. The client of the first one may use both.
pub(crate) fn two_servers(first: &[&str], second: &[&str]) -> (Hosts, Hosts) {
    let one = Hosts::new(first);
    let key = succeed(weft(&one.path("client")).args(["cp", "--show-key"]));
    let second = [&["--allow", key.trim()], second].concat();
    (one, Hosts::new(&second))
}

/// Has a client, whose command this is, copy a text that can be compressed from one server to
/// another, and expects that it was compressed on the way.
pub(crate) fn text_is_compressed_between(one: &Hosts, two: &Hosts, client: &mut Command) {
    let text = "a line like the one before\n".repeat(50_000);
    fs::write(one.path("share/text"), &text).expect("room");
    let copy = client.args(["--compress=zstd", &one.at("share/text"), &two.at("share/text")]);
    let said = succeed(copy);
    assert!(said.contains("sent as"), "{said}");
    assert_eq!(fs::read_to_string(two.path("share/text")).expect("a file"), text);
}

/// Expects that no server has made the acquaintance of another one.
pub(crate) fn servers_are_strangers(servers: [&Hosts; 2]) {
    for server in servers {
        assert!(!server.path("server/weft/known-servers").exists());
    }
}
