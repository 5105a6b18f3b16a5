//! OpenSSH over loopback. Its server executes itself again for each connection and gives up its
//! privileges and most system calls. It passes the connection on as standard input, which the C
//! library may read without a hook, so connections fall back to TCP, and must work.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, same};
use weft_lab::{Finished, Running, note_skip, ports, ssh};

const TIMEOUT: Duration = Duration::from_secs(60);
const BYTES: usize = 4_000_000;

/// A server with its own keys, and the configuration of a client that it accepts.
struct Server {
    sockets: Sockets,
    running: Running,
    configuration: PathBuf,
}

impl Server {
    fn start() -> Result<Self> {
        let sockets = Sockets::new(Ends::Both)?;
        let port = ports::next();
        let sshd = ssh::prepare(&sockets.path(""), port, &[("server", "")])?;
        let sshd = sockets.server(sshd).args(["-D", "-e", "-f"]);
        let running = sshd.arg(sockets.path("sshd_config")).start()?.listening(Port::Tcp(port))?;
        let configuration = sockets.path("ssh_config");
        Ok(Self { sockets, running, configuration })
    }

    fn run(&mut self, client: &str, arguments: &[&str]) -> Result<Finished> {
        let program = self.sockets.client(client).arg("-F").arg(&self.configuration);
        let ended = program.args(arguments).run(TIMEOUT).and_then(Finished::success);
        ended.map_err(|error| error.context(self.running.account()))
    }

    fn talk(&mut self) -> Result<()> {
        let sent = self.sockets.make_file("sent", BYTES)?;
        let [sent_path, there] =
            ["sent", "there"].map(|name| self.sockets.path(name).display().to_string());
        self.run("ssh", &["server", "echo", "$((6 * 7))"])?.expect_output("42")?;
        let bytes = self.run("ssh", &["server", "od -v -A n -t x1", &sent_path])?.stdout;
        let bytes: Option<Vec<u8>> =
            bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        same(&bytes.context("not what od prints")?, &sent)?;
        self.run("scp", &["-q", "sent", &format!("server:{there}")])?;
        self.sockets.expect_file("there", &sent)?;
        self.run("scp", &["-q", "-O", &format!("server:{there}"), "back"])?;
        self.sockets.expect_file("back", &sent)?;
        let batch = self.sockets.path("batch");
        let directory = self.sockets.path("");
        fs::write(&batch, format!("cd {}\nput sent up\nget up down\n", directory.display()))?;
        self.run("sftp", &["-q", "-b", &batch.display().to_string(), "server"])?;
        ["up", "down"].into_iter().try_for_each(|name| self.sockets.expect_file(name, &sent))
    }
}

#[test]
fn shells_and_files() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        note_skip("shells_and_files", "only root may let users in");
        return Ok(());
    }
    let mut server = Server::start()?;
    server.talk()?;
    server.sockets.check_fallback("stdio")
}
