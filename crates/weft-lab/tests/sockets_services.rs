//! Small services: git's daemon, which starts a program for each connection, and name servers over
//! TCP, with one connection for each question and with one for many.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Program, Running, ensure_data, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAMES: usize = 200;

/// Returns git without the settings of the user who runs the test.
fn git(program: Program, sockets: &Sockets) -> Program {
    let program = program.env("HOME", sockets.path("")).env("GIT_CONFIG_NOSYSTEM", "1");
    program.line("-c user.name=lab -c user.email=lab@localhost -c init.defaultBranch=main")
}

#[test]
fn git_clones_from_its_daemon() -> Result<()> {
    const LENGTH: usize = 3_000_000;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let local =
            |line: &str| git(sockets.plain("git"), &sockets).line(line).run(TIMEOUT)?.success();
        local("init -q origin")?;
        let content = sockets.make_file("origin/file", LENGTH)?;
        local("-C origin add file")?;
        local("-C origin commit -q -m first")?;
        let daemon = git(sockets.server("git"), &sockets).line("daemon --reuseaddr --export-all");
        let daemon = daemon.line("--listen=127.0.0.1 --base-path=.").arg(format!("--port={port}"));
        let mut daemon = daemon.start()?.listening(Port::Tcp(port))?;
        let url = format!("git://127.0.0.1:{port}/origin");
        for copy in ["first", "second", "third"] {
            let clone = git(sockets.client("git"), &sockets).args(["clone", "-q", &url, copy]);
            let ended = clone.run(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(daemon.account()));
            ended.with_context(|| format!("weft: {ends:?}"))?;
            sockets.expect_file(&format!("{copy}/file"), &content)?;
        }
        let push = git(sockets.client("git"), &sockets).args(["-C", "first", "ls-remote", &url]);
        push.run(TIMEOUT)?.success()?.expect_output("refs/heads/main")?;
        // The daemon's program has the connection as standard input and output: Weft may fall back
        // to TCP.
        sockets.check(0)?;
    }
    Ok(())
}

fn address(number: usize) -> String {
    format!("10.7.{}.{}", number / 250, number % 250)
}

/// Asks for all names and for a long record set over TCP, and checks all answers.
fn ask(sockets: &Sockets, server: &mut Running, port: u16) -> Result<()> {
    let questions: String = (0..NAMES).map(|number| format!("n{number}.lab.test A\n")).collect();
    fs::write(sockets.path("questions"), questions)?;
    let mut ask_all = |option: &str| -> Result<()> {
        let dig = sockets.client("dig").line(&format!("@127.0.0.1 -p {port} +tcp +short"));
        let dig = dig.line("+tries=1 +time=200 -f questions").arg(option);
        let ended = dig.run(TIMEOUT).and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()))?;
        let expected: String = (0..NAMES).map(|number| address(number) + "\n").collect();
        ended.expect_lines(&expected).context(option.to_owned()).map(drop)
    };
    // After a run of brief connections the server leaves the next ones on TCP for a while, so the
    // connection that must be in memory comes first.
    sockets.until_shared(NAMES as u64 * 40, || ask_all("+keepopen"))?;
    ask_all("+nokeepopen")?;
    let dig = sockets.client("dig").line(&format!("@127.0.0.1 -p {port} +tcp +short"));
    let ended = dig.line("+tries=1 +time=200 long.lab.test TXT").run(TIMEOUT)?.success()?;
    ensure!(ended.stdout.len() > 20_000, ended.error("a short answer"));
    Ok(())
}

/// Returns the strings of a record set that fills much of a DNS message.
fn long_strings() -> impl Iterator<Item = String> {
    (0..100).map(|number| format!("{number:03} {}", "x".repeat(200)))
}

#[test]
fn named_answers_over_tcp() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let mut zone = "$TTL 60\n@ SOA ns root 1 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n".to_owned();
        (0..NAMES).try_for_each(|n| writeln!(zone, "n{n} A {}", address(n)))?;
        long_strings().try_for_each(|text| writeln!(zone, "long TXT \"{text}\""))?;
        fs::write(sockets.path("zone"), zone)?;
        let configuration = format!(
            "options {{ directory \"{}\"; listen-on port {port} {{ 127.0.0.1; }};
                listen-on-v6 {{ none; }}; recursion no; pid-file none; session-keyfile none;
                allow-transfer {{ any; }}; dnssec-validation no; }};
            controls {{}};
            zone \"lab.test\" {{ type primary; file \"zone\"; }};",
            sockets.path("").display()
        );
        fs::write(sockets.path("named.conf"), configuration)?;
        let server = sockets.server("named").line("-g -n 4 -c named.conf").start()?;
        let mut server = server.listening(Port::Tcp(port))?;
        // The port listens earlier: a question that comes before the zone is refused.
        server.printed("all zones loaded", TIMEOUT)?;
        ask(&sockets, &mut server, port).with_context(|| format!("weft: {ends:?}"))?;
        let dig = sockets.client("dig").line(&format!("@127.0.0.1 -p {port} lab.test AXFR"));
        let zone = dig.run(TIMEOUT)?.success()?;
        let found = zone.stdout.lines().filter(|line| line.starts_with('n')).count();
        ensure_data!(found == NAMES + 1, "{}", zone.error(format!("{found} names")));
    }
    Ok(())
}

#[test]
fn unbound_answers_over_tcp() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let mut configuration = format!(
            "server:\n interface: 127.0.0.1\n port: {port}\n username: \"\"\n chroot: \"\"\n\
             directory: \"{}\"\n pidfile: \"\"\n use-syslog: no\n do-daemonize: no\n\
             num-threads: 2\n incoming-num-tcp: 100\n module-config: \"iterator\"\n\
             verbosity: 1\n local-zone: lab.test. static\n",
            sockets.path("").display()
        );
        for number in 0..NAMES {
            let name = format!(" local-data: \"n{number}.lab.test. A {}\"", address(number));
            writeln!(configuration, "{name}")?;
        }
        for text in long_strings() {
            writeln!(configuration, " local-data: 'long.lab.test. TXT \"{text}\"'")?;
        }
        configuration += "remote-control:\n control-enable: no\n";
        fs::write(sockets.path("unbound.conf"), configuration)?;
        let server = sockets.server("unbound").line("-d -c unbound.conf").start()?;
        let mut server = server.listening(Port::Tcp(port))?;
        server.printed("start of service", TIMEOUT)?;
        ask(&sockets, &mut server, port).with_context(|| format!("weft: {ends:?}"))?;
    }
    Ok(())
}
