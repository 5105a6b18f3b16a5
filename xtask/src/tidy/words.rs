//! Reports invented words for things that have a standard term. The table gives the term.

use std::path::{Path, PathBuf};

use super::files::read;

/// Where a word is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In code and in comments, as a whole word or as a part of a name.
    Anywhere,
    /// Like `Anywhere`, but only in the crates of sockets. Elsewhere the word has its ordinary
    /// meaning.
    Sockets,
    /// Only in code. In prose the word has its ordinary meaning.
    Code,
}

use Place::{Anywhere, Code, Sockets};

/// Each banned word in lower case, with the standard term.
const WORDS: &[(&str, Place, &str)] = &[
    ("bell", Anywhere, "wakeup"),
    ("bells", Anywhere, "wakeups"),
    ("doorbell", Anywhere, "wakeup eventfd"),
    ("doorbells", Anywhere, "wakeup eventfds"),
    ("hush", Anywhere, "drain wakeups"),
    ("doze", Anywhere, "futex wait"),
    ("dozed", Anywhere, "futex wait"),
    ("dozes", Anywhere, "futex waits"),
    ("dozing", Anywhere, "futex wait"),
    ("nap", Anywhere, "timed sleep"),
    ("naps", Anywhere, "timed sleeps"),
    ("hot", Sockets, "polled"),
    ("cool", Sockets, "armed"),
    ("cools", Sockets, "armed"),
    ("heat", Anywhere, "start polling"),
    ("dormant", Anywhere, "detached"),
    ("promise", Sockets, "deferred send"),
    ("promised", Sockets, "deferred"),
    ("promises", Sockets, "deferred sends"),
    ("forsake", Anywhere, "revoke"),
    ("told", Anywhere, "reported, notified, local_state"),
    ("heard", Anywhere, "seen, peer_state"),
    ("said", Sockets, "local_state, StateWord"),
    ("far", Code, "remote"),
    ("kick", Anywhere, "pending_work"),
    ("park", Anywhere, "RNR queue, stand by"),
    ("parked", Anywhere, "RNR queue, stand by"),
    ("parks", Anywhere, "RNR queue, stand by"),
    ("asker", Anywhere, "access context"),
    ("finder", Anywhere, "MR cache"),
    ("vain", Anywhere, "awaiting peer"),
    ("judge", Sockets, "path selector"),
    ("patience", Anywhere, "timeout, fault backoff"),
    ("scarcity", Anywhere, "CPU contention"),
    ("confine", Anywhere, "seccomp fallback"),
    ("confined", Anywhere, "seccomp fallback"),
    ("confines", Anywhere, "seccomp fallback"),
    ("surrender", Anywhere, "seccomp fallback"),
    ("adopt", Anywhere, "remap as shared"),
    ("adopted", Anywhere, "remapped as shared"),
    ("adoption", Anywhere, "remapping as shared"),
    ("adopts", Anywhere, "remaps as shared"),
    ("relative", Sockets, "process sharing the socket"),
    ("relatives", Sockets, "processes sharing the socket"),
    ("face", Anywhere, "C ABI, interface"),
    ("faces", Anywhere, "C ABI, interface"),
    ("whoever", Anywhere, "the process, thread or peer that"),
];

/// The crates of sockets.
const SOCKETS: [&str; 2] = ["weft-stream", "weft-sockets"];
/// The name that `part_of` returns for documents.
const DOCUMENTS: &str = "documents";

/// Reports banned words in each crate's sources and in the documents.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(
    root: &Path,
    sources: &[PathBuf],
    documents: &[PathBuf],
    findings: &mut Vec<String>,
) -> Result<(), String> {
    for file in sources.iter().chain(documents) {
        // Bindings use the words of other projects, and this file contains the table itself.
        if file.ends_with("bindings.rs") || file.ends_with("tidy/words.rs") {
            continue;
        }
        let text = read(file)?;
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        let part = part_of(&name);
        let is_document = part == DOCUMENTS;
        for (index, line) in text.lines().enumerate() {
            let line = if is_document { without_code(line) } else { line.to_owned() };
            for (word, standard) in words_in(&line, part, is_document) {
                findings.push(format!("{name}:{}: `{word}`: write {standard}", index + 1));
            }
        }
    }
    Ok(())
}

/// Returns the crate to which a file belongs.
fn part_of(name: &str) -> &str {
    if name.ends_with(".md") {
        return DOCUMENTS;
    }
    let path = name.strip_prefix("crates/").unwrap_or(name);
    path.split('/').next().unwrap_or_default()
}

/// Returns the banned words in a line, each with its standard term.
fn words_in(line: &str, part: &str, is_document: bool) -> Vec<(&'static str, &'static str)> {
    // A quotation keeps the words of its RFC.
    if line.trim_start().starts_with("//#") {
        return Vec::new();
    }
    let all = segments(line);
    let code = line.split("//").next().unwrap_or_default();
    let code = if is_document { Vec::new() } else { segments(code) };
    let mut found = Vec::new();
    for (word, place, standard) in WORDS {
        let among = match place {
            Code => &code,
            Sockets if !SOCKETS.contains(&part) => continue,
            Anywhere | Sockets => &all,
        };
        found.extend(among.iter().filter(|it| it == word).map(|_| (*word, *standard)));
    }
    found
}

/// Splits a line into words in lower case. Names are split, too: `BellOf` and `bell_of` give `bell`
/// and `of`.
fn segments(line: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut was_lower = false;
    for letter in line.chars() {
        let starts_word = was_lower && letter.is_uppercase();
        if (starts_word || !letter.is_alphabetic())
            && segments.last().is_some_and(|it| !it.is_empty())
        {
            segments.push(String::new());
        }
        if letter.is_alphabetic()
            && let Some(last) = segments.last_mut()
        {
            last.extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase();
    }
    segments
}

/// Returns a line of a document without the text in backticks, which names code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, part: &str) -> Vec<&'static str> {
        words_in(line, part, false).into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn banned_word_is_found_in_names_and_prose() {
        assert_eq!(
            found("fn ring_bell(far: &Bell) {} // A bell.", "weft-sys"),
            ["bell", "bell", "bell", "far"]
        );
        assert!(found("label, bellow, parking, so_farther", "weft-sys").is_empty());
    }

    #[test]
    fn word_with_an_ordinary_meaning_counts_only_in_its_place() {
        assert_eq!(found("a promise", "weft-stream"), ["promise"]);
        assert!(found("a promise", "weft-verbs").is_empty());
        assert!(found("x(); // as far as that", "weft-sys").is_empty());
    }

    #[test]
    fn quotations_and_code_in_documents_are_skipped() {
        assert!(found("    //# what it was told", "weft-wire").is_empty());
        assert_eq!(without_code("a `bell` is a wakeup"), "a   is a wakeup");
    }
}
