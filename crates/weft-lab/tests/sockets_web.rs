//! Web servers whose threads share an epoll instance, proxies in front of them, and clients with
//! many connections: Apache, HAProxy, gunicorn, stunnel, ab and siege.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::servers::{apache, haproxy};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, Program, Running, ports, source};

const TIMEOUT: Duration = Duration::from_secs(60);
const REQUESTS: u64 = 3000;
/// Lengths of the served files.
const LENGTHS: [usize; 2] = [1_000, 300_000];

/// Fetches the files over one connection, and compares them.
fn fetch(sockets: &Sockets, port: u16) -> Result<()> {
    let mut curl = sockets.client("curl").line("--silent --show-error --fail");
    for length in LENGTHS {
        let url = format!("http://127.0.0.1:{port}/{length}");
        curl = curl.arg("--output").arg(format!("copy-{length}")).arg(url);
    }
    curl.run(TIMEOUT)?.success()?;
    for length in LENGTHS {
        sockets.expect_file(
            &format!("copy-{length}"),
            &fs::read(sockets.path(&length.to_string()))?,
        )?;
    }
    Ok(())
}

fn make_files(sockets: &Sockets) -> Result<()> {
    LENGTHS.iter().try_for_each(|&length| sockets.make_file(&length.to_string(), length).map(drop))
}

/// Requests `url` with 20 concurrent connections. The server must answer all requests, and keep
/// all connections alive if `is_kept`, else none.
fn ab(
    client: Program,
    server: &mut Running,
    url: &str,
    requests: u64,
    is_kept: bool,
) -> Result<()> {
    let client = if is_kept { client.arg("-k") } else { client };
    let client = client.line("-r -s 240 -c 20 -n").args([&requests.to_string(), url]);
    let ended = client.run(TIMEOUT).and_then(Finished::success);
    let ended = ended.map_err(|error| error.context(server.account()))?;
    let number = |label: &str| {
        let rest = ended.stdout.lines().find_map(|line| line.strip_prefix(label))?;
        rest.trim().parse::<u64>().ok()
    };
    ensure!(number("Complete requests:") == Some(requests), ended.error("not all complete"));
    ensure!(number("Failed requests:") == Some(0), ended.error("requests failed"));
    ensure!(!ended.stdout.contains("Non-2xx"), ended.error("requests were refused"));
    let kept = number("Keep-Alive requests:").unwrap_or(0);
    ensure!((kept == requests) == is_kept, ended.error("connections kept: not as wanted"));
    Ok(())
}

/// Sends all requests to `port`, where Apache or a proxy listens.
fn ask_all(sockets: &Sockets, server: &mut Running, port: u16) -> Result<()> {
    fetch(sockets, port)?;
    for (length, requests, is_kept) in
        [(LENGTHS[0], REQUESTS, true), (LENGTHS[1], REQUESTS / 10, true), (LENGTHS[0], 300, false)]
    {
        let url = format!("http://127.0.0.1:{port}/{length}");
        ab(sockets.client("ab"), server, &url, requests, is_kept)
            .with_context(|| format!("{length} bytes, kept: {is_kept}"))?;
    }
    Ok(())
}

/// All programs run as one user, so that they share memory.
#[test]
fn apache_and_ab() -> Result<()> {
    let Some(sockets) = Sockets::unprivileged("apache_and_ab")? else { return Ok(()) };
    let port = ports::next();
    make_files(&sockets)?;
    let mut server = apache(sockets.server("apache2"), &sockets.path(""), port, "")?;
    ask_all(&sockets, &mut server, port)?;
    sockets.check(REQUESTS * LENGTHS[0] as u64 / 2)
}

/// Root starts the server, and its children switch to another user, as in Debian's service.
#[test]
fn apache_of_another_user_and_ab() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        if !sockets.are_reachable() {
            weft_lab::note_skip("apache_of_another_user_and_ab", "files are out of others' reach");
            return Ok(());
        }
        make_files(&sockets)?;
        let settings = "User nobody\nGroup nogroup";
        let mut server = apache(sockets.server("apache2"), &sockets.path(""), port, settings)?;
        ask_all(&sockets, &mut server, port).with_context(|| format!("weft: {ends:?}"))?;
    }
    Ok(())
}

#[test]
fn haproxy_in_front_of_apache() -> Result<()> {
    for settings in [
        "mode http\n http-reuse always",
        "mode http\n http-reuse never\n option splice-auto",
        "mode tcp\n option splice-auto",
    ] {
        let test = "haproxy_in_front_of_apache";
        let Some(sockets) = Sockets::unprivileged(test)? else { return Ok(()) };
        let [back, front] = [ports::next(), ports::next()];
        make_files(&sockets)?;
        let _back = apache(sockets.server("apache2"), &sockets.path(""), back, "")?;
        let proxy = sockets.server("haproxy");
        let mut proxy = haproxy(proxy, &sockets.path(""), [front, back], settings)?;
        ask_all(&sockets, &mut proxy, front).context(settings)?;
        sockets.check(REQUESTS * LENGTHS[0] as u64)?;
    }
    Ok(())
}

#[test]
fn siege_of_apache() -> Result<()> {
    let Some(sockets) = Sockets::unprivileged("siege_of_apache")? else { return Ok(()) };
    let port = ports::next();
    make_files(&sockets)?;
    let mut server = apache(sockets.server("apache2"), &sockets.path(""), port, "")?;
    let mut besiege = |connection: &str| -> Result<()> {
        let settings = format!("connection = {connection}\nlimit = 255\ntimeout = 240\n");
        fs::write(sockets.path("siegerc"), settings)?;
        let siege = sockets.client("siege").env("HOME", sockets.path(""));
        let siege = siege.line("-R siegerc --benchmark --concurrent=10 --reps=50");
        let ended = siege.arg(format!("http://127.0.0.1:{port}/{}", LENGTHS[0])).run(TIMEOUT);
        let ended = ended.and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()))?;
        let text = format!("{}{}", ended.stdout, ended.stderr).replace([' ', '\t'], "");
        for wanted in ["Successfultransactions:500\n", "Failedtransactions:0\n"] {
            ensure!(text.contains(wanted), ended.error(format!("{connection}: no {wanted}")));
        }
        Ok(())
    };
    // Brief connections stay on TCP for a while after many others.
    sockets.until_shared(500 * LENGTHS[0] as u64, || besiege("keep-alive"))?;
    besiege("close")
}

/// Each worker's main thread waits in epoll. The threads of its pool answer, and add connections to
/// the same epoll instance.
#[test]
fn gunicorn_with_threads() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = sockets.server("/usr/bin/gunicorn").line("--threads 4 -w 2");
        let server = server.line("-k gthread --keep-alive 60");
        let server = server.arg("--pythonpath").arg(source("programs"));
        let server = server.arg("-b").arg(format!("127.0.0.1:{port}")).arg("application");
        let mut server =
            server.env("PYTHONDONTWRITEBYTECODE", "1").start()?.listening(Port::Tcp(port))?;
        for (length, requests) in [(1_000, 1500), (300_000, 200)] {
            let url = format!("http://127.0.0.1:{port}/{length}");
            ab(sockets.client("ab"), &mut server, &url, requests, true)
                .with_context(|| format!("{length} bytes, weft: {ends:?}"))?;
        }
        sockets.check(200 * 300_000 / 2)?;
    }
    Ok(())
}

/// Starts one end of a TLS tunnel, from `port` to `to`.
fn stunnel(program: Program, sockets: &Sockets, port: u16, to: u16, role: &str) -> Result<Running> {
    let configuration = format!(
        "foreground = yes\npid =\nsyslog = no\n[tunnel]\naccept = 127.0.0.1:{port}\n\
         connect = 127.0.0.1:{to}\n{role}\n"
    );
    let file = format!("stunnel-{port}.conf");
    fs::write(sockets.path(&file), configuration)?;
    program.arg(file).start()?.listening(Port::Tcp(port))
}

/// An echo through two tunnel ends, which have a thread for each connection. The client does not
/// shut down its side early, because stunnel then sometimes loses bytes, also on the kernel's TCP
/// (5 of 450 runs).
#[test]
fn stunnel_both_ways() -> Result<()> {
    const BYTES: u64 = 3_000_000;
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let [echo, remote, near] = [(); 3].map(|()| ports::next());
        let certificate = sockets.plain("openssl").line("req -x509 -newkey rsa:2048 -nodes");
        let certificate = certificate.line("-subj /CN=localhost -keyout key -out certificate");
        certificate.run(TIMEOUT)?.success()?;
        let server = sockets.server("/usr/bin/python3").arg(source("programs/echo.py"));
        let server = server.args(["serve", &echo.to_string(), "6"]).start()?;
        let server = server.listening(Port::Tcp(echo))?;
        let keys = "cert = certificate\nkey = key";
        let _remote = stunnel(sockets.client("stunnel4"), &sockets, remote, echo, keys)?;
        let mut near =
            (near, stunnel(sockets.server("stunnel4"), &sockets, near, remote, "client = yes")?);
        let client = sockets.client("/usr/bin/python3");
        let port = near.0.to_string();
        let lines = client.clone().arg(source("programs/lines.py")).args([&port, "4", "100"]);
        let echo = client.arg(source("programs/echo.py"));
        let echo = echo.args(["take", &port, &BYTES.to_string()]);
        for (client, expected) in
            [(lines, "answered 400"), (echo.clone(), "echoed 3000000"), (echo, "echoed 3000000")]
        {
            let ended = client.run(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(near.1.account()));
            ended.with_context(|| format!("weft: {ends:?}"))?.expect_output(expected)?;
        }
        server.wait(TIMEOUT)?.success()?;
        sockets.check(2 * 3 * BYTES)?;
    }
    Ok(())
}
