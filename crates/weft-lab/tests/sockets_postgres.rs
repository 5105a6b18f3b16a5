//! PostgreSQL with its own benchmark, bulk copies and a cancelled query, over TCP on loopback.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Sockets, same, until};
use weft_lab::{Finished, Program, Running, ensure_data, ports, require};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Debian's directory of PostgreSQL's programs.
const BIN: &str = "/usr/lib/postgresql/15/bin";
const ROWS: u32 = 60_000;

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

    /// Ends the server as an administrator would.
    fn finish(mut self) -> Result<()> {
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
        // If their number was set: "20000/20000".
        rest.split_whitespace().next()?.split('/').next()?.parse().ok()
    };
    let failed: Option<u64> = number("number of failed transactions:");
    ensure!(failed == Some(0), bench.error("transactions failed"));
    number("number of transactions actually processed:")
        .with_context(|| bench.error("no number of transactions"))
}

#[test]
fn balances_agree_after_a_benchmark() -> Result<()> {
    const SELECTS: u64 = 20_000;
    const UPDATES: u64 = 2_000;
    let Some(cluster) = Cluster::new("balances_agree_after_a_benchmark")? else { return Ok(()) };
    cluster.client("pgbench").line("-i -q -s 1").run(TIMEOUT)?.success()?;
    let bench = |options: &str, expected: u64| -> Result<()> {
        let bench = cluster.client("pgbench").line("-n -c 4 -j 2").line(options);
        let bench = bench.arg("-t").arg((expected / 4).to_string());
        let done = transactions(&bench.run(TIMEOUT)?.success()?)?;
        ensure_data!(done == expected, "{options}: {done} transactions instead of {expected}");
        Ok(())
    };
    let mut updates = 0;
    // A request and its answer together are longer than 50 bytes.
    cluster.sockets.until_shared((SELECTS + 2 * UPDATES) * 50, || {
        bench("-b select-only", SELECTS)?;
        bench("-b tpcb-like", UPDATES)?;
        bench("-b tpcb-like -M prepared", UPDATES)?;
        updates += 2 * UPDATES;
        Ok(())
    })?;
    let sums = cluster.ask(
        "select (select sum(abalance) from pgbench_accounts), \
                (select sum(bbalance) from pgbench_branches), \
                (select sum(tbalance) from pgbench_tellers), \
                (select sum(delta) from pgbench_history), \
                (select count(*) from pgbench_history)",
    )?;
    let sums: Vec<&str> = sums.split('|').collect();
    ensure_data!(sums[..4].iter().all(|sum| *sum == sums[0]), "balances differ: {sums:?}");
    ensure_data!(sums[4] == updates.to_string(), "{updates} updates, {} are kept", sums[4]);
    cluster.finish()
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
        cluster.sockets.until_shared(most, || {
            cluster.ask(prepare)?;
            cluster.ask(&copy).map(drop)
        })
    };
    copy("truncate t", format!("\\copy t from '{}'", from.display()))?;
    let all = "select * from t order by 1";
    copy("select 1", format!("\\copy ({all}) to '{}'", to.display()))?;
    same(&std::fs::read(&to)?, rows.as_bytes())?;
    cluster.finish()
}

/// The client sends the request to cancel on a separate connection, which the server closes without
/// an answer.
#[test]
fn a_query_is_cancelled() -> Result<()> {
    let Some(cluster) = Cluster::new("a_query_is_cancelled")? else { return Ok(()) };
    let mut sleeper = cluster.psql("select pg_sleep(1000)").start()?;
    let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    until("a query that sleeps", || Ok((cluster.ask(sleeping)? == "1").then_some(())))?;
    sleeper.signal(Signal::INT)?;
    sleeper.wait(TIMEOUT)?.expect_output("canceling statement due to user request")?;
    cluster.sockets.until_shared(1, || {
        ensure!(cluster.ask("select 6 * 7")? == "42", "the server is not as it was");
        Ok(())
    })?;
    cluster.finish()
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
    let count = cluster.ask("select count(*) from t")?;
    ensure_data!(count == COPIES.to_string(), "{count} rows instead of {COPIES}");
    cluster.finish()
}
