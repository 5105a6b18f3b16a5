//! Several threads and processes wait in one epoll instance or poll one socket. They get the same
//! events with Weft as without.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Factors of the times that the program gives threads to fall asleep and to be woken, one for each
/// attempt. On a busy machine these take longer.
const SLOWNESS: [u32; 3] = [1, 4, 10];

/// The program, compiled once.
fn program() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile("epoll_waiters"));
    built.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Runs a case of the program with and without Weft.
fn compare(case: &str, connections: u64) -> Result<()> {
    let path = program()?;
    let mut failures = Vec::new();
    for slowness in SLOWNESS {
        let start = |program: Program| {
            program.env("EPOLL_WAITERS_SLOWNESS", slowness.to_string()).arg(case).start()
        };
        let sockets = Sockets::new(Ends::Both)?;
        let (weft, tcp) = (start(sockets.server(path))?, start(Program::plain(path))?);
        let over_weft = weft.wait(TIMEOUT)?.success()?.stdout;
        let over_tcp = tcp.wait(TIMEOUT)?.success()?.stdout;
        let joined = sockets.totals()?.joined;
        if over_weft == over_tcp && joined >= connections {
            return Ok(());
        }
        failures.push(format!(
            "on Weft, {joined} connections in memory:\n{over_weft}\non the kernel:\n{over_tcp}"
        ));
    }
    bail!("{}", failures.join("\n"))
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident($case:literal, $connections:literal);)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() -> Result<()> {
            compare($case, $connections)
        }
    )*};
}

cases! {
    copies_of_an_instance_are_one("copies", 1);
    changes_by_another_thread_wake_a_sleeper("changes", 2);
    as_many_sleepers_are_woken_as_by_the_kernel("sleepers", 6);
    a_sleeper_is_woken_for_what_another_thread_leaves("readers_and_writers", 1);
    a_sleeper_is_woken_though_the_instance_is_closed("closed", 2);
    sockets_with_the_same_data_are_both_reported("same_data", 3);
    exclusive_and_several_instances_are_the_kernels("exclusive", 1);
    what_arrives_first_is_reported_first("arrival", 24);
    what_arrives_while_epoll_looks_is_reported_in_order("races", 2);
    parent_and_child_wait_in_one_instance("forked", 2);
    an_instance_that_is_passed_on_tells_its_own_data("passed", 1);
    an_instance_that_is_inherited_by_exec_tells_its_own_data("executed", 1);
    calls_that_nobody_sees_get_the_programs_data("by_number", 1);
    the_descriptor_that_was_added_may_be_closed_before_its_copy("copied_socket", 1);
    what_is_deleted_is_reported_no_more("deletions", 2_000);
    threads_that_poll_one_socket_are_all_woken("pollers", 6);
    a_sleeper_is_woken_though_the_program_closes_what_it_has_not_opened("closed_wholesale", 1);
    one_shots_fire_once_though_the_instance_is_passed_on("oneshots", 500);
}

/// Connections leave memory while both directions are full. Each of their bytes, their room and
/// their end needs an event: one that is lost leaves the server asleep.
fn echo_after_shutdown(path: &Path, way: &str, children: &[&str], connections: u64) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let server = sockets.server(path).args([way, &connections.to_string(), "3000000"]);
    let ended = server.args(children).run(TIMEOUT)?.success()?;
    ended.expect_output(&format!("{connections} connections"))?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= connections / 2, "{totals:?}");
    Ok(())
}

/// All ways, each with and without children.
fn echo_in_all_ways(connections: u64) -> Result<()> {
    let path = compile("echo_after_shutdown")?;
    for way in ["edges", "one-shots", "edges-alone", "level", "poll", "select"] {
        for children in [&[][..], &["children"]] {
            echo_after_shutdown(&path, way, children, connections)
                .with_context(|| format!("{way} {children:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn echo_goes_on_after_the_client_has_shut_its_half() -> Result<()> {
    echo_in_all_ways(15)
}

#[test]
#[ignore = "soak: many connections"]
fn echo_goes_on_after_many_clients_have_shut_their_halves() -> Result<()> {
    echo_in_all_ways(200)
}
