//! Stream sockets behave the same with Weft as without: the test compares the results of the calls
//! of `programs/sockets/` line by line for each case.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, compile_folder, ensure_data};

const TIMEOUT: Duration = Duration::from_secs(150);
/// Further attempts for the cases whose lines differ. On a busy machine an event may happen too
/// late in either run, so each attempt gives events twice as long as the one before.
const REPEATS: u32 = 3;
/// The milliseconds that the program gives events at first.
const SETTLE_MS: u32 = 40;
/// With more differences than this, all cases are repeated at once, else each by itself.
const FEW: usize = 12;
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

    /// Whether `case` got other bytes in `other` than here, though as many, at the first line that
    /// differs, or crashed or hung only there. None of these depends on when events happen.
    fn is_certain(&self, case: &str, other: &Self) -> bool {
        let lines = |cases: &Self| cases.lines.get(case).cloned().unwrap_or_default();
        let (here, there) = (lines(self), lines(other));
        let first = here.iter().zip(&there).find(|(here, there)| here != there);
        let has_other_bytes = first.is_some_and(|(here, there)| {
            let [(before, data), (before_there, data_there)] =
                [here, there].map(|line| split_data(line));
            let has_both = !data.is_empty() && !data_there.is_empty();
            has_both && before == before_there && data != data_there
        });
        // The program's alarm ends a case that hangs.
        let was_ended = |lines: &[String]| lines.iter().any(|line| line.starts_with("ended by "));
        has_other_bytes || (was_ended(&there) && !was_ended(&here))
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

/// Returns the line of a call up to the bytes that it got, and these: a quoted text, or a hash.
fn split_data(line: &str) -> (&str, &str) {
    let begin = [" \"", " #"].iter().find_map(|mark| line.find(mark)).unwrap_or(line.len());
    let (before, data) = line.split_at(begin);
    let end = if data.starts_with(" \"") { '"' } else { ',' };
    let len = data.get(2..).and_then(|data| data.find(end)).map_or(data.len(), |at| at + 2);
    (before, &data[..len])
}

/// How the cases are run on Weft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Memory that both ends share.
    Memory,
    /// Queue pairs between them, as between hosts.
    Verbs,
    /// The same, while the connection changes over from TCP.
    Changing,
}

/// Cases that do not run over verbs because they differ there, by the beginnings of their names.
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

/// The program, compiled once.
fn program() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile_folder("sockets"));
    built.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Runs the cases whose names begin with `prefix`, without and with Weft. Events get `slowness`
/// times as long as usual.
fn run(
    program: &Path,
    sockets: &Sockets,
    over: Over,
    prefix: &str,
    slowness: u32,
) -> Result<[Cases; 2]> {
    let settle = (SETTLE_MS * slowness).to_string();
    let without: &[&str] = if over == Over::Memory { &[] } else { &OVER_VERBS };
    let settling =
        |program: Program| program.env("SOCKETS_SETTLE_MS", &settle).arg(prefix).args(without);
    let plain = settling(Program::plain(program)).start()?;
    let mut weft = settling(sockets.server(program));
    if over != Over::Memory {
        let rules = sockets.path("rules");
        fs::write(&rules, "use verbs * * *:*\n")?;
        // Microseconds that the program gives the ends to connect over verbs.
        let pause = if over == Over::Changing { 0 } else { 8000 * slowness };
        weft = weft.env("SOCKETS_WARM_PAUSE", pause.to_string());
        weft = weft.weft_option("--rules").weft_option(rules);
    }
    let weft = weft.start()?;
    let plain = Cases::read(&plain.wait(TIMEOUT)?.success()?.stdout)?;
    let weft = Cases::read(&weft.wait(TIMEOUT)?.success()?.stdout)?;
    Ok([plain, weft])
}

/// Returns the cases that differ, each with a description.
fn findings(
    [plain, weft]: &[Cases; 2],
    of: impl Fn(&String) -> bool,
) -> Result<BTreeMap<String, String>> {
    let mut findings = BTreeMap::new();
    for case in plain.different(weft).into_iter().filter(of) {
        let difference = plain.describe(&case, weft);
        ensure_data!(!plain.is_certain(&case, weft), "(- plain, + Weft):\n{difference}");
        findings.insert(case, difference);
    }
    Ok(findings)
}

#[test]
fn results_are_the_same_as_without_weft() -> Result<()> {
    compare(Over::Memory)
}

#[test]
fn results_are_the_same_over_verbs() -> Result<()> {
    compare(Over::Verbs)
}

/// Urgent data follows the words by which the sender falls back to TCP, while these wake the
/// receiver.
#[test]
fn urgent_data_ends_a_part_over_verbs() -> Result<()> {
    const ROUNDS: usize = 5;
    let sockets = Sockets::new(Ends::Both)?;
    for _ in 0..ROUNDS {
        // Other differences are late events.
        findings(&run(program()?, &sockets, Over::Verbs, "urgent_ends_a_part", 1)?, |_| true)?;
    }
    Ok(())
}

/// An end that has thrown away the first bytes unseen stays on TCP, and its peer with it.
#[test]
fn reader_that_stays_on_tcp_gets_its_bytes() -> Result<()> {
    const ROUNDS: usize = 10;
    let sockets = Sockets::new(Ends::Both)?;
    for _ in 0..ROUNDS {
        findings(&run(program()?, &sockets, Over::Changing, "flags_trunc", 1)?, |_| true)?;
    }
    Ok(())
}

fn compare(over: Over) -> Result<()> {
    let program = program()?;
    let mut slowness = 1;
    let (sockets, cases) = loop {
        let sockets = Sockets::new(Ends::Both)?;
        let cases = run(program, &sockets, over, "", slowness)?;
        let [plain, weft] = cases.each_ref().map(|cases| cases.connections);
        let joined = sockets.totals()?.joined;
        if plain == weft && joined >= plain {
            break (sockets, cases);
        }
        // Also a connection takes longer on a busy machine.
        slowness *= 2;
        ensure!(
            slowness < 1 << REPEATS,
            "{plain} connections without Weft, {weft} with it, {joined} of them shared"
        );
    };

    let mut differing = findings(&cases, |_| true)?;
    for _ in 0..REPEATS {
        slowness *= 2;
        for case in differing.keys() {
            println!("again, {slowness} times as slowly: {case}");
        }
        if differing.len() > FEW {
            let cases = run(program, &sockets, over, "", slowness)?;
            differing = findings(&cases, |case| differing.contains_key(case))?;
            continue;
        }
        for case in differing.keys().cloned().collect::<Vec<_>>() {
            let name = case.split_whitespace().next().context("a case without a name")?;
            let cases = run(program, &sockets, over, name, slowness)?;
            if findings(&cases, |other| *other == case)?.is_empty() {
                differing.remove(&case);
            }
        }
    }
    let differences: Vec<String> = differing.into_values().collect();
    ensure!(
        differences.is_empty(),
        "{} cases differ (- plain, + Weft):\n{}",
        differences.len(),
        differences.join("\n")
    );
    Ok(())
}
