//! A user's tools for shared connections: `weft stat` and `weft top` show them, rules and options
//! of `weft run` select them.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, until};
use weft_lab::{Finished, Program, Running, compile_library, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and a client that sends it twenty requests a second, until the pair is dropped.
struct Pair {
    port: u16,
    server: Running,
    client: Running,
}

impl Pair {
    fn start(sockets: &Sockets) -> Result<Self> {
        let port = ports::next();
        let server = redis_server(sockets.server("redis-server"), port)?;
        let client = redis_client(sockets.client("redis-cli"), port).line("-r -1 -i 0.05 ping");
        Ok(Self { port, server, client: client.start()? })
    }
}

fn redis_server(program: Program, port: u16) -> Result<Running> {
    let program = program.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    program.args(["--save", ""]).start()?.listening(Port::Tcp(port))
}

fn redis_client(program: Program, port: u16) -> Program {
    program.args(["-p", &port.to_string()])
}

/// Waits until messages from and to process `client` have gone through memory, and returns its
/// connection. One direction may begin before the other.
fn shared(sockets: &Sockets, client: u32) -> Result<Value> {
    until("a shared connection", || {
        let report = sockets.plain(weft()?).args(["stat", "--json"]).run(TIMEOUT)?.success()?;
        let report: Value = serde_json::from_str(&report.stdout)?;
        let connections = report["connections"].as_array().context("no list")?;
        let ours = connections.iter().find(|connection| {
            connection["client"]["pid"] == client && connection["state"] == "shared"
        });
        let moves = |ours: &&Value, to| ours["messages"][to].as_u64() > Some(0);
        Ok(ours.filter(|ours| moves(ours, "to_client") && moves(ours, "to_server")).cloned())
    })
}

/// The hook of `free` looks up the allocator by `dlsym`, and `dlsym` itself may call `free`.
#[test]
fn a_preloaded_library_may_look_for_what_is_missing() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let library = compile_library("dlerror_in_malloc")?;
    let program = sockets.client("echo").env("LD_PRELOAD", library).arg("started");
    program.run(TIMEOUT)?.success()?.expect_output("started")?;
    Ok(())
}

#[test]
fn stat_shows_who_talks_to_whom() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let pair = Pair::start(&sockets)?;
    let connection = shared(&sockets, pair.client.pid())?;
    ensure!(connection["transport"] == "shm", "{connection}");
    ensure!(connection["client"]["program"] == "redis-cli", "{connection}");
    ensure!(connection["server"]["program"] == "redis-server", "{connection}");
    ensure!(connection["server"]["pid"] == pair.server.pid(), "{connection}");
    ensure!(connection["server"]["address"] == format!("127.0.0.1:{}", pair.port), "{connection}");
    ensure!(connection["bytes"]["to_server"].as_u64() > Some(0), "{connection}");

    let text = sockets.plain(weft()?).arg("stat").run(TIMEOUT)?.success()?;
    let text = text
        .expect_output(&format!("redis-cli[{}]", pair.client.pid()))?
        .expect_output("1 joined")?;
    text.expect_output(&format!("redis-server[{}]", pair.server.pid()))?;
    let processes = sockets.plain(weft()?).args(["stat", "--processes"]).run(TIMEOUT)?.success()?;
    processes.expect_output(&pair.server.pid().to_string())?.expect_output("redis-cli")?;
    Ok(())
}

/// A program with a connection to itself in shared memory. It sends urgent data, prints "urgent",
/// and keeps the connection open.
const LEAVING: &str = r#"
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
for _ in range(10):
    one.send(b"there"), other.recv(5), other.send(b"back"), one.recv(4)
one.send(b"!", socket.MSG_OOB)
print("urgent", flush=True)
time.sleep(1000)
"#;

#[test]
fn stat_says_why_a_connection_is_on_tcp() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let mut program = sockets.client("python3").arg("-c").arg(LEAVING).start()?;
    program.printed("urgent", TIMEOUT)?;
    let report = sockets.plain(weft()?).args(["stat", "--json"]).run(TIMEOUT)?.success()?;
    let report: Value = serde_json::from_str(&report.stdout)?;
    let connection = &report["connections"][0];
    ensure!(connection["client"]["pid"] == program.pid(), "{report}");
    ensure!(connection["transport"] == "tcp" && connection["state"] == "fell-back", "{report}");
    ensure!(connection["why"] == "urgent", "{report}");
    ensure!(connection["bytes"]["to_server"].as_u64() > Some(0), "{report}");
    ensure!(report["totals"]["fallbacks"]["urgent"] == 1, "{report}");
    let text = sockets.plain(weft()?).arg("stat").run(TIMEOUT)?.success()?;
    text.expect_output("urgent")?.expect_output("on TCP: urgent 1")?;
    let help = sockets.plain(weft()?).args(["stat", "--help"]).run(TIMEOUT)?.success()?;
    help.expect_output("urgent data (MSG_OOB), or data in the SYN (MSG_FASTOPEN)")?;
    Ok(())
}

#[test]
fn stat_watches() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let pair = Pair::start(&sockets)?;
    shared(&sockets, pair.client.pid())?;
    let watching = sockets.plain(weft()?).args(["stat", "--json", "--watch", "0.3"]).start()?;
    // On a busy machine the client may not have run since the previous document.
    until("a document with the client's rate", || {
        let (stdout, _) = watching.output();
        for line in stdout.split_inclusive('\n').skip(1).filter(|line| line.ends_with('\n')) {
            let document: Value = serde_json::from_str(line)?;
            let rate = document["connections"][0]["rates"]["messages"]["to_server"].as_f64();
            if rate.is_some_and(|rate| rate > 1.0 && rate < 40.0) {
                return Ok(Some(()));
            }
        }
        Ok(None)
    })
}

/// A terminal of tmux in which a shell runs `weft top`, and then shows its exit status if the
/// terminal's settings are as before.
struct Screen {
    tmux: Program,
}

impl Screen {
    fn open(sockets: &Sockets) -> Result<Self> {
        let socket = sockets.path("tmux");
        let tmux = sockets.plain("tmux").arg("-S").arg(socket).args(["-f", "/dev/null"]);
        let screen = Self { tmux };
        // Without the first line, which has the terminal's size and speeds: the same speed in both
        // directions has two forms.
        let script = format!(
            "stty -a | tail -n +2 >before; {} top -i 0.25; ended=$?; stty -a | tail -n +2 >after; \
             cmp before after && echo ended with $ended; sleep 1000",
            weft()?.display()
        );
        screen.tell(&["new-session", "-d", "-x", "120", "-y", "12", &script])?;
        Ok(screen)
    }

    fn tell(&self, words: &[&str]) -> Result<String> {
        Ok(self.tmux.clone().args(words).run(TIMEOUT)?.success()?.stdout)
    }

    /// Returns the process of `weft top`, the only child of the shell.
    fn top(&self) -> Result<Pid> {
        let shell = self.tell(&["display-message", "-p", "#{pane_pid}"])?;
        let shell = shell.trim();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        Pid::from_raw(children.trim().parse()?).context("no child")
    }

    fn press(&self, key: &str) -> Result<()> {
        self.tell(&["send-keys", key]).map(drop)
    }

    fn shows(&self, text: &str) -> Result<String> {
        let mut last = String::new();
        let found = until(text, || {
            last = self.tell(&["capture-pane", "-p"])?;
            Ok(last.contains(text).then(|| last.clone()))
        });
        found.with_context(|| format!("the screen shows:\n{last}"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.tell(&["kill-server"]);
    }
}

#[test]
fn top_is_live_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let pair = Pair::start(&sockets)?;
    shared(&sockets, pair.client.pid())?;

    let screen = Screen::open(&sockets)?;
    let frame = screen.shows(&format!("redis-cli[{}]", pair.client.pid()))?;
    ensure!(frame.contains("TO SERVER/s") && frame.contains("weft top: connections"), "{frame}");
    screen.press("Tab")?;
    let frame = screen.shows("RECEIVED/s")?;
    ensure!(frame.contains("redis-server"), "{frame}");
    screen.tell(&["resize-window", "-x", "60", "-y", "6"])?;
    screen.shows("weft top: processes")?;
    screen.tell(&["resize-window", "-x", "120", "-y", "12"])?;
    screen.press("Tab")?;
    drop(pair);
    screen.shows("0 open")?;
    screen.press("q")?;
    let end = screen.shows("ended with 0")?;
    ensure!(!end.contains("weft top:"), "{end}");
    Ok(())
}

#[test]
fn top_ends_by_a_signal_as_by_a_key() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let screen = Screen::open(&sockets)?;
    screen.shows("weft top: connections")?;
    kill_process(screen.top()?, Signal::TERM)?;
    let end = screen.shows("ended with 143")?;
    ensure!(!end.contains("weft top:"), "{end}");
    Ok(())
}

#[test]
fn top_ends_with_its_terminal() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let screen = Screen::open(&sockets)?;
    screen.shows("weft top: connections")?;
    let top = screen.top()?;
    drop(screen);
    // The process that inherits `weft top` may not reap it. A zombie has no command line.
    let line = format!("/proc/{top}/cmdline");
    until("its end", || Ok(fs::read(&line).unwrap_or_default().is_empty().then_some(())))
}

/// Runs a client under these rules for one request, and returns how it ended.
fn ask_under(sockets: &Sockets, rules: &str) -> Result<Finished> {
    fs::write(sockets.path("rules"), rules)?;
    let port = ports::next();
    let _server = redis_server(sockets.server("redis-server"), port)?;
    let client = sockets.client("redis-cli").weft_option("--rules").weft_option("rules");
    redis_client(client, port).arg("ping").run(TIMEOUT)
}

#[test]
fn rules_keep_connections_on_tcp() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    ask_under(&sockets, "use tcp connect redis-* 127.0.0.0/8:*\n")?
        .success()?
        .expect_output("PONG")?;
    let totals = sockets.totals()?;
    ensure!(totals.offered == 0 && totals.fallbacks.get("rule") == Some(&1), "{totals:?}");

    let other = "use tcp connect redis-server *:*\nuse tcp server redis-cli *:*\n";
    ask_under(&sockets, other)?.success()?.expect_output("PONG")?;
    ensure!(sockets.totals()?.offered == 1, "{:?}", sockets.totals()?);
    Ok(())
}

#[test]
fn wrong_rules_start_no_program() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let ended = ask_under(&sockets, "# fine\nuse tcp\n")?;
    ensure!(ended.status.code() == Some(126), ended.error("not refused"));
    ended.expect_output("rules:2: a rule is `use shm|verbs|tcp")?;
    Ok(())
}

#[test]
fn connections_are_left_alone_on_demand() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let port = ports::next();
    let _server = redis_server(sockets.server("redis-server"), port)?;
    let without = |option| redis_client(sockets.client("redis-cli").weft_option(option), port);
    without("--no-sockets").arg("ping").run(TIMEOUT)?.success()?.expect_output("PONG")?;
    ensure!(sockets.totals()?.offered == 0, "{:?}", sockets.totals()?);
    without("--no-verbs").arg("ping").run(TIMEOUT)?.success()?.expect_output("PONG")?;
    ensure!(sockets.totals()?.offered == 1, "{:?}", sockets.totals()?);
    Ok(())
}

/// Connections with one request each gain nothing from memory, and stay on TCP. A connection with
/// many requests uses memory, also after such brief ones.
#[test]
fn brief_connections_are_left_to_tcp_while_they_come() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let port = ports::next();
    let _server = redis_server(sockets.server("redis-server"), port)?;
    let ask = |options: &str| {
        let client = sockets.client("redis-benchmark").args(["-p", &port.to_string()]);
        client.args("-t ping_mbulk -q".split(' ')).args(options.split(' ')).run(TIMEOUT)?.success()
    };
    until("connections that stay on TCP for being brief", || {
        ask("-k 0 -c 1 -n 3000")?.expect_output("requests per second")?;
        Ok(sockets.totals()?.fallbacks.get("brief").copied())
    })?;
    let before = sockets.totals()?;
    until("a connection in memory behind them", || {
        ask("-k 1 -c 1 -n 3000")?.expect_output("requests per second")?;
        Ok((sockets.totals()?.bytes > before.bytes + 3000).then_some(()))
    })
}

#[test]
fn a_program_that_may_not_make_large_files_stays_on_tcp() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let port = ports::next();
    let _server = redis_server(sockets.server("redis-server"), port)?;
    // A directory without a registry, so that the client has to make one.
    let directory = sockets.path("nothing");
    fs::create_dir(&directory)?;
    let client = sockets.client("sh").env("WEFT_SHM_DIR", directory).arg("-c");
    let client = client.arg(format!("ulimit -f 1000 && exec redis-cli -p {port} ping"));
    client.run(TIMEOUT)?.success()?.expect_output("PONG")?;
    ensure!(sockets.totals()?.joined == 0, "{:?}", sockets.totals()?);
    Ok(())
}
