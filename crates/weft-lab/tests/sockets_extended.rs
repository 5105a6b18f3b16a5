//! Extended sockets: a C program that includes `weft_socket.h` and is linked to nothing gets, puts
//! and counts in its peer's memory, beside the stream of the same socket.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, Running, compile_folder, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The program, compiled once.
fn program() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile_folder("extended"));
    built.as_deref().map_err(|error| anyhow!("{error:#}"))
}

struct Scenario {
    sockets: Sockets,
    name: &'static str,
    port: String,
    server: Running,
}

impl Scenario {
    fn start(ends: Ends, name: &'static str, clients: usize) -> Result<Self> {
        let sockets = Sockets::new(ends)?;
        let port = ports::next();
        let program = sockets.server(program()?);
        let words = ["server", name, &port.to_string(), &clients.to_string()];
        let server = program.args(words).start()?.listening(Port::Tcp(port))?;
        Ok(Self { sockets, name, port: port.to_string(), server })
    }

    fn client(&self) -> Result<Program> {
        let program = self.sockets.client(program()?);
        Ok(program.args(["client", self.name, &self.port]))
    }
}

/// Runs a scenario with one client until both ends exit with status 0.
fn run(name: &'static str) -> Result<String> {
    let scenario = Scenario::start(Ends::Both, name, 1)?;
    let client = scenario.client()?.run(TIMEOUT)?.success()?;
    scenario.server.wait(TIMEOUT)?.success()?;
    Ok(client.stdout)
}

#[test]
fn a_version_is_never_older_than_when_it_was_asked_for() -> Result<()> {
    run("coherent").map(drop)
}

#[test]
fn a_counter_of_many_processes_is_exact() -> Result<()> {
    const CLIENTS: usize = 4;
    let scenario = Scenario::start(Ends::Both, "count", CLIENTS)?;
    let clients = (0..CLIENTS).map(|_| scenario.client()?.start());
    for client in clients.collect::<Result<Vec<_>>>()? {
        client.wait(TIMEOUT)?.success()?;
    }
    scenario.server.wait(TIMEOUT)?.success().map(drop)
}

#[test]
fn what_is_not_allowed_fails_and_the_stream_goes_on() -> Result<()> {
    run("refuse").map(drop)
}

#[test]
fn posted_operations_complete_in_order() -> Result<()> {
    run("post").map(drop)
}

#[test]
fn what_was_registered_ends_with_exec_and_the_connection_does_not() -> Result<()> {
    run("exec").map(drop)
}

/// Measures operations. Returns the mean time of a question and its answer, those of the
/// operations, and what the program has printed.
fn measure() -> Result<(f64, Vec<f64>, String)> {
    let output = run("speed")?;
    let times = output.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let times: Vec<f64> = times.collect();
    let (answered, others) = times.split_first().context("no times")?;
    ensure!(others.len() == 3, "{output}");
    Ok((*answered, others.to_vec(), output))
}

#[test]
fn many_operations_follow_one_another() -> Result<()> {
    measure().map(drop)
}

#[test]
#[ignore = "soak: times are compared"]
fn operations_are_quicker_than_a_question_and_its_answer() -> Result<()> {
    const TRIES: usize = 5;
    let mut printed = Vec::new();
    for _ in 0..TRIES {
        let (answered, others, output) = measure()?;
        if others.iter().all(|&time| time < answered) {
            return Ok(());
        }
        printed.push(output);
    }
    bail!("{}", printed.join("\n"))
}

#[test]
fn a_client_hears_that_its_server_was_killed() -> Result<()> {
    let mut scenario = Scenario::start(Ends::Both, "killed", 1)?;
    let client = scenario.client()?.start()?;
    scenario.server.printed("ready", TIMEOUT)?;
    scenario.server.signal(Signal::KILL)?;
    client.wait(TIMEOUT)?.success()?.expect_output("reset").map(drop)
}

#[test]
fn a_server_takes_memory_back_from_a_client_that_was_killed() -> Result<()> {
    let mut scenario = Scenario::start(Ends::Both, "killed", 1)?;
    let mut client = scenario.client()?.start()?;
    scenario.server.printed("ready", TIMEOUT)?;
    client.signal(Signal::KILL)?;
    scenario.server.wait(TIMEOUT)?.success()?.expect_output("gone").map(drop)
}

#[test]
fn without_weft_at_both_ends_the_socket_stays_what_it_is() -> Result<()> {
    for ends in [Ends::Server, Ends::Client] {
        let scenario = Scenario::start(ends, "plain", 1)?;
        scenario.client()?.run(TIMEOUT)?.success()?.expect_output("plain")?;
        scenario.server.wait(TIMEOUT)?.success()?.expect_output("plain")?;
    }
    Ok(())
}
