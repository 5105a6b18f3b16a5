//! netcat and socat: files through standard input and output, directions that are closed
//! separately, and connections that a process passes to the program that it executes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Program, Running, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
const LENGTH: usize = 20_000_003;
/// Options of socat: after the end of one direction the other may take minutes.
const LASTING: &str = "-t 240";
/// How often a connection may be logged otherwise than expected. A direction may end before both
/// ends have agreed on shared memory.
const TRIES: usize = 5;

/// A command of a shell, which itself runs under Weft if the command shall.
fn shell(program: Program, command: String) -> Program {
    program.args(["-c".to_owned(), command])
}

/// Both ends send and receive: `lengths` has the bytes of the server's file and of the client's.
/// The server shuts its direction down at the end of its file, and so does the client if the server
/// has no file.
fn exchange(ends: Ends, lengths: [usize; 2]) -> Result<()> {
    let sockets = Sockets::new(ends)?;
    let of_server = sockets.make_file("of-server", lengths[0])?;
    let of_client = sockets.make_file("of-client", lengths[1])?;
    // A listening netcat ends when the client has closed, even if it has more to send.
    let half_close = if lengths[0] == 0 { "-N" } else { "" };
    let exchange = || -> Result<()> {
        let port = ports::next();
        let server = format!("exec nc.openbsd -N -l 127.0.0.1 {port} <of-server >at-server");
        let client = format!("exec nc.openbsd {half_close} 127.0.0.1 {port} <of-client >at-client");
        let server = shell(sockets.server("sh"), server).start()?.listening(Port::Tcp(port))?;
        shell(sockets.client("sh"), client).run(TIMEOUT)?.success()?;
        server.wait(TIMEOUT)?.success()?;
        sockets.expect_file("at-client", &of_server)?;
        sockets.expect_file("at-server", &of_client)
    };
    exchange()?;
    let (totals, enough) = (sockets.totals()?, (lengths[0] + lengths[1]) as u64 / 2);
    if ends != Ends::Both {
        return sockets.check_none();
    }
    // If a direction ends before its last bytes have been read, TCP carries the rest of the other.
    if totals.bytes >= enough || totals.fallbacks.contains_key("shut") {
        return Ok(());
    }
    sockets.until_shared(enough, exchange)
}

#[test]
fn files_by_netcat() -> Result<()> {
    for ends in Ends::ALL {
        for lengths in [[0, LENGTH], [LENGTH, 0], [LENGTH, LENGTH], [1, LENGTH]] {
            exchange(ends, lengths).with_context(|| format!("{ends:?}, {lengths:?}"))?;
        }
    }
    Ok(())
}

/// With `WEFT_LOG=info` each program on Weft writes one line for the connection: what carries it,
/// and if that is TCP, why.
#[test]
fn what_carries_a_connection_is_logged() -> Result<()> {
    let expect_line = |end: &Finished, words: &str| {
        let lines: Vec<_> = end.stderr.lines().filter(|line| line.contains("connection")).collect();
        let right = match lines[..] {
            [] => words.is_empty(),
            [line] => !words.is_empty() && line.contains("127.0.0.1:") && line.ends_with(words),
            _ => false,
        };
        ensure!(right, end.error(format!("not {words:?} once")));
        Ok(())
    };
    const PEER: &str = ": tcp, the peer does not run on weft, or belongs to another user";
    const ENDED: &str = ": tcp, the peer ended before it agreed to share memory";
    const MEMORY: &str = ": shared memory";
    for (ends, rules, [server_says, client_says]) in [
        (Ends::Both, "", [MEMORY; 2]),
        (Ends::Both, "use tcp connect nc.openbsd *:*\n", [PEER, ": tcp, a rule selects TCP"]),
        (Ends::Server, "", [PEER, ""]),
        (Ends::Client, "", ["", ENDED]),
    ] {
        let attempt = || -> Result<()> {
            let (sockets, port) = (Sockets::new(ends)?, ports::next());
            let server = format!("exec nc.openbsd -N -l 127.0.0.1 {port} </dev/null >/dev/null");
            sockets.make_file("sent", LENGTH)?;
            let client = format!("exec nc.openbsd -N 127.0.0.1 {port} <sent >/dev/null");
            let logs = |program: Program| program.env("WEFT_LOG", "info");
            let server = logs(shell(sockets.server("sh"), server)).start()?;
            let server = server.listening(Port::Tcp(port))?;
            let mut client = logs(shell(sockets.client("sh"), client));
            if !rules.is_empty() {
                std::fs::write(sockets.path("rules"), rules)?;
                client = client.env("WEFT_SOCKETS_RULES", sockets.path("rules"));
            }
            let client = client.run(TIMEOUT)?.success()?;
            let server = server.wait(TIMEOUT)?.success()?;
            expect_line(&client, client_says).context("the client")?;
            expect_line(&server, server_says).context("the server")
        };
        let tries = if client_says == MEMORY { TRIES } else { 1 };
        (1..tries).find_map(|_| attempt().ok()).map_or_else(attempt, Ok)?;
    }
    Ok(())
}

/// A server that forks a child for each connection.
fn forking(program: Program, port: u16, other_address: &str) -> Result<Running> {
    let program = program.line(LASTING).arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,fork"));
    program.arg(other_address).start()?.listening(Port::Tcp(port))
}

/// Runs clients that send files to `port` at the same time and receive the same bytes.
fn expect_echo(sockets: &Sockets, program: &Program, port: u16) -> Result<()> {
    const CLIENTS: usize = 4;
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let sent = sockets.make_file(&format!("sent-{n}"), LENGTH / CLIENTS)?;
        let client = format!("exec socat {LASTING} - TCP:127.0.0.1:{port} <sent-{n} >echo-{n}");
        clients.push((n, sent, shell(program.clone(), client).start()?));
    }
    for (n, sent, client) in clients {
        client.wait(TIMEOUT)?.success()?;
        sockets.expect_file(&format!("echo-{n}"), &sent)?;
    }
    Ok(())
}

#[test]
fn socat_forks_and_runs_a_program_beside() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = forking(sockets.server("socat"), port, "EXEC:cat")?;
        let client = sockets.client("sh");
        sockets.until_shared(LENGTH as u64 / 4, || expect_echo(&sockets, &client, port))?;
    }
    Ok(())
}

/// `cat` has the connection itself as standard input and output. The C library's streams may read
/// and write it there, so the connection stays on TCP.
#[test]
fn socat_forks_and_becomes_a_program() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = forking(sockets.server("socat"), port, "EXEC:cat,nofork")?;
        expect_echo(&sockets, &sockets.client("sh"), port)?;
        sockets.check_fallback("stdio")?;
    }
    Ok(())
}

/// In the mixed cases the relay has Weft, or not, unlike its neighbours on both sides.
#[test]
fn socat_forks_and_relays() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, back, front) = (Sockets::new(ends)?, ports::next(), ports::next());
        let _back = forking(sockets.server("socat"), back, "EXEC:cat")?;
        let relay = format!("TCP:127.0.0.1:{back}");
        let _front = forking(sockets.client("socat"), front, &relay)?;
        let client = sockets.server("sh");
        sockets.until_shared(LENGTH as u64 / 4, || expect_echo(&sockets, &client, front))?;
    }
    Ok(())
}
