//! nginx: a master and two workers that inherit its listening socket, files by `sendfile` and by
//! `writev`, keep-alive, several downloads at once, workers that change under load, and one server
//! in front of another.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, until};
use weft_lab::{Finished, Program, Running, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The lengths of the files that the server has.
const LENGTHS: [usize; 3] = [1_000, 1_000_000, 20_000_000];
const LENGTH_SUM: u64 = (LENGTHS[0] + LENGTHS[1] + LENGTHS[2]) as u64;

/// A server, with `settings` for its only host. All its processes are of one user, whichever runs
/// the test: users do not share memory.
fn server(
    sockets: &Sockets,
    program: Program,
    port: u16,
    sendfile: bool,
    settings: &str,
) -> Result<Running> {
    let directory = format!("nginx-{port}");
    for kind in ["", "client", "proxy"] {
        fs::create_dir_all(sockets.path(&directory).join(kind))?;
    }
    let sendfile = if sendfile { "on" } else { "off" };
    let configuration = format!(
        "daemon off; user root root; worker_processes 2; pid {directory}/pid; error_log stderr;
        events {{ worker_connections 256; }}
        http {{
            access_log off; sendfile {sendfile};
            client_body_temp_path {directory}/client; proxy_temp_path {directory}/proxy;
            {settings}
        }}"
    );
    fs::write(sockets.path(&directory).join("conf"), configuration)?;
    nginx(sockets, program, port).start()?.listening(Port::Tcp(port))
}

/// Starts nginx with the configuration that [`server`] has made.
fn nginx(sockets: &Sockets, program: Program, port: u16) -> Program {
    let program = program.args(["-e", "stderr", "-c"]).arg(format!("nginx-{port}/conf"));
    program.arg("-p").arg(sockets.path(""))
}

/// The settings of a server of the files.
fn files_at(port: u16) -> String {
    format!("server {{ listen 127.0.0.1:{port} backlog=512; root .; }}")
}

/// Makes the files, and fetches them over one connection.
fn fetch(sockets: &Sockets, program: Program, port: u16) -> Result<()> {
    let mut curl = program.line("--silent --show-error --fail --write-out %{num_connects}");
    let mut contents = Vec::new();
    for length in LENGTHS {
        contents.push(sockets.make_file(&length.to_string(), length)?);
        let url = format!("http://127.0.0.1:{port}/{length}");
        curl = curl.arg("--output").arg(format!("copy-{length}")).arg(url);
    }
    let curl = curl.run(TIMEOUT)?.success()?;
    for (length, content) in LENGTHS.iter().zip(&contents) {
        sockets.expect_file(&format!("copy-{length}"), content)?;
    }
    ensure!(curl.stdout == "100", curl.error("not one connection"));
    Ok(())
}

/// Many clients that ask for the file of 1,000 bytes, so many times altogether.
fn ab(program: Program, port: u16, options: &str) -> Program {
    program.line("-s 240").line(options).arg(format!("http://127.0.0.1:{port}/1000"))
}

/// Checks that all requests of ab were answered.
fn all_answered(ab: &Finished, requests: u64) -> Result<()> {
    let number = |label: &str| {
        let rest = ab.stdout.lines().find_map(|line| line.strip_prefix(label))?;
        rest.trim().parse::<u64>().ok()
    };
    ensure!(number("Complete requests:") == Some(requests), ab.error("not all complete"));
    ensure!(number("Failed requests:") == Some(0), ab.error("requests failed"));
    ensure!(!ab.stdout.contains("Non-2xx"), ab.error("requests were refused"));
    Ok(())
}

/// The same, for as long as the options say.
fn wrk(program: Program, port: u16, options: &str) -> Program {
    program
        .line("--threads 1 --timeout 240s")
        .line(options)
        .arg(format!("http://127.0.0.1:{port}/1000"))
}

/// Checks that no request of wrk failed, and returns the number of requests.
fn answered(wrk: &Finished) -> Result<u64> {
    for error in ["Socket errors", "Non-2xx"] {
        ensure!(!wrk.stdout.contains(error), wrk.error("requests failed"));
    }
    let requests = wrk.stdout.lines().find(|line| line.contains(" requests in "));
    let requests = requests.and_then(|line| line.split_whitespace().next()?.parse().ok());
    requests.filter(|&count| count > 0).ok_or_else(|| wrk.error("no requests"))
}

#[test]
fn response_bodies_arrive_whole() -> Result<()> {
    for ends in Ends::ALL {
        for sendfile in [true, false] {
            let (sockets, port) = (Sockets::new(ends)?, ports::next());
            let _server =
                server(&sockets, sockets.server("nginx"), port, sendfile, &files_at(port))?;
            fetch(&sockets, sockets.client("curl"), port)?;
            sockets.check(LENGTH_SUM / 2)?;
        }
    }
    Ok(())
}

/// curl fetches several files at once and gives up on one whose length it does not accept; aria2
/// fetches the ranges of one file over several connections. nginx then still serves the next one.
#[test]
fn downloads_by_several_connections() -> Result<()> {
    const FILES: usize = 12;
    const LENGTH: usize = 20_000_000;
    const TOO_LONG: i32 = 63;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = server(&sockets, sockets.server("nginx"), port, true, &files_at(port))?;
        let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
        let curl = || sockets.client("curl").line("--silent --show-error --fail");

        let mut at_once = curl().line("--parallel --parallel-immediate --parallel-max 6");
        let mut contents = Vec::new();
        for number in 0..FILES {
            let name = format!("file-{number}");
            contents.push(sockets.make_file(&name, 1 + number * number * 7919)?);
            at_once = at_once.arg("--output").arg(format!("copy-{number}")).arg(url(&name));
        }
        at_once.run(TIMEOUT)?.success()?;
        for (number, content) in contents.iter().enumerate() {
            sockets.expect_file(&format!("copy-{number}"), content)?;
        }

        let long = sockets.make_file("long", LENGTH)?;
        let refused = curl().line("--max-filesize 1000 --output none").arg(url("long"));
        let refused = refused.run(TIMEOUT)?;
        ensure!(refused.status.code() == Some(TOO_LONG), refused.error("not given up"));
        let aria = sockets.client("aria2c").line("--quiet --no-conf --file-allocation=none");
        let aria = aria.line("--max-connection-per-server=8 --split=8 --min-split-size=1M");
        aria.line("--out=whole").arg(url("long")).run(TIMEOUT)?.success()?;
        sockets.expect_file("whole", &long)?;
        fs::write(sockets.path("resumed"), &long[..LENGTH / 3])?;
        let resume = curl().line("--continue-at - --output resumed").arg(url("long"));
        resume.run(TIMEOUT)?.success()?;
        sockets.expect_file("resumed", &long)?;
        // Much of a short answer goes over TCP before both ends have agreed to share memory.
        sockets.check(LENGTH as u64 / 20)?;
    }
    Ok(())
}

#[test]
fn many_clients() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = server(&sockets, sockets.server("nginx"), port, true, &files_at(port))?;
        sockets.make_file("1000", 1000)?;
        let ab = ab(sockets.client("ab"), port, "-k -c 64 -n 10000");
        all_answered(&ab.run(TIMEOUT)?.success()?, 10_000)?;
        sockets.check(10_000 * 1000 / 2)?;
    }
    Ok(())
}

#[test]
#[ignore = "soak: wrk runs for a time"]
fn many_clients_of_wrk() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = server(&sockets, sockets.server("nginx"), port, true, &files_at(port))?;
        sockets.make_file("1000", 1000)?;
        let wrk = wrk(sockets.client("wrk"), port, "--connections 64 --duration 5s");
        let requests = answered(&wrk.run(TIMEOUT)?.success()?)?;
        sockets.check(requests * 1000 / 2)?;
    }
    Ok(())
}

/// Returns the children of a process.
fn children(pid: u32) -> Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

#[test]
fn workers_change_under_load() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = server(&sockets, sockets.server("nginx"), port, true, &files_at(port))?;
        sockets.make_file("1000", 1000)?;
        // A connection for each request: on the kernel's TCP, too, an exiting worker may close an
        // idle connection just when a request arrives.
        let load = ab(sockets.client("ab"), port, "-c 16 -n 5000").start()?;
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(200));
            let workers = children(server.pid())?;
            let reload = nginx(&sockets, sockets.server("nginx"), port).line("-s reload");
            reload.run(TIMEOUT)?.success()?;
            until("the end of the old workers", || {
                let are_there = children(server.pid())?.iter().any(|pid| workers.contains(pid));
                Ok((!are_there).then_some(()))
            })?;
        }
        all_answered(&load.wait(TIMEOUT)?.success()?, 5_000)?;
        // A connection that begins among the brief ones of the load stays on TCP.
        sockets.until_shared(LENGTH_SUM / 2, || fetch(&sockets, sockets.client("curl"), port))?;
    }
    Ok(())
}

/// In the mixed cases the server in front has Weft, or not, unlike its neighbours on both sides.
#[test]
fn one_server_in_front_of_another() -> Result<()> {
    for (ends, buffering) in
        [(Ends::Both, "on"), (Ends::Both, "off"), (Ends::Server, "on"), (Ends::Client, "on")]
    {
        let (sockets, back, front) = (Sockets::new(ends)?, ports::next(), ports::next());
        let _back = server(&sockets, sockets.server("nginx"), back, true, &files_at(back))?;
        let settings = format!(
            "upstream back {{ server 127.0.0.1:{back}; keepalive 16; }}
            server {{
                listen 127.0.0.1:{front} backlog=512;
                location / {{
                    proxy_pass http://back; proxy_buffering {buffering};
                    proxy_http_version 1.1; proxy_set_header Connection \"\";
                }}
            }}"
        );
        let _front = server(&sockets, sockets.client("nginx"), front, true, &settings)?;
        fetch(&sockets, sockets.server("curl"), front)?;
        let ab = ab(sockets.server("ab"), front, "-k -c 16 -n 5000");
        all_answered(&ab.run(TIMEOUT)?.success()?, 5_000)?;
        sockets.check(LENGTH_SUM + 5_000 * 1000)?;
    }
    Ok(())
}
