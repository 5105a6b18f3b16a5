//! PostgreSQL with its own benchmark, bulk copies and a cancelled query, over TCP on loopback.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Sockets, same};
use weft_lab::{Finished, Program, Running, ports, require};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Debian's directory of PostgreSQL's programs.
const BIN: &str = "/usr/lib/postgresql/15/bin";
const ROWS: u32 = 60_000;
/// Attempts to copy through memory. The server forks right after it has accepted. If a busy machine
/// delays the client's offer of memory until then, the connection stays on TCP.
const ATTEMPTS: usize = 10;

/// A PostgreSQL cluster for one test.
struct Cluster {
    sockets: Sockets,
    server: Running,
    port: String,
}

impl Cluster {
    /// Starts a cluster. Returns `None`, with a note, if no unprivileged user can run it.
    fn new(test: &str) -> Result<Option<Self>> {
        require(program("postgres"))?;
        let Some(sockets) = Sockets::unprivileged(test)? else { return Ok(None) };
        let port = ports::next();
        let data = sockets.path("data");
        let initdb = sockets.client(program("initdb")).arg("-D").arg(&data);
        let initdb = initdb.line("-U postgres -A trust -N -E UTF8 --locale=C");
        initdb.run(TIMEOUT)?.success()?;
        let server = sockets.server(program("postgres")).arg("-D").arg(&data);
        let server = server.line("-c fsync=off -c unix_socket_directories=");
        let server = server.line(&format!("-c listen_addresses=127.0.0.1 -p {port}"));
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        server.printed("ready to accept connections", TIMEOUT)?;
        Ok(Some(Self { sockets, server, port: port.to_string() }))
    }

    fn client(&self, name: &str) -> Program {
        self.sockets
            .client(program(name))
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", &self.port)
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
    }

    fn psql(&self, command: &str) -> Program {
        self.client("psql").args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", command])
    }

    /// Runs an SQL command and returns its output.
    fn ask(&self, command: &str) -> Result<String> {
        Ok(self.psql(command).run(TIMEOUT)?.success()?.stdout.trim().to_owned())
    }

    /// Checks how many bytes went through memory, and ends the server as an administrator would.
    fn finish(mut self, bytes_min: u64) -> Result<()> {
        self.sockets.check(bytes_min)?;
        self.server.signal(Signal::INT)?;
        self.server.wait(TIMEOUT)?.success().map(drop)
    }
}

fn program(name: &str) -> PathBuf {
    PathBuf::from(BIN).join(name)
}

/// Returns the number of transactions that a run of pgbench has done, and checks that none failed.
fn transactions(bench: &Finished) -> Result<u64> {
    let number = |label: &str| {
        let rest = bench.stdout.lines().find_map(|line| line.strip_prefix(label))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let failed: Option<u64> = number("number of failed transactions:");
    ensure!(failed == Some(0), bench.error("transactions failed"));
    number("number of transactions actually processed:")
        .with_context(|| bench.error("no number of transactions"))
}

#[test]
fn balances_agree_after_a_benchmark() -> Result<()> {
    let Some(cluster) = Cluster::new("balances_agree_after_a_benchmark")? else { return Ok(()) };
    cluster.client("pgbench").line("-i -q -s 1").run(TIMEOUT)?.success()?;
    let bench = |options: &str| {
        let bench = cluster.client("pgbench").line("-n -c 4 -j 2 -T 2").line(options);
        bench.run(TIMEOUT).and_then(Finished::success).and_then(|end| transactions(&end))
    };
    let selects = bench("-b select-only")?;
    let updates = bench("-b tpcb-like")? + bench("-b tpcb-like -M prepared")?;
    ensure!(selects > 0 && updates > 0, "{selects} selects, {updates} updates");
    let sums = cluster.ask(
        "select (select sum(abalance) from pgbench_accounts), \
                (select sum(bbalance) from pgbench_branches), \
                (select sum(tbalance) from pgbench_tellers), \
                (select sum(delta) from pgbench_history), \
                (select count(*) from pgbench_history)",
    )?;
    let sums: Vec<&str> = sums.split('|').collect();
    ensure!(sums[..4].iter().all(|sum| *sum == sums[0]), "balances differ: {sums:?}");
    ensure!(sums[4] == updates.to_string(), "{updates} updates, {} are kept", sums[4]);
    // A request and its answer together are longer than 50 bytes.
    cluster.finish((selects + updates) * 50)
}

#[test]
fn copies_arrive_whole() -> Result<()> {
    let Some(cluster) = Cluster::new("copies_arrive_whole")? else { return Ok(()) };
    let [from, to] = ["from", "to"].map(|name| cluster.sockets.path(name));
    let row = |number: u32| format!("{number}\t{}\n", number.to_string().repeat(20));
    let rows: String = (0..ROWS).map(row).collect();
    std::fs::write(&from, &rows)?;
    cluster.ask("create table t (number int primary key, text text)")?;
    let most = rows.len() as u64 * 9 / 10;
    let copy = |prepare: &str, copy: String| {
        for _ in 0..ATTEMPTS {
            cluster.ask(prepare)?;
            let before = cluster.sockets.totals()?.bytes;
            cluster.ask(&copy)?;
            if cluster.sockets.totals()?.bytes - before >= most {
                return Ok(());
            }
        }
        bail!("{copy}: {:?}", cluster.sockets.totals()?)
    };
    copy("truncate t", format!("\\copy t from '{}'", from.display()))?;
    let all = "select * from t order by 1";
    copy("select 1", format!("\\copy ({all}) to '{}'", to.display()))?;
    same(&std::fs::read(&to)?, rows.as_bytes())?;
    cluster.finish(2 * most)
}

/// The client sends the request to cancel on a separate connection, which the server closes without
/// an answer.
#[test]
fn a_query_is_cancelled() -> Result<()> {
    let Some(cluster) = Cluster::new("a_query_is_cancelled")? else { return Ok(()) };
    let mut sleeper = cluster.psql("select pg_sleep(1000)").start()?;
    let deadline = Instant::now() + TIMEOUT;
    let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    while cluster.ask(sleeping)? != "1" {
        ensure!(Instant::now() < deadline, sleeper.account());
        thread::sleep(Duration::from_millis(20));
    }
    sleeper.signal(Signal::INT)?;
    sleeper.wait(TIMEOUT)?.expect_output("canceling statement due to user request")?;
    ensure!(cluster.ask("select 6 * 7")? == "42", "the server is not as it was");
    cluster.finish(1)
}

/// The backend starts a shell while it has a connection, and goes on to use the connection.
#[test]
fn a_program_is_copied_from() -> Result<()> {
    const COPIES: usize = 20;
    let Some(cluster) = Cluster::new("a_program_is_copied_from")? else { return Ok(()) };
    let mut script = "create table t (number int);\n".to_owned();
    for number in 0..COPIES {
        script += &format!("copy t from program 'echo {number}';\nselect sum(number) from t;\n");
        script += "copy t to program 'cat >/dev/null';\nselect 7 * 6;\n";
    }
    std::fs::write(cluster.sockets.path("script"), script)?;
    let psql = cluster.client("psql").line("-X -q -A -t -v ON_ERROR_STOP=1 -f");
    let stdout = psql.arg(cluster.sockets.path("script")).run(TIMEOUT)?.success()?.stdout;
    let expected = (0..COPIES).map(|number| format!("{}\n42\n", number * (number + 1) / 2));
    same(stdout.as_bytes(), expected.collect::<String>().as_bytes())?;
    ensure!(cluster.ask("select count(*) from t")? == COPIES.to_string(), "rows are missing");
    cluster.finish(0)
}
