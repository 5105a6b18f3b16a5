//! Accesses to a connection that Weft refuses, or that no hook sees: io_uring, and the C library's
//! streams on a connection's descriptor.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile, compile_library, compile_plain, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn io_uring_is_refused_unless_the_process_stays_on_tcp() -> Result<()> {
    let program = compile("io_uring")?;
    let sockets = Sockets::new(Ends::Both)?;
    let refused = sockets.server(&program).env("WEFT_LOG", "info").run(TIMEOUT)?.success()?;
    let refused = refused.expect_lines("ring: EPERM\nline\n").context("not refused")?;
    ensure!(refused.stderr.contains("io_uring is refused"), refused.error("not reported"));
    ensure!(refused.stderr.contains("shared memory"), refused.error("not in memory"));

    let sockets = Sockets::new(Ends::Both)?;
    let through = sockets.server(&program).env("WEFT_LOG", "info");
    let through = through.env("WEFT_SOCKETS_IO_URING", "tcp").run(TIMEOUT)?.success()?;
    let plain = sockets.plain(&program).run(TIMEOUT)?.success()?;
    let through = through.expect_lines(&plain.stdout).context("not as on the kernel")?;
    ensure!(through.stderr.contains("io_uring is used"), through.error("not reported"));
    ensure!(!through.stderr.contains("shared memory"), through.error("in memory"));
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
    client.expect_lines("got hello\ngot more\n").context("not the answers")?;
    sockets.check_fallback("stdio")
}

/// Programs find functions of the C library in libraries, and modules find them before the hooks.
#[test]
fn functions_found_in_other_ways_reach_the_same_connection() -> Result<()> {
    let (program, module) = (compile_plain("bindings")?, compile_library("module")?);
    let module = module.display().to_string();
    for (arguments, in_memory) in
        [(&["module", module.as_str()][..], false), (&["library"], true), (&["next"], true)]
    {
        let plain = Program::plain(&program).args(arguments).run(TIMEOUT)?.success()?;
        let sockets = Sockets::new(Ends::Both)?;
        let on_weft = sockets.server(&program).env("WEFT_LOG", "info").args(arguments);
        let on_weft = on_weft.run(TIMEOUT)?.success()?.expect_lines(&plain.stdout)?;
        ensure!(on_weft.stderr.contains("shared memory"), on_weft.error("not in memory"));
        let stays = !on_weft.stderr.contains("RTLD_DEEPBIND");
        ensure!(stays == in_memory, on_weft.error("the wrong transport"));
    }
    Ok(())
}
