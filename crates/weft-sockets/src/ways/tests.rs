//! Compares the table with the kernel's list, the hooks' sources, and WAYS.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::functions::FUNCTIONS;
use crate::limits::CALL_NUMBERS_MAX;
use crate::reach::{REACH, Reach, SYSTEM_CALLS};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns each number of the table with its name, and checks that none appears twice.
fn numbers() -> BTreeMap<u16, &'static str> {
    let mut numbers = BTreeMap::new();
    for &(number, name) in SYSTEM_CALLS.iter().flat_map(|group| group.calls) {
        assert_eq!(numbers.insert(number, name), None, "{name} stands in the table twice");
    }
    numbers
}

#[cfg(target_arch = "x86_64")] // The numbers of the table are those of this architecture.
#[test]
fn each_system_call_of_the_kernel_has_an_entry() {
    const LIST: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
    let list = std::fs::read_to_string(LIST);
    let list = list.unwrap_or_else(|error| panic!("{LIST}, of linux-libc-dev: {error}"));
    let numbers = numbers();
    let mut known = 0;
    for line in list.lines() {
        let Some(entry) = line.strip_prefix("#define __NR_") else { continue };
        let (name, number) = entry.split_once(' ').expect("a name and a number");
        let number: u16 = number.trim().parse().expect("a number");
        assert_eq!(numbers.get(&number), Some(&name), "{number}, {name}, has no entry");
        known += 1;
    }
    assert!(known > 300, "{known} system calls in {LIST}");
}

#[test]
fn lookup_table_matches_the_groups() {
    for group in SYSTEM_CALLS {
        for &(number, name) in group.calls {
            assert!(usize::from(number) < CALL_NUMBERS_MAX, "{name}");
            assert_eq!(REACH[usize::from(number)], group.reach, "{name}");
        }
    }
    assert_eq!(REACH[CALL_NUMBERS_MAX - 1], Reach::Stays);
}

/// Returns the sources of the hooks.
fn sources() -> String {
    let mut text = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("ways/tests.rs") {
                text += &std::fs::read_to_string(path).expect("a source");
            }
        }
    }
    text
}

#[test]
fn each_seen_number_is_dispatched() {
    let dispatched = include_str!("dispatch.rs");
    // The `libc` crate lacks its number.
    let elsewhere = ["epoll_pwait2"];
    for group in SYSTEM_CALLS.iter().filter(|group| group.reach != Reach::Stays) {
        for (_, name) in group.calls {
            let number = format!("libc::SYS_{name}");
            let ends = |at: usize| {
                !dispatched[at..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
            };
            let mut found = dispatched.match_indices(&number);
            let is_there = found.any(|(at, _)| ends(at + number.len()));
            assert!(is_there || elsewhere.contains(name), "{name} is not dispatched");
        }
    }
}

#[test]
fn each_function_listed_as_hooked_is() {
    let sources = sources();
    // A hook is written out, or defined by a macro: `NAME!(function` or `NAME!(function)`.
    let is_hook = |name: &str| {
        let ends = |at: usize| sources[at..].starts_with([',', ')', ';']);
        sources.contains(&format!("fn {name}("))
            || sources.match_indices(&format!("!({name}")).any(|(at, text)| ends(at + text.len()))
            || sources.contains(&format!("!(\n    {name},"))
    };
    for group in FUNCTIONS.iter().filter(|group| group.hooked) {
        for name in group.names {
            assert!(is_hook(name), "{name} has no hook");
        }
    }
}

#[test]
fn no_function_is_listed_twice() {
    let mut names = BTreeSet::new();
    for name in FUNCTIONS.iter().flat_map(|group| group.names) {
        assert!(names.insert(name), "{name}");
    }
}

fn word(reach: Reach) -> &'static str {
    match reach {
        Reach::Stays => "cannot",
        Reach::Seen => "seen",
        Reach::Leaves => "TCP first",
        Reach::Refused => "refused",
        Reach::Process => "process",
    }
}

const HEAD: &str = "\
# Ways

Written by `cargo xtask ways` from `crates/weft-sockets/src/ways/`; a test fails if they differ.

A connection is in shared memory only while Weft sees every way to reach it. These are the ways:
*seen* means that a hook executes the call, *TCP first* that the connection falls back to TCP
before the call, *refused* that the call fails as if an administrator had forbidden it, *process*
that it concerns the whole process, and *cannot* that it reaches no connection.
";

const NOTES: &str = "
Calls by hand (by the program's own instruction) are executed like `syscall()`. Then
`rt_sigprocmask`, `rt_sigaction` and `rt_sigsuspend` never block `SIGSYS`.

Forks by number are executed like `fork`. A child that shares the memory, and is not a thread of
the C library, keeps the process on TCP; before any other child, connections fall back to TCP. With
`WEFT_LOG=info` one line says what keeps a process on TCP.
";

fn document() -> String {
    let mut text = HEAD.to_owned();
    let mut section = |title: &str, column: &str, rows: Vec<(Reach, &str, String)>, notes: &str| {
        let _ = write!(text, "\n## {title}\n\n| reaches | {column} | how |\n| --- | --- | --- |\n");
        for (reach, how, names) in rows {
            let _ = writeln!(text, "| {} | {names} | {how} |", word(reach));
        }
        text.push_str(notes);
    };
    let calls = SYSTEM_CALLS.iter().map(|group| {
        let names = group.calls.iter().map(|(number, name)| format!("`{name}` {number}"));
        (group.reach, group.how, names.collect::<Vec<_>>().join(", "))
    });
    section("System calls", "calls and their numbers (x86-64)", calls.collect(), NOTES);
    let functions = FUNCTIONS.iter().map(|group| {
        let names = group.names.iter().map(|name| format!("`{name}`"));
        (group.reach, group.how, names.collect::<Vec<_>>().join(", "))
    });
    section("Functions of the C library", "functions", functions.collect(), "");
    text
}

#[test]
fn document_is_up_to_date() {
    let path = root().join("WAYS.md");
    if std::env::var_os("WEFT_WRITE_WAYS").is_some() {
        std::fs::write(&path, document()).expect("WAYS.md can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == document(), "WAYS.md is stale: run `cargo xtask ways`");
}
