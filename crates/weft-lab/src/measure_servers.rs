//! Measurements of servers with several programs, threads or users.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::compile::compile_java;
use crate::endpoint::Port;
use crate::measure::{Bench, Sample, Tool};
use crate::paths::{scratch, source, weft};
use crate::ports;
use crate::program::{Program, Running};
use crate::servers;
use crate::sockets::is_reachable;
use crate::usage::children_cpu;
use crate::venv::Venv;

/// Debian's user `nobody`.
const NOBODY: u32 = 65_534;
/// Time limit of preparations and clients, far above what they take.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Tool {
    /// Returns why this tool cannot run here, or `None` if it can.
    pub fn denied(self) -> Option<String> {
        match self {
            Self::Apache { .. } if is_root() => {
                let files = [scratch("bench-apache"), weft()];
                let all = files.iter().all(|file| file.as_deref().is_ok_and(is_reachable));
                (!all).then(|| "another user than root cannot read what has been built".to_owned())
            }
            Self::Zeromq { .. } => Venv::new().err().map(|error| format!("{error:#}")),
            _ => None,
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn start_of(weft: bool) -> fn(&str) -> Program {
    if weft { |name| Program::weft(name) } else { |name| Program::plain(name) }
}

/// Returns the number after `label` in a program's output. The number may end with `s` for seconds.
pub(crate) fn number_after(output: &str, label: &str) -> Result<f64> {
    let rest = output.split_once(label).map(|(_, rest)| rest.split_whitespace().next());
    let word = rest.flatten().with_context(|| format!("no {label:?} in {output}"))?;
    Ok(word.trim_end_matches('s').parse()?)
}

impl Bench<'_> {
    pub(crate) fn apache(&self, is_proxied: bool, weft: bool) -> Result<Sample> {
        let files = scratch("bench-apache")?;
        fs::write(files.join("file"), [b'x'; 1024])?;
        // Apache does not serve as root, and only processes of one user share memory.
        let program = |name: &str| {
            let program = start_of(weft)(name);
            if is_root() { program.as_user(&NOBODY.to_string()) } else { program }
        };
        if is_root() {
            chown(&files, Some(NOBODY), None)?;
        }
        let [back, front] = [ports::next(), ports::next()];
        let apache = servers::apache(self.server(program("apache2")), &files, back, "")?;
        let mut all: Vec<Running> = Vec::new();
        if is_proxied {
            let proxy = self.server(program("haproxy"));
            let settings = "mode http\n http-reuse always";
            all.push(servers::haproxy(proxy, &files, [front, back], settings)?);
        }
        all.push(apache);
        let port = if is_proxied { front } else { back };
        let client = program("ab").line("-q -k -c 20 -t 2 -n 500000");
        let client = client.arg(format!("http://127.0.0.1:{port}/file"));
        let (output, cpu) = self.clients_of(all, [client])?;
        ensure!(number_after(&output, "Failed requests:")? == 0.0, "{output}");
        let requests = number_after(&output, "Complete requests:")?;
        let rate = number_after(&output, "Requests per second:")?;
        fs::remove_dir_all(&files)?;
        Ok(Sample::new(rate, cpu, requests))
    }

    pub(crate) fn mariadb(&self, threads: u32, weft: bool) -> Result<Sample> {
        let (program, port, files) = (start_of(weft), ports::next(), scratch("bench-mariadb")?);
        let server = self.server(program("mariadbd"));
        let server = servers::mariadb(server, |name| Program::plain(name), &files, port, "")?;
        let prepare = servers::sysbench(Program::plain("sysbench"), port);
        prepare.line("oltp_point_select prepare").run(TIMEOUT)?.success()?;
        let client = servers::sysbench(program("sysbench"), port);
        let client = client.line("--time=2 --events=0 oltp_point_select");
        let client = client.arg(format!("--threads={threads}")).arg("run");
        let (output, cpu) = self.client_of(server, client)?;
        ensure!(number_after(&output, "ignored errors:")? == 0.0, "{output}");
        let selects = number_after(&output, "transactions:")?;
        let seconds = number_after(&output, "total time:")?;
        fs::remove_dir_all(&files)?;
        Ok(Sample::new(selects / seconds, cpu, selects))
    }

    pub(crate) fn mosquitto(&self, weft: bool) -> Result<Sample> {
        const MESSAGES: usize = 10_000;
        let (program, port, files) = (start_of(weft), ports::next(), scratch("bench-mosquitto")?);
        let lines = files.join("lines");
        fs::write(&lines, format!("{}\n", "x".repeat(100)).repeat(MESSAGES))?;
        let server = self.server(program("mosquitto"));
        let mut server = servers::mosquitto(server, &files, port, "subscribe")?;
        let before = children_cpu()?;
        let mut subscribers = Vec::new();
        for name in ["sub-a", "sub-b"] {
            let client =
                program("mosquitto_sub").line(&format!("-p {port} -q 1 -t topic -i {name}"));
            subscribers
                .push(self.client(client.args(["-C", &(2 * MESSAGES).to_string()])).start()?);
            server.printed(&format!("{name} 1 topic"), TIMEOUT)?;
        }
        let start = Instant::now();
        let publish = format!("exec mosquitto_pub -p {port} -q 1 -t topic -l <{}", lines.display());
        let publisher = program("sh").args(["-c", &publish]);
        let publishers = [publisher.clone(), publisher].map(|one| self.client(one).start());
        for subscriber in subscribers {
            subscriber.wait(TIMEOUT)?.success()?;
        }
        let taken = start.elapsed();
        for publisher in publishers {
            publisher?.wait(TIMEOUT)?.success()?;
        }
        let between = children_cpu()?;
        server.signal(rustix::process::Signal::TERM)?;
        server.wait(TIMEOUT)?;
        let delivered = (4 * MESSAGES) as f64;
        let cpu = [between - before, children_cpu()? - between];
        fs::remove_dir_all(&files)?;
        Ok(Sample::new(delivered / taken.as_secs_f64(), cpu, delivered))
    }

    pub(crate) fn zeromq(&self, weft: bool) -> Result<Sample> {
        let python = Venv::new()?.program("python");
        let port = ports::next();
        let end = |role: &str| {
            let program = if weft { Program::weft(&python) } else { Program::plain(&python) };
            program.arg(source("programs/zeromq.py")).args([role, &port.to_string(), "4"])
        };
        let server = self.server(end("serve")).start()?.listening(Port::Tcp(port))?;
        let (output, cpu) = self.client_then_server(end("load"), server)?;
        let requests = number_after(&output, "requests ")?;
        Ok(Sample::new(number_after(&output, "per second ")?, cpu, requests))
    }

    pub(crate) fn java_nio(&self, weft: bool) -> Result<Sample> {
        let (classes, port): (PathBuf, _) = (compile_java("Echo")?, ports::next());
        let end = |role: &str| {
            let program = start_of(weft)("java").arg("-cp").arg(&classes).arg("Echo");
            program.args([role, &port.to_string(), "16"])
        };
        let server = self.server(end("serve")).start()?.listening(Port::Tcp(port))?;
        let (output, cpu) = self.client_then_server(end("load"), server)?;
        let trips = number_after(&output, "trips ")?;
        Ok(Sample::new(number_after(&output, "per second ")?, cpu, trips))
    }

    /// Measures the time of one start from many in a row. The lab polls for a program's end too
    /// rarely to time a single one.
    pub(crate) fn start(&self, through_weft: bool) -> Result<Sample> {
        const STARTS: u32 = 200;
        let weft =
            if through_weft { format!("{} run --", weft()?.display()) } else { String::new() };
        let script =
            format!("i=0; while [ $i -lt {STARTS} ]; do {weft} /bin/true; i=$((i+1)); done");
        let (before, start) = (children_cpu()?, Instant::now());
        let shell = Program::plain("dash").args(["-c", &script]);
        self.client(shell).run(TIMEOUT)?.success()?;
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(STARTS);
        Ok(Sample::new(each, [children_cpu()? - before, Duration::ZERO], f64::from(STARTS)))
    }
}
