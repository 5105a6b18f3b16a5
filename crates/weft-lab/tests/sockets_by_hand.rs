//! System calls that a program makes with its own instructions, beside calls of the C library on
//! the same sockets.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{
    Finished, Program, Running, Stage, compile_cargo, compile_cgo, compile_folder, compile_library,
    compile_plain, locate, note_skip, ports, scratch, source, weft,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program that connects to itself, on Weft and on the kernel, and expects the same output.
fn as_on_the_kernel(program: &Path, bytes_min: u64) -> Result<Finished> {
    let sockets = Sockets::new(Ends::Both)?;
    let plain = sockets.plain(program).run(TIMEOUT)?.success()?;
    let ours = sockets.server(program).env("WEFT_LOG", "info").run(TIMEOUT)?.success()?;
    let ours = ours.expect_lines(&plain.stdout).context("not as on the kernel")?;
    ensure!(ours.stderr.contains("shared memory"), ours.error("not in memory"));
    sockets.check(bytes_min)?;
    Ok(ours)
}

#[test]
fn calls_by_hand_do_what_those_of_the_c_library_do() -> Result<()> {
    let ours = as_on_the_kernel(&compile_plain("by_hand")?, 4_000_000)?;
    ensure!(ours.stderr.contains("ring: EPERM"), ours.error("io_uring is not refused"));
    Ok(())
}

/// Threads that exist and threads that begin are made to report their calls meanwhile.
fn arm(processes: u64) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = sockets.server(compile_plain("arming")?).arg(processes.to_string());
    let ended = program.run(TIMEOUT * 4)?.success()?;
    ended.expect_output(&format!("0 of {processes} processes lost calls"))?;
    sockets.check(processes)
}

#[test]
fn no_call_by_hand_is_lost_while_a_process_gets_its_first_socket() -> Result<()> {
    arm(300)
}

#[test]
#[ignore = "soak: many processes"]
fn no_call_by_hand_is_lost_while_many_processes_get_their_first_socket() -> Result<()> {
    arm(5_000)
}

/// Weft's libraries make no call that is reported: neither while a verbs program with sockets sets
/// up and connects, nor for a message, which would double the latency.
#[test]
fn verbs_beside_sockets_make_no_calls_that_are_reported() -> Result<()> {
    for (transport, mode) in [("tcp", ""), ("shm", ""), ("shm", "-e")] {
        let reports = reports_of_messages(transport, mode);
        reports.with_context(|| format!("{transport} {mode}"))?.are_none()?;
    }
    Ok(())
}

/// Options of `strace` that a file's name follows.
const TRACE: &str = "-f -qq -e trace=prctl -e signal=SIGSYS -o";

/// What `strace` has written down of a process: its requests for reports, and the reports.
struct Reports(String);

impl Reports {
    /// The program under `strace`, which writes to the file.
    fn traced(trace: &Path, program: &str) -> Result<Program> {
        Ok(Program::weft(locate("strace")?).line(TRACE).arg(trace).arg(program))
    }

    fn read(trace: &Path) -> Result<Self> {
        Ok(Self(fs::read_to_string(trace)?))
    }

    /// How often a thread has asked for reports.
    fn requests(&self) -> usize {
        self.0.matches("PR_SET_SYSCALL_USER_DISPATCH").count()
    }

    fn reports(&self) -> Vec<&str> {
        self.0.lines().filter(|line| line.contains("SYS_USER_DISPATCH")).collect()
    }

    /// Expects that the process had asked for reports, and got none.
    fn are_none(&self) -> Result<()> {
        ensure!(self.requests() > 0, "the process does not have its calls reported");
        self.are_none_if_any()
    }

    /// Expects that the process got no report.
    fn are_none_if_any(&self) -> Result<()> {
        let reports = self.reports();
        ensure!(reports.is_empty(), "{} reports, first {:?}", reports.len(), reports.first());
        Ok(())
    }
}

fn reports_of_messages(transport: &str, mode: &str) -> Result<Reports> {
    let (stage, port) = (Stage::loopback(), ports::next());
    let options = format!("-F {mode} -s 8 -n 5000 -p {port}");
    let (trace, address) = (scratch("reports")?.join("trace"), stage.server_address().to_string());
    let server = Program::weft("ib_send_lat").line(&options).env("WEFT_TRANSPORT", transport);
    let client = Reports::traced(&trace, "ib_send_lat")?.line(&options).arg(address);
    stage.converse(&server, Port::Tcp(port), &client.env("WEFT_TRANSPORT", transport), TIMEOUT)?;
    Reports::read(&trace)
}

/// A program that has no sockets of its own asks for no reports.
#[test]
fn verbs_without_sockets_have_no_calls_reported() -> Result<()> {
    let (stage, port) = (Stage::loopback(), ports::next());
    let options = format!("-a {} -p {port} -C 100", stage.server_address());
    let trace = scratch("reports")?.join("trace-without-sockets");
    let server = Program::weft("rping").arg("-s").line(&options);
    let client = Reports::traced(&trace, "rping")?.arg("-c").line(&options);
    stage.converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    let reports = Reports::read(&trace)?;
    ensure!(reports.requests() + reports.reports().len() == 0, "{}", reports.0);
    Ok(())
}

/// Cases of the semantics of sockets: instances of epoll, children, ends of connections.
const CASES: [&str; 4] = ["epoll_", "end_", "poll_", "share_"];

/// The sockets library makes no call that is reported, whether it carries connections through
/// memory or by the engine.
#[test]
fn sockets_make_no_calls_that_are_reported() -> Result<()> {
    let (program, sockets) = (compile_folder("sockets")?, Sockets::new(Ends::Both)?);
    let rules = sockets.path("rules");
    for carrier in ["shm", "verbs"] {
        fs::write(&rules, format!("use {carrier} * * *:*\n"))?;
        for case in CASES {
            let trace = scratch("reports")?.join(format!("trace-{carrier}-{case}"));
            let strace = sockets.server(locate("strace")?).line(TRACE).arg(&trace);
            let strace = strace.arg(&program).arg(case).env("SOCKETS_WARM_PAUSE", "100000");
            let strace = strace.weft_option("--rules").weft_option(&rules);
            strace.run(TIMEOUT * 4)?.success()?;
            Reports::read(&trace)?.are_none().with_context(|| format!("{carrier}: {case}"))?;
        }
    }
    Ok(())
}

/// Runs Weft's own tools under `weft run` and `strace`, one at a time.
struct Tools<'a> {
    sockets: &'a Sockets,
    traces: Vec<PathBuf>,
}

impl Tools<'_> {
    fn traced(&mut self, line: &str) -> Result<Program> {
        let trace = scratch("reports")?.join(format!("trace-tool-{}", self.traces.len()));
        let strace = self.sockets.server(locate("strace")?).line(TRACE).arg(&trace);
        self.traces.push(trace);
        Ok(strace.arg(weft()?).line(line).env("XDG_CONFIG_HOME", self.sockets.path("keys")))
    }

    fn run(&mut self, line: &str) -> Result<Finished> {
        self.traced(line)?.run(TIMEOUT)?.success()
    }

    fn serve(&mut self, line: &str, port: u16) -> Result<Running> {
        self.traced(line)?.start()?.listening(Port::Tcp(port))
    }
}

/// What runs on Weft may be one of its own tools: these make no call that is reported either, and
/// their connections go through memory.
#[test]
fn tools_make_no_calls_that_are_reported() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let mut tools = Tools { sockets: &sockets, traces: Vec::new() };
    let port = ports::next();
    let line = format!("tuples serve --unix socket --listen 127.0.0.1:{port}");
    let tuples = tools.serve(&line, port)?;
    for address in ["127.0.0.1", "fabric://127.0.0.1"] {
        tools.run(&format!("tuples bench --runs 1 --moves 200 --server {address}:{port}"))?;
    }
    let pipeline = "[filter.source]\nbuiltin = 'generate'\nwith = { count = 100, size = 50000 }\n\
                    [filter.pass]\nfrom = 'source'\nbuiltin = 'pass'\ncopies = 2\n\
                    [filter.end]\nfrom = 'pass'\ncommand = 'wc -c'\n";
    fs::write(sockets.path("pipeline.toml"), pipeline)?;
    tools.run("pipeline run pipeline.toml")?.expect_output("5000000")?;
    let key = tools.traced("cp --show-key")?.run(TIMEOUT)?.success()?.stdout;
    tools.traces.pop(); // It has no socket.
    fs::create_dir_all(sockets.path("share"))?;
    sockets.make_file("file", 3_000_000)?;
    let port = ports::next();
    let line = format!("serve --bind 127.0.0.1 --port {port} --allow {} share", key.trim());
    let server = tools.serve(&line, port)?;
    tools.run(&format!("cp --data tcp --accept-new file 127.0.0.1:{port}//share/copy"))?;
    let port = ports::next();
    let disk = tools.serve(&format!("target serve --listen 127.0.0.1:{port} ram:1M"), port)?;
    // A stranger, whom the target hears out.
    drop(TcpStream::connect(("127.0.0.1", port))?);
    let traces = tools.traces.iter().map(|trace| Reports::read(trace));
    let traces = traces.collect::<Result<Vec<_>>>()?;
    for (number, reports) in traces.iter().enumerate() {
        reports.are_none_if_any().with_context(|| format!("tool {number}"))?;
    }
    // Only the client by the fabric has no socket of the C library.
    let asking = traces.iter().filter(|reports| reports.requests() > 0).count();
    ensure!(asking == traces.len() - 1, "{asking} of {} ask for reports", traces.len());
    drop((tuples, server, disk));
    sockets.check(2_000_000)
}

/// The program that is started inherits the mask. Its first socket is of a thread, of a handler, or
/// of a function that `siglongjmp` leaves; each of them restores the mask.
#[test]
fn calls_by_hand_are_made_although_sigsys_was_blocked_from_the_start() -> Result<()> {
    let program = compile_plain("first_socket")?;
    for way in ["thread", "handler", "jump"] {
        let sockets = Sockets::new(Ends::Both)?;
        let plain = sockets.plain(&program).args(["blocked", way]).run(TIMEOUT)?.success()?;
        let ours = sockets.server(&program).args(["blocked", way]).run(TIMEOUT)?.success()?;
        ours.expect_lines(&plain.stdout).context(way)?;
        sockets.check(20)?;
    }
    Ok(())
}

/// Threads that begin wait until the process's other threads are known.
fn jump(processes: u32) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let program = sockets.server(compile_plain("first_socket")?);
    let ended = program.args(["jumps", &processes.to_string()]).run(TIMEOUT * 4)?.success()?;
    ended.expect_output(&format!("0 of {processes} processes failed")).map(drop)
}

/// A handler may leave the function that the program calls. Its hook first looks up that of the C
/// library, which takes the dynamic loader's lock. `bind` is a hook of both preloaded libraries.
#[test]
fn a_handler_does_not_leave_the_loaders_lock_taken() -> Result<()> {
    let library = compile_library("signal_in_lookup")?;
    for function in ["shutdown", "bind"] {
        let sockets = Sockets::new(Ends::Both)?;
        let program = sockets.server(compile_plain("first_socket")?).env("LD_PRELOAD", &library);
        let ended = program.args(["lookup", function]).run(TIMEOUT)?.success()?;
        ended.expect_output("the loader is free").context(function)?;
    }
    Ok(())
}

#[test]
fn threads_begin_though_a_handler_has_left_the_calls_for_the_first_socket() -> Result<()> {
    jump(100)
}

#[test]
#[ignore = "soak: many processes"]
fn threads_of_many_processes_begin_though_a_handler_has_left_the_calls() -> Result<()> {
    jump(2_000)
}

#[test]
fn go_with_c_calls_by_hand_on_small_stacks() -> Result<()> {
    as_on_the_kernel(&compile_cgo("by_hand")?, 1_000_000).map(drop)
}

#[test]
fn python_calls_by_an_instruction_in_memory_of_its_own() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let python = sockets.server(locate("python3")?).arg(source("programs/by_hand.py"));
    python.run(TIMEOUT)?.success()?.expect_output("done")?;
    sockets.check(1_000)
}

/// smol's reactor and rustix make system calls directly; std makes them through the C library.
#[test]
fn smol_echoes() -> Result<()> {
    const BYTES: u64 = 3_000_000;
    const CLIENTS: u64 = 2;
    let program = match compile_cargo("smol-echo")? {
        Ok(program) => program,
        Err(not_fetched) => {
            note_skip("smol_echoes", &not_fetched);
            return Ok(());
        }
    };
    for ends in Ends::ALL {
        let sockets = Sockets::new(ends)?;
        let port = ports::next().to_string();
        let serve = sockets.server(&program).args(["serve", &port]).arg(CLIENTS.to_string());
        let mut serve = serve.start()?.listening(Port::Tcp(port.parse()?))?;
        let connect = sockets.client(&program).args(["connect", &port]).arg(BYTES.to_string());
        let clients: Vec<_> = (0..CLIENTS).map(|_| connect.start()).collect::<Result<_>>()?;
        for client in clients {
            let ended = client.wait(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(serve.account()));
            ended?
                .expect_output(&format!("echoed {BYTES}"))
                .with_context(|| format!("{ends:?}"))?;
        }
        serve.wait(TIMEOUT)?.success()?;
        sockets.check(CLIENTS * BYTES / 2)?;
    }
    Ok(())
}

/// If Weft cannot see system calls that bypass the C library, connections stay on TCP, unless the
/// user declares that the program makes none.
#[test]
fn without_reports_connections_stay_on_tcp() -> Result<()> {
    let program = compile_plain("no_syscall_dispatch")?;
    let run = |trust: bool| -> Result<Finished> {
        let sockets = Sockets::new(Ends::Both)?;
        let mut run = sockets.server(&program).arg(&program).env("WEFT_LOG", "info");
        if trust {
            run = run.env("WEFT_SOCKETS_BY_HAND", "trust");
        }
        run.run(TIMEOUT)?.success()?.expect_output("line")
    };
    let watched = run(false)?;
    ensure!(!watched.stderr.contains("shared memory"), watched.error("in memory"));
    ensure!(watched.stderr.contains("calls by hand cannot be seen"), watched.error("not reported"));
    let trusted = run(true)?;
    ensure!(trusted.stderr.contains("shared memory"), trusted.error("not in memory"));
    Ok(())
}
