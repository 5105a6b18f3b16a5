//! UDP sockets of unmodified programs on one host: calls have the same results as on the kernel,
//! and datagrams go through memory if both ends run on Weft.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, first_core};
use weft_lab::{compile, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(90);
/// How often a program may run until it has done as on the kernel, with enough datagrams through
/// memory. On a busy machine a thread may be late, and a receiver may be asleep more often.
const TRIES: usize = 5;
/// About as many datagrams of 1,400 bytes as the kernel keeps for a socket, and a few more.
const QUEUED: u64 = 200;

/// Returns one of the counters of datagrams that `weft stat` reports.
fn counted(sockets: &Sockets, what: &str) -> Result<u64> {
    let stat = sockets.plain(weft()?).args(["stat", "--json"]).run(TIMEOUT)?.success()?;
    let report: Value = serde_json::from_str(&stat.stdout)?;
    Ok(report["totals"]["datagrams"][what].as_u64().unwrap_or(0))
}

/// Runs a program on the kernel, and on Weft with `way` as `WEFT_WAIT`. Both must print the same.
/// Returns how many datagrams have gone through memory.
fn same_on_weft(name: &str, way: &str) -> Result<u64> {
    let program = compile(name)?;
    let sockets = Sockets::new(Ends::Both)?;
    let kernel = sockets.plain(&program).run(TIMEOUT)?.success()?;
    let ours = sockets.server(&program).env("WEFT_WAIT", way).run(TIMEOUT)?.success()?;
    for (number, (kernel, ours)) in kernel.stdout.lines().zip(ours.stdout.lines()).enumerate() {
        let line = number + 1;
        ensure!(kernel == ours, "{way}, line {line}: {kernel:?} on the kernel, now {ours:?}");
    }
    let are_all = kernel.stdout.lines().count() == ours.stdout.lines().count();
    ensure!(are_all, "{way}: lines are missing");
    counted(&sockets, "datagrams")
}

/// Runs a program several times if necessary, until it has printed the same on Weft as on the
/// kernel and more than `datagrams_min` datagrams have gone through memory, in all these runs.
fn same_in_memory(name: &str, way: &str, datagrams_min: u64) -> Result<()> {
    let (mut through_memory, mut last) = (0, Ok(0));
    for _ in 0..TRIES {
        last = same_on_weft(name, way);
        through_memory += last.as_ref().unwrap_or(&0);
        if last.is_ok() && through_memory > datagrams_min {
            return Ok(());
        }
    }
    last?;
    bail!("{through_memory} datagrams through memory")
}

#[test]
fn every_call_does_what_it_does_on_the_kernel() -> Result<()> {
    // Datagrams to a receiver that is asleep go through the kernel, so not all are counted.
    same_in_memory("udp", "balanced", 50)
}

/// A wait in a blocking call ends as on the kernel: by datagrams, also of programs without Weft, by
/// signals, timeouts and cancellation. If the receiver is killed, another one takes over.
#[test]
fn waits_end_as_on_the_kernel() -> Result<()> {
    // With `cpu` no receiver polls: only receivers in a futex wait get datagrams through memory.
    same_in_memory("udp_waits", "cpu", 500)?;
    same_in_memory("udp_waits", "latency", 0)
}

/// `sockperf` gets each of its messages back once, whichever end runs on Weft.
#[test]
fn sockperf_ping_pong() -> Result<()> {
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let port = ports::next();
        let arguments = ["-i", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
        let server = sockets.server("sockperf").args(["server"]).args(&arguments);
        let server = server.start()?.listening(Port::Udp(port))?;
        let client = sockets.client("sockperf").args(["ping-pong", "-t", "1", "-m", "64"]);
        // sockperf has room for 600,000 messages a second, and fails if there are more.
        let client = client.args(["--mps", "100000"]);
        let report = client.args(&arguments).run(TIMEOUT)?.success()?.stdout;
        let none = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
        ensure!(report.contains(none), "{ends:?}: {report}");
        let (memory, dropped) = (counted(&sockets, "datagrams")?, counted(&sockets, "dropped")?);
        let by_kernel = counted(&sockets, "by_kernel")?;
        let known = memory + by_kernel;
        ensure!((known > 0) == (ends == Ends::Both), "{ends:?}: {memory} and {by_kernel}");
        ensure!(dropped == 0, "{dropped} dropped");
        drop(server);
    }
    Ok(())
}

/// Asks for a name many times, as a resolver does, and checks each answer.
const ASK: &str = "
import socket, struct, sys
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(60)
server = ('127.0.0.1', int(sys.argv[1]))
for number in range(300):
    question = struct.pack('>6H', number, 0x100, 1, 0, 0, 0)
    question += b'\\5query\\4weft\\4test\\0' + struct.pack('>2H', 1, 1)
    asking.sendto(question, server)
    answer, sender = asking.recvfrom(512)
    assert sender == server and answer[:2] == question[:2]
    assert answer.endswith(bytes([10, 1, 2, 3])), answer
";

#[test]
fn names_by_dnsmasq() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = sockets.server("dnsmasq").args(["--port", &port.to_string()]).line(
            "--no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user= --pid-file= \
             --listen-address=127.0.0.1 --bind-interfaces --address=/weft.test/10.1.2.3",
        );
        // dnsmasq waits long for each query: it receives through memory only if it polls for long.
        let server = server.env("WEFT_WAIT", "latency").start()?.listening(Port::Udp(port))?;
        let dig = sockets.client("dig").line("@127.0.0.1 +short +tries=1 +time=60 query.weft.test");
        let answer = dig.args(["-p", &port.to_string()]).run(TIMEOUT)?.success()?;
        ensure!(answer.stdout.trim() == "10.1.2.3", answer.error("another address"));
        let resolver = sockets.client("python3").args(["-c", ASK, &port.to_string()]);
        resolver.env("WEFT_WAIT", "latency").run(TIMEOUT)?.success()?;
        let (memory, by_kernel) =
            (counted(&sockets, "datagrams")?, counted(&sockets, "by_kernel")?);
        let known = memory + by_kernel;
        ensure!((known >= 300) == (ends == Ends::Both), "{ends:?}: {memory} and {by_kernel}");
        drop(server);
    }
    Ok(())
}

/// A program that asks or answers 300 times. While it asks it never sleeps: what comes for a
/// sleeper goes through the kernel.
const ECHO: &str = "
import os, socket, sys, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port, asks, option = int(sys.argv[1]), sys.argv[2] == 'ask', sys.argv[3:]
if option:
    own.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
own.bind(('127.0.0.1', 0 if asks else port))
own.settimeout(0 if asks else 60)

def receive():
    end = time.monotonic() + 60
    while asks and time.monotonic() < end:
        try:
            return own.recvfrom(100)
        except BlockingIOError:
            os.sched_yield()
    return own.recvfrom(100)

for number in range(300):
    if asks:
        own.sendto(b'asked', ('127.0.0.1', port))
    text, other = receive()
    if not asks:
        own.sendto(text, other)
own.close()
";

#[test]
fn what_carries_datagrams_is_logged() -> Result<()> {
    const BY_MEMORY: [&str; 2] = [" from 127.0.0.1:", ": shared memory"];
    const NOT_ON_WEFT: [&str; 2] = [" from ", ": udp, the receiver does not run on weft"];
    const OPTION: [&str; 2] =
        [" of 127.0.0.1:", ": udp, a socket option that only the kernel implements"];
    for (ends, option, expected) in [
        (Ends::Both, "", vec![BY_MEMORY, [" at ", ": shared memory"]]),
        (Ends::Client, "", vec![NOT_ON_WEFT, [" at ", ": udp, none has come by memory"]]),
        (Ends::Both, "option", vec![OPTION]),
    ] {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let port_text = port.to_string();
        let server = sockets.server("python3").args(["-c", ECHO, &port_text, "answer"]);
        let server = server.env("WEFT_WAIT", "latency").start()?.listening(Port::Udp(port))?;
        let client = sockets.client("python3").args(["-c", ECHO, &port_text, "ask"]);
        let client = client.line(option).env("WEFT_WAIT", "latency").env("WEFT_LOG", "info");
        let ended = client.run(TIMEOUT)?.success()?;
        server.wait(TIMEOUT)?.success()?;
        let lines: Vec<_> =
            ended.stderr.lines().filter(|line| line.contains("info: datagrams")).collect();
        for parts in &expected {
            let found = lines.iter().filter(|line| parts.iter().all(|part| line.contains(part)));
            ensure!(found.count() == 1, ended.error(format!("not {parts:?} once")));
        }
        ensure!(lines.len() == expected.len(), ended.error("other lines"));
    }
    Ok(())
}

#[test]
fn a_flood_by_iperf3() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next().to_string());
        let server = sockets.server("iperf3").line("--server --one-off --json --port");
        let listening = Port::Tcp(port.parse()?);
        let server = server.args([&port]).start()?.listening(listening)?;
        let client = sockets.client("iperf3").line("--client 127.0.0.1 --udp --json --bytes 50M");
        let client = client.line("--bitrate 400M --length 1400 --port").args([&port]);
        let client = client.on_core(first_core()?);
        let client = client.run(TIMEOUT)?.success()?;
        server.wait(TIMEOUT)?.success()?;
        let report: Value = serde_json::from_str(&client.stdout)?;
        let udp = |name| report["end"]["streams"][0]["udp"][name].as_u64();
        let (sent, lost) = udp("packets").zip(udp("lost_packets")).context("no counts")?;
        // The receiver gets more than what its queue holds, however late it is.
        ensure!(lost + QUEUED < sent, "{ends:?}: {lost} of {sent} lost");
        ensure!(udp("out_of_order") == Some(0), "{ends:?}: order is not kept");
        let memory = counted(&sockets, "datagrams")? + counted(&sockets, "by_kernel")?;
        ensure!((memory > 50) == (ends == Ends::Both), "{ends:?}: {memory} through memory");
    }
    Ok(())
}
