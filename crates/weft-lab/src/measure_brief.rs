//! Measurements of connections and processes that end after a few requests.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::compile::compile_plain;
use crate::endpoint::Port;
use crate::measure::{Bench, Brief, Sample};
use crate::measure_servers::{number_after, start_of};
use crate::paths::scratch;
use crate::ports;
use crate::program::{Program, Running};
use crate::stage::Stage;

/// Time limit of a server's preparations, far above what they take.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Names that the name server knows.
const NAMES: usize = 200;

impl Bench<'_> {
    pub(crate) fn brief(&self, load: Brief, weft: bool) -> Result<Sample> {
        let files = scratch("bench-brief")?;
        // The kernel's search for a port takes the longer, the more ports ended connections take.
        let stage = Stage::alone()?;
        let bench = Bench { stage: &stage, placement: self.placement };
        let sample = match load {
            Brief::Requests(each) => bench.requests(each, weft),
            Brief::Ab => bench.ab(&files, weft),
            Brief::Dig => bench.dig(&files, weft),
            Brief::RedisCli => bench.redis_cli(weft),
            Brief::Gearman => bench.gearman(&files, weft),
        };
        fs::remove_dir_all(&files)?;
        sample
    }

    fn requests(&self, each: u32, weft: bool) -> Result<Sample> {
        let (program, port) = (compile_plain("requests")?, ports::next());
        let end = |role: &str| {
            let program = if weft { Program::weft(&program) } else { Program::plain(&program) };
            program.args([role, &port.to_string()])
        };
        let server = self.server(end("serve")).start()?.listening(Port::Tcp(port))?;
        let load = end("load").args([&each.to_string(), "1500"]);
        let (output, cpu) = self.client_of(server, load)?;
        let requests = number_after(&output, "requests ")?;
        Ok(Sample::new(number_after(&output, "per second ")?, cpu, requests))
    }

    fn ab(&self, files: &Path, weft: bool) -> Result<Sample> {
        const REQUESTS: u32 = 15_000;
        let (port, address) = (ports::next(), self.address());
        fs::write(files.join("file"), [b'x'; 1024])?;
        let server = self.nginx_server(start_of(weft)("nginx"), files, port)?;
        let client = start_of(weft)("ab").line("-q -c 20 -n").arg(REQUESTS.to_string());
        let client = client.arg(format!("http://{address}:{port}/file"));
        let (output, cpu) = self.client_of(server, client)?;
        ensure!(number_after(&output, "Failed requests:")? == 0.0, "{output}");
        let rate = number_after(&output, "Requests per second:")?;
        Ok(Sample::new(rate, cpu, REQUESTS.into()))
    }

    fn dig(&self, files: &Path, weft: bool) -> Result<Sample> {
        const QUESTIONS: usize = 4_000;
        let (port, address) = (ports::next(), self.address());
        let mut zone = "$TTL 60\n@ SOA ns root 1 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n".to_owned();
        (0..NAMES).try_for_each(|name| writeln!(zone, "n{name} A 10.0.0.{name}"))?;
        fs::write(files.join("zone"), zone)?;
        let configuration = format!(
            "options {{ directory \"{}\"; listen-on port {port} {{ {address}; }}; recursion no;
                listen-on-v6 {{ none; }}; pid-file none; session-keyfile none;
                dnssec-validation no; }};
            controls {{}};
            zone \"lab.test\" {{ type primary; file \"zone\"; }};",
            files.display()
        );
        fs::write(files.join("named.conf"), configuration)?;
        let questions: String =
            (0..QUESTIONS).map(|name| format!("n{}.lab.test\n", name % NAMES)).collect();
        fs::write(files.join("questions"), questions)?;
        let server = start_of(weft)("named").line("-g -n 2 -c").arg(files.join("named.conf"));
        let mut server = self.server(server).start()?.listening(Port::Tcp(port))?;
        server.printed("all zones loaded", TIMEOUT)?;
        let client = start_of(weft)("dig").arg(format!("@{address}"));
        let client = client.line("+tcp +short +tries=1 +time=200 -p").arg(port.to_string());
        let client = client.arg("-f").arg(files.join("questions"));
        let (output, sample) = self.timed(server, client, QUESTIONS)?;
        ensure!(output.lines().count() == QUESTIONS, "{} answers", output.lines().count());
        Ok(sample)
    }

    fn redis_cli(&self, weft: bool) -> Result<Sample> {
        const REQUESTS: usize = 200;
        let (port, address) = (ports::next(), self.address());
        let server = start_of(weft)("redis-server").args(["--port", &port.to_string()]);
        let server = server.args(["--save", "", "--bind", &address]);
        let server = self.server(server).start()?.listening(Port::Tcp(port))?;
        let each = format!("redis-cli -h {address} -p {port} ping");
        let (output, sample) = self.timed(server, repeated(&each, REQUESTS, weft), REQUESTS)?;
        ensure!(output == "PONG\n".repeat(REQUESTS), "{output}");
        Ok(sample)
    }

    fn gearman(&self, files: &Path, weft: bool) -> Result<Sample> {
        const JOBS: usize = 100;
        let (port, address) = (ports::next(), self.address());
        let user = if rustix::process::geteuid().is_root() { "-u root" } else { "" };
        let server = start_of(weft)("gearmand").line("-l stderr --threads=4").line(user);
        let server = server.args(["-L", &address, "-p", &port.to_string()]);
        let server = server.arg("-P").arg(files.join("pid"));
        let server = self.server(server).start()?.listening(Port::Tcp(port))?;
        let at = format!("-h {address} -p {port} -f swap");
        let worker = start_of(weft)("gearman").line(&at).line("-w tr a-z b-za");
        let worker = self.server(worker).start()?;
        let each = format!("echo abc | gearman {at}");
        let client = repeated(&each, JOBS, weft);
        let (output, sample) = self.timed_beside([worker, server], client, JOBS)?;
        ensure!(output == "bcd\n".repeat(JOBS), "{output}");
        Ok(sample)
    }

    /// Runs the client, which makes so many requests, to its end, then makes the server end.
    /// Returns what the client printed.
    fn timed(&self, server: Running, client: Program, requests: usize) -> Result<(String, Sample)> {
        self.timed_beside([server], client, requests)
    }

    fn timed_beside(
        &self,
        servers: impl IntoIterator<Item = Running>,
        client: Program,
        requests: usize,
    ) -> Result<(String, Sample)> {
        let start = Instant::now();
        let mut taken = Duration::ZERO;
        let (output, cpu) = self.clients_then(servers, [client], || taken = start.elapsed())?;
        let requests = requests as f64;
        Ok((output, Sample::new(requests / taken.as_secs_f64(), cpu, requests)))
    }
}

/// Returns a shell that runs a command so often, one after the other.
fn repeated(command: &str, times: usize, weft: bool) -> Program {
    let script = format!("i=0; while [ $i -lt {times} ]; do {command} || exit 1; i=$((i+1)); done");
    start_of(weft)("dash").args(["-c", &script])
}
