//! Connections between two network namespaces, which act as two hosts: over verbs if both ends want
//! it, else over TCP, with the same results for programs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, Stage, compile, namespaces_denied, note_skip, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that the program has moved when the test inspects the connection.
const LENGTH: u64 = 5_000_003;

/// How often a connection may begin too early for verbs.
const TRIES: usize = 10;

/// An echo server, and a client that sends on demand, from a chosen port.
const ECHO: &str = "
import signal, socket, sys
role, address, port, own, own_port = sys.argv[1:]
if role == 'server':
    stream, _ = socket.create_server((address, int(port))).accept()
    while text := stream.recv(1000):
        stream.sendall(text)
else:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    stream = socket.create_connection((address, int(port)), source_address=(own, int(own_port)))
    print('connected', flush=True)
    signal.sigwait({signal.SIGUSR1})
    for number in range(300):
        text = b'question %d, of nobody else' % number
        stream.sendall(text)
        assert stream.recv(len(text), socket.MSG_WAITALL) == text, number
        if number in (3, 299):
            print('asked', number, flush=True)
            signal.sigwait({signal.SIGUSR1})
";

/// Two namespaces and a directory, or `None` with a note if namespaces cannot be made.
struct Hosts {
    stage: Stage,
    sockets: Sockets,
}

impl Hosts {
    fn new(test: &str) -> Result<Option<Self>> {
        if let Some(reason) = namespaces_denied() {
            note_skip(test, reason);
            return Ok(None);
        }
        Ok(Some(Self { stage: Stage::namespaces()?, sockets: Sockets::new(Ends::Both)? }))
    }

    fn end(&self, role: &str, port: u16, task: &str) -> Program {
        let program = match role {
            "server" => self.sockets.server("python3"),
            _ => self.sockets.client("python3"),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/between_hosts.py");
        let address = self.stage.server_address().to_string();
        program.arg(script).args([role, &address, &port.to_string(), task])
    }

    /// Runs a task to its end; one end may kill itself.
    fn run(&self, task: &str, options: [&str; 2]) -> Result<()> {
        self.run_seeded(task, options, 1)
    }

    fn run_seeded(&self, task: &str, options: [&str; 2], seed: u64) -> Result<()> {
        let port = ports::next();
        let [server, client] =
            [("server", options[0]), ("client", options[1])].map(|(role, option)| {
                let end = self.end(role, port, task).env("BETWEEN_HOSTS_SEED", seed.to_string());
                end.weft_option(format!("--between-hosts={option}"))
            });
        let server = self.stage.server(server).start()?.listening(Port::Tcp(port))?;
        let client = self.stage.client(client).run(TIMEOUT)?;
        let server = server.wait(TIMEOUT)?;
        if task != "receiver_dies" {
            client.success().with_context(|| format!("{task}, {options:?}: {server:?}"))?;
        }
        if task != "sender_dies" {
            server.success().with_context(|| format!("{task}, {options:?}"))?;
        }
        Ok(())
    }

    /// An end of a stream that [`ECHO`] uses, and both ends' addresses: the server's, the client's.
    fn echo(&self, role: &str, ports: [u16; 2], option: &str) -> Result<(Program, [String; 2])> {
        let pair = self.stage.pair.as_ref().context("no namespaces")?;
        let addresses = [&pair.left, &pair.right].map(|side| side.ipv4.to_string());
        let program = match role {
            "server" => self.sockets.server("python3"),
            _ => self.sockets.client("python3"),
        };
        let [port, own] = ports.map(|port| port.to_string());
        let program = program.args(["-c", ECHO, role, &addresses[0], &port, &addresses[1], &own]);
        Ok((program.weft_option(format!("--between-hosts={option}")), addresses))
    }

    /// Another user on the client's or server's host, who claims to be an end of a stream.
    fn stranger(&self, arguments: &[&str]) -> Result<Program> {
        let program = Program::weft(compile("impersonator")?).args(arguments);
        Ok(program.env("WEFT_TRANSPORT", "tcp"))
    }

    /// Returns the transport of a connection that has moved all bytes, and the bytes that it
    /// carried.
    fn look(&self, options: [&str; 2]) -> Result<(String, u64)> {
        let port = ports::next();
        let [server, client] =
            [("server", options[0]), ("client", options[1])].map(|(role, option)| {
                self.end(role, port, "hold").weft_option(format!("--between-hosts={option}"))
            });
        let mut server = self.stage.server(server).start()?.listening(Port::Tcp(port))?;
        let mut client = self.stage.client(client).start()?;
        client.printed("moved", TIMEOUT)?;
        server.printed("moved", TIMEOUT)?;
        let stat = self.sockets.plain(weft()?).args(["stat", "--json"]).run(TIMEOUT)?.success()?;
        let report: Value = serde_json::from_str(&stat.stdout)?;
        let connections = report["connections"].as_array().context("no connections")?;
        let bytes = |one: &Value| one["bytes"]["to_client"].as_u64().unwrap_or(0);
        let address = format!(":{port}");
        let is_this = |one: &&Value| {
            one["server"]["address"].as_str().is_some_and(|own| own.ends_with(&address))
        };
        let most = connections.iter().filter(is_this).max_by_key(|one| bytes(one));
        drop(client); // Either ends when the other has gone.
        drop(server);
        let transport = most.and_then(|one| one["transport"].as_str()).unwrap_or("tcp");
        Ok((transport.to_owned(), most.map_or(0, bytes)))
    }
}

#[test]
fn bytes_go_over_verbs_if_both_ends_want_it() -> Result<()> {
    let test = "bytes_go_over_verbs_if_both_ends_want_it";
    let Some(hosts) = Hosts::new(test)? else { return Ok(()) };
    // On a busy machine the first bytes may be faster than the agreement to use verbs.
    let mut found = hosts.look(["verbs", "verbs"])?;
    for _ in 1..TRIES {
        if found.0 == "verbs" && found.1 >= LENGTH {
            break;
        }
        found = hosts.look(["verbs", "verbs"])?;
    }
    let (transport, bytes) = found;
    ensure!(transport == "verbs" && bytes >= LENGTH, "{bytes} bytes over {transport}");
    for options in [["verbs", "tcp"], ["tcp", "verbs"], ["tcp", "tcp"]] {
        let (transport, bytes) = hosts.look(options)?;
        ensure!(transport == "tcp" && bytes == 0, "{options:?}: {bytes} bytes over {transport}");
    }
    Ok(())
}

#[test]
fn streams_end_as_over_tcp() -> Result<()> {
    let Some(hosts) = Hosts::new("streams_end_as_over_tcp")? else { return Ok(()) };
    ["close", "half_close", "epoll"].iter().try_for_each(|task| hosts.run(task, ["verbs"; 2]))
}

#[test]
fn close_does_not_wait_for_a_peer_that_is_stopped() -> Result<()> {
    let test = "close_does_not_wait_for_a_peer_that_is_stopped";
    let Some(hosts) = Hosts::new(test)? else { return Ok(()) };
    let port = ports::next();
    let [server, client] = ["server", "client"]
        .map(|role| hosts.end(role, port, "stopped").weft_option("--between-hosts=verbs"));
    let mut server = hosts.stage.server(server).start()?.listening(Port::Tcp(port))?;
    let mut client = hosts.stage.client(client).start()?;
    client.printed("stops", TIMEOUT)?;
    server.printed("closed", TIMEOUT)?;
    client.signal(Signal::CONT)?;
    client.wait(TIMEOUT)?.success()?;
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn real_programs_get_their_bytes() -> Result<()> {
    let Some(hosts) = Hosts::new("real_programs_get_their_bytes")? else { return Ok(()) };
    let address = hosts.stage.server_address().to_string();
    // As between hosts that share no memory.
    let verbs = |program: Program| {
        program.weft_option("--between-hosts=verbs").env("WEFT_TRANSPORT", "tcp")
    };

    let port = ports::next();
    let server = verbs(hosts.sockets.server("redis-server"))
        .line("--save \"\" --protected-mode no")
        .args(["--port", &port.to_string(), "--bind", &address]);
    let server = hosts.stage.server(server).start()?.listening(Port::Tcp(port))?;
    let ask = |name: &str, line: &str| {
        let program = verbs(hosts.sockets.client(name));
        let program = program.args(["-h", &address, "-p", &port.to_string()]).line(line);
        hosts.stage.client(program).run(TIMEOUT)?.success()
    };
    let report = ask("redis-benchmark", "-t set,get -n 5000 -c 20 -d 3000 -q")?.stdout;
    ensure!(report.contains("SET: ") && report.contains("GET: "), "{report}");
    ensure!(ask("redis-cli", "SET key value")?.stdout.contains("OK"), "it cannot be set");
    ensure!(ask("redis-cli", "GET key")?.stdout.contains("value"), "it has not been kept");
    drop(server);

    let port = ports::next();
    let server = verbs(hosts.sockets.server("iperf3")).args(["-s", "-1", "-p", &port.to_string()]);
    let server = hosts.stage.server(server).start()?.listening(Port::Tcp(port))?;
    let client = verbs(hosts.sockets.client("iperf3"));
    let client = client.args(["-c", &address, "-p", &port.to_string()]).line("-n 400M -P 2 -R");
    let report = hosts.stage.client(client).run(TIMEOUT)?.success()?.stdout;
    ensure!(report.contains("receiver"), "{report}");
    server.wait(TIMEOUT)?.success()?;

    let totals = hosts.sockets.totals()?;
    ensure!(totals.bytes >= 50_000_000, "not over verbs: {totals:?}");
    Ok(())
}

#[test]
fn connections_are_handed_on() -> Result<()> {
    let Some(hosts) = Hosts::new("connections_are_handed_on")? else { return Ok(()) };
    ["fork", "execute"].iter().try_for_each(|task| hosts.run(task, ["verbs"; 2]))
}

#[test]
fn peer_of_a_process_killed_over_verbs_reads_a_prefix_and_then_eof() -> Result<()> {
    let test = "peer_of_a_process_killed_over_verbs_reads_a_prefix_and_then_eof";
    let Some(hosts) = Hosts::new(test)? else { return Ok(()) };
    die(&hosts, 1)
}

#[test]
#[ignore = "soak: ends are killed at random times"]
fn peers_of_processes_killed_over_verbs_read_prefixes() -> Result<()> {
    const ROUNDS: u64 = 20;
    let test = "peers_of_processes_killed_over_verbs_read_prefixes";
    let Some(hosts) = Hosts::new(test)? else { return Ok(()) };
    let seed = std::env::var("WEFT_BETWEEN_HOSTS_SEED").ok();
    let first = match seed {
        Some(seed) => seed.parse()?,
        None => u64::from(std::process::id()) << 16,
    };
    (first..first + ROUNDS).try_for_each(|seed| die(&hosts, seed))
}

/// Kills the sender, and then the receiver, after times that the seed determines.
fn die(hosts: &Hosts, seed: u64) -> Result<()> {
    println!("WEFT_BETWEEN_HOSTS_SEED={seed}");
    for task in ["sender_dies", "receiver_dies"] {
        hosts.run_seeded(task, ["verbs"; 2], seed)?;
    }
    Ok(())
}

/// A user on the connector's host listens first at the address to which the acceptor connects.
#[test]
fn another_user_cannot_answer_for_a_stream() -> Result<()> {
    let Some(hosts) = Hosts::new("another_user_cannot_answer_for_a_stream")? else { return Ok(()) };
    let ports = [ports::next(), ports::next()];
    let (server, _) = hosts.echo("server", ports, "verbs")?;
    let (client, [_, own]) = hosts.echo("client", ports, "tcp")?;
    let server = hosts.stage.server(server).start()?.listening(Port::Tcp(ports[0]))?;
    let mut client = hosts.stage.client(client).start()?;
    client.printed("connected", TIMEOUT)?;
    let stranger = hosts.stranger(&["listen", &own, &ports[1].to_string()])?;
    let mut stranger = hosts.stage.client(stranger).start()?;
    stranger.printed("listens", TIMEOUT)?;
    client.signal(Signal::USR1)?;
    stranger.printed("RDMA_CM_EVENT_CONNECT_REQUEST", TIMEOUT)?;
    stranger.printed("RDMA_CM_EVENT_DISCONNECTED", TIMEOUT)?;
    client.signal(Signal::USR1)?;
    client.printed("asked 299", TIMEOUT)?;
    client.signal(Signal::USR1)?;
    client.wait(TIMEOUT)?.success()?;
    server.wait(TIMEOUT)?.success()?;
    ensure!(hosts.sockets.totals()?.bytes == 0, "bytes of the stream went over verbs");
    Ok(())
}

/// A user on the acceptor's host connects to the connector.
#[test]
fn another_user_cannot_dial_for_a_stream() -> Result<()> {
    let Some(hosts) = Hosts::new("another_user_cannot_dial_for_a_stream")? else { return Ok(()) };
    let ports = [ports::next(), ports::next()];
    let (server, _) = hosts.echo("server", ports, "tcp")?;
    let (client, [to, own]) = hosts.echo("client", ports, "verbs")?;
    let server = hosts.stage.server(server).start()?.listening(Port::Tcp(ports[0]))?;
    let mut client = hosts.stage.client(client).start()?;
    client.printed("connected", TIMEOUT)?;
    client.signal(Signal::USR1)?;
    client.printed("asked 3", TIMEOUT)?;
    let [port, own_port] = ports.map(|port| port.to_string());
    let stranger = hosts.stranger(&["dial", &own, &own_port, &to, &port])?;
    let outcome = hosts.stage.server(stranger).run(TIMEOUT)?.success()?;
    ensure!(outcome.stdout.contains("it was refused"), outcome.error("it was not refused"));
    client.signal(Signal::USR1)?;
    client.printed("asked 299", TIMEOUT)?;
    client.signal(Signal::USR1)?;
    client.wait(TIMEOUT)?.success()?;
    server.wait(TIMEOUT)?.success()?;
    ensure!(hosts.sockets.totals()?.bytes == 0, "bytes of the stream went over verbs");
    Ok(())
}
