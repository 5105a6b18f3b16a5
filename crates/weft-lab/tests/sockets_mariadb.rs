//! MariaDB with sysbench, with a thread for each connection and with a pool of threads that share
//! epoll instances.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::servers::{mariadb, sysbench};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Program, Running, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a test of sysbench, and checks that no event failed.
fn run(
    program: Program,
    server: &mut Running,
    test: &str,
    threads: u32,
    events: u64,
) -> Result<()> {
    let program =
        program.arg(test).arg(format!("--threads={threads}")).arg(format!("--events={events}"));
    let ended = program.line("--time=0 run").run(TIMEOUT).and_then(Finished::success);
    let ended = ended.map_err(|error| error.context(server.account()))?;
    let number = |label: &str| -> Option<u64> {
        let line = ended.stdout.lines().find_map(|line| line.trim().strip_prefix(label))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let wanted = [("total number of events:", events), ("ignored errors:", 0), ("reconnects:", 0)];
    for (label, count) in wanted {
        // sysbench restarts transactions that failed on each other's locks, and counts them as
        // errors.
        let may_be_more = label == "ignored errors:" && test.contains("write");
        let right = number(label).is_some_and(|found| found == count || may_be_more);
        ensure!(right, ended.error(format!("{label} not {count}")));
    }
    Ok(())
}

fn queries(placements: &[Ends], options: &str) -> Result<()> {
    const SELECTS: u64 = 4000;
    for &ends in placements {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let tool = |name: &str| sockets.plain(name);
        let server = sockets.server("mariadbd");
        let mut server = mariadb(server, tool, &sockets.path(""), port, options)?;
        let bench = sysbench(sockets.client("sysbench"), port);
        bench.clone().line("oltp_point_select prepare").run(TIMEOUT)?.success()?;
        for (test, threads, events) in [
            ("oltp_point_select", 4, SELECTS),
            ("oltp_point_select", 16, SELECTS),
            ("oltp_read_write", 4, 100),
        ] {
            run(bench.clone(), &mut server, test, threads, events)
                .with_context(|| format!("{test}, {threads} threads, weft: {ends:?}"))?;
        }
        let client = sockets.client("mariadb").line("--no-defaults -h 127.0.0.1 -u root -N -B");
        let client = client.arg("-P").arg(port.to_string()).args(["mysql", "-e"]);
        let rows = "select count(*), count(distinct id), max(id) from sbtest1";
        client.arg(rows).run(TIMEOUT)?.success()?.expect_output("2000\t2000\t")?;
        // An answer has a row of 120 bytes.
        sockets.check(SELECTS * 2 * 100)?;
    }
    Ok(())
}

#[test]
fn a_thread_for_each_connection() -> Result<()> {
    queries(&Ends::ALL, "")
}

#[test]
fn a_pool_of_threads() -> Result<()> {
    queries(&[Ends::Both], "--thread-handling=pool-of-threads --thread-pool-size=2")
}
