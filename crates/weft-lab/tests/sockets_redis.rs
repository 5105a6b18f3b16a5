//! Redis: many clients, pipelines, subscribers, replicas and a server that forks.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, same, until};
use weft_lab::{Program, Running, ensure_data, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and the programs that connect to it.
struct Server<'a> {
    sockets: &'a Sockets,
    port: u16,
    /// Whether it is the replica of another server.
    is_replica: bool,
    _running: Running,
}

impl<'a> Server<'a> {
    /// Starts a server that stores nothing on disk by default.
    fn start(sockets: &'a Sockets) -> Result<Self> {
        let (program, port) = (sockets.server("redis-server"), ports::next());
        Ok(Self { sockets, port, is_replica: false, _running: run(program, port)? })
    }

    /// Starts a replica of `of`, on the side of its clients.
    fn replica(of: &Self) -> Result<Self> {
        let (program, port) = (of.sockets.client("redis-server"), ports::next());
        let program = program.line("--replicaof 127.0.0.1").arg(of.port.to_string());
        Ok(Self { sockets: of.sockets, port, is_replica: true, _running: run(program, port)? })
    }

    /// Returns a program that connects to the server, on the other side.
    fn peer(&self, name: &str) -> Program {
        if self.is_replica { self.sockets.server(name) } else { self.sockets.client(name) }
    }

    /// Returns `redis-cli` with a command.
    fn command(&self, command: &str) -> Program {
        self.peer("redis-cli").args(["-p", &self.port.to_string()]).line(command)
    }

    /// Runs one command with `redis-cli` and returns the answer.
    fn ask(&self, command: &str) -> Result<String> {
        Ok(self.command(command).run(TIMEOUT)?.success()?.stdout.trim().to_owned())
    }

    /// Runs `redis-cli` with `file` as standard input and returns its output.
    fn feed(&self, options: &str, file: &str) -> Result<String> {
        let script = format!("exec redis-cli -p {} {options} <{file}", self.port);
        Ok(self.peer("sh").args(["-c", &script]).run(TIMEOUT)?.success()?.stdout)
    }

    /// Waits until a field of INFO has a value.
    fn until_info(&self, section: &str, wanted: &str) -> Result<()> {
        let mut info = String::new();
        let found = until(wanted, || {
            info = self.ask(&format!("INFO {section}"))?;
            Ok(info.lines().any(|line| line.trim_end() == wanted).then_some(()))
        });
        found.with_context(|| info)
    }

    /// Stores `count` values through the bulk mode of `redis-cli`.
    fn store(&self, count: usize) -> Result<()> {
        let mut commands = String::new();
        for key in 0..count {
            writeln!(commands, "SET key:{key} value-of-{key}")?;
        }
        fs::write(self.sockets.path("store"), commands)?;
        let stdout = self.feed("--pipe", "store")?;
        ensure!(stdout.contains(&format!("errors: 0, replies: {count}")), "{stdout}");
        Ok(())
    }

    /// Checks the values that [`Server::store`] has stored, one request after the other.
    fn expect_stored(&self, count: usize) -> Result<()> {
        let (mut requests, mut expected) = (String::new(), String::new());
        for key in 0..count {
            writeln!(requests, "GET key:{key}")?;
            writeln!(expected, "value-of-{key}")?;
        }
        fs::write(self.sockets.path("ask"), requests)?;
        let values = self.feed("", "ask")?;
        same(values.as_bytes(), expected.as_bytes()).context("values of the keys")
    }

    /// Returns a benchmark with 50 clients, which does not touch the stored keys.
    fn benchmark(&self, options: &str) -> Program {
        let program = self.peer("redis-benchmark").args(["-p", &self.port.to_string()]);
        program.line("-c 50 -t set,get -d 100 -r 1000 --csv").line(options)
    }
}

fn run(program: Program, port: u16) -> Result<Running> {
    program
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .line("--enable-debug-command yes --repl-diskless-sync-delay 0")
        .start()?
        .listening(Port::Tcp(port))
}

fn values(ends: Ends) -> Result<()> {
    const COUNT: usize = 5_000;
    let sockets = Sockets::new(ends)?;
    let server = Server::start(&sockets)?;
    for options in ["-n 10000", "-n 50000 -P 16"] {
        let figures = server.benchmark(options).run(TIMEOUT)?.success()?;
        figures.expect_output("\"SET\"")?.expect_output("\"GET\"")?;
    }
    server.store(COUNT)?;
    server.expect_stored(COUNT)?;
    // A value much longer than a ring.
    let large = sockets.make_file("large", 5_000_001)?;
    ensure!(server.feed("-x SET large", "large")?.trim() == "OK", "cannot SET large");
    let script = format!("exec redis-cli -p {} GET large >copy", server.port);
    sockets.client("sh").args(["-c", &script]).run(TIMEOUT)?.success()?;
    // redis-cli ends its output with a new line.
    sockets.expect_file("copy", &[large, b"\n".to_vec()].concat())?;
    // The values of the benchmark alone have this many bytes.
    sockets.check(100 * 110_000)
}

#[test]
fn values_arrive() -> Result<()> {
    values(Ends::Both)
}

#[test]
fn values_arrive_if_one_end_has_no_weft() -> Result<()> {
    values(Ends::Server)?;
    values(Ends::Client)
}

#[test]
fn subscribers_get_what_is_published() -> Result<()> {
    const COUNT: usize = 2_000;
    const SUBSCRIBED: &str = "subscribe\nnews\n1\n";
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let server = Server::start(&sockets)?;
        let mut subscribers = Vec::new();
        for _ in 0..3 {
            let mut subscriber = server.command("SUBSCRIBE news").start()?;
            subscriber.printed(SUBSCRIBED, TIMEOUT)?;
            subscribers.push(subscriber);
        }
        let (mut published, mut expected) = (String::new(), SUBSCRIBED.to_owned());
        for item in 0..COUNT {
            writeln!(published, "PUBLISH news item-{item}")?;
            write!(expected, "message\nnews\nitem-{item}\n")?;
        }
        fs::write(sockets.path("published"), published)?;
        let receivers = server.feed("", "published")?;
        ensure_data!(receivers.lines().eq(["3"; COUNT]), "not every item went to all");
        for mut subscriber in subscribers {
            subscriber.printed(&format!("item-{}\n", COUNT - 1), TIMEOUT)?;
            same(subscriber.output().0.as_bytes(), expected.as_bytes())?;
        }
        sockets.check(3 * COUNT as u64 * 40)?;
    }
    Ok(())
}

#[test]
fn a_replica_catches_up_and_follows() -> Result<()> {
    const COUNT: usize = 2_000;
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let server = Server::start(&sockets)?;
        server.store(COUNT)?;
        let replica = Server::replica(&server)?;
        // A child of the server writes the snapshot while the values change.
        server.benchmark("-n 20000 -P 16").run(TIMEOUT)?.success()?;
        replica.until_info("replication", "master_link_status:up")?;
        server.benchmark("-n 20000 -P 16").run(TIMEOUT)?.success()?;
        let digest = server.ask("DEBUG DIGEST")?;
        until("a replica that has the same", || {
            Ok((replica.ask("DEBUG DIGEST")? == digest).then_some(()))
        })?;
        replica.expect_stored(COUNT)?;
        sockets.check(100 * 40_000)?;
    }
    Ok(())
}

#[test]
fn a_server_that_forks_serves_meanwhile() -> Result<()> {
    const COUNT: usize = 2_000;
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let server = Server::start(&sockets)?;
        server.store(COUNT)?;
        // A connection that is accepted just before the server forks may stay on TCP.
        sockets.until_shared(100 * 45_000, || {
            let traffic = server.benchmark("-n 30000 -P 4").start()?;
            for _ in 0..2 {
                ensure!(server.ask("BGSAVE")?.contains("saving started"), "BGSAVE fails");
                server.until_info("persistence", "rdb_bgsave_in_progress:0")?;
                server.until_info("persistence", "rdb_last_bgsave_status:ok")?;
            }
            traffic.wait(TIMEOUT)?.success()?.expect_output("\"GET\"").map(drop)
        })?;
        server.expect_stored(COUNT)?;
        // The snapshot that the child has written is complete, too: another server loads it.
        Server::start(&sockets)?.expect_stored(COUNT)?;
    }
    Ok(())
}
