//! UDP sockets of unmodified programs on one host: what a program sees is what it sees on the
//! kernel, and datagrams go through memory if both ends run on Weft.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{compile, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(90);

/// What `weft stat` counts of datagrams.
fn counted(sockets: &Sockets, what: &str) -> Result<u64> {
    let stat = sockets.plain(weft()?).args(["stat", "--json"]).run(TIMEOUT)?.success()?;
    let report: Value = serde_json::from_str(&stat.stdout)?;
    Ok(report["totals"]["datagrams"][what].as_u64().unwrap_or(0))
}

/// Runs a program on the kernel and, in these ways, on Weft, where it must print the same. Returns
/// how many datagrams have gone through memory in each way.
fn same_on_weft(name: &str, ways: &[&str]) -> Result<Vec<u64>> {
    let program = compile(name)?;
    let kernel = Sockets::new(Ends::Both)?.plain(&program).run(TIMEOUT)?.success()?;
    let mut counts = Vec::new();
    for way in ways {
        let sockets = Sockets::new(Ends::Both)?;
        let ours = sockets.server(&program).env("WEFT_WAIT", way).run(TIMEOUT)?.success()?;
        for (number, (kernel, ours)) in kernel.stdout.lines().zip(ours.stdout.lines()).enumerate() {
            let line = number + 1;
            ensure!(kernel == ours, "{way}, line {line}: {kernel:?} on the kernel, now {ours:?}");
        }
        let are_all = kernel.stdout.lines().count() == ours.stdout.lines().count();
        ensure!(are_all, "{way}: lines are missing");
        counts.push(counted(&sockets, "datagrams")?);
    }
    Ok(counts)
}

#[test]
fn every_call_does_what_it_does_on_the_kernel() -> Result<()> {
    // Of all that the program sends, some finds its receiver asleep.
    let through_memory = same_on_weft("udp", &["balanced"])?[0];
    ensure!(through_memory > 50, "{through_memory} datagrams through memory");
    Ok(())
}

/// Who waits in a blocking call is woken, interrupted, limited, cancelled and succeeded as on the
/// kernel, by strangers' datagrams, too.
#[test]
fn waits_end_as_on_the_kernel() -> Result<()> {
    // At first nobody looks: only dozers receive through memory, and they are woken.
    let by_dozers = same_on_weft("udp_waits", &["cpu", "latency"])?[0];
    ensure!(by_dozers > 500, "{by_dozers} datagrams through memory");
    Ok(())
}

/// Messages of `sockperf` come back, whichever end runs on Weft, and none twice.
#[test]
fn sockperf_ping_pong() -> Result<()> {
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let port = ports::next();
        let arguments = ["-i", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
        let server = sockets.server("sockperf").args(["server"]).args(&arguments);
        let server = server.start()?.listening(Port::Udp(port))?;
        let client = sockets.client("sockperf").args(["ping-pong", "-t", "1", "-m", "64"]);
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
