//! Starts servers for the tests and the benchmark, with their configuration files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::endpoint::Port;
use crate::program::{Program, Running};

/// How long a server's preparations may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where Debian has Apache's modules.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

/// Starts `program`, which is Apache, with its event MPM. It serves the files of `directory`, and
/// also keeps its own files there. `settings` are added to its configuration. Apache does not serve
/// as root, so for root the settings must name another user.
///
/// # Errors
///
/// If it does not come up.
pub fn apache(program: Program, directory: &Path, port: u16, settings: &str) -> Result<Running> {
    let at = directory.display();
    let modules = ["mpm_event", "authz_core"]
        .map(|name| format!("LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so\n"));
    let configuration = format!(
        "{}ServerRoot {at}\nServerName localhost\nListen 127.0.0.1:{port}\nDocumentRoot {at}\n\
         PidFile {at}/apache-{port}.pid\nDefaultRuntimeDir {at}\nErrorLog {at}/apache-{port}.log\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\nStartServers 2\n\
         ThreadsPerChild 25\nServerLimit 4\nMaxRequestWorkers 100\n{settings}\n",
        modules.concat()
    );
    let file = directory.join(format!("apache-{port}.conf"));
    fs::write(&file, configuration)?;
    program.line("-D FOREGROUND -f").arg(file).start()?.listening(Port::Tcp(port))
}

/// Starts `program`, which is HAProxy, in front of the server at port `back`. `settings` are added
/// to those of both sides.
///
/// # Errors
///
/// If it does not come up.
pub fn haproxy(
    program: Program,
    directory: &Path,
    [front, back]: [u16; 2],
    settings: &str,
) -> Result<Running> {
    let configuration = format!(
        "global\n nbthread 2\ndefaults\n timeout connect 60s\n timeout client 60s\n\
         timeout server 60s\n {settings}\nfrontend front\n bind 127.0.0.1:{front}\n\
         default_backend back\nbackend back\n server back 127.0.0.1:{back}\n"
    );
    let file = directory.join(format!("haproxy-{front}.conf"));
    fs::write(&file, configuration)?;
    program.line("-db -f").arg(file).start()?.listening(Port::Tcp(front))
}

/// Creates a database in `directory/data` with programs that `tool` returns, and starts `server`,
/// which is MariaDB. The only user is `root`, without a password.
///
/// # Errors
///
/// If it cannot be made, or the server does not come up.
pub fn mariadb(
    server: Program,
    tool: impl Fn(&str) -> Program,
    directory: &Path,
    port: u16,
    options: &str,
) -> Result<Running> {
    let data = directory.join("data");
    // MariaDB refuses to run as root without this option.
    let user = if rustix::process::geteuid().is_root() { "--user=root" } else { "" };
    let data = format!("--datadir={}", data.display());
    let install = tool("mariadb-install-db").line("--no-defaults --skip-test-db").line(user);
    let install = install.line("--auth-root-authentication-method=normal").arg(&data);
    install.run(TIMEOUT)?.success()?;
    let server = server.line("--no-defaults --bind-address=127.0.0.1 --skip-name-resolve");
    let server = server.line("--innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M");
    let server = server.line(user).arg(data).line(options);
    let server = server.arg(format!("--socket={}", directory.join("mariadb").display()));
    server.arg(format!("--port={port}")).start()?.listening(Port::Tcp(port))
}

/// Adds to `program`, which is sysbench, the options for that database. The test and its command
/// are still missing.
#[must_use]
pub fn sysbench(program: Program, port: u16) -> Program {
    let program = program.line("--db-driver=mysql --mysql-host=127.0.0.1 --mysql-user=root");
    let program = program.line("--mysql-db=mysql --tables=1 --table-size=2000");
    program.arg(format!("--mysql-port={port}"))
}

/// Starts `program`, which is mosquitto. It logs messages of `log_type` to standard error.
///
/// # Errors
///
/// If it does not come up.
pub fn mosquitto(program: Program, directory: &Path, port: u16, log_type: &str) -> Result<Running> {
    // Started by root, mosquitto must not change its user: only processes of one user share memory.
    let user = if rustix::process::geteuid().is_root() { "user root\n" } else { "" };
    let configuration = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n{user}\
         log_dest stderr\nlog_type {log_type}\nmax_queued_messages 0\nmax_inflight_messages 0\n"
    );
    let file = directory.join(format!("mosquitto-{port}.conf"));
    fs::write(&file, configuration)?;
    program.arg("-c").arg(file).start()?.listening(Port::Tcp(port))
}
