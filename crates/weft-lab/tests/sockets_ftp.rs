//! vsftpd with curl and lftp: one connection for the commands, and one for each file, which either
//! side opens. vsftpd's sessions give up most system calls and address space, so they must work
//! over TCP.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::Result;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Program, Running, note_skip, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
const BYTES: usize = 3_000_000;
/// A server of one directory, to which anyone may upload.
struct Server {
    sockets: Sockets,
    running: Running,
    port: u16,
}

impl Server {
    /// `options` are lines of vsftpd.conf(5).
    fn start(options: &str) -> Result<Self> {
        let sockets = Sockets::new(Ends::Both)?;
        let port = ports::next();
        let [root, empty, configuration] =
            ["root", "empty", "vsftpd.conf"].map(|name| sockets.path(name));
        [&root, &empty, &root.join("up")].into_iter().try_for_each(fs::create_dir)?;
        // vsftpd refuses a root directory to which the session's user may write.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o555))?;
        fs::set_permissions(root.join("up"), fs::Permissions::from_mode(0o777))?;
        let lines = format!(
            "listen=YES\nbackground=NO\nlisten_address=127.0.0.1\nlisten_port={port}\n\
             anonymous_enable=YES\nanon_root={}\nsecure_chroot_dir={}\nanon_umask=022\n\
             write_enable=YES\nanon_upload_enable=YES\nlocal_enable=NO\n\
             connect_from_port_20=NO\n{options}\n",
            root.display(),
            empty.display(),
        );
        fs::write(&configuration, lines)?;
        let running = sockets.server("vsftpd").arg(&configuration).start()?;
        Ok(Self { running: running.listening(Port::Tcp(port))?, sockets, port })
    }

    fn url(&self) -> String {
        format!("ftp://127.0.0.1:{}", self.port)
    }

    fn run(&mut self, client: &Program) -> Result<()> {
        let ended = client.run(TIMEOUT).and_then(Finished::success);
        ended.map(drop).map_err(|error| error.context(self.running.account()))
    }

    /// Transfers files with curl, with an option for the side that opens the data connection.
    fn curl(&mut self, mode: &[&str]) -> Result<()> {
        let sent = self.sockets.make_file("sent", BYTES)?;
        fs::copy(self.sockets.path("sent"), self.sockets.path("root/up/there"))?;
        let curl = self.sockets.client("curl").line("-sS").args(mode);
        let url = self.url();
        self.run(&curl.clone().args(["-o", "got", &format!("{url}/up/there")]))?;
        self.sockets.expect_file("got", &sent)?;
        let name = format!("up/curl{}", mode.concat());
        self.run(&curl.args(["-T", "sent", &format!("{url}/{name}")]))?;
        self.sockets.expect_file(&format!("root/{name}"), &sent)
    }

    /// Transfers files with lftp in both directions, two at a time.
    fn lftp(&mut self) -> Result<()> {
        let files = ["one", "two"].map(|name| (name, self.sockets.make_file(name, BYTES)));
        let commands = format!(
            "set net:max-retries 1; set net:timeout 200; open {}; \
             set ftp:passive-mode on; put one -o up/one; \
             set ftp:passive-mode off; put two -o up/two; \
             mirror -P 2 up mirror; bye",
            self.url()
        );
        self.run(&self.sockets.client("lftp").args(["--norc", "-c", &commands]))?;
        for (name, content) in files {
            let content = content?;
            self.sockets.expect_file(&format!("root/up/{name}"), &content)?;
            self.sockets.expect_file(&format!("mirror/{name}"), &content)?;
        }
        Ok(())
    }

    fn transfer(&mut self) -> Result<()> {
        self.curl(&["--ftp-pasv"])?;
        self.curl(&["--ftp-port", "127.0.0.1"])?;
        self.lftp()
    }
}

/// One user runs the server and its sessions.
#[test]
fn files_of_one_user() -> Result<()> {
    let mut server = Server::start("run_as_launching_user=YES")?;
    server.transfer()?;
    server.sockets.check_none()
}

/// A session gives up its user and its root directory when it begins.
#[test]
fn sessions_without_privileges() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        note_skip("sessions_without_privileges", "only root has privileges to give up");
        return Ok(());
    }
    let mut server = Server::start("")?;
    if !server.sockets.are_reachable() {
        note_skip("sessions_without_privileges", "another user cannot read what has been built");
        return Ok(());
    }
    server.transfer()?;
    server.sockets.check_none()
}
