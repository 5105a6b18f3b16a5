//! Measurements: runs a tool's client and server on a stage, and reads their results.

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::crowd::Crowd;
use crate::endpoint::Port;
use crate::parse::{iperf3, memcaslap, perftest, qperf, redis, sockperf, ucx, wrk};
use crate::paths::scratch;
use crate::ports;
use crate::program::{Program, Running};
use crate::stage::Stage;
use crate::usage::children_cpu;

/// Time limit of a measurement, far above what it takes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The cores on which the ends run, both on Weft and in the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// Server on the first core, client on the last.
    Pinned,
    /// On any core, as the scheduler decides.
    Free,
    /// Both on the first core.
    Together,
    /// As `Pinned`, with another busy thread on each core.
    Crowded,
}

impl Placement {
    fn cores(self) -> (Option<usize>, Option<usize>) {
        let last = available_parallelism().map_or(0, |cores| cores.get() - 1);
        match self {
            Self::Pinned | Self::Crowded => (Some(0), Some(last)),
            Self::Free => (None, None),
            Self::Together => (Some(0), Some(0)),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crowd = if *self == Self::Crowded { ", which are busy" } else { "" };
        match self.cores() {
            (Some(server), Some(client)) if server == client => {
                write!(f, "both on core {server}")
            }
            (Some(server), Some(client)) => {
                write!(f, "server on core {server}, client on core {client}{crowd}")
            }
            _ => f.write_str("free to move between cores"),
        }
    }
}

/// The unit of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// More is better.
    BytesPerSecond,
    /// More is better.
    MessagesPerSecond,
    /// One way; less is better.
    Nanoseconds,
}

impl Unit {
    /// Formats `value` with a readable unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::BytesPerSecond => format!("{:.2} GB/s", value / 1e9),
            Self::MessagesPerSecond => format!("{:.3} M/s", value / 1e6),
            Self::Nanoseconds => format!("{:.2} us", value / 1e3),
        }
    }
}

/// A tool with the parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// A bandwidth test of perftest on Weft, read in the given unit.
    PerftestBandwidth {
        /// The program.
        program: &'static str,
        /// Size, queue depth and number of messages.
        options: &'static str,
        /// Bytes or messages per second.
        unit: Unit,
    },
    /// A latency test of perftest on Weft.
    PerftestLatency {
        /// The program.
        program: &'static str,
        /// Size and number of exchanges.
        options: &'static str,
    },
    /// A single TCP stream.
    Iperf3 {
        /// Bytes per write.
        bytes: u32,
    },
    /// A TCP stream with `TCP_NODELAY`, so that each write sends one message at once.
    Iperf3NoDelay {
        /// Bytes per message.
        bytes: u32,
    },
    /// Ping-pong over TCP or UDP.
    QperfLatency {
        /// The test, `tcp_lat` or `udp_lat`.
        test: &'static str,
        /// Bytes per message.
        bytes: u32,
    },
    /// A TCP stream with one message per send call, which the kernel may combine (Nagle's
    /// algorithm), read in the given unit.
    QperfTcpBandwidth {
        /// Bytes per message.
        bytes: u32,
        /// Bytes or messages per second.
        unit: Unit,
    },
    /// UCX over its own shared memory transports, read in the given unit.
    Ucx {
        /// The test, `tag_lat` or `tag_bw`.
        test: &'static str,
        /// Size and number of messages.
        options: &'static str,
        /// Any unit.
        unit: Unit,
    },
    /// Ping-pong over libfabric's provider for shared memory.
    FabricShm {
        /// Bytes per message.
        bytes: u32,
    },
    /// Requests of `redis-benchmark` to a `redis-server`.
    Redis {
        /// Connections.
        clients: u32,
        /// Requests that each connection has in flight.
        pipeline: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Ping-pong of `sockperf` over TCP: the median.
    Sockperf {
        /// Bytes per message.
        bytes: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Ping-pong of `sockperf` over TCP: the 99.9th percentile.
    SockperfTail {
        /// Bytes per message.
        bytes: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Operations of `memcaslap`, nine `get` to each `set` of 1 KiB, to a `memcached`.
    Memcached {
        /// Connections.
        clients: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// A single stream of `iperf3`, congestion control cubic.
    TcpStream {
        /// Bytes per write.
        bytes: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Requests of `wrk` for one file, over 20 connections, to an `nginx` with one worker.
    Nginx {
        /// Bytes of the file.
        bytes: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Requests of `ab` for a file of 1 KiB, over 20 connections that are kept, to an Apache with
    /// its event MPM.
    Apache {
        /// Whether HAProxy is in front of it.
        is_proxied: bool,
        /// Whether all run on Weft.
        weft: bool,
    },
    /// Point selects of `sysbench` from a MariaDB.
    Mariadb {
        /// Connections, each with a thread.
        threads: u32,
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Messages of two publishers to two subscribers of mosquitto, each acknowledged (QoS 1).
    Mosquitto {
        /// Whether all run on Weft.
        weft: bool,
    },
    /// Requests over ZeroMQ, which wait for each other's answers, over four connections.
    Zeromq {
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Ping-pong of 64-byte messages over 16 connections between two Java programs, each with an
    /// NIO selector.
    JavaNio {
        /// Whether both run on Weft.
        weft: bool,
    },
    /// Requests of a `redis-benchmark` without Weft to a `redis-server` on Weft, and so over TCP.
    RedisOneEnd {
        /// Connections.
        clients: u32,
    },
    /// Connections, or processes, that end after a few requests.
    Brief {
        /// The programs and what they do.
        load: Brief,
        /// Whether all run on Weft.
        weft: bool,
    },
    /// The time from the start to the end of a program that does nothing.
    Start {
        /// Whether `weft run` starts it.
        weft: bool,
    },
    /// Repeated copies of the same memory on one core.
    Memcpy {
        /// Bytes per copy.
        bytes: u32,
    },
}

impl Tool {
    /// The unit of the tool's result.
    pub fn unit(self) -> Unit {
        match self {
            Self::PerftestBandwidth { unit, .. }
            | Self::QperfTcpBandwidth { unit, .. }
            | Self::Ucx { unit, .. } => unit,
            Self::Iperf3 { .. } | Self::TcpStream { .. } | Self::Memcpy { .. } => {
                Unit::BytesPerSecond
            }
            Self::Iperf3NoDelay { .. }
            | Self::Redis { .. }
            | Self::Memcached { .. }
            | Self::Apache { .. }
            | Self::Mariadb { .. }
            | Self::Mosquitto { .. }
            | Self::Zeromq { .. }
            | Self::JavaNio { .. }
            | Self::RedisOneEnd { .. }
            | Self::Brief { .. }
            | Self::Nginx { .. } => Unit::MessagesPerSecond,
            Self::PerftestLatency { .. }
            | Self::Start { .. }
            | Self::QperfLatency { .. }
            | Self::FabricShm { .. }
            | Self::Sockperf { .. }
            | Self::SockperfTail { .. } => Unit::Nanoseconds,
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerftestBandwidth { program, options, .. }
            | Self::PerftestLatency { program, options } => write!(f, "{program} {options}"),
            Self::Iperf3 { bytes } => write!(f, "iperf3 -l {bytes}"),
            Self::Iperf3NoDelay { bytes } => write!(f, "iperf3 -N -l {bytes}"),
            Self::QperfLatency { test, bytes } => write!(f, "qperf {test} -m {bytes}"),
            Self::QperfTcpBandwidth { bytes, .. } => write!(f, "qperf tcp_bw -m {bytes}"),
            Self::Ucx { test, options, .. } => write!(f, "ucx_perftest -t {test} {options}"),
            Self::FabricShm { bytes } => write!(f, "fi_pingpong -p shm -S {bytes}"),
            Self::Redis { clients, pipeline, .. } => {
                write!(f, "redis-benchmark -t get -c {clients} -P {pipeline}")
            }
            Self::Sockperf { bytes, .. } => write!(f, "sockperf ping-pong --tcp -m {bytes}"),
            Self::SockperfTail { bytes, .. } => {
                write!(f, "sockperf ping-pong --tcp -m {bytes}, 99.9 %")
            }
            Self::Memcached { clients, .. } => write!(f, "memcaslap -c {clients}, memcached"),
            Self::TcpStream { bytes, .. } => write!(f, "iperf3 -C cubic -l {bytes}"),
            Self::Nginx { bytes, .. } => write!(f, "wrk -c 20, nginx, {bytes} bytes"),
            Self::Apache { is_proxied: false, .. } => f.write_str("ab -k -c 20, apache2"),
            Self::Apache { .. } => f.write_str("ab -k -c 20, haproxy, apache2"),
            Self::Mariadb { threads, .. } => {
                write!(f, "sysbench oltp_point_select, {threads} threads, mariadbd")
            }
            Self::Mosquitto { .. } => f.write_str("mosquitto_pub -q 1, mosquitto, mosquitto_sub"),
            Self::Zeromq { .. } => f.write_str("zeromq requests, 4 connections"),
            Self::JavaNio { .. } => f.write_str("java nio echo, 16 connections"),
            Self::RedisOneEnd { clients } => {
                write!(f, "redis-benchmark -t get -c {clients}, on one end")
            }
            Self::Brief { load, .. } => load.fmt(f),
            Self::Start { weft: false } => f.write_str("true"),
            Self::Start { .. } => f.write_str("weft run -- true"),
            Self::Memcpy { bytes } => write!(f, "memcpy of {bytes} bytes"),
        }
    }
}

/// A load of brief connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brief {
    /// Connections of the lab's own programs with so many requests each, one after the other.
    Requests(u32),
    /// Requests of `ab` to an `nginx`, a connection each, 20 at a time.
    Ab,
    /// Questions of one `dig` to a `named`, a connection each.
    Dig,
    /// A process of `redis-cli` for each request.
    RedisCli,
    /// A process of `gearman` for each job, and one that the worker starts.
    Gearman,
}

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(1) => f.write_str("one request a connection"),
            Self::Requests(each) => write!(f, "{each} requests a connection"),
            Self::Ab => f.write_str("ab -c 20 without -k, nginx"),
            Self::Dig => f.write_str("dig, a connection for each question, named"),
            Self::RedisCli => f.write_str("redis-cli, a process for each request"),
            Self::Gearman => f.write_str("gearman, a process for each job"),
        }
    }
}

/// The result of one run of a tool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// In the unit of the tool.
    pub value: f64,
    /// Processor time of the client and of the server, per message, in nanoseconds.
    pub cpu_per_message: [f64; 2],
}

/// Where measurements are made.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The place of each end.
    pub stage: &'a Stage,
    /// The core of each end.
    pub placement: Placement,
}

impl Bench<'_> {
    /// Returns this bench with another placement.
    #[must_use]
    pub fn at(&self, placement: Placement) -> Bench<'_> {
        Bench { stage: self.stage, placement }
    }

    /// Runs `tool` once. Nothing else that this process started may be running.
    ///
    /// # Errors
    ///
    /// If a program is missing, fails, or prints no result.
    pub fn run(&self, tool: Tool) -> Result<Sample> {
        let _crowd = (self.placement == Placement::Crowded).then(Crowd::gather);
        let result = match tool {
            Tool::PerftestBandwidth { program, options, unit } => {
                self.perftest_bandwidth(program, options, unit)
            }
            Tool::PerftestLatency { program, options } => self.perftest_latency(program, options),
            Tool::Iperf3 { bytes } => self.iperf3(bytes, ""),
            Tool::Iperf3NoDelay { bytes } => {
                let sample = self.iperf3(bytes, "-N")?;
                Ok(Sample { value: sample.value / f64::from(bytes), ..sample })
            }
            Tool::QperfLatency { test, bytes } => self.qperf_latency(test, bytes),
            Tool::QperfTcpBandwidth { bytes, unit } => self.qperf_tcp_bandwidth(bytes, unit),
            Tool::Ucx { test, options, unit } => self.ucx(test, options, unit),
            Tool::FabricShm { bytes } => self.fabric_shm(bytes),
            Tool::Redis { clients, pipeline, weft } => self.redis(clients, pipeline, [weft; 2]),
            Tool::Sockperf { bytes, weft } => self.sockperf(bytes, weft, |report| report.median),
            Tool::SockperfTail { bytes, weft } => self.sockperf(bytes, weft, |report| report.tail),
            Tool::Memcached { clients, weft } => self.memcached(clients, weft),
            Tool::TcpStream { bytes, weft } => self.tcp_stream(bytes, weft),
            Tool::Nginx { bytes, weft } => self.nginx(bytes, weft),
            Tool::Apache { is_proxied, weft } => self.apache(is_proxied, weft),
            Tool::Mariadb { threads, weft } => self.mariadb(threads, weft),
            Tool::Mosquitto { weft } => self.mosquitto(weft),
            Tool::Zeromq { weft } => self.zeromq(weft),
            Tool::JavaNio { weft } => self.java_nio(weft),
            Tool::RedisOneEnd { clients } => self.redis(clients, 1, [true, false]),
            Tool::Brief { load, weft } => self.brief(load, weft),
            Tool::Start { weft } => self.start(weft),
            Tool::Memcpy { bytes } => self.memcpy(bytes as usize),
        };
        result.with_context(|| tool.to_string())
    }

    fn perftest_bandwidth(&self, program: &str, options: &str, unit: Unit) -> Result<Sample> {
        let (output, cpu) = self.perftest(program, options)?;
        let rows = perftest::bandwidth(&output)?;
        let row = rows.last().context("no row")?;
        let value = match unit {
            Unit::MessagesPerSecond => row.message_rate,
            Unit::BytesPerSecond | Unit::Nanoseconds => row.average,
        };
        Ok(Sample::new(value, cpu, row.iterations as f64))
    }

    fn perftest_latency(&self, program: &str, options: &str) -> Result<Sample> {
        let (output, cpu) = self.perftest(program, options)?;
        let rows = perftest::latency(&output)?;
        let row = rows.last().context("no row")?;
        // Each exchange is a message each way.
        Ok(Sample::new(row.average * 1e3, cpu, 2.0 * row.iterations as f64))
    }

    /// Output of the client, and the processor time of both.
    fn perftest(&self, program: &str, options: &str) -> Result<(String, [Duration; 2])> {
        let port = ports::next();
        let program = Program::weft(program).line("-F -p").arg(port.to_string()).line(options);
        let server = self.server(program.clone()).start()?.listening(Port::Tcp(port))?;
        self.client_then_server(program.arg(self.address()), server)
    }

    fn iperf3(&self, bytes: u32, options: &str) -> Result<Sample> {
        let port = ports::next();
        let program = Program::plain("iperf3").arg("-p").arg(port.to_string());
        let server = self.server(program.clone().line("-s -1")).start()?;
        let server = server.listening(Port::Tcp(port))?;
        let seconds = 2.0;
        let client = program.line("-t 2 --json").line(options).arg("-l").arg(bytes.to_string());
        let (output, cpu) =
            self.client_then_server(client.arg("-c").arg(self.address()), server)?;
        let report = iperf3::Report::parse(&output)?;
        let messages = report.received * seconds / f64::from(bytes);
        Ok(Sample::new(report.received, cpu, messages))
    }

    fn qperf_latency(&self, test: &str, bytes: u32) -> Result<Sample> {
        let (report, cpu) = self.qperf(test, bytes)?;
        let messages = report.value(test, "loc_send_msgs")?;
        let messages = messages + report.value(test, "rem_send_msgs")?;
        Ok(Sample::new(report.value(test, "latency")?, cpu, messages))
    }

    fn qperf_tcp_bandwidth(&self, bytes: u32, unit: Unit) -> Result<Sample> {
        let (report, cpu) = self.qperf("tcp_bw", bytes)?;
        let name = if unit == Unit::MessagesPerSecond { "msg_rate" } else { "bw" };
        let messages = report.value("tcp_bw", "recv_msgs")?;
        Ok(Sample::new(report.value("tcp_bw", name)?, cpu, messages))
    }

    fn qperf(&self, test: &str, bytes: u32) -> Result<(qperf::Report, [Duration; 2])> {
        let (control, data) = (ports::next(), ports::next());
        let program = Program::plain("qperf").arg("-lp").arg(control.to_string());
        let server = self.server(program.clone()).start()?.listening(Port::Tcp(control))?;
        let client = program.arg(self.address()).args(qperf::OPTIONS).line("-t 2 -ip");
        let client = client.arg(data.to_string()).arg("-m").arg(bytes.to_string());
        // `quit` makes the server end, so that the time of its children is counted.
        let (output, cpu) = self.client_then_server(client.args([test, "quit"]), server)?;
        Ok((qperf::Report::parse(&output)?, cpu))
    }

    fn ucx(&self, test: &str, options: &str, unit: Unit) -> Result<Sample> {
        let port = ports::next();
        let program = Program::plain("ucx_perftest").env("UCX_TLS", "posix,cma,self");
        let program = program.line("-p").arg(port.to_string()).args(["-t", test]).line(options);
        let server = self.server(program.clone()).start()?.listening(Port::Tcp(port))?;
        let (output, cpu) = self.client_then_server(program.arg(self.address()), server)?;
        let result = ucx::Final::parse(&output)?;
        let (value, ways) = match unit {
            Unit::Nanoseconds => (result.latency, 2.0),
            Unit::BytesPerSecond => (result.bandwidth, 1.0),
            Unit::MessagesPerSecond => (result.message_rate, 1.0),
        };
        Ok(Sample::new(value, cpu, ways * result.iterations))
    }

    fn fabric_shm(&self, bytes: u32) -> Result<Sample> {
        let (port, iterations) = (ports::next().to_string(), 100_000);
        let program = Program::plain("fi_pingpong").line("-p shm -e rdm -S").arg(bytes.to_string());
        let program = program.arg("-I").arg(iterations.to_string());
        let server = self.server(program.clone().args(["-B", &port])).start()?;
        let server = server.listening(Port::Tcp(port.parse()?))?;
        let client = program.args(["-P", &port]).arg(self.address());
        let (output, cpu) = self.client_then_server(client, server)?;
        // Size, sent, acknowledged, total, time, MB/s, microseconds one way, rate.
        let row = output.lines().rfind(|line| line.starts_with(&bytes.to_string()));
        let latency = row.and_then(|row| row.split_whitespace().nth(6)).context("no row")?;
        Ok(Sample::new(latency.parse::<f64>()? * 1e3, cpu, 2.0 * f64::from(iterations)))
    }

    /// `weft` says whether server and client run on Weft.
    fn redis(&self, clients: u32, pipeline: u32, weft: [bool; 2]) -> Result<Sample> {
        let requests = if clients == 1 { 100_000 } else { 300_000 * pipeline.min(4) };
        let [server, client] = weft.map(|weft| if weft { Program::weft } else { Program::plain });
        let (port, address) = (ports::next(), self.address());
        let server = server("redis-server").args(["--port", &port.to_string(), "--save", ""]);
        let server = self.server(server.args(["--bind", &address])).start()?;
        let server = server.listening(Port::Tcp(port))?;
        let client = client("redis-benchmark").args(["-h", &address, "-p", &port.to_string()]);
        let client = client.line("--csv -t get -c").arg(clients.to_string());
        let client = client.arg("-P").arg(pipeline.to_string());
        let client = client.arg("-n").arg(requests.to_string());
        let (output, cpu) = self.client_of(server, client)?;
        Ok(Sample::new(redis::requests_per_second(&output)?, cpu, requests.into()))
    }

    fn sockperf(
        &self,
        bytes: u32,
        weft: bool,
        which: impl Fn(&sockperf::Report) -> f64,
    ) -> Result<Sample> {
        let program = if weft { Program::weft } else { Program::plain };
        let port = ports::next();
        let end = |role| {
            let program = program("sockperf").args([role, "--tcp", "-i", &self.address()]);
            program.arg("-p").arg(port.to_string())
        };
        let server = self.server(end("server")).start()?.listening(Port::Tcp(port))?;
        // sockperf fails at more than 600,000 messages a second, for which it has no memory.
        let client = end("ping-pong").line("-t 2 --mps 500000 -m").arg(bytes.to_string());
        let (output, cpu) = self.client_of(server, client)?;
        let result = sockperf::Report::parse(&output)?;
        Ok(Sample::new(which(&result) * 1e3, cpu, result.messages))
    }

    fn memcached(&self, clients: u32, weft: bool) -> Result<Sample> {
        let program = if weft { Program::weft } else { Program::plain };
        let (port, address) = (ports::next(), self.address());
        let server = program("memcached").line("-U 0 -t 1 -m 256 -l").arg(&address);
        // memcached refuses to run as root without this option.
        let root = rustix::process::geteuid().is_root();
        let server = if root { server.line("-u root") } else { server };
        let server = self.server(server.arg("-p").arg(port.to_string())).start()?;
        let server = server.listening(Port::Tcp(port))?;
        let client = program("memcaslap").arg("-s").arg(format!("{address}:{port}"));
        let client = client.line("-t 2s -T 1 -c").arg(clients.to_string());
        let (output, cpu) = self.client_of(server, client)?;
        let result = memcaslap::Report::parse(&output)?;
        Ok(Sample::new(result.rate, cpu, result.operations))
    }

    fn tcp_stream(&self, bytes: u32, weft: bool) -> Result<Sample> {
        let program = if weft { Program::weft } else { Program::plain };
        let (port, seconds) = (ports::next(), 2.0);
        let program = program("iperf3").arg("-p").arg(port.to_string());
        let server = self.server(program.clone().line("-s -1")).start()?;
        let server = server.listening(Port::Tcp(port))?;
        let client = program.line("-t 2 --json -C cubic -l").arg(bytes.to_string());
        let client = client.arg("-c").arg(self.address());
        let (output, cpu) = self.client_then_server(client, server)?;
        let report = iperf3::Report::parse(&output)?;
        Ok(Sample::new(report.received, cpu, report.received * seconds / f64::from(bytes)))
    }

    fn nginx(&self, bytes: u32, weft: bool) -> Result<Sample> {
        let program = if weft { Program::weft } else { Program::plain };
        let (port, address) = (ports::next(), self.address());
        let files = scratch("bench-nginx")?;
        fs::write(files.join("file"), vec![b'x'; bytes as usize])?;
        let server = self.nginx_server(program("nginx"), &files, port)?;
        let client = program("wrk").line("-t 1 -c 20 -d 2");
        let (output, cpu) =
            self.client_of(server, client.arg(format!("http://{address}:{port}/file")))?;
        let result = wrk::Report::parse(&output)?;
        let sample = Sample::new(result.rate, cpu, result.requests);
        fs::remove_dir_all(&files)?;
        Ok(sample)
    }

    /// Starts `program`, which is nginx, with one worker, for the files of a directory.
    pub(crate) fn nginx_server(
        &self,
        program: Program,
        files: &Path,
        port: u16,
    ) -> Result<Running> {
        let (at, address) = (files.display(), self.address());
        // Started by root, nginx must not change its workers' user: only processes of one user
        // share memory.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let configuration = format!(
            "{user} daemon off; worker_processes 1; pid {at}/pid; error_log {at}/errors;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 1000000000;\n\
             client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};\n\
             uwsgi_temp_path {at}; scgi_temp_path {at};\n\
             server {{ listen {address}:{port}; root {at}; }} }}\n"
        );
        fs::write(files.join("configuration"), configuration)?;
        let server = program.arg("-c").arg(files.join("configuration"));
        self.server(server).start()?.listening(Port::Tcp(port))
    }

    /// Runs the client to its end, then makes the server end, which would not by itself.
    pub(crate) fn client_of(
        &self,
        server: Running,
        client: Program,
    ) -> Result<(String, [Duration; 2])> {
        self.clients_of([server], [client])
    }

    /// The same for several clients at once and several servers, of which the first ends first.
    /// Returns what the last client printed.
    pub(crate) fn clients_of(
        &self,
        servers: impl IntoIterator<Item = Running>,
        clients: impl IntoIterator<Item = Program>,
    ) -> Result<(String, [Duration; 2])> {
        self.clients_then(servers, clients, || ())
    }

    /// The same, with `ended` called when the clients have ended.
    pub(crate) fn clients_then(
        &self,
        servers: impl IntoIterator<Item = Running>,
        clients: impl IntoIterator<Item = Program>,
        ended: impl FnOnce(),
    ) -> Result<(String, [Duration; 2])> {
        let before = children_cpu()?;
        let clients = clients.into_iter().map(|client| self.client(client).start());
        let mut printed = String::new();
        for client in clients.collect::<Result<Vec<_>>>()? {
            printed = client.wait(TIMEOUT)?.success()?.stdout;
        }
        ended();
        let between = children_cpu()?;
        for mut server in servers {
            server.signal(Signal::TERM)?;
            server.wait(TIMEOUT)?; // Some end by the signal.
        }
        Ok((printed, [between - before, children_cpu()? - between]))
    }

    /// Copies between two buffers, as long as the other tools measure at least.
    fn memcpy(&self, bytes: usize) -> Result<Sample> {
        const TIME: Duration = Duration::from_millis(500);
        let measured = thread::scope(|scope| {
            let copying = scope.spawn(|| -> Result<Sample> {
                if let Some(core) = self.placement.cores().1 {
                    let mut cores = CpuSet::new();
                    cores.set(core);
                    sched_setaffinity(None, &cores)?;
                }
                let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
                let (start, mut copies) = (Instant::now(), 0.0);
                while start.elapsed() < TIME {
                    for _ in 0..(4 << 20) / bytes + 1 {
                        target.copy_from_slice(black_box(&source));
                        black_box(&mut target);
                        copies += 1.0;
                    }
                }
                let taken = start.elapsed();
                let rate = copies * bytes as f64 / taken.as_secs_f64();
                Ok(Sample::new(rate, [taken, Duration::ZERO], copies))
            });
            copying.join()
        });
        measured.map_err(|_| anyhow::anyhow!("the copying thread panicked"))?
    }

    /// Runs the client to its end, then awaits the server's. Order matters: the accounts of
    /// processor time only tell them apart by when each was waited for.
    pub(crate) fn client_then_server(
        &self,
        client: Program,
        server: Running,
    ) -> Result<(String, [Duration; 2])> {
        let before = children_cpu()?;
        let client = self.client(client).run(TIMEOUT)?.success()?;
        let between = children_cpu()?;
        server.wait(TIMEOUT)?.success()?;
        let after = children_cpu()?;
        Ok((client.stdout, [between - before, after - between]))
    }

    pub(crate) fn server(&self, program: Program) -> Program {
        self.stage.server(program).on_core(self.placement.cores().0)
    }

    pub(crate) fn client(&self, program: Program) -> Program {
        self.stage.client(program).on_core(self.placement.cores().1)
    }

    pub(crate) fn address(&self) -> String {
        self.stage.server_address().to_string()
    }
}

impl Sample {
    pub(crate) fn new(value: f64, cpu: [Duration; 2], messages: f64) -> Self {
        Self { value, cpu_per_message: cpu.map(|time| time.as_secs_f64() * 1e9 / messages) }
    }
}
