//! `weft pipeline` over shared memory, by `weft run`, and on a host that OpenSSH reaches.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Folder, Program, ensure_data, note_skip, ports, ssh, weft};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The workers inherit what `weft run` sets. A worker that starts a command falls back to TCP.
#[test]
fn streams_between_built_in_filters_go_through_shared_memory() -> Result<()> {
    const COUNT: u64 = 1_000;
    const SIZE: u64 = 50_000;
    let sockets = Sockets::new(Ends::Both)?;
    let description = format!(
        "[filter.source]\nbuiltin = 'generate'\nwith = {{ count = {COUNT}, size = {SIZE} }}\n\
         [filter.pass]\nfrom = 'source'\nbuiltin = 'pass'\n\
         [filter.count]\nfrom = 'pass'\ncommand = 'wc -c'\n\
         [filter.end]\nfrom = 'pass'\nbuiltin = 'measure'\n"
    );
    fs::write(sockets.path("pipeline.toml"), description)?;
    let run = sockets.client(weft()?).args(["pipeline", "run", "pipeline.toml"]);
    // One stream leads to `pass`, one from it to `end`. A stream may begin on TCP.
    sockets.until_shared(2 * COUNT * SIZE * 9 / 10, || {
        let ended = run.run(TIMEOUT)?.success()?;
        ensure_data!(ended.stdout.trim() == (COUNT * SIZE).to_string(), "{}", ended.stdout);
        Ok(())
    })
}

#[test]
fn copies_run_on_a_host_that_ssh_reaches() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        note_skip("copies_run_on_a_host_that_ssh_reaches", "only root may let users in");
        return Ok(());
    }
    let folder = Folder::new(0o700)?;
    let port = ports::next();
    let sshd = ssh::prepare(folder.path(), port, &[("server", "")])?;
    let sshd = Program::plain(sshd).args(["-D", "-e", "-f"]);
    let sshd = sshd.arg(folder.path().join("sshd_config"));
    let mut running = sshd.start()?.listening(Port::Tcp(port))?;
    let description = folder.path().join("pipeline.toml");
    let text = |command: &str| {
        format!(
            "[host.server]\naddress = '127.0.0.1'\n[host.local]\naddress = '127.0.0.1'\n\
             [filter.numbers]\ncommand = 'seq 100000'\nsplit = 'lines'\n\
             [filter.odd]\nfrom = 'numbers'\ncommand = '{command}'\ncopies = 4\n\
             hosts = ['server', 'local']\nsplit = 'lines'\n\
             [filter.sum]\nfrom = 'odd'\ncommand = \"awk '{{ s += $1 }} END {{ print s }}'\"\n"
        )
    };
    let shell = format!("ssh -F '{}'", folder.path().join("ssh_config").display());
    let run = Program::plain(weft()?).args(["pipeline", "run", "--rsh", &shell, "--remote-weft"]);
    let run = run.arg(weft()?).arg(&description);
    fs::write(&description, text("grep [13579]$"))?;
    let ended = run.run(TIMEOUT).and_then(Finished::success);
    let ended = ended.map_err(|error| error.context(running.account()))?;
    ensure_data!(ended.stdout == "2500000000\n", "{}", ended.stdout);
    fs::write(&description, text("test -z \"$SSH_CONNECTION\" || exit 9; cat"))?;
    let failed = run.run(TIMEOUT)?;
    let why = ", on server: its command ended with exit status: 9";
    ensure!(failed.success().is_err_and(|error| format!("{error:#}").contains(why)));
    Ok(())
}
