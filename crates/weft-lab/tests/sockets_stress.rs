//! stress-ng's socket classes, which verify received bytes: each class does all of its operations.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, ensure_data, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds after which stress-ng ends a class that hangs, with too few operations. The lab waits
/// longer.
const HANG_S: u32 = 200;
/// Classes, their options, and the operations that a class's workers do together.
type Class = (&'static str, &'static str, u64);
const CLASSES: [Class; 11] = [
    ("sock", "--sock-opts random", 200),
    ("sockabuse", "", 200),
    ("sockfd", "", 2000),
    ("sockpair", "", 30),
    ("sockmany", "", 2000),
    ("epoll", "--epoll-domain ipv4", 200),
    ("poll", "", 1000),
    ("udp", "", 1000),
    ("udp-flood", "", 1000),
    ("sendfile", "", 500),
    ("sockdiag", "", 500),
];
/// The same classes with other options.
const VARIANTS: [Class; 9] = [
    ("sock", "--sock-opts send", 200),
    ("sock", "--sock-opts sendmsg", 200),
    ("sock", "--sock-opts sendmmsg", 200),
    ("sock", "--sock-nodelay", 200),
    ("sock", "--sock-zerocopy", 200),
    ("sock", "--sock-domain ipv6", 200),
    ("epoll", "--epoll-domain ipv6", 200),
    ("epoll", "--epoll-domain unix", 200),
    ("udp", "--udp-domain ipv6", 1000),
];
/// Classes that have an option for their first port.
const WITH_PORTS: [&str; 6] = ["sock", "sockabuse", "sockfd", "sockmany", "epoll", "udp"];
/// Ports that a class may use.
const PORTS: usize = 8;

/// Returns the first of `PORTS` consecutive free ports.
fn free_ports() -> u16 {
    let mut row = vec![ports::next()];
    while row.len() < PORTS {
        let next = ports::next();
        if row.last().is_some_and(|last| last + 1 != next) {
            row.clear();
        }
        row.push(next);
    }
    row[0]
}

#[test]
fn all_operations_are_done() -> Result<()> {
    run(&CLASSES, 1)
}

#[test]
#[ignore = "soak: more options, and ten times as many operations"]
fn all_operations_are_done_with_all_options() -> Result<()> {
    run(&VARIANTS, 1)?;
    run(&CLASSES, 10)?;
    run(&VARIANTS, 10)
}

/// Runs classes, each with `times` as many operations.
fn run(classes: &[Class], times: u64) -> Result<()> {
    for &(class, options, operations) in classes {
        let operations = times * operations;
        let sockets = Sockets::new(Ends::Both)?;
        let program = sockets.server("stress-ng").line("--verify --metrics-brief");
        let program = program.line(&format!("--timeout {HANG_S}"));
        let program = program.arg("--temp-path").arg(sockets.path(""));
        let program = program.arg(format!("--{class}")).arg("2").line(options);
        let mut program = program.arg(format!("--{class}-ops")).arg(operations.to_string());
        if WITH_PORTS.contains(&class) {
            program = program.arg(format!("--{class}-port")).arg(free_ports().to_string());
        }
        let name = format!("{class} {options}");
        let ended = program.run(TIMEOUT).and_then(Finished::success).context(name.clone())?;
        let text = format!("{}{}", ended.stdout, ended.stderr);
        // "stress-ng: metrc: [PID] CLASS OPERATIONS ..."
        let done = text.lines().filter(|line| line.contains(" metrc: ")).find_map(|line| {
            let mut words = line.split("] ").nth(1)?.split_whitespace();
            words.next().filter(|word| *word == class)?;
            words.next()?.parse::<u64>().ok()
        });
        let done = done.unwrap_or(0);
        ensure_data!(!text.contains("fail:"), "{}", ended.error(&name));
        ensure!(done >= operations, ended.error(format!("{name}: {done} operations")));
    }
    Ok(())
}
