//! Accesses to a connection that Weft refuses, or that no hook sees: io_uring, and the C library's
//! streams on a connection's descriptor.

use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{compile, ports};

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn io_uring_is_refused_unless_the_process_stays_on_tcp() -> Result<()> {
    let program = compile("rings")?;
    let sockets = Sockets::new(Ends::Both)?;
    let refused = sockets.server(&program).env("WEFT_LOG", "info").run(TIMEOUT)?.success()?;
    ensure!(refused.stdout == "ring: EPERM\nline\n", refused.complaint("not refused"));
    ensure!(refused.stderr.contains("io_uring is refused"), refused.complaint("not reported"));
    ensure!(refused.stderr.contains("shared memory"), refused.complaint("not in memory"));

    let sockets = Sockets::new(Ends::Both)?;
    let through = sockets.server(&program).env("WEFT_LOG", "info");
    let through = through.env("WEFT_SOCKETS_IO_URING", "tcp").run(TIMEOUT)?.success()?;
    let plain = sockets.plain(&program).run(TIMEOUT)?.success()?;
    ensure!(through.stdout == plain.stdout, through.complaint("not as on the kernel"));
    ensure!(through.stderr.contains("io_uring is used"), through.complaint("not reported"));
    ensure!(!through.stderr.contains("shared memory"), through.complaint("in memory"));
    Ok(())
}

/// bash writes through the C library's streams, with the connection as their descriptor.
#[test]
fn bash_talks_by_dev_tcp() -> Result<()> {
    let (sockets, port) = (Sockets::new(Ends::Both)?, ports::next());
    let server = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr");
    let server = sockets.server("socat").args([server.as_str(), "PIPE"]);
    let _server = server.start()?.listening(Port::Tcp(port))?;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3; read line <&3; echo \"got $line\"; \
         printf 'more\\n' >&3; read line <&3; echo \"got $line\""
    );
    let client = sockets.client("bash").args(["-c", script.as_str()]).run(TIMEOUT)?.success()?;
    ensure!(client.stdout == "got hello\ngot more\n", client.complaint("not the answers"));
    sockets.check_left("stdio")
}
