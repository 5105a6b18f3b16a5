//! Brokers, queues and chats: mosquitto, ZeroMQ, beanstalkd, gearman and ngircd. Each message
//! arrives exactly once.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, same};
use weft_lab::{Finished, Program, Venv, ports, servers, source};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The lines that a publisher sends, all of which begin with its name.
fn lines_of(publisher: &str, count: usize) -> String {
    (0..count).fold(String::new(), |mut lines, number| {
        let text = number.to_string().repeat(10 + number % 20);
        let _ = writeln!(lines, "{publisher} {text}"); // A string takes everything.
        lines
    })
}

#[test]
fn mosquitto() -> Result<()> {
    const MESSAGES: usize = 1000;
    const PUBLISHERS: [&str; 2] = ["one", "two"];
    const SUBSCRIBERS: usize = 3;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let mut server =
            servers::mosquitto(sockets.server("mosquitto"), &sockets.path(""), port, "all")?;
        let count = (PUBLISHERS.len() * MESSAGES).to_string();
        let mut subscribers = Vec::new();
        for number in 0..SUBSCRIBERS {
            let name = format!("subscriber-{number}");
            let program = sockets.client("mosquitto_sub").args(["-i", &name, "-C", &count]);
            let program = program.line(&format!("-p {port} -q {number} -t topic/#"));
            subscribers.push(program.start()?);
            server.printed(&format!("Sending SUBACK to {name}"), TIMEOUT)?;
        }
        let mut publishers = Vec::new();
        for name in PUBLISHERS {
            fs::write(sockets.path(name), lines_of(name, MESSAGES))?;
            // No message of the lowest quality may be lost either: the broker's limits are lifted.
            let command = format!("exec mosquitto_pub -p {port} -q 2 -t topic/{name} -l <{name}");
            publishers.push(sockets.client("sh").args(["-c", &command]).start()?);
        }
        for program in publishers.into_iter().chain(subscribers) {
            let ended = program.wait(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(server.account()));
            let ended = ended.with_context(|| format!("weft: {ends:?}"))?;
            if ended.stdout.is_empty() {
                continue; // A publisher.
            }
            for name in PUBLISHERS {
                let of_this = ended.stdout.lines().filter(|line| line.starts_with(name));
                let of_this: String = of_this.map(|line| format!("{line}\n")).collect();
                same(of_this.as_bytes(), lines_of(name, MESSAGES).as_bytes()).context(name)?;
            }
        }
        sockets.check((MESSAGES * 20 * PUBLISHERS.len() * SUBSCRIBERS) as u64)?;
    }
    Ok(())
}

#[test]
fn zeromq() -> Result<()> {
    const MESSAGES: u64 = 3000;
    const CLIENTS: usize = 3;
    let Some(venv) = Venv::for_test("zeromq")? else { return Ok(()) };
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let program = |program: Program, role: &str, number: String| {
            let program = program.arg(source("programs/zeromq.py"));
            program.args([role, &port.to_string(), &number])
        };
        let python = venv.program("python");
        let server = program(sockets.server(&python), "serve", CLIENTS.to_string());
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let client = program(sockets.client(&python), "connect", MESSAGES.to_string());
        let clients: Vec<_> = (0..CLIENTS).map(|_| client.start()).collect::<Result<_>>()?;
        for client in clients {
            let ended = client.wait(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(server.account()));
            let ended = ended.with_context(|| format!("weft: {ends:?}"))?;
            ended.expect_output(&format!("echoed {MESSAGES}"))?;
        }
        server.wait(TIMEOUT)?.success()?;
        // About 4,500 bytes in each direction.
        sockets.check(CLIENTS as u64 * MESSAGES * 2 * 4000)?;
    }
    Ok(())
}

#[test]
fn beanstalkd() -> Result<()> {
    const JOBS: u64 = 500;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let server = sockets.server("beanstalkd").line("-l 127.0.0.1 -p").arg(port.to_string());
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let client = sockets.client("/usr/bin/python3").arg(source("programs/beanstalk.py"));
        let client = client.args([port.to_string(), JOBS.to_string()]).run(TIMEOUT);
        let ended = client.and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()));
        ended.with_context(|| format!("weft: {ends:?}"))?.expect_output(&format!("done {JOBS}"))?;
        sockets.check(JOBS * 10_000)?;
    }
    Ok(())
}

/// The worker starts a program for each job while it has its connection.
#[test]
fn gearman() -> Result<()> {
    const JOBS: usize = 30;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let user = if rustix::process::geteuid().is_root() { "-u root" } else { "" };
        let server = sockets.server("gearmand").line("-L 127.0.0.1 -l stderr -P pid").line(user);
        let server = server.arg(format!("--port={port}")).arg("--threads=4");
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let worker = sockets.client("gearman").line(&format!("-h 127.0.0.1 -p {port} -w -f swap"));
        let workers = [worker.clone(), worker].map(|worker| worker.args(["tr", "a-z", "b-za"]));
        let workers = workers.map(|worker| worker.start());
        sockets.until_shared((JOBS * 200 * 20) as u64, || {
            let mut clients = Vec::new();
            for number in 0..JOBS {
                let text = lines_of("job", number + 200);
                fs::write(sockets.path(&format!("job-{number}")), &text)?;
                let command = format!(
                    "exec gearman -h 127.0.0.1 -p {port} -f swap <job-{number} >done-{number}"
                );
                clients.push((text, sockets.client("sh").args(["-c", &command]).start()?));
            }
            for (number, (text, client)) in clients.into_iter().enumerate() {
                let ended = client.wait(TIMEOUT).and_then(Finished::success);
                let ended = ended.map_err(|error| error.context(server.account()));
                ended.with_context(|| format!("weft: {ends:?}"))?;
                let swapped = text.replace("job", "kpc");
                sockets.expect_file(&format!("done-{number}"), swapped.as_bytes())?;
            }
            Ok(())
        })?;
        for worker in workers {
            ensure!(worker?.is_running()?, "a worker has ended");
        }
    }
    Ok(())
}

/// Each line goes to all other members of the channel. If root starts ngircd it becomes another
/// user, so another user starts it.
#[test]
fn ngircd() -> Result<()> {
    const MEMBERS: u16 = 8;
    const LINES: u16 = 100;
    let received = u64::from(MEMBERS * (MEMBERS - 1) * LINES);
    let Some(sockets) = Sockets::unprivileged("ngircd")? else { return Ok(()) };
    let port = ports::next();
    let configuration = format!(
        "[Global]\nName = irc.lab.test\nPorts = {port}\nListen = 127.0.0.1\nMotdPhrase = x\n\
         [Limits]\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n\
         [Options]\nDNS = no\nIdent = no\nPAM = no\n"
    );
    fs::write(sockets.path("ngircd.conf"), configuration)?;
    let server = sockets.server("ngircd").line("-n -f").arg(sockets.path("ngircd.conf"));
    let mut server = server.start()?.listening(Port::Tcp(port))?;
    let client = sockets.client("/usr/bin/python3").arg(source("programs/chat.py"));
    let client = client.args([port, MEMBERS, LINES].map(|number| number.to_string()));
    let ended = client.run(TIMEOUT).and_then(Finished::success);
    let ended = ended.map_err(|error| error.context(server.account()))?;
    ended.expect_output(&format!("got {received}"))?;
    sockets.check(received * 20)
}
