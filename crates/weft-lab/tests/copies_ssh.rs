//! `weft cp --rsh ssh` with OpenSSH's server on loopback, compared with `rsync -e ssh` and scp.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{
    Finished, Folder, Program, Running, ensure_data, locate, note_skip, ports, ssh, weft,
};

const TIMEOUT: Duration = Duration::from_secs(120);

/// An OpenSSH server with its own keys, and the configuration of a client that it accepts.
struct Host {
    folder: Folder,
    running: Running,
}

impl Host {
    /// `forced`: the command that the server runs for a client of the host `bound`.
    fn start(forced: &str) -> Result<Self> {
        let folder = Folder::new(0o700)?;
        let bound = format!("command=\"{forced}\",restrict");
        let port = ports::next();
        let sshd = ssh::prepare(
            folder.path(),
            port,
            &[("server", ""), ("localhost", ""), ("bound", &bound)],
        )?;
        let sshd = Program::plain(sshd).args(["-D", "-e", "-f"]);
        let sshd = sshd.arg(folder.path().join("sshd_config"));
        let running = sshd.start()?.listening(Port::Tcp(port))?;
        Ok(Self { folder, running })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shell(&self) -> String {
        format!("ssh -F '{}'", self.path("ssh_config").display())
    }

    fn cp(&self) -> Result<Program> {
        let copy = Program::plain(weft()?).args(["cp", "--rsh", &self.shell(), "--remote-weft"]);
        Ok(copy.arg(weft()?).env("XDG_CONFIG_HOME", self.path("config")))
    }

    fn run(&mut self, program: &Program) -> Result<Finished> {
        let ended = program.run(TIMEOUT).and_then(Finished::success);
        ended.map_err(|error| error.context(self.running.account()))
    }
}

fn make_tree(root: &Path) -> Result<()> {
    for folder in 0..5 {
        let path = root.join(format!("folder {folder}/of 'it'"));
        fs::create_dir_all(&path)?;
        for file in 0..60 {
            fs::write(path.join(format!("{file};$HOME\n")), vec![b'x'; file * 131])?;
        }
    }
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(|word| word.to_ne_bytes()).collect();
    fs::write(root.join("large"), large)?;
    fs::set_permissions(root.join("large"), Permissions::from_mode(0o640))?;
    fs::hard_link(root.join("large"), root.join("another name"))?;
    symlink("no where", root.join("link"))?;
    Ok(())
}

/// Checks with rsync that the two trees have the same names, contents, modes, times and links.
fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let rsync = Program::plain(locate("rsync")?).args(["-aHnic", "--delete", "--modify-window=-1"]);
    let stdout = rsync.arg(one.join("")).arg(other.join("")).run(TIMEOUT)?.success()?.stdout;
    ensure_data!(stdout.is_empty(), "the trees differ: {stdout}");
    Ok(())
}

#[test]
fn trees_go_both_ways_by_ssh_and_are_as_rsync_makes_them() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        note_skip("trees_go_both_ways_by_ssh", "only root may let users in");
        return Ok(());
    }
    let mut host = Host::start("false")?;
    let from = host.path("from");
    make_tree(&from)?;
    let there = host.path("there and 'back'");
    let place = format!("server:{}", there.display());
    let copy = host.cp()?.arg("--verify").arg(from.join("")).arg(&place);
    host.run(&copy)?;
    assert_same(&from, &there)?;
    let copy = host.cp()?.arg(format!("{place}/")).arg(host.path("back"));
    host.run(&copy)?;
    assert_same(&from, &host.path("back"))?;
    // To the host of this name the data goes beside ssh, with the same result.
    let copy = host.cp()?.arg("--data=tcp").arg(from.join(""));
    let ended = host.run(&copy.arg(format!("localhost:{}", host.path("beside").display())))?;
    ensure!(ended.stdout.trim_end().ends_with("data by TCP"), "{}", ended.stdout);
    assert_same(&from, &host.path("beside"))?;
    // rsync over the same ssh produces the same tree.
    let rsync = Program::plain(locate("rsync")?).args(["-aH", "-e", &host.shell()]);
    let rsync = rsync.arg(from.join("")).arg(format!("server:{}", host.path("rsync").display()));
    host.run(&rsync)?;
    assert_same(&host.path("rsync"), &there)?;
    // A single file, as scp copies it.
    let [one, other] = ["one", "other"].map(|name| host.path(name));
    let config = host.path("ssh_config");
    let scp = Program::plain("scp").args(["-q", "-p", "-F"]).arg(config);
    let scp = scp.arg(from.join("large")).arg(format!("server:{}", one.display()));
    host.run(&scp)?;
    let copy = host.cp()?.arg(from.join("large")).arg(format!("server:{}", other.display()));
    host.run(&copy)?;
    ensure_data!(fs::read(one)? == fs::read(other)?, "another content");
    Ok(())
}

#[test]
fn key_that_is_bound_to_a_directory_reads_nothing_else() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        note_skip("key_that_is_bound_to_a_directory", "only root may let users in");
        return Ok(());
    }
    let data = Folder::new(0o700)?;
    fs::write(data.path().join("file"), "x")?;
    let folder = data.path().display();
    let forced = format!("{} serve --stdio --read-only data={folder}", weft()?.display());
    let mut host = Host::start(&forced)?;
    let got = host.path("got");
    let copy = host.cp()?.arg("bound:data/file").arg(&got);
    host.run(&copy)?;
    ensure_data!(fs::read_to_string(&got)? == "x", "another content");
    let secret = host.path("ssh_config").display().to_string();
    for place in [format!("bound:{secret}"), format!("bound:data/../{secret}")] {
        let refused = host.cp()?.arg(place).arg(host.path("secret")).run(TIMEOUT)?;
        let is_refused = refused.success().is_err() && !host.path("secret").exists();
        ensure_data!(is_refused, "a key has read what it may not");
    }
    let refused = host.cp()?.arg(&got).arg("bound:data/new").run(TIMEOUT)?;
    ensure!(refused.stderr.contains("reading only"), "{}", refused.stderr);
    Ok(())
}
