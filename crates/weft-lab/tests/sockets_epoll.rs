//! Several threads and processes wait in one epoll instance or poll one socket. They get the same
//! events with Weft as without.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Further attempts for a case that differs. On a busy machine a thread may not sleep yet.
const ATTEMPTS: u32 = 3;

/// Runs a case of `programs/epoll_waiters.c` with and without Weft.
fn compare(case: &str, connections: u64) -> Result<()> {
    let path = compile("epoll_waiters")?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let sockets = Sockets::new(Ends::Both)?;
        let over_weft = sockets.server(&path).arg(case).run(TIMEOUT)?.success()?.stdout;
        let over_tcp = Program::plain(&path).arg(case).run(TIMEOUT)?.success()?.stdout;
        if over_weft != over_tcp && attempt < ATTEMPTS {
            continue;
        }
        ensure!(over_weft == over_tcp, "on Weft:\n{over_weft}\non the kernel:\n{over_tcp}");
        let totals = sockets.totals()?;
        ensure!(totals.joined >= connections, "{totals:?}");
        return Ok(());
    }
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
fn echo_after_shutdown(way: &str, children: &[&str]) -> Result<()> {
    const CONNECTIONS: u64 = 60;
    let path = compile("echo_after_shutdown")?;
    let sockets = Sockets::new(Ends::Both)?;
    let server = sockets.server(&path).args([way, &CONNECTIONS.to_string(), "3000000"]);
    let ended = server.args(children).run(TIMEOUT)?.success()?;
    ended.expect_output(&format!("{CONNECTIONS} connections"))?;
    let totals = sockets.totals()?;
    ensure!(totals.joined >= CONNECTIONS / 2, "{totals:?}");
    Ok(())
}

#[test]
fn echo_goes_on_after_the_client_has_shut_its_half() -> Result<()> {
    for way in ["edges", "one-shots", "edges-alone", "level", "poll", "select"] {
        for children in [&[][..], &["children"]] {
            echo_after_shutdown(way, children).with_context(|| format!("{way} {children:?}"))?;
        }
    }
    Ok(())
}
