//! Programs with connections that start children, and servers that pass a connection to a child.
//! The C library, shells, Python, Node and super-servers start the children in all their ways.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{
    Finished, Folder, Program, Running, compile_plain, locate, note_skip, ports, source,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const CONNECTIONS: u32 = 4;
const LINES: u32 = 100;
/// A shell's program that answers each line with the same line.
const ECHO_LINES: &str = "while read -r line; do echo \"$line\"; done";

/// Compiles a program once for all tests.
fn compiled(built: &'static OnceLock<Result<PathBuf>>, name: &str) -> Result<&'static PathBuf> {
    let built = built.get_or_init(|| compile_plain(name));
    built.as_ref().map_err(|error| anyhow!("{error:#}"))
}

/// Two programs with many connections; both start children that inherit but do not use them.
fn beside(way: &str) -> Result<()> {
    beside_on(&Sockets::new(Ends::Both)?, way)
}

fn beside_on(sockets: &Sockets, way: &str) -> Result<()> {
    let port = ports::next();
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let program = compiled(&BUILT, "children")?;
    let server = sockets.server(program).args(["serve", &port.to_string(), way]);
    let mut server = server.start()?.listening(Port::Tcp(port))?;
    let client = sockets.client(program).args(["connect", &port.to_string(), way]);
    let ended = client.run(TIMEOUT).and_then(Finished::success);
    ended.map_err(|error| error.context(server.account()))?.expect_output("answered 768")?;
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

/// In another PID namespace, the thread IDs of the child mean nothing to its parent.
#[test]
fn children_in_another_pid_namespace() -> Result<()> {
    const SKIPPED: i32 = 77;
    let sockets = Sockets::new(Ends::Both)?;
    let ended = sockets.server(compile_plain("pid_namespace")?).run(TIMEOUT)?;
    if ended.status.code() == Some(SKIPPED) {
        note_skip("children_in_another_pid_namespace", "only root may make namespaces");
        return Ok(());
    }
    ended.success()?.expect_output("received 20000 and 20000")?;
    Ok(())
}

#[test]
fn system_beside_connections() -> Result<()> {
    beside("system")
}

/// `system(NULL)`: the C library starts a shell to find out whether there is one.
#[test]
fn question_for_a_shell_beside_connections() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    beside_on(&sockets, "is-there-a-shell")?;
    let fallbacks = sockets.totals()?.fallbacks;
    ensure!(fallbacks.contains_key("started"), "the shell got them uncounted: {fallbacks:?}");
    Ok(())
}

#[test]
fn popen_beside_connections() -> Result<()> {
    beside("popen")
}

#[test]
fn posix_spawn_beside_connections() -> Result<()> {
    beside("posix_spawn")
}

#[test]
fn vfork_beside_connections() -> Result<()> {
    beside("vfork")
}

#[test]
fn fork_and_exec_beside_connections() -> Result<()> {
    beside("fork")
}

#[test]
fn fork_and_exit_beside_connections() -> Result<()> {
    beside("fork-exit")
}

/// A process starts children while other threads of it open, use and close connections.
fn born_beside(way: &str) -> Result<()> {
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let program = compiled(&BUILT, "connect_while_forking")?;
    let plain = Program::plain(program).args([way]).run(TIMEOUT)?;
    plain.success()?.expect_output("ended 300")?;
    let sockets = Sockets::new(Ends::Both)?;
    let ended = sockets.server(program).args([way]).run(TIMEOUT)?;
    ended.success()?.expect_output("ended 300")?;
    Ok(())
}

#[test]
fn forks_beside_connections_that_begin_and_end() -> Result<()> {
    born_beside("fork-exit")
}

#[test]
fn posix_spawn_beside_connections_that_begin_and_end() -> Result<()> {
    born_beside("posix_spawn")
}

#[test]
fn system_beside_connections_that_begin_and_end() -> Result<()> {
    born_beside("system")
}

#[test]
fn popen_beside_connections_that_begin_and_end() -> Result<()> {
    born_beside("popen")
}

/// A client that sends lines to a server and expects each back.
fn lines(program: Program, port: u16, connections: u32) -> Program {
    let program = program.arg(source("programs/lines.py")).arg(port.to_string());
    program.args([connections.to_string(), LINES.to_string()])
}

/// Runs the client of lines against a running server.
fn expect_lines(
    sockets: &Sockets,
    server: &mut Running,
    port: u16,
    connections: u32,
) -> Result<()> {
    let ended = lines(sockets.client("/usr/bin/python3"), port, connections).run(TIMEOUT);
    let ended = ended.and_then(Finished::success);
    let ended = ended.map_err(|error| error.context(server.account()))?;
    ended.expect_output(&format!("answered {}", connections * LINES)).map(drop)
}

/// A Python server whose children have the connections as their input and output.
fn handed(way: &str) -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = sockets.server("/usr/bin/python3").arg(source("programs/fd_inheritance.py"));
        let server = server.args([way, &port.to_string(), &CONNECTIONS.to_string()]);
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        expect_lines(&sockets, &mut server, port, CONNECTIONS)
            .with_context(|| format!("{way}, weft: {ends:?}"))?;
        server.wait(TIMEOUT)?.success()?;
    }
    Ok(())
}

#[test]
fn python_hands_connections_to_cat() -> Result<()> {
    handed("popen-cat")?;
    handed("spawn-cat")
}

#[test]
fn python_hands_connections_to_dash() -> Result<()> {
    handed("popen-dash")?;
    handed("spawn-dash")
}

#[test]
fn python_hands_connections_to_bash() -> Result<()> {
    handed("popen-bash")
}

#[test]
fn python_hands_connections_to_python() -> Result<()> {
    handed("popen-python")
}

/// Writes a script for `shell` and returns its path.
fn script(sockets: &Sockets, shell: &str, text: &str) -> Result<PathBuf> {
    let path = sockets.path("script");
    fs::write(&path, format!("#!{}\n{text}\n", locate(shell)?.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The super-server gives each connection to a script of a shell as input and output.
fn xinetd(shell: &str) -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let script = script(&sockets, shell, ECHO_LINES)?;
        let user = if rustix::process::geteuid().is_root() { "user = root" } else { "" };
        let configuration = format!(
            "service lines\n{{\ntype = UNLISTED\nsocket_type = stream\nprotocol = tcp\n\
             wait = no\n{user}\nbind = 127.0.0.1\nport = {port}\nserver = {}\n\
             cps = 10000 1\ninstances = UNLIMITED\nper_source = UNLIMITED\n}}\n",
            script.display()
        );
        fs::write(sockets.path("xinetd.conf"), configuration)?;
        let server = sockets.server("xinetd").line("-dontfork -f xinetd.conf -pidfile pid");
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        expect_lines(&sockets, &mut server, port, CONNECTIONS)
            .with_context(|| format!("{shell}, weft: {ends:?}"))?;
    }
    Ok(())
}

#[test]
fn xinetd_runs_dash() -> Result<()> {
    xinetd("dash")
}

#[test]
fn xinetd_runs_bash() -> Result<()> {
    xinetd("bash")
}

/// `socat` executes or starts a script that has the connection as input and output.
#[test]
fn socat_runs_dash() -> Result<()> {
    for (listening, running) in [
        ("fork", "EXEC:script"),
        ("fork", "EXEC:script,nofork"),
        ("reuseaddr", "EXEC:script,nofork"),
        ("fork", "SYSTEM:./script"),
    ] {
        for ends in Ends::ALL {
            let (sockets, port) = (Sockets::new(ends)?, ports::next());
            let script = script(&sockets, "dash", ECHO_LINES)?;
            let running = running.replace("EXEC:script", &format!("EXEC:{}", script.display()));
            let server = sockets.server("socat").line("-t 30");
            let server = server.arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,{listening}"));
            let mut server = server.arg(&running).start()?.listening(Port::Tcp(port))?;
            let connections = if listening == "fork" { CONNECTIONS } else { 1 };
            expect_lines(&sockets, &mut server, port, connections)
                .with_context(|| format!("{listening} {running}, weft: {ends:?}"))?;
        }
    }
    Ok(())
}

/// The traditional netcat makes the connection its input and output, and executes a program.
#[test]
fn netcat_becomes_a_program() -> Result<()> {
    for ends in Ends::ALL {
        for shell in ["cat", "dash"] {
            let (sockets, port) = (Sockets::new(ends)?, ports::next());
            let becomes =
                if shell == "cat" { locate("cat")? } else { script(&sockets, shell, ECHO_LINES)? };
            let server = sockets.server("nc.traditional").line("-l -s 127.0.0.1 -p");
            let server = server.arg(port.to_string()).arg("-e").arg(becomes);
            let mut server = server.start()?.listening(Port::Tcp(port))?;
            expect_lines(&sockets, &mut server, port, 1)
                .with_context(|| format!("{shell}, weft: {ends:?}"))?;
            server.wait(TIMEOUT)?.success()?;
        }
    }
    Ok(())
}

/// A shell that opens connections itself: a redirection of its own, of a builtin command, of a
/// command that it starts, and of a whole group.
const DEV_TCP: &str = r#"
address=/dev/tcp/127.0.0.1/$1
same() { [ "$2" = "$3" ] || { echo "$1: '$2' instead of '$3'"; exit 1; }; }

exec 3<>"$address"
for number in {1..100}; do
    echo "line $number" >&3
    read -r answer <&3
    same builtins "$answer" "line $number"
done
for number in {1..10}; do
    printf '%s\n' "child $number" | cat >&3
    same children "$(head -c $((7 + ${#number})) <&3)" "child $number"
done
exec 3>&-

{
    echo first; read -r answer; same group "$answer" first >&2
    echo second; read -r answer; same group "$answer" second >&2
} <>"$address" >&0

exec 4<>"$address" 5>&4 4>&4
echo copied >&5
read -r answer <&4
same copied "$answer" copied
exec 4>&- 5>&-
echo "all the same"
"#;

#[test]
fn bash_opens_connections_by_dev_tcp() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = sockets.server("/usr/bin/python3").arg(source("programs/echo.py"));
        let server = server.args(["serve", &port.to_string(), "3"]);
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let script = script(&sockets, "bash", DEV_TCP)?;
        let client = sockets.client("bash").arg(script).arg(port.to_string()).run(TIMEOUT);
        let ended = client.and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()));
        ended.with_context(|| format!("weft: {ends:?}"))?.expect_output("all the same")?;
        server.wait(TIMEOUT)?.success()?;
    }
    Ok(())
}

/// As root the server becomes another user in the child, before it executes the script.
#[test]
fn cgi_answers_are_whole() -> Result<()> {
    const LENGTH: usize = 200_000;
    const REQUESTS: &str = "100";
    for ends in [Ends::Both, Ends::Server] {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        // Another user must be able to read the directory.
        let folder = Folder::new(0o755)?;
        let public = folder.path();
        fs::create_dir(public.join("cgi-bin"))?;
        let body = public.join("body");
        fs::write(&body, sockets.make_file("body", LENGTH)?)?;
        let text = format!("echo Content-Type: text/plain; echo; exec cat {}", body.display());
        fs::rename(script(&sockets, "dash", &text)?, public.join("cgi-bin/script")).or_else(
            |_| fs::copy(sockets.path("script"), public.join("cgi-bin/script")).map(drop),
        )?;
        let server = sockets.server("/usr/bin/python3").line("-m http.server --cgi");
        let server = server.line("--bind 127.0.0.1").arg(port.to_string()).directory(public);
        let server = server.start()?.listening(Port::Tcp(port));
        let answered = server.and_then(|mut server| {
            let client = sockets.client("/usr/bin/python3").arg(source("programs/cgi.py"));
            let client = client.args([&port.to_string(), REQUESTS, "cgi-bin/script"]).arg(&body);
            let ended = client.run(TIMEOUT).and_then(Finished::success);
            ended
                .map_err(|error| error.context(server.account()))?
                .expect_output(&format!("answered {REQUESTS}"))
        });
        answered.with_context(|| format!("weft: {ends:?}"))?;
    }
    Ok(())
}

/// Node starts children while it has sockets, and writes files after it has closed them.
#[test]
fn node_starts_children_and_writes_files() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let connections = (4 * CONNECTIONS).to_string();
        let server = sockets.server("node").arg(source("programs/echo.js"));
        let server = server.args(["serve", &port.to_string(), &connections]);
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let client = sockets.client("node").arg(source("programs/children.js"));
        let client = client.args([&port.to_string(), &connections, "."]);
        let ended = client.run(TIMEOUT).and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()));
        ended.with_context(|| format!("weft: {ends:?}"))?.expect_output("wrote 50")?;
        server.wait(TIMEOUT)?.success()?;
    }
    Ok(())
}
