//! Connections through shared memory: which processes may use it, and what remains when a peer is
//! killed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{
    Finished, Program, Stage, compile, compile_plain, ensure_data, note_skip, ports, scratch,
    skip_without_namespaces, weft,
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// `nobody` on Debian.
const OTHER_USER: &str = "65534";
const SHARES: &str = "shares memory, one-sided operations: ";

/// A server and a client that write to each other until `COUNT` operations are done.
fn flow(stage: &Stage, change: impl Fn(Program, bool) -> Program) -> Result<[Finished; 2]> {
    const COUNT: &str = "2000";
    let (flow, port) = (compile("flow")?, ports::next());
    let words = ["serve".to_owned(), port.to_string(), "1".to_owned()];
    let server = stage.server(change(program(&flow, words), true));
    let server = server.start()?.listening(Port::Tcp(port))?;
    let address = stage.server_address().to_string();
    let words = ["connect", &address, &port.to_string(), "write", COUNT].map(str::to_owned);
    let client = stage.client(change(program(&flow, words), false)).start()?;
    Ok([server.wait(TIMEOUT)?, client.wait(TIMEOUT)?.success()?])
}

fn program(path: &Path, arguments: impl IntoIterator<Item = String>) -> Program {
    Program::weft(path).args(arguments).env("WEFT_LOG", "info").env("WEFT_TRANSPORT", "auto")
}

/// Notes that a test needs another user if this process is not root, or another user could not read
/// what has been built.
fn skip_without_users(test: &str) -> Result<bool> {
    let readable = |path: &Path| {
        let others = |dir: &Path| {
            fs::metadata(dir).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
        };
        path.ancestors().skip(1).all(others)
    };
    let why = if !rustix::process::geteuid().is_root() {
        "only root can become another user"
    } else if !readable(&compile("flow")?) || !readable(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        "another user cannot read what has been built"
    } else {
        return Ok(false);
    };
    note_skip(test, why);
    Ok(true)
}

#[test]
fn another_user_is_refused_unless_admitted() -> Result<()> {
    if skip_without_users("another_user_is_refused_unless_admitted")? {
        return Ok(());
    }
    let stage = Stage::loopback();
    for other_serves in [false, true] {
        let other = |program: Program, serves: bool| match serves == other_serves {
            true => program.as_user(OTHER_USER),
            false => program,
        };
        for end in flow(&stage, other)? {
            ensure!(!end.stderr.contains(SHARES), end.error("shares memory"));
        }
        for end in flow(&stage, |program, serves| {
            other(program, serves).env("WEFT_SHM_USERS", format!("7,{OTHER_USER},0"))
        })? {
            // Without rights to another user's memory, the processes use the ring.
            end.expect_output(&format!("{SHARES}ring"))?;
        }
        // Both sides must allow it.
        for end in flow(&stage, |program, serves| match serves {
            true => other(program, serves).env("WEFT_SHM_USERS", "any"),
            false => other(program, serves),
        })? {
            ensure!(!end.stderr.contains(SHARES), end.error("shares memory"));
        }
    }
    Ok(())
}

/// A peer reaches a process that is not dumpable through the ring, and the process reports that.
#[test]
fn memory_that_cannot_be_reached() -> Result<()> {
    if skip_without_users("memory_that_cannot_be_reached")? {
        return Ok(());
    }
    let stage = Stage::loopback();
    // Root may access all memory, so both sides run as another user.
    for end in flow(&stage, |program, _| program.as_user(OTHER_USER))? {
        end.expect_output(&format!("{SHARES}direct"))?;
    }
    let [server, client] = flow(&stage, |program, serves| {
        let program = program.as_user(OTHER_USER).env("WEFT_REMAP", "0");
        if serves { program.env("LAB_UNDUMPABLE", "1") } else { program }
    })?;
    client.expect_output(&format!("{SHARES}ring"))?;
    server.expect_output(&format!("{SHARES}direct"))?;
    Ok(())
}

/// An empty directory that other users can also use.
fn directory(name: &str) -> Result<PathBuf> {
    let directory = scratch(&format!("{name}-{}", std::process::id()))?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    Ok(directory)
}

fn entries(directory: &Path) -> Result<usize> {
    Ok(fs::read_dir(directory)?.count())
}

#[test]
fn namespaces_with_a_common_directory() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for end in flow(&stage, |program, _| program)? {
        ensure!(!end.stderr.contains(SHARES), end.error("shares memory"));
    }
    let directory = directory("sockets")?;
    let with_directory = |program: Program, _| program.env("WEFT_SHM_DIR", &directory);
    for end in flow(&stage, with_directory)? {
        end.expect_output(SHARES)?;
    }
    ensure!(entries(&directory)? == 0, "a socket is left after an orderly end");

    // A killed process cannot remove its files; the survivor does.
    let (flow, port) = (compile("flow")?, ports::next());
    let words = ["serve".to_owned(), port.to_string(), "1".to_owned()];
    let server = stage.server(with_directory(program(&flow, words), true));
    let server = server.start()?.listening(Port::Tcp(port))?;
    let address = stage.server_address().to_string();
    let words = ["connect", &address, &port.to_string(), "send", "0"].map(str::to_owned);
    let mut client = stage.client(with_directory(program(&flow, words), false)).start()?;
    client.printed("flowing", TIMEOUT)?;
    ensure!(entries(&directory)? == 2, "both sides have a socket there");
    // The survivor looks when the server is wholly gone. The kernel closes the sockets of a dying
    // process one by one; what is still open then stays for the next process that starts.
    client.signal(Signal::STOP)?;
    server.kill()?;
    client.signal(Signal::CONT)?;
    client.wait(TIMEOUT)?.success()?.expect_output("state: 6")?;
    ensure!(entries(&directory)? == 0, "a socket is left after a kill");
    Ok(())
}

/// Reads the numbers of descriptors and mappings that `peer_death.c` prints early and at the end.
fn left(ended: &Finished, when: &str) -> Result<[i64; 2]> {
    let line = ended.stdout.lines().find(|line| line.starts_with(&format!("{when}: ")));
    let line = line.with_context(|| ended.error(format!("no line {when:?}")))?;
    let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    let numbers: Vec<i64> = numbers.collect();
    numbers.try_into().ok().with_context(|| ended.error("two numbers"))
}

/// Runs peers that end in this way, at instants that the seed chooses. Returns the longest time in
/// which the survivor has closed a connection.
fn survive(end: &str, transport: &str, rounds: u32, seed: u16) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for role in ["serve", "dial"] {
        let (port, rounds) = (ports::next().to_string(), rounds.to_string());
        let ended = Program::weft(compile("peer_death")?)
            .args(["survive", role, end, &port, &rounds, &seed.to_string()])
            .env("WEFT_TRANSPORT", transport)
            .run(TIMEOUT * 2)
            .and_then(Finished::success)
            .with_context(|| format!("{role}, {transport}, seed {seed}"))?;
        let (early, late) = (left(&ended, "early")?, left(&ended, "end")?);
        ensure!(late[0] <= early[0], ended.error("descriptors leaked"));
        ensure!(late[1] <= early[1], ended.error("mappings leaked"));
        let line = ended.stdout.lines().find_map(|line| line.strip_prefix("left: "));
        let time = line.and_then(|line| line.strip_suffix(" ms")?.parse().ok());
        let time = Duration::from_millis(time.with_context(|| ended.error("no time"))?);
        longest = longest.max(time);
    }
    Ok(longest)
}

#[test]
fn peers_killed_at_any_instant_share_memory() -> Result<()> {
    survive("kill", "shm", 30, 1).map(drop)
}

#[test]
fn peers_killed_at_any_instant_over_tcp() -> Result<()> {
    survive("kill", "tcp", 20, 2).map(drop)
}

/// A process waits only a limited time for a peer that was stopped during a memory access. Without
/// the limit this test would hang, because the peer runs again only after the process has left.
#[test]
fn peers_stopped_at_any_instant() -> Result<()> {
    survive("stop", "shm", 15, 3).map(drop)
}

/// Each run has new instants, unless `WEFT_LAB_SEED` repeats those of a run that has failed.
#[test]
#[ignore = "soak: new instants in each run, and times are compared"]
fn peers_killed_or_stopped_at_random_instants_do_not_delay_others() -> Result<()> {
    let seed = std::env::var("WEFT_LAB_SEED").ok().map(|seed| seed.parse()).transpose()?;
    let seed = seed.unwrap_or_else(|| fastrand::u16(..));
    println!("WEFT_LAB_SEED={seed}");
    for (end, transport, rounds, seconds) in
        [("kill", "shm", 100, 3), ("kill", "tcp", 50, 3), ("stop", "shm", 30, 6)]
    {
        let longest = survive(end, transport, rounds, seed)?;
        let is_short = longest < Duration::from_secs(seconds);
        ensure!(is_short, "{end}, {transport}: leaving took {longest:?}");
    }
    Ok(())
}

/// After `exec`, a peer's pid denotes another program, whose memory no process accesses.
#[test]
fn a_peer_that_runs_another_program_is_not_written_to() -> Result<()> {
    let (execing, files) = (compile("exec_with_mr")?, scratch("execing")?);
    // The partner is at another point of its work in each round.
    for round in 0..4 {
        let port = ports::next().to_string();
        let files = ["ready", "done"].map(|name| files.join(format!("{port}-{round}-{name}")));
        let program = |words: &[&str]| {
            let program = program(&execing, words.iter().map(|&word| word.to_owned()));
            program.args(&files).env("WEFT_TRANSPORT", "shm").env("WEFT_REMAP", "0")
        };
        let server = program(&["serve", &port]).start()?.listening(Port::Tcp(port.parse()?))?;
        let client = program(&["connect", "127.0.0.1", &port]).run(TIMEOUT);
        let client = client.and_then(Finished::success)?.expect_output("wrote")?;
        ensure!(client.stderr.contains(&format!("{SHARES}direct")), client.error("by ring"));
        let server = server.wait(TIMEOUT)?.success()?;
        ensure_data!(server.stdout.contains("untouched"), "{}", server.error("it was written to"));
        files.iter().try_for_each(fs::remove_file)?;
    }
    Ok(())
}

/// A message that never arrives whole, because its sender is killed, consumes no receive of a
/// shared queue: the next message takes that receive, and no completion reports it.
fn half_message(transport: &str) -> Result<()> {
    let (half_message, port) = (compile("half_message")?, ports::next());
    let program = |words: &[&str]| {
        let program = program(&half_message, words.iter().map(|&word| word.to_owned()));
        program.env("WEFT_TRANSPORT", transport)
    };
    let port_text = port.to_string();
    let mut server = program(&["serve", &port_text]).start()?.listening(Port::Tcp(port))?;
    let mut client = program(&["half", "127.0.0.1", &port_text]).start()?;
    client.printed("connected", TIMEOUT)?;
    server.printed("connected", TIMEOUT)?;
    // The server takes nothing before its peer is gone.
    server.signal(Signal::STOP)?;
    client.signal(Signal::USR1)?;
    client.printed("sent", TIMEOUT)?;
    client.kill()?;
    server.signal(Signal::CONT)?;
    server.printed("lost", TIMEOUT)?;
    program(&["whole", "127.0.0.1", &port_text]).run(TIMEOUT)?.success()?;
    server.wait(TIMEOUT)?.success()?.expect_output("whole 0")?;
    Ok(())
}

#[test]
fn half_message_in_shared_memory_consumes_no_shared_receive() -> Result<()> {
    half_message("shm")
}

#[test]
fn half_message_over_tcp_consumes_no_shared_receive() -> Result<()> {
    half_message("tcp")
}

/// A program that exits as soon as it has a message has acknowledged it: its peer's send succeeds.
#[test]
fn receiver_that_exits_at_once_has_acknowledged() -> Result<()> {
    let half_message = compile("half_message")?;
    for transport in ["shm", "tcp"].repeat(10) {
        let port = ports::next();
        let program = |words: &[&str]| {
            let program = program(&half_message, words.iter().map(|&word| word.to_owned()));
            program.env("WEFT_TRANSPORT", transport)
        };
        let server = program(&["leave", &port.to_string()]).start()?.listening(Port::Tcp(port))?;
        let client = program(&["whole", "127.0.0.1", &port.to_string()]).run(TIMEOUT)?;
        client.success().with_context(|| transport)?;
        server.wait(TIMEOUT)?.success()?.expect_output("whole 0")?;
    }
    Ok(())
}

/// Ways of reaching another process's memory that a container may refuse, alone and together.
const WAYS: [&str; 8] = [
    "process_vm_readv",
    "process_vm_writev",
    "userfaultfd",
    "memfd_create",
    "pidfd_open",
    "pidfd_getfd",
    "proc",
    "process_vm_readv,process_vm_writev,userfaultfd,memfd_create,pidfd_open,pidfd_getfd,proc",
];

/// Without these, queue pairs share no memory.
fn needs_tcp(way: &str) -> bool {
    way.contains("memfd_create")
}

/// The program in a process, and in all that it starts, for which a way is refused.
fn refused(way: &str, name: &str, words: &str) -> Result<Program> {
    let program = Program::plain(compile_plain("refused")?).args([way]).arg(weft()?);
    Ok(program.args(["run", "--"]).arg(name).line(words).env("WEFT_LOG", "warn"))
}

/// Whatever way of reaching the peer's memory is refused, the next one carries every operation: at
/// both ends, and at one of them.
#[test]
fn refused_ways_to_the_peers_memory_are_replaced() -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    for way in WAYS {
        if way.split(',').any(|way| way == "proc") && !is_root {
            note_skip("refused_ways_to_the_peers_memory_are_replaced", "only root unmounts /proc");
            continue;
        }
        let transport = if needs_tcp(way) { "auto" } else { "shm" };
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
            let size = if program == "ib_atomic_bw" { "" } else { "-s 65536" };
            let port = ports::next();
            let words = format!("-F -n 100 {size} -p {port}");
            let server = refused(way, program, &words)?.env("WEFT_TRANSPORT", transport);
            let client = server.clone().arg("127.0.0.1");
            Stage::loopback()
                .converse(&server, Port::Tcp(port), &client, TIMEOUT)
                .with_context(|| format!("{program} without {way}"))?;
        }
    }
    Ok(())
}

/// `weft info` names what is refused, and what follows.
#[test]
fn info_names_what_is_refused() -> Result<()> {
    let info = |way: &str| {
        let program = Program::plain(compile_plain("refused")?).arg(way);
        program.arg(weft()?).arg("info").run(TIMEOUT)?.success()
    };
    for (way, so) in [
        ("process_vm_readv", "/proc/PID/mem copies"),
        ("memfd_create", "they use TCP"),
        ("pidfd_open", "stay in memory"),
        ("pidfd_getfd", "stay in memory"),
    ] {
        info(way)?.expect_output(&format!("refused          {way}: "))?.expect_output(so)?;
    }
    if rustix::process::geteuid().is_root() {
        let without_proc = info("proc")?.expect_output("refused          /proc/PID/mem: ")?;
        without_proc.expect_output("refused: one-sided operations go through the ring")?;
    }
    let nothing = info("process_vm_writev")?;
    ensure!(!nothing.stdout.contains("process_vm_writev"), nothing.error("it is not used"));
    Ok(())
}
