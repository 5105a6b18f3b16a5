//! Stream sockets behave the same with Weft as without: the test compares the results of the calls
//! of `programs/sockets/` line by line for each case.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile_folder};

const TIMEOUT: Duration = Duration::from_secs(100);
/// Further attempts for a case whose lines differ, unless more than `REPEATED_MAX` cases do. On a
/// busy machine an event may happen too late in either run.
const REPEATS: u32 = 3;
const REPEATED_MAX: usize = 12;
/// Lines of a difference that the failure shows.
const LINES_SHOWN: usize = 12;

/// The lines of each case, by its name and how its ends are placed.
#[derive(Debug, Default)]
struct Cases {
    lines: BTreeMap<String, Vec<String>>,
    /// Connections that have been used in both directions.
    connections: u64,
}

impl Cases {
    fn read(output: &str) -> Result<Self> {
        let mut cases = Self::default();
        let mut name = None;
        for line in output.lines() {
            if let Some(next) = line.strip_prefix("== ") {
                name = Some(next.to_owned());
                cases.lines.insert(next.to_owned(), Vec::new());
            } else if let Some(connections) = line.strip_prefix("connections: ") {
                cases.connections += connections.parse::<u64>()?;
            } else if let Some(name) = &name {
                cases.lines.entry(name.clone()).or_default().push(line.to_owned());
            }
        }
        ensure!(!cases.lines.is_empty(), "no cases: {output:?}");
        Ok(cases)
    }

    /// Returns the cases whose lines differ from those in `other`.
    fn different(&self, other: &Self) -> Vec<String> {
        let differs = |name: &&String| self.lines.get(*name) != other.lines.get(*name);
        self.lines.keys().filter(differs).cloned().collect()
    }

    /// Shows the lines of `case` from the first one that differs from `other`.
    fn describe(&self, case: &str, other: &Self) -> String {
        let lines = |cases: &Self| cases.lines.get(case).cloned().unwrap_or_default();
        let (here, there) = (lines(self), lines(other));
        let same = here.iter().zip(&there).take_while(|(here, there)| here == there).count();
        let mut text = format!("{case}:\n");
        for (sign, lines) in [(' ', &here[..same]), ('-', &here[same..]), ('+', &there[same..])] {
            let skipped = if sign == ' ' { lines.len().saturating_sub(3) } else { 0 };
            for line in lines.iter().skip(skipped).take(LINES_SHOWN) {
                let _ = writeln!(text, "{sign}{line}"); // A string takes everything.
            }
        }
        text
    }
}

/// How the cases are run on Weft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Memory that both ends share.
    Memory,
    /// Queue pairs between them, as between hosts.
    Verbs,
}

/// Cases that differ over verbs, by the beginnings of their names.
const OVER_VERBS: [&str; 16] = [
    // They check at once for bytes or an EOF that were sent just before and are still in flight.
    "end_close",
    "epoll_registered_before_connect",
    "flags_peek",
    "ioctl_amounts",
    "syscall_bytes",
    "poll_oddly",
    "poll_states",
    "poll_two_connections",
    "signal_behind_the_first_part",
    "transfer_",
    // A connection between hosts allocates memory, and the handler may have interrupted the
    // allocator.
    "signal_handler_opens_and_closes",
    // They reuse a descriptor number that a thread of Weft may have taken.
    "descriptor_closed_twice",
    // Unread bytes in a window do not reach another program: see docs/limitations.md.
    "syscall_exec",
    "share_exec ",
    "share_exec_without_environment",
    "standard_shell",
];

impl Over {
    fn differs(self, case: &str) -> bool {
        self == Self::Verbs && OVER_VERBS.iter().any(|name| case.starts_with(name))
    }
}

/// Runs the cases whose names begin with `prefix`, without and with Weft.
fn run(program: &Path, sockets: &Sockets, over: Over, prefix: &str) -> Result<[Cases; 2]> {
    let plain = Program::plain(program).arg(prefix).start()?;
    let mut weft = sockets.server(program).arg(prefix);
    if over == Over::Verbs {
        let rules = sockets.path("rules");
        fs::write(&rules, "use verbs * * *:*\n")?;
        // Microseconds that the program gives the ends to connect over verbs.
        weft = weft.env("SOCKETS_WARM_PAUSE", "8000").weft_option("--rules").weft_option(rules);
    }
    let weft = weft.start()?;
    let plain = Cases::read(&plain.wait(TIMEOUT)?.success()?.stdout)?;
    let weft = Cases::read(&weft.wait(TIMEOUT)?.success()?.stdout)?;
    Ok([plain, weft])
}

#[test]
fn results_are_the_same_as_without_weft() -> Result<()> {
    compare(Over::Memory)
}

#[test]
fn results_are_the_same_over_verbs() -> Result<()> {
    compare(Over::Verbs)
}

fn compare(over: Over) -> Result<()> {
    let program = compile_folder("sockets")?;
    let sockets = Sockets::new(Ends::Both)?;
    let [plain, weft] = run(&program, &sockets, over, "")?;
    ensure!(plain.connections == weft.connections, "not all connections were made");
    let totals = sockets.totals()?;
    ensure!(
        totals.joined >= plain.connections,
        "{} connections, but {totals:?}",
        plain.connections
    );

    let mut findings = BTreeMap::new();
    for case in plain.different(&weft).into_iter().filter(|case| !over.differs(case)) {
        let difference = plain.describe(&case, &weft);
        findings.insert(case, difference);
    }
    for _ in 0..REPEATS {
        if findings.len() > REPEATED_MAX {
            break;
        }
        for (case, difference) in std::mem::take(&mut findings) {
            let name = case.split_whitespace().next().context("a case without a name")?;
            let [plain, weft] = run(&program, &sockets, over, name)?;
            if plain.different(&weft).contains(&case) {
                findings.insert(case, difference);
            }
        }
    }
    let differences: Vec<String> = findings.into_values().collect();
    ensure!(
        differences.is_empty(),
        "{} cases differ (- plain, + Weft):\n{}",
        differences.len(),
        differences.join("\n")
    );
    Ok(())
}
