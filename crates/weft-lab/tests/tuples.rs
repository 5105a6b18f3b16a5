//! `weft tuples` serves clients that we did not write: redis-cli, redis-benchmark and redis-py.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::credentials::{certificate, secret};
use weft_lab::endpoint::Port;
use weft_lab::redis_differ::Logins;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Folder, Program, Running, ensure_data, ports, redis_differ, require, source, weft};
use weft_tuples::model::{Criteria, ElementEnd, Operation, Tuple};
use weft_tuples::native::{Address, Client};
use weft_tuples::tail::{Last, Tail, TailError};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for what the lab itself does not limit. It detects a hang.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
/// Debian's Python and its redis-py.
const PYTHON: &str = "/usr/bin/python3.11";
const REDIS_PY: &str = "/usr/lib/python3/dist-packages/redis/client.py";

/// A server, and the programs that connect to it.
struct Server<'a> {
    sockets: &'a Sockets,
    port: u16,
    running: Running,
}

impl<'a> Server<'a> {
    fn start(sockets: &'a Sockets) -> Result<Self> {
        let port = ports::next();
        let program = sockets.server(weft()?);
        let program =
            program.line(&format!("tuples serve --unix socket --listen 127.0.0.1:{port}"));
        let running = program.start()?.listening(Port::Tcp(port))?;
        Ok(Self { sockets, port, running })
    }

    /// Runs one command with `redis-cli` and returns the answer.
    fn redis(&self, command: &str) -> Result<String> {
        let cli = self.sockets.client("redis-cli").args(["-p", &self.port.to_string()]);
        Ok(cli.line(command).run(TIMEOUT)?.success()?.stdout.trim().to_owned())
    }

    /// A command of `weft tuples`.
    fn tuples(&self, command: &str, arguments: &[&str]) -> Result<Program> {
        let program = self.sockets.client(weft()?).args(["tuples", command, "--server"]);
        Ok(program.arg(format!("127.0.0.1:{}", self.port)).args(arguments))
    }

    fn ask(&self, command: &str, arguments: &[&str]) -> Result<String> {
        Ok(self.tuples(command, arguments)?.run(TIMEOUT)?.success()?.stdout)
    }
}

fn redis_tools(ends: Ends) -> Result<()> {
    let sockets = Sockets::new(ends)?;
    let server = Server::start(&sockets)?;
    for (command, answer) in [
        ("PING", "PONG"),
        ("RPUSH l a b c", "3"),
        ("LRANGE l 0 -1", "a\nb\nc"),
        ("BLPOP l 1", "l\na"),
        ("BLMOVE l m RIGHT LEFT 1", "c"),
        ("XADD s 5-1 f v", "5-1"),
        ("XRANGE s - +", "5-1\nf\nv"),
        ("XREAD STREAMS s 0", "s\n5-1\nf\nv"),
        ("TYPE s", "stream"),
        ("DEL l m s", "3"),
    ] {
        let found = server.redis(command)?;
        ensure_data!(found == answer, "{command}: {found}");
    }
    for options in ["-n 5000 -c 50", "-n 20000 -c 20 -P 16"] {
        let benchmark = sockets.client("redis-benchmark").args(["-p", &server.port.to_string()]);
        let benchmark = benchmark.line("-t ping,lpush,rpush,lpop,rpop,lrange_100 --csv -d 100");
        let figures = benchmark.line(options).run(TIMEOUT)?.success()?;
        figures.expect_output("\"LPUSH\"")?.expect_output("\"LRANGE_100")?;
    }
    let benchmark = sockets.client("redis-benchmark").args(["-p", &server.port.to_string()]);
    benchmark.line("-n 5000 --csv xadd stream * field value").run(TIMEOUT)?.success()?;
    ensure_data!(server.redis("XLEN stream")? == "5000", "entries are missing");
    sockets.check(1_000_000)
}

#[test]
fn redis_tools_work_over_tcp() -> Result<()> {
    redis_tools(Ends::Server)?;
    redis_tools(Ends::Client)
}

#[test]
fn redis_tools_work_through_shared_memory() -> Result<()> {
    redis_tools(Ends::Both)
}

/// Random commands get the replies of a real Redis, byte for byte. `WEFT_LAB_TUPLES_SEED=n` runs
/// many other ones.
#[test]
fn replies_are_those_of_redis() -> Result<()> {
    let first = std::env::var("WEFT_LAB_TUPLES_SEED").ok();
    let first: Option<u64> = first.map(|seed| seed.parse()).transpose()?;
    let count = if first.is_some() { 2_000 } else { 60 };
    let sockets = Sockets::new(Ends::Server)?;
    let port = ports::next();
    let redis = sockets.plain("redis-server").args(["--port", &port.to_string()]);
    let redis = redis.line("--bind 127.0.0.1 --save").arg("").start()?;
    let _redis = redis.listening(Port::Tcp(port))?;
    let server = Server::start(&sockets)?;
    for seed in (first.unwrap_or(0)..).take(count) {
        redis_differ::compare(seed, 150, [port, server.port], None)?;
    }
    Ok(())
}

/// Users with some rights get what Redis gives them, and are refused what it refuses.
#[test]
fn rights_are_those_of_redis() -> Result<()> {
    const LOGINS: Logins =
        Logins { all: "AUTH default the-token-of-all", limited: "AUTH ann the-token-of-ann" };
    let folder = Folder::new(0o700)?;
    let acl = secret(
        &folder,
        "acl",
        "user default on >the-token-of-all ~* &* +@all\n\
         user ann on >the-token-of-ann %R~l1* ~l2* %W~l3* ~s1* %R~s2* \
         +@all -flushall -flushdb\n",
    )?;
    let users = secret(
        &folder,
        "users",
        "[[user]]\nname = \"default\"\ntoken = \"the-token-of-all\"\n\
         read = [\"\"]\nwrite = [\"\"]\n\
         [[user]]\nname = \"ann\"\ntoken = \"the-token-of-ann\"\n\
         read = [\"l1\", \"l2\", \"s1\", \"s2\"]\nwrite = [\"l2\", \"l3\", \"s1\"]\n",
    )?;
    let ports = [(); 2].map(|()| ports::next());
    let program = Program::plain("redis-server").args(["--port", &ports[0].to_string()]);
    let program = program.line("--bind 127.0.0.1 --save").arg("").arg("--aclfile").arg(&acl);
    let _redis = program.directory(folder.path()).start()?.listening(Port::Tcp(ports[0]))?;
    let line = format!("tuples serve --listen 127.0.0.1:{} --users", ports[1]);
    let _weft = serve(Program::plain(weft()?).line(&line).arg(&users))?;
    for seed in 0..40 {
        redis_differ::compare(seed, 150, ports, Some(LOGINS))?;
    }
    let list = Program::plain(weft()?).line(&format!("tuples put --server 127.0.0.1:{}", ports[1]));
    let list =
        list.line("l1 x").env("WEFT_TUPLES_TOKEN_FILE", secret(&folder, "t", "the-token-of-ann")?);
    let refused = list.run(TIMEOUT)?;
    ensure!(refused.stderr.contains("the user may not"), refused.error("a put without the right"));
    Ok(())
}

#[test]
fn redis_py_works() -> Result<()> {
    require(REDIS_PY)?;
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let server = Server::start(&sockets)?;
        let client = sockets.client(PYTHON).arg(source("programs/tuples/client.py"));
        client.arg(server.port.to_string()).run(TIMEOUT)?.success()?.expect_output("done")?;
        sockets.check(5_000_000)?;
    }
    Ok(())
}

/// The figures are not judged: they depend on the machine.
#[test]
fn bench_measures_a_running_server_and_leaves_nothing() -> Result<()> {
    let sockets = Sockets::new(Ends::Server)?;
    let server = Server::start(&sockets)?;
    let small = ["--moves", "20", "--runs", "2"];
    let table = server.ask("bench", &small)?;
    ensure!(table.contains("31744") && table.contains("ping-pong"), "{table}");
    let json = server.ask("bench", &[&small[..], &["--json"]].concat())?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let sizes = json["move"].as_array().context("no moves")?;
    ensure!(sizes.first().is_some_and(|it| it["bytes"] == 1), "{json}");
    for size in sizes {
        let runs = size["medians_of_runs_us"].as_array().context("no runs")?;
        let are_times = runs.iter().all(|it| it.as_f64().is_some_and(|time| time > 0.0));
        ensure!(runs.len() == 2 && are_times, "{size}");
    }
    ensure!(json["ping_pong"]["median_us"].as_f64().is_some_and(|time| time > 0.0), "{json}");
    ensure!(server.ask("list", &["--json"])?.trim() == "[]", "elements are left");
    Ok(())
}

#[test]
fn shells_share_tuples() -> Result<()> {
    for ends in [Ends::Both, Ends::Server] {
        let sockets = Sockets::new(ends)?;
        let mut server = Server::start(&sockets)?;
        server.ask("create", &["queue", "--bound", "2"])?;
        server.ask("put", &["queue", "first", "second"])?;
        let late = server.tuples("put", &["queue", "third", "--timeout", "0.01"])?.run(TIMEOUT)?;
        ensure!(late.stderr.contains("full"), late.error("a put that has no place"));
        let waiting = server.tuples("put", &["queue", "third"])?.start()?;
        ensure_data!(server.ask("take", &["queue"])? == "first\n", "the order");
        waiting.wait(TIMEOUT)?.success()?;
        ensure_data!(server.ask("list", &["queue"])? == "second\nthird\n", "the element");
        let taker = server.tuples("take", &["none", "later", "-n", "2", "--exactly"])?.start()?;
        let mut watcher = server.tuples("watch", &["later", "queue", "-n", "2"])?.start()?;
        // Both are waiting once the list says so.
        let deadline = Instant::now() + LONG_TIMEOUT;
        loop {
            let all: serde_json::Value = serde_json::from_str(&server.ask("list", &["--json"])?)?;
            let queue =
                all.as_array().and_then(|all| all.iter().find(|it| it["element"] == "queue"));
            if queue.is_some_and(|queue| queue["waiting"] == 1) {
                break;
            }
            ensure!(Instant::now() < deadline, "nobody watches: {all}");
        }
        ensure!(server.redis("RPUSH later a b")? == "2", "both protocols share elements");
        watcher.printed("a\nb\n", TIMEOUT)?;
        watcher.wait(TIMEOUT)?.success()?;
        let taken = taker.wait(TIMEOUT)?.success()?;
        ensure_data!(taken.stdout == "a\nb\n", "{}", taken.error("the tuples that were taken"));
        // By the Unix socket.
        let list = sockets.client(weft()?).line("tuples list --server ./socket queue");
        ensure!(list.run(TIMEOUT)?.success()?.stdout == "second\nthird\n", "by the Unix socket");
        server.ask("delete", &["queue"])?;
        server.running.signal(Signal::TERM)?;
        server.running.wait(TIMEOUT)?.success().context("the server")?;
    }
    Ok(())
}

/// A server that clients reach by the fabric, in processes of their own.
struct FabricServer {
    transport: &'static str,
    port: u16,
    folder: Folder,
    running: Running,
}

impl FabricServer {
    /// `transport` is how the fabric carries connections: `shm` or `tcp`.
    fn start(transport: &'static str) -> Result<Self> {
        let (port, folder) = (ports::next(), Folder::in_memory(0o700)?);
        let running = Self::serve(transport, port, &folder)?;
        Ok(Self { transport, port, folder, running })
    }

    fn serve(transport: &str, port: u16, folder: &Folder) -> Result<Running> {
        let line = format!("tuples serve --listen 127.0.0.1:{port} --state");
        let program = Program::plain(weft()?).line(&line).arg(folder.path().join("state"));
        let mut running = program.env("WEFT_TRANSPORT", transport).start()?;
        running.printed("listening on", TIMEOUT)?;
        Ok(running)
    }

    fn command(&self, command: &str, arguments: &[&str]) -> Result<Program> {
        let server = format!("fabric://127.0.0.1:{}", self.port);
        let program = Program::plain(weft()?).env("WEFT_TRANSPORT", self.transport);
        Ok(program.args(["tuples", command, "--server", &server]).args(arguments))
    }

    fn ask(&self, command: &str, arguments: &[&str]) -> Result<String> {
        let finished = self.command(command, arguments)?.run(TIMEOUT)?.success()?;
        ensure!(finished.stderr.is_empty(), finished.error("it does not go by the fabric"));
        Ok(finished.stdout)
    }

    /// Until so many operations wait for an element.
    fn wait_for(&self, element: &str, waiting: u64) -> Result<()> {
        let deadline = Instant::now() + LONG_TIMEOUT;
        loop {
            let all: serde_json::Value = serde_json::from_str(&self.ask("list", &["--json"])?)?;
            let mut found = all.as_array().context("no list")?.iter();
            if found.any(|it| it["element"] == element && it["waiting"] == waiting) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {waiting} wait: {all}");
        }
    }
}

#[test]
fn shells_share_tuples_by_the_fabric() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let mut server = FabricServer::start(transport)?;
        server.ask("create", &["queue"])?;
        let taker = server.command("take", &["queue"])?.start()?;
        server.wait_for("queue", 1)?;
        server.ask("put", &["queue", "first"])?;
        let taken = taker.wait(TIMEOUT)?.success()?.stdout;
        ensure_data!(taken == "first\n", "{transport}: {taken}");
        // Clients by the fabric and by TCP see the same tuples.
        let long = "x".repeat(100_000);
        server.ask("put", &["queue", &long, "second"])?;
        let by_tcp = Program::plain(weft()?).line("tuples take queue --server");
        let by_tcp = by_tcp.arg(format!("127.0.0.1:{}", server.port)).run(TIMEOUT)?.success()?;
        ensure_data!(by_tcp.stdout == format!("{long}\n"), "{transport}: the long tuple");
        // What a killed client waits for is not taken.
        ensure_data!(server.ask("take", &["queue"])? == "second\n", "{transport}: the order");
        let killed = server.command("take", &["queue"])?.start()?;
        server.wait_for("queue", 1)?;
        killed.kill()?;
        server.wait_for("queue", 0)?;
        server.ask("put", &["queue", "third"])?;
        ensure_data!(server.ask("take", &["queue"])? == "third\n", "{transport}: a tuple is lost");
        server.ask("bench", &["--moves", "20", "--runs", "1"])?;
        server.running.signal(Signal::TERM)?;
        server.running.wait(TIMEOUT)?.success().context("the server")?;
    }
    Ok(())
}

#[test]
fn clients_by_the_fabric_outlive_a_killed_server() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let mut server = FabricServer::start(transport)?;
        server.ask("create", &["queue"])?;
        server.ask("put", &["other", "kept"])?;
        let taker = server.command("take", &["queue", "--retry", "200"])?.start()?;
        server.wait_for("queue", 1)?;
        server.running.kill()?;
        server.running = FabricServer::serve(transport, server.port, &server.folder)?;
        server.wait_for("queue", 1)?;
        server.ask("put", &["queue", "late"])?;
        let taken = taker.wait(TIMEOUT)?.success()?.stdout;
        ensure_data!(taken == "late\n", "{transport}: {taken}");
        ensure_data!(server.ask("take", &["other"])? == "kept\n", "{transport}: a tuple is lost");
    }
    Ok(())
}

#[test]
fn client_says_that_it_goes_by_tcp_if_the_fabric_is_not_possible() -> Result<()> {
    let port = ports::next();
    let line = format!("tuples serve --listen 127.0.0.1:{port} --no-fabric");
    let mut running = Program::plain(weft()?).line(&line).start()?;
    running.printed("listening on", TIMEOUT)?;
    let put = Program::plain(weft()?).line("tuples put queue first --server");
    let put = put.arg(format!("fabric://127.0.0.1:{port}")).run(TIMEOUT)?.success()?;
    ensure!(put.stderr.contains("connected by TCP"), put.error("it does not say so"));
    let take = Program::plain(weft()?).line("tuples take queue --server");
    let take = take.arg(format!("127.0.0.1:{port}")).run(TIMEOUT)?.success()?;
    ensure_data!(take.stdout == "first\n", "{}", take.error("the tuple"));
    Ok(())
}

/// A client reads the tail of an element while the server is busy, and while it is stopped.
#[test]
fn tails_are_read_while_the_server_is_busy_or_stopped() -> Result<()> {
    let mut server = FabricServer::start("shm")?;
    let address = Address::Fabric(format!("127.0.0.1:{}", server.port));
    let mut client = Client::connect(address, LONG_TIMEOUT)?;
    let mut tail = client.tail(b"queue")?.context("no place")?;
    let look = |tail: &mut Tail| -> Result<(u64, Option<u64>)> {
        let seen = tail.read(LONG_TIMEOUT)?;
        match seen.last {
            Last::None => Ok((seen.len, None)),
            Last::Tuple(item) => {
                let text = str::from_utf8(item.fields.first().context("no field")?)?;
                // Each tuple is one number again and again, so that a torn one is seen.
                let mut numbers = text.split(' ').map(str::parse::<u64>);
                let first = numbers.next().context("no number")??;
                ensure_data!(numbers.all(|number| number == Ok(first)), "torn: {text}");
                Ok((seen.len, Some(first)))
            }
            Last::Long(position) => anyhow::bail!("the tuple {position} is not that long"),
        }
    };
    let put = |number: u64| {
        let text = vec![number.to_string(); 1 + number as usize % 90].join(" ");
        let (criteria, end) = (Criteria::default(), ElementEnd::Back);
        let (element, tuples) = (Rc::from(&b"queue"[..]), vec![Tuple::of(text)]);
        Operation::Put { element, criteria, end, tuples, is_append: false }
    };
    let total = 5_000;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            for number in 1..=total {
                client.call(put(number), None)?;
            }
            Ok(())
        });
        let (mut before, mut reads) = (0, 0_u64);
        while before < total && !(writer.is_finished() && reads > total) {
            let (len, last) = look(&mut tail)?;
            let last = last.unwrap_or_default();
            ensure_data!(last >= before && len == last, "{last} of {len} follows {before}");
            (before, reads) = (last, reads + 1);
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer has panicked"))?
    })?;
    server.running.signal(Signal::STOP)?;
    for _ in 0..100 {
        ensure_data!(look(&mut tail)? == (total, Some(total)), "the tail of a stopped server");
    }
    server.running.signal(Signal::CONT)?;
    let printed = server.ask("tail", &["queue", "--json"])?;
    let printed: serde_json::Value = serde_json::from_str(&printed)?;
    ensure_data!(printed["tuples"] == total, "{printed}");
    server.ask("delete", &["queue"])?;
    ensure!(matches!(tail.read(LONG_TIMEOUT), Err(TailError::Ended)), "the tail has not ended");
    Ok(())
}

/// Starts a server, and waits until it listens.
fn serve(program: Program) -> Result<Running> {
    let mut running = program.start()?;
    running.printed("listening on", TIMEOUT)?;
    Ok(running)
}

const TOKEN: &str = "the-token-of-the-server";

#[test]
fn only_clients_with_the_token_are_served() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let token = secret(&folder, "token", &format!("{TOKEN}\n"))?;
    let wrong = secret(&folder, "wrong", "the-token-of-another-one")?;
    let port = ports::next();
    let address = format!("127.0.0.1:{port}");
    let line = format!("tuples serve --listen {address} --token-file");
    let program = Program::plain(weft()?).line(&line).arg(&token).line("--unix socket");
    let _running = serve(program.directory(folder.path()))?;
    let command = |words: &str, server: &str| -> Result<Program> {
        let program = Program::plain(weft()?).line(&format!("tuples {words}"));
        Ok(program.args(["--server", server]).directory(folder.path()))
    };
    let servers = [address.clone(), format!("fabric://{address}"), "./socket".to_owned()];
    for server in &servers {
        let refusals =
            [command("list", server)?, command("list", server)?.arg("--token-file").arg(&wrong)];
        for refused in refusals {
            let refused = refused.run(TIMEOUT)?;
            let is_refused = refused.stderr.contains("asks for a token");
            ensure!(is_refused, refused.error(format!("{server} without the token")));
        }
        let put = command("put jobs first", server)?.arg("--token-file").arg(&token);
        put.run(TIMEOUT)?.success()?;
        let take = command("take jobs", server)?.env("WEFT_TUPLES_TOKEN_FILE", &token);
        ensure_data!(take.run(TIMEOUT)?.success()?.stdout == "first\n", "by {server}");
    }
    let cli = |options: &[&str], command: &str| -> Result<String> {
        let cli = Program::plain("redis-cli").args(["-p", &port.to_string()]).args(options);
        Ok(cli.line(command).run(TIMEOUT)?.stdout.trim().to_owned())
    };
    ensure!(cli(&[], "LLEN jobs")?.contains("NOAUTH"), "redis-cli without the password");
    ensure!(cli(&["-a", "wrong"], "LLEN jobs")?.contains("NOAUTH"), "redis-cli with another one");
    ensure!(cli(&["-a", TOKEN], "RPUSH jobs a")? == "1", "redis-cli with the password");
    let user = ["--user", "default", "--pass", TOKEN, "-3"];
    ensure!(cli(&user, "LPOP jobs")? == "a", "redis-cli with HELLO 3");
    let open = folder.path().join("open");
    fs::write(&open, TOKEN)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644))?;
    let refused =
        Program::plain(weft()?).line("tuples serve --token-file").arg(&open).run(TIMEOUT)?;
    ensure!(refused.stderr.contains("chmod 600"), refused.error("a token that others may read"));
    Ok(())
}

/// Commands with and without the password get the replies of a real Redis.
#[test]
fn replies_about_the_password_are_those_of_redis() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let token = secret(&folder, "token", TOKEN)?;
    let [redis, weft_port] = [(); 2].map(|()| ports::next());
    let program = Program::plain("redis-server").args(["--port", &redis.to_string()]);
    let program = program.line("--bind 127.0.0.1 --save").arg("").args(["--requirepass", TOKEN]);
    let _redis = program.directory(folder.path()).start()?.listening(Port::Tcp(redis))?;
    let line = format!("tuples serve --listen 127.0.0.1:{weft_port} --token-file");
    let _weft = serve(Program::plain(weft()?).line(&line).arg(&token))?;
    let script = format!(
        "PING\nEXEC\nEXEC x\nLLEN\nLLEN l\nNONE x\nHELLO 3\nHELLO 9\n\
         HELLO 2 AUTH default no\nAUTH no\n\
         AUTH other {TOKEN}\nAUTH a b c\nRESET\nCOMMAND COUNT\nAUTH {TOKEN}\nLLEN l\nAUTH no\n\
         LLEN l\nRESET\nLLEN l\nAUTH default {TOKEN}\nRPUSH l a\nRESET\nDEL l\n\
         *11\n"
    );
    let replies = |port: u16| -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LONG_TIMEOUT))?;
        stream.write_all(script.replace('\n', "\r\n").as_bytes())?;
        // The last command ends the connection.
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let (expected, found) = (replies(redis)?, replies(weft_port)?);
    ensure!(found == expected, "{found}\nbut Redis says:\n{expected}");
    Ok(())
}

#[test]
fn unix_sockets_are_for_their_users() -> Result<()> {
    let folder = Folder::new(0o755)?;
    let path = folder.path().join("socket");
    let (own, nobody) = (rustix::process::geteuid(), 65_534);
    let serve = |allowed: &[u32]| -> Result<Running> {
        let program = Program::plain(weft()?).line("tuples serve --listen");
        let program = program.arg(format!("unix:{}", path.display()));
        let users = allowed.iter().map(|user| format!("--allow-user={user}"));
        serve(program.args(users))
    };
    let list = || -> Result<Program> {
        Ok(Program::plain(weft()?).line("tuples list --retry 0 --server").arg(&path))
    };
    for allowed in [&[][..], &[nobody + 1], &[nobody]] {
        let running = serve(allowed)?;
        list()?.run(TIMEOUT)?.success().context("the server's own user")?;
        // Only root can become another user.
        if own.is_root() {
            let other = list()?.as_user(&nobody.to_string()).run(TIMEOUT)?;
            let is_allowed = allowed == [nobody];
            ensure!(other.success().is_ok() == is_allowed, "nobody, while {allowed:?} are allowed");
        }
        running.kill()?;
    }
    let none = Program::plain(weft()?).line("tuples serve --allow-user 1 --listen");
    let none = none.arg(format!("127.0.0.1:{}", ports::next())).run(TIMEOUT)?;
    ensure!(none.stderr.contains("there is none"), none.error("no Unix socket"));
    Ok(())
}

#[test]
fn clients_that_we_did_not_write_come_by_tls() -> Result<()> {
    require(REDIS_PY)?;
    let folder = Folder::new(0o700)?;
    let token = secret(&folder, "token", TOKEN)?;
    let [certificate, key] = certificate(&folder)?;
    let port = ports::next();
    // With a token and TLS other hosts may reach it.
    let line = format!("tuples serve --listen 0.0.0.0:{port} --token-file");
    let program = Program::plain(weft()?).line(&line).arg(&token).arg("--tls-cert");
    let program = program.arg(&certificate).arg("--tls-key").arg(&key);
    let running = serve(program)?;
    ensure!(running.output().1.is_empty(), "complaints: {}", running.output().1);
    let weft = |words: &str| -> Result<Program> {
        let program = Program::plain(weft()?).line(&format!("tuples {words} --retry 0"));
        let program = program.arg(format!("--server=tls://127.0.0.1:{port}"));
        Ok(program.arg("--token-file").arg(&token))
    };
    weft("put jobs first")?.arg("--tls-ca").arg(&certificate).run(TIMEOUT)?.success()?;
    let refused = weft("list")?.run(TIMEOUT)?;
    ensure!(refused.stderr.contains("certificates"), refused.error("without certificates"));
    let cli = Program::plain("redis-cli").args(["-p", &port.to_string(), "-a", TOKEN, "--tls"]);
    let cli = cli.arg("--cacert").arg(&certificate);
    let found = cli.clone().line("LPOP jobs").run(TIMEOUT)?;
    ensure!(found.stdout.trim() == "first", found.error("redis-cli"));
    let plain = Program::plain("redis-cli").args(["-p", &port.to_string(), "-a", TOKEN]);
    let plain = plain.line("RPUSH jobs second").run(TIMEOUT)?;
    ensure!(!plain.stdout.contains('1'), plain.error("redis-cli without TLS"));
    let openssl = format!(
        "printf 'AUTH {TOKEN}\\r\\nLLEN jobs\\r\\nQUIT\\r\\n' | openssl s_client \
        -quiet -verify_return_error -CAfile {} -connect 127.0.0.1:{port}",
        certificate.display()
    );
    let found = Program::plain("sh").arg("-c").arg(openssl).run(TIMEOUT)?;
    ensure!(found.stdout == "+OK\r\n:0\r\n+OK\r\n", found.error("openssl s_client"));
    let python = Program::plain(PYTHON).arg(source("programs/tuples/client.py"));
    let python = python.arg(port.to_string()).arg(TOKEN).arg(&certificate);
    python.run(TIMEOUT)?.success()?.expect_output("done")?;
    let benchmark = Program::plain("redis-benchmark").args(["-p", &port.to_string(), "-a", TOKEN]);
    let benchmark = benchmark.line("-t lpush,lpop -n 5000 -c 20 -P 4 --csv --tls --cacert");
    benchmark.arg(&certificate).run(TIMEOUT)?.success()?.expect_output("\"LPUSH\"")?;
    Ok(())
}
