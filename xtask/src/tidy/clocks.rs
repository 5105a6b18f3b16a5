//! Checks which files read the clock. Protocols take the time as an argument, so that a test can
//! run them at any time, and a simulation can advance it.

use std::path::Path;

use super::tokens::{Token, tokens};
use super::{files, limits};

const READS: &str = "reads the clock: take the time as an argument";
const ASKS: &str = "asks for the time: take it as an argument";

/// The files of a part of a crate that may read the clock or ask for the time. Names of directories
/// end with a slash.
struct Part {
    krate: &'static str,
    /// Directories and files to which the rule applies. An empty list means the whole crate.
    of: &'static [&'static str],
    /// The files that may read the clock.
    read: &'static [&'static str],
    /// The files that may ask for the time, because a program or the reactor calls them; they pass
    /// it on. `None`: the clock is a trait that tests implement, and every file may ask.
    ask: Option<&'static [&'static str]>,
}

const PARTS: &[Part] = &[
    Part { krate: "weft-wire", of: &[], read: &[], ask: Some(&[]) },
    Part {
        krate: "weft-engine",
        of: &[],
        read: &["clock.rs", "reactor.rs"],
        ask: Some(&[
            "clock.rs",
            "reactor.rs",
            "timer.rs",
            "cq.rs",
            // Sockets and listeners.
            "strangers.rs",
            "mpa/dial.rs",
            "mpa/incoming.rs",
            "cm/listen.rs",
            "rd/endpoint.rs",
            // The end of a port, which waits for its peers.
            "rd/port.rs",
            // A program's request to connect.
            "cm/dial.rs",
            "rendezvous.rs",
        ]),
    },
    Part { krate: "weft-stream", of: &[], read: &["kernel.rs", "remote/clock.rs"], ask: None },
    Part {
        krate: "weft-sockets",
        of: &[],
        // The last two run on the library's own threads.
        read: &["kernel/linux.rs", "hooks/clocks.rs", "remote/broker.rs", "remote/lingering.rs"],
        ask: None,
    },
    Part {
        krate: "weft-target",
        of: &["iser/", "scsi/", "session/", "wire/"],
        read: &[],
        ask: Some(&[]),
    },
    Part {
        krate: "weft-pipeline",
        of: &["frames.rs", "merge.rs", "schedule.rs", "wire.rs"],
        read: &[],
        ask: Some(&[]),
    },
    Part {
        krate: "weft-tuples",
        of: &["input.rs", "model/", "native/connection.rs", "resp/", "wire/"],
        read: &[],
        ask: Some(&[]),
    },
    Part {
        krate: "weft-tuples-replica",
        of: &["machine.rs", "member.rs", "proposal.rs", "store.rs"],
        read: &[],
        ask: Some(&[]),
    },
    Part { krate: "weft-transfer", of: &["session/", "wire/"], read: &[], ask: Some(&[]) },
];

/// Reports each place that reads the clock or asks for the time without permission. Also reports a
/// file in the table that does neither.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    for part in PARTS {
        let folder = root.join("crates").join(part.krate).join("src");
        let mut unused: Vec<_> = part.read.iter().chain(part.ask.unwrap_or_default()).collect();
        for file in files::rust_files(&folder)? {
            let name = file.strip_prefix(&folder).unwrap_or(&file).to_string_lossy().into_owned();
            if limits::is_for_tests(&file) || !(part.of.is_empty() || is_in(&name, part.of)) {
                continue;
            }
            let uses = uses(&files::read(&file)?);
            let wrong = part.wrong(&name, &uses);
            findings.extend(
                wrong.iter().map(|(line, rule)| format!("{}:{line}: {rule}", file.display())),
            );
            if !uses.is_empty() {
                unused.retain(|allowed| !is_in(&name, &[allowed]));
            }
        }
        findings.extend(unused.iter().map(|name| {
            format!("{}: {name} does not use the clock: remove it from the table", part.krate)
        }));
    }
    Ok(())
}

impl Part {
    /// Returns the uses in a file that are not allowed, each with the violated rule.
    fn wrong(&self, name: &str, uses: &[(usize, Kind)]) -> Vec<(usize, &'static str)> {
        let rule = |kind| match (kind, self.ask) {
            (Kind::Read, _) if !is_in(name, self.read) => Some(READS),
            (Kind::Ask, Some(ask)) if !is_in(name, ask) => Some(ASKS),
            _ => None,
        };
        uses.iter().filter_map(|&(line, kind)| Some((line, rule(kind)?))).collect()
    }
}

fn is_in(name: &str, places: &[&str]) -> bool {
    places.iter().any(|place| name == *place || place.ends_with('/') && name.starts_with(place))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reads the system's clock.
    Read,
    /// Calls a function `now` or `ticks` that is not a method.
    Ask,
}

/// Returns the places of a file that read the clock or ask for the time, without its test module.
fn uses(text: &str) -> Vec<(usize, Kind)> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let tokens = tokens(product);
    let text = |index: Option<usize>| index.and_then(|at| tokens.get(at)).map_or("", |it| it.text);
    let kind = |(index, token): (usize, &Token<'_>)| {
        let before = |n: usize| text(index.checked_sub(n));
        let is_call = text(Some(index + 1)) == "(";
        let kind = match token.text {
            "now" if before(1) == "::" && matches!(before(2), "Instant" | "SystemTime") => {
                Kind::Read
            }
            "clock_gettime" => Kind::Read,
            "elapsed" if is_call && before(1) == "." => Kind::Read,
            "now" | "ticks" if is_call && !matches!(before(1), "." | "fn") => Kind::Ask,
            _ => return None,
        };
        Some((token.line, kind))
    };
    tokens.iter().enumerate().filter_map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_reads_and_requests_are_found_and_passed_times_are_not() {
        let text = "use rustix::time::clock_gettime;\nlet a = Instant::now();\n\
                    let b = start.elapsed();\nlet c = crate::reactor::now();\nlet d = now();\n\
                    // Instant::now()\nlet e = \"Instant::now()\";\nfn now() {}\n\
                    let f = self.clock.now();\nlet g = now + time;\nlet h = SystemTime::now;\n\
                    let i = clock::ticks();\n\
                    #[cfg(test)]\nmod tests {\nlet j = Instant::now();\n}";
        use Kind::{Ask, Read};
        assert_eq!(
            uses(text),
            [(1, Read), (2, Read), (3, Read), (4, Ask), (5, Ask), (11, Read), (12, Ask)]
        );
    }

    fn wrong(name: &str, line: &str) -> Vec<(usize, &'static str)> {
        let engine = PARTS.iter().find(|part| part.krate == "weft-engine").expect("it is there");
        engine.wrong(name, &uses(line))
    }

    #[test]
    fn protocol_that_reads_the_clock_is_found() {
        assert_eq!(wrong("link/rx.rs", "let now = Instant::now();"), [(1, READS)]);
        assert_eq!(wrong("mpa/dialer.rs", "if start.elapsed() > limit {}"), [(1, READS)]);
        assert_eq!(wrong("mpa/dial.rs", "let now = Instant::now();"), [(1, READS)]);
        assert_eq!(wrong("link/rx.rs", "let now = reactor::now();"), [(1, ASKS)]);
        assert!(wrong("mpa/dial.rs", "let now = reactor::now();").is_empty());
        assert!(wrong("reactor.rs", "let now = Instant::now();").is_empty());
    }
}
